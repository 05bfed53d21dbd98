"""The calibrator ``auto``: the one of several that cross-validation on the fitting data prefers."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from calib_jax import calibrators
from calib_jax.calibrators.base import NoWeights

AUTO = "auto"
CHOSEN, SCORES = "chosen", "scores"


def automatic() -> calibrators.Calibrator:
  """Returns a calibrator whose fit selects by ``calibrators.select``.

  Its params are ``{"chosen": {name: params}, "scores": {name: {"score", "excess", "standard_error"}}}``, where scores
  are the mean NLL of each candidate out of fold.
  """
  return calibrators.Calibrator(fit, _apply)


def fit(logits: jax.Array, labels: jax.Array, *, where: jax.Array | None = None, weights: None = None,
        groups: np.ndarray | None = None) -> dict[str, Any]:
  """Selects by ``calibrators.select``, which keeps ``groups`` together, and fits; see ``automatic``."""
  if weights is not None:
    raise NoWeights(f"{AUTO} takes no weights: it cross-validates by counting examples.")
  if where is not None:
    logits, labels = logits[where], labels[where]
    groups = None if groups is None else groups[np.asarray(where)]
  selection = calibrators.select(logits, labels, groups=groups)
  scores = {s.name: {"score": s.score, "excess": s.excess, "standard_error": s.standard_error}
            for s in selection.scores}
  return {CHOSEN: {selection.name: selection.params}, SCORES: scores}


def _apply(params: Mapping[str, Any], logits: jax.Array) -> jax.Array:
  calibrator, own_params = chosen(params)
  return calibrator.apply(own_params, logits)


def chosen(params: Mapping[str, Any]) -> tuple[calibrators.Calibrator, Any]:
  """Returns the calibrator that params of ``automatic`` name, and its own params, with the floor of probabilities."""
  (name, own_params), = params[CHOSEN].items()
  if "floor" in params:
    return calibrators.probability_floor(name), own_params | {"floor": params["floor"]}
  return calibrators.get(name), own_params


def own(params: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns the params of the chosen calibrator in place of ``auto``, and others as they are."""
  return chosen(params)[1] if CHOSEN in params else params


def names(calibrator: calibrators.Calibrator, params: Sequence[Any]) -> list[str]:
  """Returns the name of the calibrator of each seed, for ``auto`` of the chosen one; "" for one without a name."""
  return [next(iter(p[CHOSEN])) if CHOSEN in p else calibrator.options["base"].name if "floor" in p else
          calibrator.name for p in params]


def phrase(names: Sequence[str]) -> str:
  """Returns what was chosen for the seeds in words.

  >>> phrase(["vector_scaling"] * 2), phrase(["temperature_scaling", "vector_scaling"])
  ('vector_scaling', 'temperature_scaling for 1 of 2 seeds, vector_scaling for 1 of 2 seeds')
  """
  counts = collections.Counter(names)
  if len(counts) == 1:
    return names[0]
  return ", ".join(f"{name} for {count} of {len(names)} seeds" for name, count in counts.items())
