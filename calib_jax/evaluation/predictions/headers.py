"""Finds what the arrays and columns of prediction files hold, by their names."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import re
from typing import NamedTuple

import numpy as np

from calib_jax._checks.limits import suggestion
from calib_jax._system.errors import FileError, short

# What arrays and columns of outputs are called. Values of EITHER are probabilities if rows sum to 1, and else logits.
LOGITS = ("logits", "logit", "log_probs", "log_probabilities", "logprobs", "log_prob", "logprob")
PROBS = ("probs", "probabilities", "probability", "y_prob", "y_proba", "prob", "softmax")
EITHER = ("predictions", "scores", "outputs", "y_score", "preds")
OUTPUTS = (*LOGITS, *PROBS, *EITHER)
LABELS = ("labels", "label", "label_ids", "targets", "target", "y_true", "y")
# Of records, which are read where there are no outputs of OUTPUTS: how likely an answer is right, and whether it was.
CONFIDENCES = ("confidence", "score")
CORRECT = ("correct", "is_correct", "acc")
# Beside one of CORRECT, without labels, one column of these is a confidence, or the logarithm of one.
LOG_CONFIDENCES = ("logprob", "log_prob", "logprobs", "log_probs")
CLASSES = ("classes", "class_names")
OPTIONS = (*CLASSES, "choices", "options")  # Lists of the names of a row's classes, in JSON lines and Parquet.
NAMES = ("class_name", "label_name")  # A column of tables that has the name of each row's label.
# Names of rows, by which files of the same examples join. The first is that of a log, of an object and its question.
IDS = ("row id", "id", "ID", "Id", "example_id", "sample_id", "image_id", "question_id", "doc_id", "custom_id")
# Evaluation does not use them unless their name is given, and says so.
WEIGHTS = ("weight", "weights", "sample_weight", "sample_weights")
NUMBER = re.compile(r"\d{1,18}", re.ASCII)


class Header(NamedTuple):
  """What the columns of a table are."""

  kind: str  # What the outputs are called, one of ``OUTPUTS`` or ``CONFIDENCES``.
  outputs: list[str]  # The columns of outputs, in the order of the classes.
  labels: list[str]  # The columns of labels; in a multi-label table one a class, in the order of the classes.
  # The names of the classes, or of the positive one if there is one column; None if the columns are numbered from 0,
  # or one column has no name.
  classes: list[str] | None = None
  from_1: bool = False  # Whether the columns are numbered from 1.
  are_logarithms: bool = False  # Whether the column holds logarithms of confidences.


class FileTable(NamedTuple):
  """What a table holds: what its columns are, the outputs, and by name the labels and what else was asked for."""

  header: Header
  outputs: np.ndarray
  labels: dict[str, np.ndarray]
  others: dict[str, np.ndarray]


def stacked(outputs: list[np.ndarray], header: Header) -> np.ndarray:
  """Returns columns of outputs as one array, ``[N, K]`` or ``[N]``."""
  if len(outputs) > 1 and any(column.ndim > 1 for column in outputs):
    raise FileError(f": columns such as {header.outputs[0]}, one a class, must hold one number in each row.")
  return outputs[0] if len(outputs) == 1 else np.stack(outputs, axis=1)


def read_header(names: Sequence[str], lists: Collection[str], extra: Collection[str],  # noqa: C901
                say: Callable[[str], None], multilabel: bool = False) -> Header:
  """Finds the columns of outputs and labels among the ``names`` of all columns.

  ``lists`` are those that hold a list in each row, and ``extra`` those that are neither outputs nor labels. ``say`` is
  called with a sentence for each choice. If a row can have several labels, there is a column of labels for each class,
  such as ``label_cat``, unless columns hold lists. No columns, or such as can be read in several ways, are a
  FileError.
  """
  if multilabel and (places := {place[1]: name for name in names if name not in extra and not _column(name, OUTPUTS)
                                and (place := _column(name, LABELS)) and place[1]}):
    others = [name for name in names if name not in places.values()]
    header = read_header([*others, LABELS[0]], lists, extra, say)  # As if they were one column.
    ends = {_column(name, OUTPUTS)[1]: name for name in header.outputs}
    if ends.keys() != places.keys():
      raise FileError(f" must have a column of labels for each of {listed(header.outputs)}, of the same ending: "
                      f"it has {listed(places.values())}.")
    return header._replace(labels=[places[end] for end in ends])
  by_kind: dict[str, dict[str, str]] = {}
  labels = [name for name in names if name.lower() in LABELS and name not in extra]
  for name in names:
    place = _column(name, OUTPUTS) if name not in (*labels, *extra) else None
    if place:
      kind, end = place[0], "" if name in lists else place[1]
      end = str(int(end)) if NUMBER.fullmatch(end) else end
      before = by_kind.setdefault(kind, {}).setdefault(end, name)
      if before is not name:
        raise FileError(f" has the columns {short(before)} and {short(name)} for one class: delete one of them.")
  numbers = [name for name in names if NUMBER.fullmatch(name) and name not in extra]
  if not by_kind and labels and len(numbers) > 1:
    by_kind = {"scores": {str(int(name)): name for name in numbers}}
    say(f": its columns {short(numbers[0])} to {short(numbers[-1])} are taken for the scores of these classes.")
  confidences, corrects = record_names(names, extra)
  is_record = bool(confidences and corrects) and not (labels and by_kind)
  if corrects and not confidences and not labels and (lone := lone_confidence(names, extra)):
    say_records([lone], corrects, say)
    say_weights((name for name in names if name not in extra), say)
    return Header(CONFIDENCES[0], [lone], corrects, are_logarithms=lone.lower() in LOG_CONFIDENCES)
  if confidences and corrects and not is_record:
    say_not_records(by_kind, confidences[0], corrects[0], say)
  if not is_record and (not labels or not by_kind):
    raise FileError(f" must have a header with a column label (or {', '.join(LABELS[2:])}), and columns of "
                    "scores such as logit_0 or prob_cat, one for every class; its columns are "
                    f"{listed(names)}. Records have the columns confidence and correct{lacking(names, extra)}.")
  for name in (*(confidences + corrects if is_record else labels), *extra):
    if names.count(name) > 1:
      raise FileError(f" has {names.count(name)} columns called {short(name)}: delete all but one.")
  if is_record:
    say_records(confidences, corrects, say)
    say_weights((name for name in names if name not in extra), say)
    return Header(confidences[0].lower(), confidences[:1], corrects)
  kind, *others = (name for name in OUTPUTS if name in by_kind)
  say_others(kind, others, say)
  say_weights((name for name in names if name not in extra), say)
  by_class = by_kind[kind]
  if list(by_class) == [""]:
    return Header(kind, list(by_class.values()), labels)
  if len(by_class) == 1 and "0" in by_class:
    raise FileError(f" has one column of scores, {by_class['0']}: one column is of class 1, such as {kind}_1.")
  numbered = [name for name in by_class if NUMBER.fullmatch(name)]
  if "" in by_class or 0 < len(numbered) < len(by_class):
    raise FileError(f" has columns of {kind} that are not of one kind, such as {listed(_ends(by_class))}: name "
                    "all of them by a class, or number all of them, and give other columns another name.")
  if not numbered:
    return Header(kind, list(by_class.values()), labels, list(by_class))
  numbers = sorted(by_class, key=int)
  in_order, first = [by_class[number] for number in numbers], int(numbers[0])
  if first > 1 or int(numbers[-1]) - first != len(numbers) - 1:
    raise FileError(f" must have columns of {kind} that are numbered from 0 without gaps; they are "
                    f"{listed(in_order)}. Names of classes may have no number alone.")
  if len(numbers) == 1 or first == 0:
    return Header(kind, in_order, labels)
  return Header(kind, in_order, labels, numbers, from_1=True)


def outputs_of_archive(names: Collection[str], say: Callable[[str], None] | None = None) -> list[str]:
  """Returns the names of the outputs in an archive; the first is used, which ``say`` says, and must be there once."""
  outputs = [name for name in OUTPUTS if name in names]
  if say and outputs:
    if twice := next((name for name in names if name not in OUTPUTS and name.lower() in outputs), None):
      raise FileError(f" holds {twice.lower()} and {twice}, and only one of them can be meant: delete the other.")
    say_others(outputs[0], outputs[1:], say)
  return outputs


def lone_confidence(names: Iterable[str], extra: Collection[str] = ()) -> str | None:
  """Returns the one name of a probability, or of its logarithm, that has no class, or None."""
  lone = [name for name in names if name not in extra and name.lower() in (*PROBS, *LOG_CONFIDENCES)]
  return lone[0] if len(lone) == 1 else None


def check_extra(extra: Iterable[str], names: Collection[str]) -> None:
  """Raises a FileError for a column that an option misspells: the file does not have it, and one of a like name."""
  for name in extra:
    if name not in (*names, *IDS) and (near := suggestion(name, list(names))):
      raise FileError(f" has no {short(name)}, which an option names: it has {listed(names)}.{near}")


def lacking(names: Sequence[str], extra: Collection[str]) -> str:
  """What a file of records lacks, or which of its names may be meant for one that is read."""
  confidences, corrects = record_names(names, extra)
  if confidences and not corrects and not any(name.lower() in LABELS for name in names):
    grades = [name for name in confidences[1:] if name.lower() != confidences[0].lower()]
    return (f": write a column correct, of 0 and 1, beside {confidences[0]}"
            + (f", such as {grades[0]} >= 4 of grades from 1 to 5" if grades else ""))
  known = (*LABELS, *CONFIDENCES, *CORRECT, *OUTPUTS)
  return next((f". For {short(name)}:{near.rstrip('?')}" for name in names if name not in known
               if (near := suggestion(name, known))), "")


def _ends(by_class: Mapping[str, str]) -> list[str]:
  """Returns a numbered column and one that is not."""
  return [next(name for end, name in by_class.items() if bool(NUMBER.fullmatch(end)) == wanted)
          for wanted in sorted({bool(NUMBER.fullmatch(end)) for end in by_class})]


def _column(name: str, aliases: Collection[str]) -> tuple[str, str] | None:
  """Returns the kind of outputs and the class of a column such as ``logit_cat``, or None.

  >>> [_column(name, OUTPUTS) for name in ("logit_cat", "Prob[1]", "prob1", "scores", "problem")]
  [('logit', 'cat'), ('prob', '1'), ('prob', '1'), ('scores', ''), None]
  """
  aliases = "|".join(sorted(aliases, key=len, reverse=True))
  match = re.fullmatch(rf"({aliases})(?:|[_ .:\[-](.*?)\]?|(\d+))", name.strip(), re.IGNORECASE | re.ASCII)
  return (match[1].lower(), match[2] or match[3] or "") if match else None


def record_names(names: Iterable[str], extra: Collection[str] = ()) -> tuple[list[str], list[str]]:
  """Returns the names of confidences and of whether answers were right, each in the order of its aliases."""
  own = [name for name in names if name not in extra]
  return tuple(sorted((name for name in own if name.lower() in aliases), key=lambda name: aliases.index(name.lower()))
               for aliases in (CONFIDENCES, CORRECT))


def say_records(confidences: Sequence[str], corrects: Sequence[str], say: Callable[[str], None]) -> None:
  """Says that a file is read as records; a name of the confidence that occurs twice is a FileError."""
  if len({name.lower() for name in confidences}) < len(confidences):
    raise FileError(f" holds {' and '.join(confidences)}, and only one of them can be meant: delete the other.")
  say_others(confidences[0], confidences[1:], say)
  say(f": its rows are read as records, {confidences[0]} as the probability that an answer is right"
      f"{f' and {corrects[0]} as whether it was' if corrects else ''}.")


def say_not_records(kinds: Iterable[str], confidence: str, correct: str, say: Callable[[str], None]) -> None:
  """Says that outputs of classes are read in place of records; a FileError where either may be meant."""
  kind = next((kind for kind in (*LOGITS, *PROBS) if kind in kinds), None)
  if kind is None:
    raise FileError(f" can be read as records, by {confidence} and {correct}, and as {next(iter(kinds))} of classes "
                    "with labels: leave out the columns that are not meant.")
  say(f": its {kind} and labels are used, and {confidence} and {correct} are not.")


def say_others(name: str, others: Collection[str], say: Callable[[str], None]) -> None:
  """Says that, of several arrays or columns of outputs, only those called ``name`` are used."""
  if others:
    say(f" holds {name} and {', '.join(others)}: {name} are used.")


def say_weights(names: Iterable[str], say: Callable[[str], None]) -> None:
  """Says that weights of rows are not used."""
  if weights := [name for name in names if name.lower() in WEIGHTS]:
    say(f": its weights ({', '.join(weights)}) are not used, so all rows count alike; calib-jax evaluate uses them by "
        f"--weights {weights[0]}.")


def listed(names: Collection[str]) -> str:
  """Returns the first 20 names as text, for messages."""
  names = [short(name)[1:-1] for name in names][:20]
  return ", ".join(names) or "no arrays"
