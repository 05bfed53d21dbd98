"""The forms of logs: where in an object the probabilities of its rows stand, and which answer is right.

The slots of an object are its rows: ``probs`` or ``logits`` of options, or a ``confidence``, with a function that puts
other probabilities in their place. The label of a slot is the right option, or whether the answer was right.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import math
import string
from typing import Any, NamedTuple

from calib_jax._system.errors import short

Object = dict[str, Any]


class Slot(NamedTuple):
  """The probabilities of one row within an object."""

  kind: str  # "probs", "logits" or "confidence".
  values: list[float]  # Of the options, or of the answer.
  put: Callable[[list[float]], None]  # Takes other probabilities.
  more: dict[str, Any]  # What else the row has, by column.


class Form(NamedTuple):
  """A form of a log."""

  title: str
  # Keys of the first object with their types, by which the form is told: of all, and of those that have labels.
  keys: Mapping[str, type | tuple[type, ...]]
  label_keys: Mapping[str, type | tuple[type, ...]]
  slots: Callable[[Object], Iterator[Slot]]
  label: Callable[[Object, Slot], dict[str, Any]]

  def fits(self, first: Any, has_labels: bool = True) -> bool:
    """Whether an object is of the form, by its keys."""
    keys = {**self.keys, **(self.label_keys if has_labels else {})}
    return isinstance(first, dict) and all(key in first and isinstance(first[key], x) for key, x in keys.items())


def _decisions(answered: Object) -> Iterator[Slot]:
  """Answers by name (systemone) or in a list with names (decisions); a refusal has no row."""
  for name, answer in answers_of(answered).items():
    p = probabilities_of(answer)
    yield Slot("probs", [float(x) for x in p.values()], functools.partial(_put, answer), {
      "choices": [_text(x) for x in p], "question": name, "type": str(answer["type"]), "options": len(p)})


def answers_of(answered: Object) -> dict[str, Object]:
  """Returns the answers of an object by the names of the questions, without refusals."""
  answers = answered["answers"]
  by_name = answers if isinstance(answers, dict) else {answer["name"]: answer for answer in answers}
  return {name: x for name, x in by_name.items() if not (x.get("refusal") or x.get("type") == "refusal")}


def probabilities_of(answer: Object) -> dict[Any, float]:
  """Returns the probability of each option of an answer."""
  if "probabilities" in answer:
    p = answer["probabilities"]
    return p if isinstance(p, dict) else {x["value"]: x["probability"] for x in p}
  true = float(answer["noul"] if "noul" in answer else answer["probability"])
  return {"false": 1 - true, "true": true}


def _put(answer: Object, new: Sequence[float]) -> None:
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


def _harness(sample: Object) -> Iterator[Slot]:
  """Log-likelihoods of options (lm-evaluation-harness)."""
  answers = sample["filtered_resps"]
  if any(isinstance(x, str) for x in answers):
    raise ValueError("its answers are texts without log-likelihoods of options: write a confidence and correct")

  def put(new):
    for answer, p in zip(answers, new, strict=True):
      answer[0] = str(_log(p))

  yield Slot("logits", [float(x[0]) for x in answers], put, {"id": sample["doc_id"], "options": len(answers)})


def _target(sample: Object, slot: Slot) -> dict[str, Any]:
  """The place of the right option, or else its text.

  A text such as "3" may be both, so that the place must agree with ``acc``, whether the likeliest option is right.
  """
  target, logits = str(sample["target"]), slot.values
  if target.isdecimal() and int(target) < len(logits):
    place = int(target)
  else:
    place = [x["arg_1"].strip() for x in sample.get("arguments", {}).values()].index(target)
  if "acc" in sample and bool(sample["acc"]) != (logits.index(max(logits)) == place):
    raise ValueError(f"its target {short(target)} is option {place}, counted from 0, and its acc {sample['acc']:g} "
                     "says otherwise: write label, the place of the right option")
  return {"label": place}


def _inspect(sample: Object) -> Iterator[Slot]:
  """A score of Inspect and the confidence that its metadata, or the sample's, state.

  Of a sample with choices and no such confidence it is the log-probabilities of their letters as the first token.
  """
  if sample.get("choices") and not any(_confidence_of(x) for x in (sample, *sample["scores"].values())):
    letters = string.ascii_uppercase[:len(sample["choices"])]
    tokens = sample["output"]["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    of_letter = {x["token"].strip(): x for x in reversed(tokens)}
    if missing := [x for x in letters if x not in of_letter]:
      raise ValueError(f"its top_logprobs lack {', '.join(missing)}: log more of them")

    def put(new):
      for letter, p in zip(letters, new, strict=True):
        of_letter[letter]["logprob"] = _log(p)

    yield Slot("logits", [float(of_letter[x]["logprob"]) for x in letters], put, {
      "choices": list(letters), "id": sample["id"], "options": len(letters)})
    return
  stated = {name: place for name, score in sample["scores"].items()
            if (place := _confidence_of(score) or _confidence_of(sample))}
  if len(stated) != 1:
    raise ValueError(f"{len(stated) or 'none'} of its scores {short(', '.join(sample['scores']))} state a confidence "
                     "in their metadata, and one must")
  ((name, place),) = stated.items()
  yield Slot("confidence", [float(place["confidence"])], lambda new: place.update(confidence=new[0]), {
    "id": sample["id"], "score": name})


def _confidence_of(x: Object) -> Object | None:
  """The metadata of a sample or of a score if they have a confidence."""
  metadata = x.get("metadata") or {}
  return metadata if metadata.get("confidence") is not None else None


def _scored(sample: Object, slot: Slot) -> dict[str, Any]:
  """The letter that is right, or C or I, or a credit."""
  if slot.kind == "logits":
    return {"label": str(sample["target"])}
  value = sample["scores"][slot.more.pop("score")]["value"]
  return {"correct": {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}.get(value, value)}


def _first_token(answered: Object) -> Iterator[Slot]:
  """The probability of the first token of an answer of OpenAI's batches."""
  token = answered["response"]["body"]["choices"][0]["logprobs"]["content"][0]
  yield Slot("confidence", [math.exp(min(token["logprob"], 0.0))], lambda new: token.update(logprob=_log(new[0])), {
    "token": token["token"].strip()})


def _same_token(answered: Object, slot: Slot) -> dict[str, Any]:
  return {"correct": float(slot.more.pop("token") == str(answered["label"]).strip())}


def _judged(answered: Object) -> Iterator[Slot]:
  """A judged answer of Humanity's Last Exam: a confidence in percent, and yes or no."""
  judged = answered["judge_response"]
  yield Slot("confidence", [float(judged["confidence"]) / 100], lambda new: judged.update(confidence=100 * new[0]), {})


def _log(p: float) -> float:
  return math.log(p) if p > 0 else -9999.0  # What servers write for it: JSON has no infinity.


FORMS = {
  "decisions": Form("answers of a decision model", {"answers": (dict, list)}, {"labels": dict}, _decisions,
                    lambda x, slot: {"label": _text(x["labels"][slot.more["question"]])}),
  "lm_eval": Form("samples of lm-evaluation-harness", {"filtered_resps": list, "doc_id": object}, {"target": object},
                  _harness, _target),
  "inspect": Form("samples of Inspect", {"scores": dict, "id": object, "input": object}, {}, _inspect, _scored),
  "openai": Form("answers of an OpenAI batch", {"response": dict}, {"label": object}, _first_token, _same_token),
  "hle": Form("judged answers", {"judge_response": dict}, {}, _judged,
              lambda x, slot: {"correct": float(x["judge_response"]["correct"] == "yes")})}
