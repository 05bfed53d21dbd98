r"""Calibrators by subgroup, such as by task, which are shrunk to the calibrator of all examples.

The fit to a subgroup of n examples counts each of them once, and all N examples of the fit as :math:`n_0` more, each as
:math:`n_0 / N`, which is a power prior. A subgroup of few examples therefore has nearly the calibrator of
all, and one of many its own. Cross-validation selects :math:`n_0` by the log loss; where the lowest is not below that
of one calibrator for all by more than a standard error of the difference, there are no calibrators by subgroup.
"""

from collections.abc import Callable, Mapping, Sequence
import json
import pathlib
from typing import Any

import jax
import numpy as np

from calib_jax import calibrators
from calib_jax._system.errors import FileError, UserError, printable
from calib_jax.calibrators import param_tables
from calib_jax.calibrators.base import NoWeights
from calib_jax.calibrators.storage import classes_of, described, remade, with_classes
from calib_jax.evaluation.predictions import automatic, covariates
from calib_jax.evaluation.predictions.calibrated import Calibrated
from calib_jax.evaluation.predictions.predictions import Predictions
from calib_jax.intervals.groups import standard_error, stratified_folds

NAME = "by_subgroup"
SHRINKAGES = (300.0, 100.0, 30.0)  # The n0 that are tried.
FOLDS = 5
FEW = 0.5  # Subgroups with a smaller share of their own are named.


def folds(part: Predictions, number: int) -> np.ndarray:
  """Returns the fold of each example; fewer examples or groups than folds are a UserError."""
  try:
    return stratified_folds(part.labels, number, part.groups)
  except ValueError as error:
    raise UserError(str(error)) from None


def fit(base: calibrators.Calibrator, pooled: Mapping[str, Any], part: Predictions, column: str, label: str,
        say: Callable[[str], None]) -> tuple[calibrators.Calibrator, dict[str, Any]] | None:
  """Fits a calibrator to each subgroup, if that is shown to lower the log loss, and says what was selected.

  The result is a calibrator that is applied by ``calibrated`` alone, with its params: ``column``, ``n0``, the params
  ``pooled`` of all examples and, by the name of the subgroup, its ``own``. None if one calibrator for all is as good.
  """
  if base.fit is automatic.fit or base.together or covariates.names_of(base):
    say(f"caution: {label} is not fitted by {column}, because it cannot be fitted to parts.")
    return None
  names, number = part.subgroups[column]
  weights, logits, apply = _weights(part), jax.numpy.asarray(part.logits), jax.jit(base.apply)

  def losses(params_of):
    log_probs = np.asarray(apply(params_of, logits))
    return -log_probs[np.arange(len(number)), part.labels]

  fold = folds(part, FOLDS)
  losses_by_n0 = np.zeros((1 + len(SHRINKAGES), len(number)))
  try:
    for k in range(FOLDS):
      counts, out = weights * (fold != k), fold == k
      losses_by_n0[0, out] = losses(base.fit(logits, part.labels, weights=np.float32(counts)))[out]
      for i, n0 in enumerate(SHRINKAGES, 1):
        for j, own in enumerate(shrunk(base, part, column, n0, counts).values()):
          rows = out & (number == j)
          losses_by_n0[i, rows] = losses(own)[rows]
  except NoWeights as error:
    say(printable(f"caution: {label} is not fitted by {column}: {error}"))
    return None
  best = int(np.average(losses_by_n0, axis=1, weights=weights).argmin())
  gain = losses_by_n0[0] - losses_by_n0[best]
  mean, error = np.average(gain, weights=weights), standard_error(gain, part.groups, part.weights)
  if not mean > error:
    say(printable(f"{label} is the same for every {column}: calibrators of their own are not shown to lower the log "
                  f"loss in {FOLDS} folds."))
    return None
  n0 = SHRINKAGES[best - 1]
  shares = {name: (size := weights[number == k].sum()) / (size + n0) for k, name in enumerate(names)}
  few = ", ".join(f"{name} {100 * share:.0f}%" for name, share in shares.items() if share < FEW)
  say(printable(f"{label} by {column}: all examples count as {n0:g} more of each {column}, as cross-validation selects"
                f"; of a {column} with n examples n / (n + {n0:g}) is its own"
                f"{f', so that these are mostly pooled: {few}' if few else ''}."))
  own = shrunk(base, part, column, n0, weights)
  at_bound = any(bool(np.any(x.get("at_bound", False))) for x in own.values())
  calibrator = calibrators.Calibrator(_refuse, _refuse, NAME, {"base": base})
  return calibrator, {"column": column, "n0": n0, "at_bound": at_bound, "pooled": dict(pooled), "own": own}


def _weights(part: Predictions) -> np.ndarray:
  return np.ones(len(part.labels)) if part.weights is None else part.weights / part.weights.mean()


def shrunk(base: calibrators.Calibrator, part: Predictions, column: str, n0: float, counts: np.ndarray | None = None
           ) -> dict[str, dict[str, Any]]:
  """Returns the fit of each subgroup, to which all examples count as ``n0`` more; ``counts`` weigh the rows."""
  names, number = part.subgroups[column]
  counts, logits = _weights(part) if counts is None else counts, jax.numpy.asarray(part.logits)
  return {name: base.fit(logits, part.labels, weights=np.float32(counts * ((number == k) + n0 / counts.sum())))
          for k, name in enumerate(names)}


def _refuse(*args, **kwargs):
  raise TypeError("a calibrator by subgroup needs the subgroups of its examples: apply it by calib-jax apply.")


def places(params: Mapping[str, Any], names: Sequence[str]) -> tuple[list[dict[str, Any]], np.ndarray]:
  """Returns the params of all examples and of each subgroup, and which the ``names`` have: new ones have the former."""
  place = {name: i for i, name in enumerate(params["own"], 1)}
  return [params["pooled"], *params["own"].values()], np.array([place.get(name, 0) for name in names])


def calibrated(params: Mapping[str, Any], part: Predictions, apply: Callable[..., jax.Array]) -> Calibrated:
  """Returns predictions with each subgroup calibrated by its own params; ``apply`` is the base's."""
  if params["column"] not in (part.subgroups or {}):
    raise UserError(f"a calibrator by {params['column']} needs predictions with this column.")
  names, number = part.subgroups[params["column"]]
  every, place = places(params, names)
  return Calibrated(part, apply, every, place[number])


def save(path: pathlib.Path, fitted: calibrators.Fitted) -> None:
  """Writes a calibrator by subgroup, which ``load`` reads; ``calibrators.load`` returns its params alone."""
  params = fitted.params
  about = {"column": params["column"], "n0": params["n0"], "names": list(params["own"]),
           "base": described(fitted.calibrator.options["base"])} | with_classes(fitted)
  calibrators.save(path, {NAME: np.frombuffer(json.dumps(about).encode(), np.uint8), "pooled": params["pooled"],
                          "own": {str(i): x for i, x in enumerate(params["own"].values())}})


def load(params: Mapping[str, Any]) -> tuple[calibrators.Fitted, dict[str, Any]]:
  """Returns the base with its params of all examples, and the params of subgroups, of a file that ``save`` wrote.

  ``params`` are what ``calibrators.load`` returns of it.
  """
  try:
    about = json.loads(np.asarray(params[NAME]).tobytes().decode())
    own = {str(name): params["own"][str(i)] for i, name in enumerate(about["names"])}
    fitted = calibrators.Fitted(remade(about["base"]), params["pooled"], *classes_of(about))
    by = {"column": str(about["column"]), "pooled": params["pooled"], "own": own}
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
    raise FileError(f" does not describe a calibrator by subgroup ({type(error).__name__}).") from error
  try:
    for of_subgroup in (by["pooled"], *own.values()):
      param_tables.check(fitted.calibrator, of_subgroup, fitted.num_classes)
  except ValueError as error:
    raise FileError(f" {error}") from error
  return fitted, by
