"""Turns predictions into a table of metrics with bootstrap intervals, before and after each calibrator."""

from collections.abc import Callable, Mapping, Sequence
import functools
import html
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators, confidence, losses, metrics
from calib_jax.errors import UserError
from calib_jax.evaluation.predictions import Predictions

UNCALIBRATED = "none"


class Metric(NamedTuple):
  """A metric is one column of the tables.

  Attributes:
    key: the key in ``results.json``.
    heading: the heading of the column.
    scale: the factor that numbers are multiplied by in the tables, 100 for percent.
    inputs: names of the values an example that the metric needs, among those that ``_per_example`` returns.
    function: maps the number of bins to a function of the inputs, each ``[N]``. Because the inputs have one value an
      example, the bootstrap does not resample arrays ``[N, K]``.
    method: the method of ``metrics.bootstrap``.
  """

  key: str
  heading: str
  scale: float
  inputs: tuple[str, ...]
  function: Callable[[int], Callable]
  method: str = "percentile"


# The cache returns the same function object for the same metric, so that its bootstrap compiles only once.
@functools.cache
def _mean(num_bins: int) -> Callable:
  del num_bins
  return jnp.mean


@functools.cache
def _error(binning: str, norm: int) -> Callable[[int], Callable]:
  return functools.cache(lambda num_bins: functools.partial(metrics.calibration_error, num_bins=num_bins,
                                                            binning=binning, norm=norm))


METRICS = (
  Metric("accuracy", "accuracy %", 100, ("correct",), _mean),
  Metric("nll", "NLL", 1, ("nll",), _mean),
  Metric("brier", "Brier", 1, ("brier",), _mean),
  Metric("ece", "ECE %, equal width, norm 1", 100, ("confidence", "correct"), _error("equal_width", 1),
         "bias_corrected"),
  Metric("ece_equal_mass_l2", "ECE %, equal mass, norm 2", 100, ("confidence", "correct"), _error("equal_mass", 2),
         "bias_corrected"),
)


def _per_example(logits: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
  """Returns the values that metrics need, each ``[N, S]``, from logits ``[N, S, K]`` and labels ``[N, S]``."""
  confidence, correct = jax.vmap(metrics.top_label, 1, 1)(jax.nn.softmax(logits), labels)
  return {"confidence": confidence, "correct": correct.astype(jnp.float32),
          "nll": losses.cross_entropy(logits, labels), "brier": losses.brier(logits, labels)}


# Calibrators by label, each with a list of its params, one element a seed.
Fitted = dict[str, tuple[calibrators.Calibrator, list]]


def fit(validation: Sequence[Predictions], labelled: Mapping[str, calibrators.Calibrator]) -> Fitted:
  """Fits each calibrator to each seed's predictions, and reports fits that stopped before their optimum.

  Args:
    validation: the predictions to fit to, one element a seed.
    labelled: the calibrators by label.
  Returns: the calibrators by label, each with its fitted params of every seed.
  """
  fitted = {}
  for label, calibrator in labelled.items():
    params = [calibrator.fit(part.logits, part.labels) for part in validation]
    unfinished = sum(not p.get("converged", True) for p in params)
    if unfinished:
      print(f"{label}: {unfinished} of {len(params)} fits stopped before their optimum.", file=sys.stderr)
    fitted[label] = (calibrator, params)
  return fitted


def apply(fitted: Fitted, test: Sequence[Predictions]) -> dict[str, list[Predictions]]:
  """Applies fitted calibrators to predictions.

  Args:
    fitted: the calibrators and their params, as ``fit`` returns them.
    test: the predictions, one element a seed.
  Returns: the predictions by label, with those before calibration under the label "none".
  """
  calibrated = {}
  for label, (calibrator, params) in {UNCALIBRATED: (calibrators.identity(), [{}] * len(test)), **fitted}.items():
    apply_one = jax.jit(calibrator.apply)
    calibrated[label] = [part._replace(logits=np.asarray(apply_one(p, part.logits)))
                         for p, part in zip(params, test, strict=True)]
  return calibrated


def calibrate(validation: Sequence[Predictions], test: Sequence[Predictions],
              labelled: Mapping[str, calibrators.Calibrator]) -> dict[str, list[Predictions]]:
  """Fits calibrators to ``validation`` and applies them to ``test``.

  Args:
    validation: the predictions to fit to, one element a seed.
    test: the predictions to calibrate, one element a seed.
    labelled: the calibrators by label.
  Returns: the predictions by label, with those before calibration under the label "none".
  Raises: UserError if the two have different numbers of classes.
  """
  if validation[0].logits.shape[1] != test[0].logits.shape[1]:
    raise UserError(f"predictions to fit on have {validation[0].logits.shape[1]} classes, those to test on "
                    f"{test[0].logits.shape[1]}.")
  return apply(fit(validation, labelled), test)


def detection(inside: Sequence[Predictions], outside: Sequence[Predictions]) -> dict[str, dict[str, float]]:
  """Measures how well each confidence score separates a data set from an out-of-distribution one.

  Args:
    inside: predictions of the data set, one element a seed.
    outside: predictions of the out-of-distribution set, one element a seed.
  Returns: ``{score: {"auroc", "fpr_at_95_tpr", "auroc_outside", "fpr_at_95_tpr_outside"}}``, means over seeds. The
    first two count the examples of ``inside`` as positives; the last two those of ``outside``, with the negative score.
  """
  table = {}
  for name, score in confidence.SCORES.items():
    rows = []
    for a, b in zip(inside, outside, strict=True):
      values = np.concatenate([np.asarray(score(jax.nn.softmax(part.logits))) for part in (a, b)])
      is_inside = np.arange(len(values)) < len(a.labels)
      rows.append([float(metric(sign * values, positives)) for sign, positives in ((1, is_inside), (-1, ~is_inside))
                   for metric in (metrics.auroc, metrics.fpr_at_tpr)])
    keys = ("auroc", "fpr_at_95_tpr", "auroc_outside", "fpr_at_95_tpr_outside")
    table[name] = dict(zip(keys, np.mean(rows, axis=0).tolist(), strict=True))
  return table


def evaluate(calibrated: Mapping[str, Sequence[Predictions]], *, num_bins: int = 15,
             num_resamples: int = 1000) -> dict[str, dict[str, dict]]:
  """Computes every metric with a bootstrap interval.

  Args:
    calibrated: predictions by label, as ``calibrate`` returns them; test sets of all seeds must have the same size.
    num_bins: the number of bins of calibration errors.
    num_resamples: the number of resamples of the bootstrap.
  Returns: ``{calibrator: {metric: {"estimate", "low", "high", "value", "per_seed"}}}``, in fractions and nats.
    ``value`` is the mean of the metric over seeds, whose own are ``per_seed``. ``estimate`` is the same for means, and
    for calibration errors it is less the bias of the sample. The interval is 95%, by ``metrics.bootstrap`` over test
    examples, which are drawn jointly for all seeds. It covers the randomness of the test set and not that of training.
  """
  return {label: _measure(parts, num_bins, num_resamples) for label, parts in calibrated.items()}


def _measure(parts: Sequence[Predictions], num_bins: int, num_resamples: int) -> dict[str, dict]:
  """Computes one row of the table."""
  logits = jnp.stack([part.logits for part in parts], axis=1)
  labels = jnp.stack([part.labels for part in parts], axis=1)
  values, row = _per_example(logits, labels), {}
  for metric in METRICS:
    function, arrays = metric.function(num_bins), [values[name] for name in metric.inputs]
    estimate, low, high = metrics.bootstrap(_over_seeds(function), *arrays, key=jax.random.key(0),
                                            num_resamples=num_resamples, method=metric.method)
    per_seed = np.asarray(jax.vmap(function, in_axes=1)(*arrays))
    row[metric.key] = {"estimate": float(estimate), "low": float(low), "high": float(high),
                       "value": float(per_seed.mean()), "per_seed": per_seed.tolist()}
  return row


@functools.cache
def _over_seeds(function: Callable) -> Callable:
  """Returns a function that averages ``function`` over axis 1 of its arrays ``[N, seeds]``."""
  return lambda *arrays: jnp.mean(jax.vmap(function, in_axes=1)(*arrays))


def to_rows(results: Mapping[str, Mapping[str, Mapping]]) -> list[list[str]]:
  """Formats results as the cells of a table.

  Args:
    results: ``{method: evaluate(...)}``.
  Returns: rows of text, the heading first; a cell is ``estimate [low, high]``.
  """
  rows = [["trained with", "calibrated by", *(metric.heading for metric in METRICS)]]
  for method, table in results.items():
    for label, row in table.items():
      rows.append([method, label, *(_cell(row[metric.key], metric.scale) for metric in METRICS)])
  return rows


def _cell(cell: Mapping[str, float], scale: float) -> str:
  digits = 2 if scale == 100 else 4
  estimate, low, high = (f"{scale * cell[key]:.{digits}f}" for key in ("estimate", "low", "high"))
  return f"{estimate} [{low}, {high}]"


def _escaped(cell: str) -> str:
  """Escapes what would end a cell of a Markdown table or start an HTML element."""
  return html.escape(" ".join(cell.splitlines()), quote=False).replace("|", "\\|")


def markdown(rows: list[list[str]]) -> str:
  """Formats rows of text as a Markdown table whose columns are also aligned in a terminal.

  Markup in a cell is escaped, because Markdown may hold HTML.

  Args:
    rows: the rows, the heading first.
  Returns: the table.
  """
  rows = [[_escaped(cell) for cell in row] for row in rows]
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
  return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]) + "\n"
