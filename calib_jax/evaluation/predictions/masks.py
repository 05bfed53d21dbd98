"""Rows that count in part or not at all: of a label that is not scored, of a weight, of a credit between 0 and 1."""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from calib_jax._system import capacity
from calib_jax._system.errors import FileError, short
from calib_jax.evaluation.predictions.headers import CLASSES

MOST_COPIES = 2**20  # The largest whole weight that is taken for a number of equal rows.


def names_by_row(arrays: Mapping[str, np.ndarray], count: int) -> list[str]:
  """Returns the names of the arrays that have ``count`` rows; what is known of classes has none."""
  return [name for name, x in arrays.items() if x.shape[:1] == (count,) and name not in (
    *CLASSES, "kind", "train_counts")]


def without_ignored(arrays: Mapping[str, np.ndarray], per_row: Sequence[str], label: str, ignore_label: int,
                    say: Callable[[str], None]) -> dict[str, np.ndarray]:
  """Returns the arrays of ``per_row`` that have a row for each label, without the rows of one label."""
  labels = arrays[label]
  ignored = str(ignore_label) if labels.dtype.kind == "U" else ignore_label
  is_used = (labels.reshape(len(labels), -1) != ignored).any(1)
  if not is_used.any():
    raise FileError(f": all labels are {ignore_label}, which is to be ignored, so that no row is left.")
  say(f": {np.sum(~is_used):,} of its {len(labels):,} rows have the label {ignore_label} and are left out.")
  if is_used.all():
    return {}
  capacity.check_read("", sum(arrays[name].nbytes for name in per_row))
  return {name: arrays[name][is_used] for name in per_row if arrays[name].shape[:1] == labels.shape[:1]}


def with_credits_split(arrays: dict[str, np.ndarray], correct: str, weights: np.ndarray | None,
                       say: Callable[[str], None]) -> tuple[np.ndarray | None, np.ndarray | None]:
  """Splits graded answers, and returns the weights of all rows and the answer of each, or ``weights`` and None.

  An answer of credit y becomes a right row of weight y and a wrong one of weight 1 - y, of one group: every weighted
  mean is the credits' mean. Outcomes that are redrawn for a noise floor vary as much as credits of that mean
  at most can, so that p-values are valid for credits of any law, and with many halves larger than they need be.
  """
  if arrays[correct].dtype.kind not in "fU":
    return weights, None
  values = np.array([_number(x) for x in arrays[correct].ravel().tolist()], np.float64)
  is_part = (values > 0) & (values < 1)
  if not is_part.any() or not ((values >= 0) & (values <= 1)).all():
    return weights, None
  count, answer = len(values), np.repeat(np.arange(len(values)), 1 + is_part)
  is_second = np.append(False, answer[1:] == answer[:-1])
  credit, own = values[answer], is_part[answer]
  arrays |= {key: arrays[key][answer] for key in names_by_row(arrays, count)}
  arrays[correct] = np.where(own, ~is_second, credit == 1)
  share = np.where(own, np.where(is_second, 1 - credit, credit), 1.0)
  say(f": {np.sum(is_part):,} of its {count:,} answers are graded, and count as right by their credit: of mean "
      f"{np.average(values, weights=weights):.4g}.")
  return share if weights is None else share * weights[answer], answer.astype(np.int32)


def without_weight_0(arrays: dict[str, np.ndarray], outputs: str, name: str, say: Callable[[str], None]
                     ) -> np.ndarray | None:
  """Returns the weights called ``name``, None if all are equal, and drops the rows of weight 0 of all arrays by row.

  Weights that are not whole, or whose sum is large, are divided by the largest, because only their ratios matter.
  """
  count, weights = len(arrays[outputs]), arrays.get(name, np.zeros(0))
  if name not in arrays or weights.shape not in ((count,), (count, 1)) or weights.dtype.kind not in "biufU":
    actual = f"{weights.dtype} of shape {weights.shape}" if name in arrays else "nothing of that name"
    raise FileError(f": the weights {short(name)} must be {count} numbers, one a row: the file holds {actual}.")
  weights = np.array([_number(x) for x in weights.ravel().tolist()], np.float64)
  is_wrong = ~(np.isfinite(weights) & (weights >= 0))
  if is_wrong.any():
    row = int(is_wrong.argmax())
    raise FileError(f": the weights {short(name)} must be finite numbers of at least 0: that of row {row}, counted "
                    f"from 0, is {short(arrays[name].ravel()[row].item())}.")
  is_used = weights > 0
  if not is_used.any():
    raise FileError(f": all weights {short(name)} are 0, so that no row is left.")
  if not is_used.all():
    say(f": {np.sum(~is_used):,} of its {count:,} rows have the weight 0 and are left out.")
    by_row = names_by_row(arrays, count)
    capacity.check_read("", sum(arrays[key].nbytes for key in by_row))
    arrays |= {key: arrays[key][is_used] for key in by_row}
    weights = weights[is_used]
  if weights.min() == weights.max():
    say(f": all weights {short(name)} are equal, so they change nothing.")
    return None
  is_count = (weights % 1 == 0).all() and weights.max() <= MOST_COPIES
  return weights if is_count else weights / weights.max()


def _number(value: float | str) -> float:
  """Returns a weight as a number, NaN for a text that is none."""
  try:
    return float(value)
  except ValueError:
    return np.nan


def padded(values: np.ndarray, lengths: np.ndarray, name: str, say: Callable[[str], None], most: int | None = None
           ) -> np.ndarray:
  """Returns the numbers of rows of ``lengths`` ``[N]`` as ``[N, K]``, -inf for options that a row does not have.

  K is ``most``, or else the largest of the lengths; if they differ, this is said then.
  """
  if most is None:
    _, most = said_lengths(set(lengths.tolist()), name, say)
  if lengths.min() == most:
    return values.reshape(len(lengths), most)
  capacity.check_read(f": {name}", 9 * len(lengths) * most)
  array = np.full((len(lengths), most), -np.inf)
  array[np.arange(most) < lengths[:, None]] = values
  return array


def said_lengths(lengths: Collection[int], name: str, say: Callable[[str], None]) -> tuple[int, int]:
  """Returns the fewest and the most numbers of a row's list, and says so if they differ."""
  fewest, most = min(lengths), max(lengths)
  if fewest < most:
    say(f": the lists of its {name} have {fewest} to {most} numbers: what a shorter one lacks are options that its row "
        "does not have.")
  return fewest, most


def known_labels(labels: np.ndarray, name: str, say: Callable[[str], None]) -> tuple[np.ndarray, np.ndarray]:
  """Returns labels ``[N, L]`` of a multi-label file, 0 where one is missing, and which are known, and says how many.

  A missing label is NaN, an empty text or, beside 0 and 1, the one number that is below 0. Labels of -1 and 1 alone are
  a FileError, because -1 may be a missing label or an absent one.
  """
  if labels.dtype.kind == "U":
    texts = np.char.lower(np.char.strip(labels))
    missing = (texts == "") | (texts == "nan")
    numbers = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "-1": -1, "-1.0": -1}
    if not np.isin(texts[~missing], list(numbers)).all():
      return labels, ~missing  # Which is refused.
    labels = np.array([numbers.get(text, np.nan) for text in texts.ravel().tolist()]).reshape(labels.shape)
  if labels.dtype.kind not in "biuf":
    return labels, np.ones(labels.shape, bool)
  below = np.unique(labels[labels < 0])
  if len(below) == 1 and not (labels == 0).any():
    raise FileError(f": its {name} are {below[0]:g} and 1: if {below[0]:g} says that a label is absent, save "
                    f"({name} > 0); if it is missing, save NaN there.")
  missing = np.isnan(labels) | (labels < 0) if len(below) == 1 else np.isnan(labels)
  if missing.any():
    text = f"{below[0]:g}" if len(below) else "NaN or empty"
    say(f": {missing.sum():,} of its {missing.size:,} labels are missing ({text}), and these pairs do not count.")
  return np.where(missing, 0, labels), ~missing


def numbering(labels: np.ndarray, num_classes: int) -> str:
  """Returns how to number labels from 0, as a sentence, if they are -1 and 1 or go from 1 to K; else nothing."""
  values = np.unique(labels)
  if num_classes == 2 and values.tolist() == [-1, 1]:
    return " They are -1 and 1, as those of a support vector machine: save (labels > 0), 1 for class 1 and else 0."
  if values[0] == 1 and values[-1] == num_classes:
    return " They are numbered from 1: save labels - 1."
  return ""


def ignoring(labels: np.ndarray, low: int, high: int) -> str:
  """Returns how to leave out rows, as a sentence, if all labels that are not from ``low`` to ``high`` are the same."""
  outside = np.unique(labels[(labels < low) | (labels > high)])  # Labels next to the range may be numbered from 1.
  if len(outside) != 1 or 0 <= outside[0] <= high + 1:
    return ""
  return (f" If {outside[0]} marks rows that are not scored, leave them out: --ignore_label={outside[0]} "
          f"(ignore_label={outside[0]} in Python).")
