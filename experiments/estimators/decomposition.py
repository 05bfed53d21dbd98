"""How often the intervals of `metrics.calibration_refinement` hold the true parts of a loss.

Run: python -m experiments.estimators.decomposition   (half an hour on one CPU core)

x is normal with unit variance around a mean of its class, and the posterior is known (differences.py). The models
distort it as those of simulation.py do. The true calibration part is the loss minus that of the posterior. The part of
the class of recalibrations is that of a fit to very many examples, judged by the posterior; the two are equal if the
class holds what undoes the distortion. The table is in results/coverage.md.
"""

import functools
import itertools
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from calib_jax import calibrators
from calib_jax.intervals.bootstrap import bootstrap
from calib_jax.metrics import decomposition
from experiments.common import commands, markdown, studies
from experiments.estimators import differences, simulation

CLASSES = (2, 10)
REPEATS = {300: 400, 1000: 400, 5000: 200}
RESAMPLES = 200
POINTS = 300_000  # Examples of which the true values are means.


# The exponents of a model, repeated over the classes, and the shift of its first class.
MODELS = {"calibrated": ((1.0,), 0.0), "overconfident (1.5)": ((1.5,), 0.0), "underconfident (0.7)": ((0.7,), 0.0),
          "shifted class": ((1.0,), 1.0), "by class (1.6, 0.7)": ((1.6, 0.7), 0.0)}


def sample(rng: np.random.Generator, size: int, num_classes: int, model: str
           ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Labels ``[N]``, the posterior ``[N, K]``, and the model's log-probabilities ``[N, K]``."""
  labels, ((log_posterior, posterior),) = differences.sample(rng, size, num_classes, (differences.Model(),))
  exponents, shift = MODELS[model]
  log_probs = simulation.model_log_probs(jnp.asarray(log_posterior, jnp.float32),
                                         tuple(np.resize(exponents, num_classes).tolist()), shift)
  return labels.astype(np.int32), posterior, np.asarray(log_probs)


@functools.cache
def truth(num_classes: int, model: str, recalibration: str) -> dict[str, tuple[float, float, float]]:
  """By loss: its mean, its true calibration part, and the part of the class of recalibrations."""
  labels, posterior, log_probs = sample(np.random.default_rng(1), POINTS, num_classes, model)
  calibrator = calibrators.get(recalibration)
  fitted = calibrator.apply(calibrator.fit(log_probs, labels), log_probs)

  losses = simulation.true_losses(log_probs.astype(np.float64), posterior)
  with np.errstate(divide="ignore"):
    least = simulation.true_losses(np.log(np.maximum(posterior, 1e-300)), posterior)
  recalibrated = simulation.true_losses(np.asarray(fitted, np.float64), posterior)
  exponents, shift = MODELS[model]
  holds = len(exponents) == 1 and (not shift or recalibration != decomposition.TEMPERATURE)
  return {name: (mean, mean - least[name], mean - (least if holds else recalibrated)[name])
          for name, mean in losses.items()}


def coverage(num_classes: int, size: int, name: str) -> list[dict[str, object]]:
  """The rows of a cell, one a loss: how often intervals hold the part of the class, and how wide they are."""
  rng = np.random.default_rng(zlib.crc32(f"{num_classes}, {size}, {name}".encode()))
  recalibration = decomposition.chosen(size, num_classes)
  intervals = {loss: [] for loss in decomposition.LOSSES}
  for i in range(REPEATS[size]):
    labels, _, log_probs = sample(rng, size, num_classes, name)
    weights = np.ones(size, np.float32)
    removed = decomposition.of_examples(np.exp(log_probs), labels, weights)
    for loss, values in removed.items():
      ends = bootstrap(decomposition.weighted_means, values, weights, key=jax.random.key(i), num_resamples=RESAMPLES)
      _, calibration, refinement = jax.tree.map(float, decomposition.parts(*ends))
      intervals[loss].append((calibration, refinement, (float("nan"), float(ends[1][1]), float(ends[2][1]))))
  rows = []
  for loss, simulated in intervals.items():
    mean, true_part, part = truth(num_classes, name, recalibration)[loss]
    estimate, low, high = np.array(simulated).transpose(2, 1, 0)  # Each of calibration, refinement and out of fold.
    coverages = [np.mean((a <= value) & (value <= b))
                 for a, b, value in zip(low, high, (part, mean - part, part), strict=True)]
    rows.append({
      "loss": loss, "recalibration": recalibration, "repeats": REPEATS[size], "resamples": RESAMPLES,
      "true_part": f"{true_part:.5f}", "part": f"{part:.5f}", "mean_estimate": f"{estimate[0].mean():.5f}",
      "width": f"{np.mean(high[0] - low[0]):.5f}", "covered": f"{coverages[0]:.4f}",
      "covered_refinement": f"{coverages[1]:.4f}",
      "covered_out_of_fold": f"{coverages[2]:.4f}", "above_true_part": f"{np.mean(low[0] > true_part):.4f}"})
  return rows


def table(rows: pd.DataFrame) -> str:
  """The Markdown table of coverage and width, and sentences on what else was simulated."""
  texts = rows.assign(text=studies.covered(rows)).pivot(index=["model", "loss"], columns=["classes", "size"],
                                                        values="text").sort_index(axis=1).fillna("")
  headings = ["calibration part: coverage (mean width), in %", "loss", *(f"K = {k}, N = {n:,}" for k, n in texts)]
  lines = [(name if loss == decomposition.LOSSES[0] else "", loss, *texts.loc[name, loss])
           for name, loss in itertools.product(MODELS, decomposition.LOSSES)]
  out_of_fold = 100 * rows.covered_out_of_fold
  return f"{markdown.table(headings, lines)}\n\n" + (
    f"The interval of the refinement part held it in {100 * rows.covered_refinement.min():.1f}% or more. The interval "
    f"of what\nis removed out of fold held the calibration part in {out_of_fold.min():.1f}% to "
    f"{out_of_fold.max():.1f}%.\nAt most {100 * rows.above_true_part.max():.1f}% of the intervals began above the true "
    "calibration part.\n")


STUDY = studies.Study("coverage_of_parts", ("classes", "size", "model"),
                      tuple(itertools.product(CLASSES, REPEATS, MODELS)), coverage, table)

if __name__ == "__main__":
  studies.in_docs(__spec__.name, __doc__, commands.RESULTS / "coverage.md", STUDY)
