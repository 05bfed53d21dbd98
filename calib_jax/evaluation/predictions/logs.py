"""Logs of evaluations and answers of decision models, as the programs write them, as the rows of a table.

A form is told by the keys of the first object of a file. Its function turns an object into rows, which have ``probs``
or ``logits`` with their ``choices`` and a ``label``, or a ``confidence`` and whether the answer was ``correct``, and an
``id``: rows of one id depend on each other. Answers of decision models have their ``question``, ``type`` and number of
``options`` too, for ``--by`` and ``--fit_by``. Texts of questions are not kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import math
import os
import pathlib
from typing import Any, NamedTuple
import zipfile

from calib_jax._system import capacity
from calib_jax._system.errors import FileError, short
from calib_jax._system.json_objects import parse_json

ID = "id"
ENDINGS = (".json", ".eval")  # Files that hold one object, or a list of them, and archives of Inspect.
GROWTH = 10  # Times the bytes of a file that its objects take in memory, at most.
Row = dict[str, Any]


class Form(NamedTuple):
  """A form of a log."""

  name: str
  keys: frozenset[str]  # Of the first object, by which the form is told.
  rows: Callable[[Mapping[str, Any]], Iterator[Row]]


def _decisions(answered: Mapping[str, Any]) -> Iterator[Row]:
  """Answers by name (systemone) or in a list with names (decisions), and ``labels`` by name; a refusal has no row."""
  for name, answer in answers_of(answered).items():
    p = probabilities_of(answer)
    yield {"probs": list(p.values()), "choices": [_text(x) for x in p], "label": _text(answered["labels"][name]),
           "question": name, "type": answer["type"], "options": len(p)}


def answers_of(answered: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """Returns the answers of an object by the names of the questions, without refusals."""
  answers = answered["answers"]
  by_name = answers if isinstance(answers, dict) else {answer["name"]: answer for answer in answers}
  return {name: x for name, x in by_name.items() if not (x.get("refusal") or x.get("type") == "refusal")}


def probabilities_of(answer: Mapping[str, Any]) -> dict[Any, float]:
  """Returns the probability of each option of an answer."""
  if "probabilities" in answer:
    p = answer["probabilities"]
    return p if isinstance(p, dict) else {x["value"]: x["probability"] for x in p}
  true = float(answer["noul"] if "noul" in answer else answer["probability"])
  return {"false": 1 - true, "true": true}


def mend(answer: dict[str, Any], new: Sequence[float]) -> None:
  """Puts other probabilities into an answer, and the largest in place of its confidence."""
  if "probabilities" not in answer:
    answer["noul" if "noul" in answer else "probability"] = new[1]
    return
  if isinstance(answer["probabilities"], dict):
    answer["probabilities"] = dict(zip(answer["probabilities"], new, strict=True))
  else:
    for option, value in zip(answer["probabilities"], new, strict=True):
      option["probability"] = value
  if "confidence" in answer:
    answer["confidence"] = max(new)


def _text(option: Any) -> str:
  return str(option).lower() if isinstance(option, bool) else str(option)


def _harness(sample: Mapping[str, Any]) -> Iterator[Row]:
  """Log-likelihoods of options (lm-evaluation-harness); the target is the place of the right one, or else its text.

  A text such as "3" may be both, so that the place must agree with ``acc``, whether the likeliest option is right.
  """
  answers, target = sample["filtered_resps"], str(sample["target"])
  if any(isinstance(x, str) for x in answers):
    raise ValueError("its answers are texts without log-likelihoods of options: write a confidence and correct")
  logits = [float(x[0]) for x in answers]
  if target.isdecimal() and int(target) < len(logits):
    place = int(target)
  else:
    place = [x["arg_1"].strip() for x in sample.get("arguments", {}).values()].index(target)
  if "acc" in sample and bool(sample["acc"]) != (logits.index(max(logits)) == place):
    raise ValueError(f"its target {short(target)} is option {place}, counted from 0, and its acc {sample['acc']:g} "
                     "says otherwise: write label, the place of the right option")
  yield {"logits": logits, "label": place, "id": sample["doc_id"], "options": len(logits)}


def _inspect(sample: Mapping[str, Any]) -> Iterator[Row]:
  """A score of Inspect, C or I or a credit, and the confidence that its metadata, or the sample's, state."""
  of_sample = (sample.get("metadata") or {}).get("confidence")
  stated = {name: (score, (score.get("metadata") or {}).get("confidence", of_sample))
            for name, score in sample["scores"].items()}
  stated = {name: pair for name, pair in stated.items() if pair[1] is not None}
  if len(stated) != 1:
    raise ValueError(f"{len(stated) or 'none'} of its scores {short(', '.join(sample['scores']))} state a confidence "
                     "in their metadata, and one must")
  ((score, confidence),) = stated.values()
  yield {"confidence": float(confidence), "correct": {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}.get(
    score["value"], score["value"]), "id": sample["id"]}


def _first_token(answered: Mapping[str, Any]) -> Iterator[Row]:
  """The probability of the first token of an answer of OpenAI's batches, beside the label."""
  token = answered["response"]["body"]["choices"][0]["logprobs"]["content"][0]
  yield {"confidence": math.exp(min(token["logprob"], 0.0)), "correct": float(
    token["token"].strip() == str(answered["label"]).strip())}


def _judged(answered: Mapping[str, Any]) -> Iterator[Row]:
  """A judged answer of Humanity's Last Exam: a confidence in percent, and yes or no."""
  judged = answered["judge_response"]
  yield {"confidence": float(judged["confidence"]) / 100, "correct": float(judged["correct"] == "yes")}


FORMS = (Form("answers of a decision model", frozenset({"answers", "labels"}), _decisions),
         Form("samples of lm-evaluation-harness", frozenset({"filtered_resps", "target", "doc_id"}), _harness),
         Form("samples of Inspect", frozenset({"scores", "id", "input"}), _inspect),
         Form("answers of an OpenAI batch", frozenset({"response", "label"}), _first_token),
         Form("judged answers", frozenset({"judge_response"}), _judged))


def rows(objects: Iterable[tuple[str, Any]], say: Callable[[str], None]) -> tuple[bool, Iterator[tuple[str, Any]]]:
  """Returns whether objects, each after its place in the file, are of a form, and their rows, or else themselves."""
  objects = iter(objects)
  first = next(objects, None)
  if first is None:
    return False, iter(())
  form = next((form for form in FORMS if isinstance(first[1], dict) and form.keys <= first[1].keys()), None)

  def every() -> Iterator[tuple[str, Any]]:
    yield first
    yield from objects

  if form is None:
    return False, every()
  say(f": it holds {form.name}; rows of one {ID} depend on each other, so they are one group, unless --groups names "
      "others.")
  return True, _of_form(form, every(), say)


def _of_form(form: Form, objects: Iterator[tuple[str, Any]], say: Callable[[str], None]) -> Iterator[tuple[str, Row]]:
  number_without = 0
  for number, (place, value) in enumerate(objects):
    own = []
    try:
      own = [{ID: value.get(ID, number)} | row for row in form.rows(value)]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, StopIteration) as error:
      missing = f"it lacks {short(error.args[0])}" if isinstance(error, KeyError) else str(error)[:200]
      raise FileError(f"{place} is not as {form.name} are ({missing}).") from error
    number_without += not own or len(own) < len(value.get("answers", own))
    yield from ((place, row | {ID: str(row[ID])}) for row in own)
  if number_without:
    say(f": {number_without:,} of its objects have refusals, which do not count.")


def objects_of(path: str | os.PathLike[str]) -> Iterator[tuple[str, Any]]:
  """Yields the objects of a ``.json`` file that holds a list, a log of Inspect or answers by id, or of an ``.eval``."""
  path = pathlib.Path(path)
  if path.suffix.lower() == ".eval":
    yield from _archived(path)
    return
  capacity.check_read("", GROWTH * path.stat().st_size)
  try:
    value = parse_json(f'{{"all": {path.read_text(encoding="utf-8-sig")}}}', "")["all"]  # Or a list.
  except UnicodeDecodeError:
    raise FileError(" is not UTF-8 text.") from None
  if isinstance(value, dict) and isinstance(value.get("samples"), list):
    value = value["samples"]
  elif isinstance(value, dict):
    value = [x | {ID: name} if isinstance(x, dict) else x for name, x in value.items()]
  if not isinstance(value, list):
    raise FileError(" must hold a list of objects, the log of an evaluation, or answers by id.")
  yield from ((f": object {number:,}, counted from 0,", x) for number, x in enumerate(value))


def _archived(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
  """Yields the samples of an archive of Inspect."""
  try:
    with zipfile.ZipFile(path) as archive:
      members = [x for x in archive.infolist() if x.filename.startswith("samples/") and x.filename.endswith(".json")]
      capacity.check_read("", GROWTH * sum(x.file_size for x in members))
      for member in members:
        yield f": {short(member.filename)}", parse_json(archive.read(member).decode("utf-8"), "")
  except NotImplementedError:
    raise FileError(" is compressed by zstd, which Python reads from 3.14 on: write its .json by `inspect log convert "
                    "--to json`.") from None
  except (zipfile.BadZipFile, UnicodeDecodeError) as error:
    raise FileError(f" is no archive of Inspect ({error}).") from error
