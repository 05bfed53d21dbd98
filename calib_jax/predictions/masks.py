"""What rows do not have: a label that is scored, such as -100 of padding, or some of the options of other rows."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from calib_jax._system import capacity
from calib_jax._system.errors import FileError


def without_ignored(arrays: Mapping[str, np.ndarray], per_row: Sequence[str], label: str, ignore_label: int,
                    say: Callable[[str], None]) -> dict[str, np.ndarray]:
  """Returns those of the arrays ``per_row`` that have a row for each label, without the rows of one label."""
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


def padded(values: np.ndarray, lengths: np.ndarray, name: str, say: Callable[[str], None]) -> np.ndarray:
  """Returns the numbers of rows of several lengths ``[N]`` as ``[N, K]``, -inf for options that a row does not have."""
  capacity.check_read(f": {name}", 9 * len(lengths) * int(lengths.max()))
  say(f": the lists of its {name} have {lengths.min()} to {lengths.max()} numbers: what a shorter one lacks are "
      "options that its row does not have.")
  array = np.full((len(lengths), lengths.max()), -np.inf)
  array[np.arange(lengths.max()) < lengths[:, None]] = values
  return array


def ignoring(labels: np.ndarray, low: int, high: int) -> str:
  """Returns how to leave out rows, as a sentence, if all labels that are not from ``low`` to ``high`` are the same.

  It is "" for the neighbors of the range, because labels may be numbered from 1.
  """
  outside = np.unique(labels[(labels < low) | (labels > high)])
  if len(outside) != 1 or 0 <= outside[0] <= high + 1:
    return ""
  return (f" If {outside[0]} marks rows that are not scored, leave them out: --ignore_label={outside[0]} "
          f"(ignore_label={outside[0]} in Python).")
