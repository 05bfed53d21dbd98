"""From predictions to a table: metrics with bootstrap intervals, before and after each calibrator."""

from collections.abc import Callable, Mapping, Sequence
import functools
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators, losses, metrics
from calib_jax.errors import UserError
from calib_jax.evaluation.predictions import Predictions

UNCALIBRATED = "none"


class Column(NamedTuple):
  """One metric of the tables: its key, its heading, and by what the number is multiplied there."""

  key: str
  heading: str
  scale: float


COLUMNS = (
  Column("accuracy", "accuracy %", 100), Column("nll", "NLL", 1), Column("brier", "Brier", 1),
  Column("ece", "ECE %, equal width, norm 1", 100), Column("ece_equal_mass_l2", "ECE %, equal mass, norm 2", 100),
)


def calibrate(fit: Sequence[Predictions], test: Sequence[Predictions],
              labelled: Mapping[str, calibrators.Calibrator]) -> dict[str, list[Predictions]]:
  """``test`` before (``"none"``) and after each calibrator, fitted on ``fit``; one ``Predictions`` a seed in each."""
  if fit[0].logits.shape[1] != test[0].logits.shape[1]:
    raise UserError(f"predictions to fit on have {fit[0].logits.shape[1]} classes, those to test on "
                    f"{test[0].logits.shape[1]}.")
  calibrated = {}
  for label, calibrator in {UNCALIBRATED: calibrators.identity(), **labelled}.items():
    apply = jax.jit(calibrator.apply)
    params = [calibrator.fit(part.logits, part.labels) for part in fit]
    unfinished = sum(not p.get("converged", True) for p in params)
    if unfinished:
      print(f"{label}: {unfinished} of {len(params)} fits stopped before their optimum.", file=sys.stderr)
    calibrated[label] = [Predictions(np.asarray(apply(p, part.logits)), part.labels)
                         for p, part in zip(params, test, strict=True)]
  return calibrated


def evaluate(calibrated: Mapping[str, Sequence[Predictions]], *, num_bins: int = 15,
             num_resamples: int = 1000) -> dict[str, dict[str, dict]]:
  """``{calibrator: {metric: {"estimate", "low", "high", "per_seed"}}}`` of ``calibrate``'s result, fractions and nats.

  ``estimate`` is the mean over seeds of the metric of the whole test set, which must have one size; the interval is the
  95% percentile bootstrap of that mean, over the test examples, drawn jointly for all seeds: it covers the chance in
  the test set, not in training, which ``per_seed`` shows.
  """
  return {label: _measure(parts, num_bins, num_resamples) for label, parts in calibrated.items()}


def _measure(parts: Sequence[Predictions], num_bins: int, num_resamples: int) -> dict[str, dict]:
  """One row; each metric is a function of one or two numbers an example, so resamples never touch ``[N, K]``."""
  logits = jnp.stack([part.logits for part in parts], axis=1)
  labels = jnp.stack([part.labels for part in parts], axis=1)
  confidence, correct = jax.vmap(metrics.top_label, 1, 1)(jax.nn.softmax(logits), labels)
  measured = {
    "accuracy": (jnp.mean, correct.astype(jnp.float32)),
    "nll": (jnp.mean, losses.cross_entropy(logits, labels)),
    "brier": (jnp.mean, losses.brier(logits, labels)),
    "ece": (_error(num_bins, "equal_width", 1), confidence, correct),
    "ece_equal_mass_l2": (_error(num_bins, "equal_mass", 2), confidence, correct),
  }
  row = {}
  for name, (metric, *arrays) in measured.items():
    estimate, low, high = metrics.bootstrap(_over_seeds(metric), *arrays, key=jax.random.key(0),
                                            num_resamples=num_resamples)
    row[name] = {"estimate": float(estimate), "low": float(low), "high": float(high),
                 "per_seed": np.asarray(jax.vmap(metric, in_axes=1)(*arrays)).tolist()}
  return row


# The same function object for the same metric: the bootstrap of every row and method then compiles once.
@functools.cache
def _error(num_bins: int, binning: str, norm: int) -> Callable:
  return functools.partial(metrics.calibration_error, num_bins=num_bins, binning=binning, norm=norm)


@functools.cache
def _over_seeds(metric: Callable) -> Callable:
  """The mean of ``metric`` over axis 1 of its arrays ``[N, seeds]``."""
  return lambda *arrays: jnp.mean(jax.vmap(metric, in_axes=1)(*arrays))


def to_rows(results: Mapping[str, Mapping[str, Mapping]]) -> list[list[str]]:
  """``{method: evaluate(...)}`` as cells of text, the heading first: ``estimate [low, high]``."""
  rows = [["trained with", "calibrated by", *(column.heading for column in COLUMNS)]]
  for method, table in results.items():
    for label, row in table.items():
      cells = [row[column.key] for column in COLUMNS]
      rows.append([method, label, *(_cell(cell, column) for cell, column in zip(cells, COLUMNS, strict=True))])
  return rows


def _cell(cell: Mapping[str, float], column: Column) -> str:
  digits = 2 if column.scale == 100 else 4
  estimate, low, high = (f"{column.scale * cell[key]:.{digits}f}" for key in ("estimate", "low", "high"))
  return f"{estimate} [{low}, {high}]"


def markdown(rows: list[list[str]]) -> str:
  """Rows of text as a Markdown table whose columns also line up in a terminal."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
  return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]) + "\n"
