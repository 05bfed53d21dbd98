"""Logs of evaluations and answers of decision models, as the programs write them, as the rows of a table.

A form is told by the keys of the first object of a file. Its function turns an object into rows, which have ``probs``
or ``logits`` with their ``choices`` and a ``label``, or a ``confidence`` and whether the answer was ``correct``, and an
``id``: rows of one id depend on each other. Answers of decision models have their ``question``, ``type`` and number of
``options`` too, and samples of the harness the ``task`` in the name of their file, for ``--by`` and ``--fit_by``. Texts
of questions are not kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import itertools
import math
import os
import pathlib
import re
import string
from typing import Any, NamedTuple
import zipfile

from calib_jax._system import capacity
from calib_jax._system.errors import FileError, UserError, short
from calib_jax._system.json_objects import parse_json
from calib_jax.evaluation.predictions import headers

ID = "id"
ENDINGS = (".json", ".eval")  # Files that hold one object, or a list of them, and archives of Inspect.
GROWTH = 10  # Times the bytes of a file that its objects take in memory, at most.
Row = dict[str, Any]


class Form(NamedTuple):
  """A form of a log."""

  title: str
  keys: Mapping[str, type | tuple[type, ...]]  # Of the first object, by which the form is told, with their types.
  rows: Callable[[Mapping[str, Any]], Iterator[Row]]

  def fits(self, first: Any) -> bool:
    """Whether an object is of the form, by its keys."""
    return isinstance(first, dict) and all(key in first and isinstance(first[key], types)
                                           for key, types in self.keys.items())


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
  """A score of Inspect, C or I or a credit, and the confidence that its metadata, or the sample's, state.

  Of a sample with choices and no such confidence it is the log-probabilities of their letters as the first token.
  """
  if sample.get("choices") and not _states_a_confidence(sample):
    letters = string.ascii_uppercase[:len(sample["choices"])]
    token = sample["output"]["choices"][0]["logprobs"]["content"][0]
    of_letter = {x["token"].strip(): float(x["logprob"]) for x in reversed(token["top_logprobs"])}
    if missing := [x for x in letters if x not in of_letter]:
      raise ValueError(f"its top_logprobs lack {', '.join(missing)}: log more of them")
    yield {"logits": [of_letter[x] for x in letters], "choices": list(letters), "label": str(sample["target"]),
           "id": sample["id"], "options": len(letters)}
    return
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


def _states_a_confidence(sample: Mapping[str, Any]) -> bool:
  """Whether the metadata of a sample or of one of its scores have a confidence."""
  return any((x.get("metadata") or {}).get("confidence") is not None for x in (sample, *sample["scores"].values()))


def _first_token(answered: Mapping[str, Any]) -> Iterator[Row]:
  """The probability of the first token of an answer of OpenAI's batches, beside the label."""
  token = answered["response"]["body"]["choices"][0]["logprobs"]["content"][0]
  yield {"confidence": math.exp(min(token["logprob"], 0.0)), "correct": float(
    token["token"].strip() == str(answered["label"]).strip())}


def _judged(answered: Mapping[str, Any]) -> Iterator[Row]:
  """A judged answer of Humanity's Last Exam: a confidence in percent, and yes or no."""
  judged = answered["judge_response"]
  yield {"confidence": float(judged["confidence"]) / 100, "correct": float(judged["correct"] == "yes")}


FORMS = {
  "decisions": Form("answers of a decision model", {"answers": (dict, list), "labels": dict}, _decisions),
  "lm_eval": Form("samples of lm-evaluation-harness", {"filtered_resps": list, "target": object, "doc_id": object},
                  _harness),
  "inspect": Form("samples of Inspect", {"scores": dict, "id": object, "input": object}, _inspect),
  "openai": Form("answers of an OpenAI batch", {"response": dict, "label": object}, _first_token),
  "hle": Form("judged answers", {"judge_response": dict}, _judged)}
TABLE = "table"  # No log: each object is a row.
TASK = re.compile(r"samples_(.+?)(_\d{4}-\d\d-\d\dT[\d.:-]+)?")  # The name of a file of the harness.


def rows(objects: Iterable[tuple[str, Any]], say: Callable[[str], None], form: str = "", name: str = ""
         ) -> tuple[bool, Iterator[tuple[str, Any]]]:
  """Returns whether objects, each after its place in the file, are of a form, and their rows, or else themselves.

  Where several forms fit, or one and the columns of a table, ``form`` must say which. ``name`` is that of the file,
  without its ending.
  """
  objects = iter(objects)
  first = next(objects, None)
  if first is None:
    return False, iter(())
  fits = [name for name, x in FORMS.items() if x.fits(first[1])]
  if isinstance(first[1], dict) and (not fits or _is_row(first[1])):
    fits.append(TABLE)
  if form and form not in fits:
    raise FileError(f" is not of the form {form}: its objects have {headers.listed(first[1])}.")
  if not form and len(fits) > 1:
    raise FileError(f" can be read in several ways: say which by --form, one of {', '.join(fits)}.")
  form = form or next(iter(fits), TABLE)
  every = itertools.chain([first], objects)
  if form == TABLE:
    return False, every
  say(f": it holds {FORMS[form].title}; rows of one {ID} depend on each other, so they are one group, unless --groups "
      "names others.")
  task = TASK.fullmatch(name) if form == "lm_eval" else None
  return True, _of_form(FORMS[form], every, say, {"task": task[1]} if task else {})


def _is_row(value: Mapping[str, Any]) -> bool:
  """Whether an object has the columns of a table: outputs or confidences, and labels or whether answers were right."""
  names = {name.lower() for name, x in value.items() if isinstance(x, int | float | str)}
  has_outputs = any(_are_numbers(x) for name, x in value.items() if name.lower() in headers.OUTPUTS)
  return (has_outputs and not names.isdisjoint(headers.LABELS)) or all(headers.record_names(names))


def _are_numbers(value: Any) -> bool:
  values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
  return bool(values) and all(isinstance(x, int | float) for x in values)


def _of_form(form: Form, objects: Iterator[tuple[str, Any]], say: Callable[[str], None], more: Row
             ) -> Iterator[tuple[str, Row]]:
  number_without = 0
  for number, (place, value) in enumerate(objects):
    own = []
    try:
      own = [{ID: value.get(ID, number)} | row | more for row in form.rows(value)]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, StopIteration) as error:
      missing = f"it lacks {short(error.args[0])}" if isinstance(error, KeyError) else str(error)[:200]
      raise FileError(f"{place} is not as {form.title} are ({missing}).") from error
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


def _zipfile():
  """Returns the module that reads archives: Python's own from 3.14 on, and before that its backport if it is there."""
  try:
    from backports.zstd import zipfile as backport
    return backport
  except ImportError:
    return zipfile


def _archived(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
  """Yields the samples of an archive of Inspect."""
  try:
    with _zipfile().ZipFile(path) as archive:
      members = [x for x in archive.infolist() if x.filename.startswith("samples/") and x.filename.endswith(".json")]
      capacity.check_read("", GROWTH * sum(x.file_size for x in members))
      for member in members:
        yield f": {short(member.filename)}", parse_json(archive.read(member).decode("utf-8"), "")
  except NotImplementedError:
    raise FileError(" is compressed by zstd, which Python reads from 3.14 on: pip install backports.zstd, or write its "
                    ".json by `inspect log convert --to json`.") from None
  except UserError:
    raise
  except Exception as error:  # Damaged archives raise many types, which differ with what compresses them.
    raise FileError(f" is no archive of Inspect ({error}).") from error
