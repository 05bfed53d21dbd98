"""What ``covariate_temperature_scaling`` is told of examples: numbers and texts of columns of their file.

The name of a covariate says how it comes from a column: ``options`` is the number itself, ``log(options)`` its
logarithm, ``language=de`` is 1 where the text is ``de`` and else 0. A column of texts alone stands for all of the
latter, one for each text that the fit has.
"""

from collections.abc import Mapping, Sequence
import re
from typing import Any

import numpy as np

from calib_jax import calibrators
from calib_jax._system.errors import FileError, UserError, short
from calib_jax.calibrators.covariate import names
from calib_jax.evaluation.predictions.calibrated import Calibrated
from calib_jax.evaluation.predictions.predictions import Predictions

LOGARITHM, TEXT = re.compile(r"log\((.+)\)"), re.compile(r"([^=]+)=(.*)")
MOST_TEXTS = 20
Values = Mapping[str, np.ndarray]


def names_of(calibrator: calibrators.Calibrator) -> tuple[str, ...]:
  """Returns the names of the covariates that a calibrator, or its base, takes."""
  base = calibrator.options.get("base")
  return names(calibrator.options.get("columns", "")) or (
    names_of(base) if isinstance(base, calibrators.Calibrator) else ())


def column_of(name: str) -> str:
  """Returns the column that a covariate comes from.

  >>> [column_of(name) for name in ("options", "log(options)", "language=de")]
  ['options', 'options', 'language']
  """
  found = LOGARITHM.fullmatch(name) or TEXT.fullmatch(name)
  return found[1] if found else name


def wanted(labelled: Mapping[str, calibrators.Calibrator]) -> list[str]:
  """Returns the columns that calibrators need."""
  return list(dict.fromkeys(column_of(name) for x in labelled.values() for name in names_of(x)))


def read(arrays: Mapping[str, np.ndarray], columns: Sequence[str], count: int) -> dict[str, np.ndarray] | None:
  """Returns the values of columns, ``[N]`` numbers or texts as the file has them; a missing one is a FileError."""
  values = {}
  for name in columns:
    if name not in arrays or arrays[name].shape not in ((count,), (count, 1)):
      raise FileError(f" must have a column {short(name)} with a number or a text in each row, because "
                      "covariate_temperature_scaling names it.")
    own = arrays[name].reshape(-1)
    own = own.astype(str) if own.dtype.kind in "OU" else own
    is_missing = np.isin(np.char.strip(own), ("", "None", "nan")) if own.dtype.kind == "U" else ~np.isfinite(own)
    if is_missing.any():
      row = int(is_missing.argmax())
      raise FileError(f": the column {short(name)}, which covariate_temperature_scaling names, is missing or infinite "
                      f"in row {row}, counted from 0: leave this row out.")
    values[name] = own
  return values or None


def _numbers(values: np.ndarray) -> np.ndarray | None:
  """Returns numbers, which CSV has as texts, or None of other texts."""
  try:
    return values.astype(np.float64)
  except ValueError:
    return None


def expanded(calibrator: calibrators.Calibrator, values: Values | None) -> calibrators.Calibrator:
  """Returns a calibrator with a covariate for each text of its columns of texts; one without covariates as it is."""
  if not (of := names_of(calibrator)):
    return calibrator
  every: list[str] = []
  for name in of:
    column = column_of(name)
    if values is None or column not in values:
      raise UserError(f"covariate_temperature_scaling needs the column {column} of each example that it calibrates.")
    if column != name or _numbers(values[column]) is not None:
      every.append(name)
      continue
    texts = np.unique(values[column]).tolist()
    if len(texts) > MOST_TEXTS:
      raise UserError(f"the column {column} has {len(texts):,} different texts, and at most {MOST_TEXTS} are "
                      "covariates: name a column of numbers, or join some.")
    if unclear := next((text for text in texts if "+" in text), None):
      raise UserError(f"the column {column} holds {short(unclear)}, and + separates the names of covariates: write "
                      "another word in its place.")
    every += [f"{name}={text}" for text in texts]
  return calibrators.covariate_temperature_scaling(every)


def matrix(of: Sequence[str], values: Values | None) -> np.ndarray:
  """Returns covariates ``[N, D]`` by their names."""
  columns = []
  for name in of:
    column, own = column_of(name), None if values is None else values.get(column_of(name))
    if own is None:
      raise UserError(f"covariate_temperature_scaling needs the column {column} of each example that it calibrates.")
    if TEXT.fullmatch(name):
      columns.append(own.astype(str) == name.partition("=")[2])
      continue
    if (own := _numbers(own)) is None:
      raise UserError(f"the column {column} must hold numbers in all rows, as it did in the fit.")
    if column != name and not (own > 0).all():
      raise UserError(f"{name} is not finite: the column {column} must be above 0 in all rows.")
    columns.append(np.log(own) if column != name else own)
  return np.stack(columns, axis=1).astype(np.float32)


def calibrated(calibrator: calibrators.Calibrator, params: Any, part: Predictions) -> Calibrated:
  """Returns predictions of all rows with their covariates."""
  x = matrix(names_of(calibrator), part.covariates)
  log_probs = np.asarray(calibrator.apply(params, part.logits, x))
  return Calibrated.of(part._replace(logits=log_probs, probs=None))
