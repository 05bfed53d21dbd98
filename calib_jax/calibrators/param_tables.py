"""What the params of each calibrator are, so that a file cannot hold others: names, shapes, numbers and ranges.

A factory says so where it is defined, as in ``@has_params(temperature="(0, inf)", bias="K (-inf, inf)")``: the sizes of
the axes, the interval, and a word. K is the number of classes, C is that or 1, ``_`` is any number, and another letter
is one number in all params. ``rising`` numbers do not fall along the last axis, and ``shares`` sum to 1 there. In the
name ``layer_#/kernel``, ``#`` stands for a number, and the slash for a dictionary within the dictionary of params.
"""

from collections.abc import Mapping
import re
from typing import Any

import numpy as np

from calib_jax._system.errors import printable, short
from calib_jax.calibrators.base import PARAMS, Calibrator

# What fits may report beside what they learn, numbers or bools.
REPORTS = ("at_bound", "converged", "gap", "gradient_norm", "iterations", "rounds", "value", "penalty")
SPEC = re.compile(r"((?:\w+ )*)([\[(])(\S+), (\S+)([\])])(?: (rising|shares))?")
SUM = 1e-3  # How far from 1 the sum of shares may be.


def check(calibrator: Calibrator, fitted: Mapping[str, Any], num_classes: int | None = None) -> int | None:
  """Returns the number of classes that params belong to, or None for any number.

  A ValueError, whose message follows the name of a file, unless ``fitted`` are params as a fit of the calibrator gives
  them: "lacks temperature", for example.
  """
  table, arrays = _table(calibrator), dict(_flat(fitted))
  sizes: dict[str, int] = {} if num_classes is None else {"K": num_classes}
  patterns = {re.compile(re.escape(name).replace(r"\#", r"\d+")): spec for name, spec in table.items()}
  for pattern, spec in patterns.items():
    found = [name for name in arrays if pattern.fullmatch(name)]
    if not found:
      raise ValueError(f"lacks {pattern.pattern.replace(chr(92), '')}, which {calibrator.name} needs.")
    for name in found:
      if fault := _fault(np.asarray(arrays.pop(name)), *SPEC.fullmatch(spec).groups(), sizes):
        raise ValueError(f"cannot be used: no fit of {calibrator.name} gives its {name}, because {fault}; its fit "
                         "failed, or the file was changed.")
  layers = {name: value for name, value in fitted.items() if name.startswith("layer_")}
  every = [layers.get(f"layer_{i}") for i in range(len(layers))]
  if any(not isinstance(layer, Mapping) or len(layer) != 2 for layer in every):
    raise ValueError(f"lacks a layer, or its kernel or bias: it holds {', '.join(map(printable, layers))}.")
  for name, value in arrays.items():
    if name.split("/")[-1] not in REPORTS or np.ndim(value) > 1:
      raise ValueError(f"holds {printable(name)}, which {calibrator.name} does not have.")
  return sizes.get("K")


def are_of_classes(calibrator: Calibrator) -> bool:
  """Whether params of a calibrator have an axis of classes, so that a column must mean the same in all rows."""
  return bool(calibrator.name) and any(not {"K", "C"}.isdisjoint(spec.split()) for spec in _table(calibrator).values())


def _table(calibrator: Calibrator, prefix: str = "") -> dict[str, str]:
  """The table of a calibrator and of its base, whose params stand beside its own or, for ``base/``, below them."""
  own = dict(PARAMS[calibrator.name])
  below = own.pop("base", None)
  base = calibrator.options.get("base")
  if isinstance(base, Calibrator):
    own |= _table(base, "base/" if below else "")
  return {f"{prefix}{name}": spec for name, spec in own.items()}


def _flat(fitted: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
  return [pair for name, value in fitted.items() for pair in (
    _flat(value, f"{prefix}{name}/") if isinstance(value, Mapping) else [(f"{prefix}{name}", value)])]


def _fault(x: np.ndarray, axes: str, opened: str, low: str, high: str, closed: str, word: str | None,  # noqa: PLR0917
           sizes: dict[str, int]) -> str:
  """Why an array is not what the parts of a spec say, or nothing; adds the sizes of its axes to ``sizes``."""
  axes = axes.split()
  if x.dtype.kind != "f":
    return f"it must hold floats, not {x.dtype}"
  if x.ndim != len(axes):
    return f"it must have {len(axes)} axes, not the shape {short(x.shape)}"
  for axis, size in zip(axes, x.shape, strict=True):
    wanted = int(axis) if axis.isdigit() else sizes.get("K" if axis == "C" else axis, size)
    if size != wanted and not (axis == "C" and size == 1):
      return f"its shape {short(x.shape)} must be [{', '.join(axes)}]" + (
        "" if axis.isdigit() else f", where {'K' if axis == 'C' else axis} is {wanted}")
    if axis != "_" and (axis != "C" or size > 1):
      sizes.setdefault("K" if axis == "C" else axis, size)
  above = x >= float(low) if opened == "[" else x > float(low)
  below = x <= float(high) if closed == "]" else x < float(high)
  if not (is_right := above & below).all():  # As NaN is neither.
    return f"it must be in {opened}{low}, {high}{closed}, and is {x[~is_right].ravel()[0]:g}"
  if word == "rising" and (np.diff(x, axis=-1) < 0).any():
    return "its numbers must not fall"
  if word == "shares" and (np.abs(x.sum(-1) - 1) > SUM).any():
    return "its numbers must sum to 1"
  return ""
