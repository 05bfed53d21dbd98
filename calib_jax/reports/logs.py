"""Reads what training logged, for curves."""

from collections.abc import Mapping
import contextlib
import pathlib

import numpy as np

from calib_jax._system.errors import UserError
from calib_jax._system.files import parse_json

LOGGED = ("train/loss", "validation/nll")

Curve = tuple[list[int], list[float]]  # Steps and values.


def logged_by_runs(logs: pathlib.Path | Mapping[str, pathlib.Path] | None) -> dict[str, Curve]:
  """Returns what runs logged, by the name of the value, which begins with that of the run if there are several."""
  if not isinstance(logs, Mapping):
    return logged(logs)
  return {f"{run}: {name}": curve for run, path in logs.items() for name, curve in logged(path).items()}


def logged(log: pathlib.Path | None) -> dict[str, Curve]:
  """Returns the mean over seeds of what a run logged, by the name of the value."""
  values: dict[str, dict[int, list[float]]] = {name: {} for name in LOGGED}
  if log is None or not log.is_file():
    return {}
  for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
    # A damaged line must not stop the page.
    with contextlib.suppress(UserError, ValueError, TypeError, KeyError, OverflowError):
      entry = parse_json(line, "a line")
      for name in LOGGED:
        if name in entry:
          step, value = int(entry["step"]), float(entry[name])
          values[name].setdefault(step, []).append(value)
  return {name: ([*by_step], [float(np.mean(of_seeds)) for of_seeds in by_step.values()])
          for name, by_step in values.items() if len(by_step) > 1}
