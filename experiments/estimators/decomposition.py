"""How often the intervals of `metrics.calibration_refinement` hold the true parts of a loss.

Run: python -m experiments.estimators.decomposition   (half an hour on one CPU core)

x is normal with unit variance around a mean of its class, and the posterior is known (differences.py). The models
distort it as those of posteriors.py do. The true calibration part is the loss minus that of the posterior. The part of
the class of recalibrations is that of a fit to very many examples, judged by the posterior; the two are equal if the
class holds what undoes the distortion. Rows are appended to experiments/results/coverage_of_parts.csv as they come, and
what it already holds is skipped. In the end the table of docs/coverage.md is written.
"""

from collections.abc import Mapping
import functools
import itertools
import time
from typing import NamedTuple
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators
from calib_jax._system.files import write_text
from calib_jax.metrics import decomposition
from calib_jax.metrics.bootstrap_intervals import bootstrap
from experiments.common import commands, report
from experiments.common.rows import append, read
from experiments.estimators import differences, posteriors, simulation

RESULTS, PAGE = commands.RESULTS / "coverage_of_parts.csv", commands.ROOT / "docs" / "coverage.md"
BEGIN = "<!-- Written by python -m experiments.estimators.decomposition -->"
END = "<!-- End of what is written by it -->"

CLASSES = (2, 10)
REPEATS = {300: 400, 1000: 400, 5000: 200}
RESAMPLES = 200
POINTS = 300_000  # Examples of which the true values are means.


class Model(NamedTuple):
  """The exponents of the model, repeated over the classes, and the shift of its first class."""

  exponents: tuple[float, ...]
  shift: float = 0.0


MODELS = {"calibrated": Model((1.0,)), "overconfident (1.5)": Model((1.5,)), "underconfident (0.7)": Model((0.7,)),
          "shifted class": Model((1.0,), 1.0), "by class (1.6, 0.7)": Model((1.6, 0.7))}


def sample(rng: np.random.Generator, size: int, num_classes: int, model: Model
           ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Labels ``[N]``, the posterior ``[N, K]``, and the model's log-probabilities ``[N, K]``."""
  labels, ((log_posterior, posterior),) = differences.sample(rng, size, num_classes, (differences.Model(),))
  exponents = tuple(np.resize(model.exponents, num_classes).tolist())
  log_probs = posteriors.model_log_probs(jnp.asarray(log_posterior, jnp.float32), exponents, model.shift)
  return labels.astype(np.int32), posterior, np.asarray(log_probs)


@functools.cache
def truth(num_classes: int, model: Model, recalibration: str) -> dict[str, tuple[float, float, float]]:
  """By loss: its mean, its true calibration part, and the part of the class of recalibrations."""
  labels, posterior, log_probs = sample(np.random.default_rng(1), POINTS, num_classes, model)
  calibrator = calibrators.get(recalibration)
  fitted = calibrator.apply(calibrator.fit(log_probs, labels), log_probs)

  def nll(log_q):
    return -np.sum(posterior * np.asarray(log_q, np.float64), axis=1).mean()

  def brier(log_q):
    q = np.exp(np.asarray(log_q, np.float64))
    return np.sum(q**2 - 2 * posterior * q, axis=1).mean() + 1

  holds = len(set(model.exponents)) == 1 and (not model.shift or recalibration != decomposition.TEMPERATURE)
  values = {}
  for name, loss in (("nll", nll), ("brier", brier)):
    with np.errstate(divide="ignore"):
      true_part = loss(log_probs) - loss(np.log(np.maximum(posterior, 1e-300)))
    values[name] = loss(log_probs), true_part, true_part if holds else loss(log_probs) - loss(fitted)
  return values


def coverage(num_classes: int, size: int, name: str) -> list[dict]:
  """The rows of a cell, one a loss: how often intervals hold the part of the class, and how wide they are."""
  rng = np.random.default_rng(zlib.crc32(f"{num_classes}, {size}, {name}".encode()))
  recalibration = decomposition.chosen(size, num_classes)
  found = {loss: [] for loss in decomposition.LOSSES}
  for i in range(REPEATS[size]):
    labels, _, log_probs = sample(rng, size, num_classes, MODELS[name])
    weights = np.ones(size, np.float32)
    removed = decomposition.of_examples(np.exp(log_probs), labels, weights)
    for loss, values in removed.items():
      ends = bootstrap(decomposition.weighted_means, values, weights, key=jax.random.key(i), num_resamples=RESAMPLES)
      found[loss].append((jax.tree.map(float, decomposition.parts(*ends)), float(ends[1][1]), float(ends[2][1])))
  rows = []
  for loss, of_loss in found.items():
    mean, true_part, part = truth(num_classes, MODELS[name], recalibration)[loss]
    calibration, refinement = (np.array([x[0][i] for x in of_loss]) for i in (1, 2))
    out_of_fold = np.array([x[1:] for x in of_loss])
    rows.append({
      "classes": num_classes, "size": size, "model": name, "loss": loss, "recalibration": recalibration,
      "repeats": REPEATS[size], "resamples": RESAMPLES, "true_part": f"{true_part:.5f}", "part": f"{part:.5f}",
      "mean_estimate": f"{calibration[:, 0].mean():.5f}", "width": f"{np.mean(np.diff(calibration[:, 1:])):.5f}",
      "covered": f"{_share(calibration[:, 1:], part):.4f}",
      "covered_refinement": f"{_share(refinement[:, 1:], mean - part):.4f}",
      "covered_out_of_fold": f"{_share(out_of_fold, part):.4f}",
      "above_true_part": f"{np.mean(calibration[:, 1] > true_part):.4f}"})
  return rows


def _share(intervals: np.ndarray, value: float) -> float:
  """The share of intervals ``[R, 2]`` that hold a value."""
  return float(np.mean((intervals[:, 0] <= value) & (value <= intervals[:, 1])))


def table(rows: list[Mapping[str, str]]) -> str:
  """The Markdown table of coverage and width, and sentences on what else was simulated."""
  cells = {(row["model"], row["loss"], int(row["classes"]), int(row["size"])): row for row in rows}
  places = sorted({(k, n) for _, _, k, n in cells})
  lines = ["| calibration part: coverage (mean width), in % | loss | "
           + " | ".join(f"K = {k}, N = {n:,}" for k, n in places) + " |", "|---" * (len(places) + 2) + "|"]
  for name, loss in itertools.product(MODELS, decomposition.LOSSES):
    texts = []
    for place in places:
      row = cells.get((name, loss, *place))
      bold = "**" if row and simulation.is_too_low(row) else ""
      texts.append(f"{bold}{100 * float(row['covered']):.1f}{bold} ({100 * float(row['width']):.1f})" if row else "")
    lines.append(f"| {name if loss == decomposition.LOSSES[0] else ''} | {loss} | {' | '.join(texts)} |")
  of = {key: [100 * float(row[key]) for row in rows]
        for key in ("covered_refinement", "covered_out_of_fold", "above_true_part")}
  return "\n".join(lines) + "\n\n" + (
    f"The interval of the refinement part held it in {min(of['covered_refinement']):.1f}% or more. The interval of "
    f"what\nis removed out of fold held the calibration part in {min(of['covered_out_of_fold']):.1f}% to "
    f"{max(of['covered_out_of_fold']):.1f}%.\nAt most {max(of['above_true_part']):.1f}% of the intervals began above "
    "the true calibration part.\n")


def main(arguments: list[str] | None = None) -> None:
  """Simulates the cells that have no rows yet, and writes the table."""
  commands.parser(__spec__.name, __doc__).parse_args(arguments)
  for num_classes, size, name in itertools.product(CLASSES, REPEATS, MODELS):
    if (str(num_classes), str(size), name) in {(row["classes"], row["size"], row["model"]) for row in read(RESULTS)}:
      continue
    started, rows = time.monotonic(), coverage(num_classes, size, name)
    append(RESULTS, rows)
    shown = ", ".join(f"{row['loss']} {100 * float(row['covered']):.1f}%" for row in rows)
    print(f"K = {num_classes}, N = {size:,}, {name}: {shown}; {time.monotonic() - started:.0f} s", flush=True)
  write_text(PAGE, report.between(PAGE.read_text(encoding="utf-8"), BEGIN, END, table(read(RESULTS))))


if __name__ == "__main__":
  main()
