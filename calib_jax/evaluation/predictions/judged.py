"""Records of which a person judged some and a judge, such as a language model, all."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from calib_jax._system.errors import FileError, short
from calib_jax.evaluation.predictions.masks import names_by_row
from calib_jax.evaluation.predictions.written_values import verdicts

MISSING = ("", "nan", "null", "none")
VERDICT = {"0": False, "1": True, "0.0": False, "1.0": True}


class Judged(NamedTuple):
  """What the judge says: of the records that have a person's verdict, which are measured, and of the others."""

  known: np.ndarray  # Bools ``[n]``.
  others: np.ndarray  # Bools ``[m]``.
  groups: np.ndarray | None = None  # Of both, ``[n + m]``.


def known_rows(arrays: dict[str, np.ndarray], correct: str, judge: str, groups: np.ndarray | None,
               say: Callable[[str], None]) -> Judged:
  """Leaves the rows of ``arrays`` whose ``correct`` is known, and returns what ``judge`` says of all."""
  values, said = arrays[correct].ravel(), arrays[judge].ravel() if judge in arrays else np.empty(0)
  if len(said) != len(values):
    raise FileError(f" must have a column {short(judge)} with the judge's verdict on each of its {len(values):,} rows.")
  accepts = _verdicts(said, judge, say)
  is_known = ~(np.isnan(values) if values.dtype.kind == "f" else np.isin(np.char.lower(np.char.strip(
    values)), MISSING) if values.dtype.kind == "U" else np.zeros(len(values), bool))
  if not is_known.any():
    raise FileError(f": none of its rows has a person's verdict in {short(correct)}.")
  arrays |= {name: arrays[name][is_known] for name in names_by_row(arrays, len(values))}
  arrays[correct] = _verdicts(values[is_known], correct, say)
  say(f": {is_known.sum():,} of its {len(values):,} answers have a person's verdict, {correct}, and are measured by "
      f"it; what the judge says of the others, {judge}, sharpens the accuracy alone.")
  order = np.append(np.flatnonzero(is_known), np.flatnonzero(~is_known))
  return Judged(accepts[is_known], accepts[~is_known], None if groups is None else groups[order])


def _verdicts(values: np.ndarray, name: str, say: Callable[[str], None]) -> np.ndarray:
  values = verdicts(values, name, say)
  if values.dtype.kind == "U" and np.isin(values, list(VERDICT)).all():
    values = np.array([VERDICT[text] for text in values.tolist()])
  if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
    raise FileError(f": {name} must hold verdicts, 0 or 1, false or true, or such words, in rows that have one.")
  return values.astype(bool)
