"""Fitted calibrators on disk: arrays by name, and how the calibrator was made. Reading them never runs code."""

import json
import os
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from calib_jax._checks import class_names
from calib_jax._system import errors, files
from calib_jax.calibrators import param_tables
from calib_jax.calibrators.base import CALIBRATORS, Calibrator, Fitted, get

DEEPEST = 8  # Levels of dictionaries of arrays.
# The bytes of {"name": …, "options": …}, and, where they are known, "num_classes" and "classes", their names.
_MADE = "calibrator.json"
# What names of arrays end with that hold predictions or data, and no params.
_DATA = ("logits", "logit", "probs", "prob", "proba", "probabilities", "labels", "label", "targets", "images", "true")


def save(path: str | os.PathLike[str], params: dict[str, Any] | Fitted, calibrator: Calibrator | None = None) -> None:
  """Writes a fitted calibrator to an ``.npz`` file, atomically.

  Args:
    path: the path of the file.
    params: what ``calibrator.fitted(logits, labels)`` returns, with the number and the names of its classes; or params
      alone, arrays or dictionaries of arrays by name.
    calibrator: beside params alone, what was fitted, as a function of this package made it; its name and options are
      written too. None to write the params alone.

  Raises:
    ValueError: for a name that is not a string or that holds "/"; or for a calibrator that no function of this package
      made, or that has an option which is not a number, a string, a bool, None or such a calibrator.

  >>> import tempfile
  >>> path = tempfile.mkdtemp() + "/temperature.npz"
  >>> logits, labels = jnp.array([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0]]), jnp.array([0, 1, 1])
  >>> save(path, get("temperature_scaling").fitted(logits, labels, classes=["no", "yes"]))
  >>> load(path).classes, load(path).apply(jnp.array([[2.0, 0.0]])).round(2)
  (('no', 'yes'), Array([[-0.53, -0.88]], dtype=float32))
  """
  fitted = params if isinstance(params, Fitted) else Fitted(calibrator, params)
  params, made = fitted.params, {}
  if fitted.calibrator is not None:
    about = described(fitted.calibrator) | with_classes(fitted)
    made = {_MADE: np.frombuffer(json.dumps(about).encode(), np.uint8)}
  files.write(pathlib.Path(path), lambda file: np.savez(file, **_flat(params), **made))


def load(path: str | os.PathLike[str]) -> Fitted | dict[str, Any]:  # noqa: C901
  """Reads what ``save`` wrote.

  Args:
    path: the path of the file.

  Returns:
    The calibrator with its params, whose ``apply`` takes logits; or the params alone, arrays or dictionaries of arrays
    by name, if the file holds no calibrator.

  Raises:
    ValueError: if the file is missing, damaged, or holds anything but arrays of numbers and a calibrator's name and
      options, such as predictions; or params that no fit of the calibrator gives, by their names, shapes or ranges.
  """
  params: dict = {}
  try:
    arrays = files.read_npz(path)
  except errors.UserError as error:
    raise ValueError(str(error)) from error
  made = arrays.pop(_MADE, None)
  if made is None and any(name.split("_")[-1] in _DATA for name in arrays):
    raise ValueError(f"{path} must hold a calibrator, as calibrators.save writes it, and holds the arrays "
                     f"{errors.printable(', '.join(arrays))[:200]}: predictions are what a calibrator is fitted to, by "
                     "calibrators.temperature_scaling().fitted(logits, labels), for example.")
  for name, value in arrays.items():
    if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
      raise ValueError(f"{path}: {errors.printable(name)} must hold numbers of at most 64 bits: got dtype "
                       f"{value.dtype}.")
    *parents, leaf = name.split("/")
    if len(parents) > DEEPEST:
      raise ValueError(f"{path}: a name has more than {DEEPEST} levels.")
    place = params
    for parent in parents:
      place = place.setdefault(parent, {})
      if not isinstance(place, dict):
        raise ValueError(f"{path}: {errors.printable(parent)} is both an array and a dictionary of arrays.")
    if not leaf and not value.size:
      continue  # A dictionary without arrays, as the params of ``identity`` are.
    if leaf in place:
      raise ValueError(f"{path}: {leaf} is both an array and a dictionary of arrays.")
    place[leaf] = jnp.asarray(value.astype(value.dtype.newbyteorder("="), copy=False))
    if value.dtype.kind in "iu" and not np.array_equal(place[leaf], value):
      raise ValueError(f"{path}: {errors.printable(name)} holds integers that do not fit in {place[leaf].dtype}.")
  if made is None:
    return params
  try:
    about = files.parse_json(made.tobytes().decode(), _MADE)
    fitted = Fitted(remade(about), params, *classes_of(about))
  except (errors.UserError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise ValueError(f"{path}: {_MADE} does not describe a calibrator ({type(error).__name__}: {error}).") from error
  try:
    param_tables.check(fitted.calibrator, params, fitted.num_classes)
  except ValueError as error:
    raise ValueError(f"{path} {error}") from error
  return fitted


def with_classes(fitted: Fitted) -> dict[str, Any]:
  """Returns the number and the names of the classes, where they are known, which ``classes_of`` takes."""
  about = {"num_classes": fitted.num_classes, "classes": fitted.classes and list(fitted.classes)}
  return {name: value for name, value in about.items() if value is not None}


def classes_of(about: dict[str, Any]) -> tuple[int | None, tuple[str, ...] | None]:
  """Returns the number of classes and their names; a ValueError if they are none."""
  number, names = about.get("num_classes"), about.get("classes")
  if number is not None and (type(number) is not int or number < 1):
    raise ValueError(f"num_classes must be a whole number of at least 1: got {errors.short(number)}")
  if names is None:
    return number, None
  if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
    raise ValueError(f"classes must be a list of texts: got {errors.short(names)}")
  return len(names), class_names.checked(names, len(names) if number is None else number)


def described(calibrator: Calibrator) -> dict[str, Any]:
  """Returns the name and the options of a calibrator of this package, which ``remade`` takes."""
  if calibrator.name not in CALIBRATORS:
    raise ValueError("calibrator must be made by a function of calib_jax.calibrators: save the params alone, and keep "
                     "the code that made the calibrator.")
  options = {}
  for option, value in calibrator.options.items():
    if isinstance(value, Calibrator):  # The base of another one.
      options[option] = described(value)
    elif isinstance(value, int | float | str | None):
      options[option] = value
    else:
      raise ValueError(f"option {option} of {calibrator.name} is {value!r}, which a file cannot hold: save the params "
                       "alone, and make the calibrator anew.")
  return {"name": calibrator.name, "options": options}


def remade(described: dict[str, Any]) -> Calibrator:
  """Returns the calibrator that was ``described``."""
  return get(described["name"], **{option: remade(value) if isinstance(value, dict) else value
                                   for option, value in described["options"].items()})


def _flat(params: dict, prefix: str = "") -> dict[str, np.ndarray]:
  arrays = {} if params or not prefix else {prefix: np.zeros(0, bool)}
  for name, value in params.items():
    if not isinstance(name, str) or "/" in name:
      raise ValueError(f"params must have names without '/': got {name!r}.")
    arrays |= _flat(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name: np.asarray(value)}
  return arrays
