"""How often intervals of the difference of two models hold the true difference.

`python -m experiments.coverage` runs this. Both models predict the same examples: x is normal with unit variance around
a mean of its class, and the posterior is known. A model's exponent a makes it overconfident above 1 and underconfident
below; a blunt model sees x with noise. The intervals are those of `evaluation.measure`, which tables, verdicts and bold
cells have; those of ``OTHERS`` are of `metrics.paired_difference`. Rows are appended to
experiments/results/coverage_of_differences.csv as they come; what it already holds is skipped.
"""

from collections.abc import Mapping, Sequence
import functools
import itertools
import time
from typing import NamedTuple

import jax
import numpy as np

from calib_jax import metrics
from calib_jax.evaluation.measures import JOINT, METRICS, measure, per_example
from calib_jax.predictions.predictions import Predictions
from experiments.common import commands
from experiments.common.rows import read, write
from experiments.estimators import simulation

RESULTS = commands.RESULTS / "coverage_of_differences.csv"
SEPARATION = {2: 2**0.5, 10: 2.5, 100: 3.5}  # The distance of a class's mean from 0, by the number of classes.
REPEATS = {300: 200, 1000: 200, 5000: 100}
RESAMPLES = 150
SHOWN = tuple(name for name in JOINT if name != "entropy")
OTHERS = {  # Metrics, each with the model of its bias.
  "ECE, equal mass, norm 1": (functools.partial(metrics.calibration_error, binning="equal_mass"),
                              metrics.bias_model(metrics.calibration_error)),
  "KS": (metrics.ks_calibration_error, "auto"),
  "class-wise, equal width, norm 1": (metrics.classwise_calibration_error, "auto"),
  "smooth (smECE)": (metrics.smooth_calibration_error, "auto"),
}
FEW_CLASSES = 10  # The class-wise error is simulated for at most so many.
SLOWEST, SLOWEST_RESAMPLES = "smooth (smECE)", 50  # It takes long: it has fewer resamples, and is simulated last.
POINTS = 300_000  # Examples of which the true values are means.


class Model(NamedTuple):
  """The exponent of a model, and the variance of the noise that it sees."""

  exponent: float = 1.0
  noise: float = 0.0


PAIRS = {
  "calibrated, overconfident (1.6)": (Model(), Model(1.6)),
  "calibrated, overconfident (1.15)": (Model(), Model(1.15)),
  "overconfident (1.1), (1.3)": (Model(1.1), Model(1.3)),
  "calibrated, calibrated and blunt": (Model(), Model(noise=1)),
  "overconfident (1.3), underconfident (0.75)": (Model(1.3), Model(0.75)),
  "equal, each with its noise (1.3)": (Model(1.3, 0.3), Model(1.3, 0.3)),
}


def sample(rng: np.random.Generator, size: int, num_classes: int, models: tuple[Model, ...]
           ) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
  """Labels ``[N]``, and for each model its log-probabilities ``[N, K]`` and the posterior of what it sees."""
  separation = SEPARATION[num_classes]
  labels = rng.integers(num_classes, size=size)
  seen = rng.standard_normal((size, num_classes))
  seen[np.arange(size), labels] += separation
  predictions = []
  for model in models:
    own = seen + np.sqrt(model.noise) * rng.standard_normal(seen.shape) if model.noise else seen
    scores = separation * own / (1 + model.noise)
    predictions.append((_log_softmax(model.exponent * scores), np.exp(_log_softmax(scores))))
  return labels, predictions


def _log_softmax(scores: np.ndarray) -> np.ndarray:
  scores = scores - scores.max(1, keepdims=True)
  return scores - np.log(np.exp(scores).sum(1, keepdims=True))


@functools.cache
def truth(num_classes: int, model: Model) -> dict[str, float]:
  """The values of ``SHOWN`` that a model has for infinitely many examples; errors are those of fifteen bins."""
  _, ((log_probs, posterior),) = sample(np.random.default_rng(1), POINTS, num_classes, (model,))
  probs, rows = np.exp(log_probs), np.arange(POINTS)
  top = probs.argmax(1)
  confidence, accuracy = probs[rows, top], posterior[rows, top]
  order = np.argsort(confidence)
  gap, risk = (confidence - accuracy)[order], 1 - accuracy[order[::-1]]
  # Equal-width bins of the sorted confidences, and equal-mass bins.
  edges = np.searchsorted(confidence[order], np.arange(1, 15) / 15, "right")
  taken = np.arange(1, POINTS + 1)
  curve = np.cumsum(risk) / taken
  aurc = curve.mean()
  wrong = risk.mean()
  best = wrong + (1 - wrong) * np.log1p(-wrong)  # The best order has the errors last.
  errors = {"ece": sum(abs(part.sum()) for part in np.split(gap, edges)) / POINTS,
            "ece_equal_mass_l2": np.sqrt(np.mean([part.mean()**2 for part in np.array_split(gap, 15)])),
            "ECE, equal mass, norm 1": np.mean([abs(part.mean()) for part in np.array_split(gap, 15)]),
            "KS": abs(np.cumsum(gap)).max() / POINTS,
            "class-wise, equal width, norm 1": np.mean([_classwise(probs[:, k], posterior[:, k])
                                                        for k in range(min(num_classes, FEW_CLASSES))])}
  cells = [np.array([part.mean() for part in np.array_split(x[order], 500)]) for x in (confidence, accuracy)]
  errors["smooth (smECE)"] = simulation.true_errors(*cells, np.full(500, 1 / 500))["smooth"]
  if model.exponent == 1:
    errors = dict.fromkeys(errors, 0.0)
  return {"accuracy": accuracy.mean(), "nll": -np.mean((posterior * log_probs).sum(1)),
          "brier": 1 + np.mean((probs**2 - 2 * posterior * probs).sum(1)), **errors, "aurc": aurc,
          "excess_aurc": aurc - best,
          **{f"coverage_at_{most}": taken[curve <= most / 100].max(initial=0) / POINTS for most in (1, 5)}}


def _classwise(probs: np.ndarray, posterior: np.ndarray) -> float:
  """The calibration error of the probability of one class."""
  bins = np.minimum((probs * 15).astype(int), 14)
  return float(abs(np.bincount(bins, probs - posterior, 15)).sum() / len(probs))


def of_others(pair: str, num_classes: int, size: int, names: Sequence[str]) -> list[dict]:
  """The rows of some of ``OTHERS``, as ``coverage`` returns them."""
  models = PAIRS[pair]
  rng, intervals = _rng(pair, num_classes, size), {name: [] for name in names}
  for i in range(REPEATS[size]):
    labels, predictions = sample(rng, size, num_classes, models)
    probs = [np.exp(log_probs).astype(np.float32) for log_probs, _ in predictions]
    tops = [metrics.top_label(p, labels.astype(np.int32)) for p in probs]
    for name, ends in intervals.items():
      arrays = [(p, labels.astype(np.int32)) for p in probs] if name.startswith("class-wise") else tops
      metric, bias = OTHERS[name]
      ends.append(np.array(metrics.paired_difference(metric, *arrays, key=jax.random.key(i), bias=bias,
                                                     num_resamples=resamples(name), method="bias_corrected")[1:]))
  return [_row(pair, num_classes, size, name, ends) for name, ends in intervals.items()]


def resamples(name: str) -> int:
  """The number of resamples of each interval."""
  return SLOWEST_RESAMPLES if name == SLOWEST else RESAMPLES


def names_of_others(num_classes: int) -> list[str]:
  """The metrics of ``OTHERS`` that are simulated."""
  return [name for name in OTHERS if not (name.startswith("class-wise") and num_classes > FEW_CLASSES)]


def _rng(pair: str, num_classes: int, size: int) -> np.random.Generator:
  """Every cell has samples of its own: cells of the same samples would be low or high together."""
  return np.random.default_rng([list(PAIRS).index(pair), num_classes, size])


def _row(pair: str, num_classes: int, size: int, name: str, ends: list) -> dict:
  (first, second), (low, high) = (truth(num_classes, model)[name] for model in PAIRS[pair]), np.array(ends).T
  true = first - second
  return {"pair": pair, "classes": num_classes, "size": size, "metric": name, "repeats": REPEATS[size],
          "resamples": resamples(name), "truth": f"{true:.5f}",
          "covered": f"{np.mean((low <= true) & (true <= high)):.4f}", "above": f"{np.mean(low > true):.4f}",
          "below": f"{np.mean(high < true):.4f}", "width": f"{np.mean(high - low):.5f}"}


def coverage(pair: str, num_classes: int, size: int) -> list[dict]:
  """The share of intervals that hold the true difference, above it and below it, and their mean width, by metric."""
  models = PAIRS[pair]
  rng, intervals = _rng(pair, num_classes, size), {name: [] for name in SHOWN}
  for _ in range(REPEATS[size]):
    labels, predictions = sample(rng, size, num_classes, models)
    values = {i: per_example([Predictions(log_probs.astype(np.float32), labels.astype(np.int32))], num_redraws=2)
              for i, (log_probs, _) in enumerate(predictions)}
    change = measure(values, num_resamples=RESAMPLES)[1][1, 0]
    for name in SHOWN:
      intervals[name].append((-change[name].high, -change[name].low))
  return [_row(pair, num_classes, size, name, ends) for name, ends in intervals.items()]


def table(rows: list[dict]) -> str:
  """The Markdown table of coverage and width; coverage that is too low is bold."""
  cells = {(row["pair"], row["metric"], int(row["classes"]), int(row["size"])): row for row in rows}
  places = sorted({(classes, size) for _, _, classes, size in cells})
  lines = ["| difference: coverage (mean width), in % | metric | "
           + " | ".join(f"K = {k}, N = {n:,}" for k, n in places) + " |", "|---" * (len(places) + 2) + "|"]
  for pair, name in itertools.product(PAIRS, (*SHOWN, *OTHERS)):
    texts = []
    for place in places:
      row = cells.get((pair, name, *place))
      text = f"{100 * float(row['covered']):.1f}" if row else ""
      bold = "**" if row and simulation.is_too_low(row) else ""
      texts.append(f"{bold}{text}{bold} ({100 * float(row['width']):.1f})" if row else "")
    heading = METRICS[name].heading.replace(" %", "") if name in METRICS else name
    lines.append(f"| {pair if name == SHOWN[0] else ''} | {heading} | {' | '.join(texts)} |")
  return "\n".join(lines) + "\n"


def simulate() -> None:
  """Simulates what has no row yet; new rows of a metric replace those that it had."""
  cells = list(itertools.product(SEPARATION, REPEATS, PAIRS))
  for is_slowest, cell in itertools.product((False, True), cells):
    num_classes, size, pair = cell
    done = {row["metric"] for row in read(RESULTS) if _cell(row) == cell}
    names = [name for name in names_of_others(num_classes)
             if (name == SLOWEST) == is_slowest and name not in done]
    started, rows = time.monotonic(), of_others(pair, num_classes, size, names) if names else []
    if not is_slowest and not done >= set(SHOWN):
      rows += coverage(pair, num_classes, size)
    if rows:
      made = {row["metric"] for row in rows}
      write(RESULTS, [row for row in read(RESULTS) if _cell(row) != cell or row["metric"] not in made] + rows)
      shown = ", ".join(f"{row['metric']} {100 * float(row['covered']):.0f}%" for row in rows)
      print(f"K = {num_classes}, N = {size:,}, {pair}: {shown}; {time.monotonic() - started:.0f} s", flush=True)


def _cell(row: Mapping[str, str]) -> tuple[int, int, str]:
  return int(row["classes"]), int(row["size"]), row["pair"]
