"""How often intervals of the difference of two models hold the true difference.

`python -m experiments.coverage` runs this. Both models predict the same examples: x is normal with unit variance around
a mean of its class, and the posterior is known. A model's exponent a makes it overconfident above 1 and underconfident
below; a blunt model sees x with noise. The intervals are those of `evaluation.measure`, which tables, verdicts and bold
cells have; those of ``OTHERS`` are of `metrics.paired_difference`.
"""

from collections.abc import Sequence
import functools
import itertools
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.special import log_softmax

from calib_jax import metrics
from calib_jax.evaluation.columns import COLUMNS
from calib_jax.evaluation.measures import measure, per_example
from calib_jax.evaluation.predictions.predictions import Predictions
from experiments.common import markdown, studies
from experiments.estimators import simulation

SEPARATION = {2: 2**0.5, 10: 2.5, 100: 3.5}  # The distance of a class's mean from 0, by the number of classes.
REPEATS = {300: 200, 1000: 200, 5000: 100}
SHOWN = tuple(name for name, column in COLUMNS.items() if column.compare and name != "entropy")
CLASSWISE, FEW_CLASSES = "class-wise, equal width, norm 1", 10  # It is simulated for at most so many classes.
SLOWEST = "smooth (smECE)"  # It takes long: it has fewer resamples, and is simulated last.
RESAMPLES = {SLOWEST: 50}  # Of each interval; 150 of the other metrics.
OTHERS = {  # Metrics, their keys in ``simulation.true_values``, and the models of their biases.
  "ECE, equal mass, norm 1": (functools.partial(metrics.calibration_error, binning="equal_mass"), "equal_mass",
                              metrics.bias_model(metrics.calibration_error)),
  "KS": (metrics.ks_calibration_error, "ks", "auto"),
  CLASSWISE: (metrics.classwise_calibration_error, "classwise", "auto"),
  SLOWEST: (metrics.smooth_calibration_error, "smooth", "auto"),
}
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
    predictions.append((log_softmax(model.exponent * scores, axis=1), np.exp(log_softmax(scores, axis=1))))
  return labels, predictions


@functools.cache
def truth(num_classes: int, model: Model) -> dict[str, float]:
  """The values that a model has for infinitely many examples."""
  _, ((log_probs, posterior),) = sample(np.random.default_rng(1), POINTS, num_classes, (model,))
  values = simulation.true_values(log_probs, posterior, calibrated=model.exponent == 1)
  return values | {name: values[target] for name, (_, target, _) in OTHERS.items()}


def measured(labels: np.ndarray, log_probs: Sequence[np.ndarray]) -> dict[str, tuple[float, float]]:
  """The intervals of the differences of ``SHOWN``, which are measured together."""
  values = {i: per_example([Predictions(x.astype(np.float32), labels.astype(np.int32))], num_redraws=2)
            for i, x in enumerate(log_probs)}
  change = measure(values, num_resamples=150)[1][1, 0]
  return {name: (-change[name].high, -change[name].low) for name in SHOWN}


def resampled(name: str, labels: np.ndarray, log_probs: Sequence[np.ndarray], key: jax.Array) -> tuple[float, float]:
  """The interval of the difference of one of ``OTHERS``."""
  arrays = [(np.exp(x).astype(np.float32), labels.astype(np.int32)) for x in log_probs]
  if name != CLASSWISE:
    arrays = [metrics.top_label(*pair) for pair in arrays]
  metric, _, bias = OTHERS[name]
  return metrics.paired_difference(metric, *arrays, key=key, bias=bias, method="bias_corrected",
                                   num_resamples=RESAMPLES.get(name, 150))[1:]


def coverage(pair: str, num_classes: int, size: int, metric: str) -> list[dict[str, object]]:
  """The share of intervals that hold the true difference of a metric, lie above and below it, and their mean width."""
  # Every pair and size has samples of its own: cells of the same samples would be low or high together.
  rng, intervals, rows = np.random.default_rng([list(PAIRS).index(pair), num_classes, size]), [], []
  for i in range(REPEATS[size]):
    labels, predictions = sample(rng, size, num_classes, PAIRS[pair])
    log_probs = [x for x, _ in predictions]
    intervals.append({metric: resampled(metric, labels, log_probs, jax.random.key(i))} if metric in OTHERS
                     else measured(labels, log_probs))
  for name in intervals[0]:
    low, high = np.array([ends[name] for ends in intervals]).T
    first, second = (truth(num_classes, model)[name] for model in PAIRS[pair])
    true = first - second
    rows.append({"metric": name, "repeats": REPEATS[size], "resamples": RESAMPLES.get(name, 150),
                 "truth": f"{true:.5f}", "covered": f"{np.mean((low <= true) & (true <= high)):.4f}",
                 "above": f"{np.mean(low > true):.4f}", "below": f"{np.mean(high < true):.4f}",
                 "width": f"{np.mean(high - low):.5f}"})
  return rows


def table(rows: pd.DataFrame) -> str:
  """The Markdown table of coverage and width; coverage that is too low is bold."""
  texts = rows.assign(text=studies.covered(rows)).pivot(index=["pair", "metric"], columns=["classes", "size"],
                                                        values="text").sort_index(axis=1).fillna("")
  headings = ["difference: coverage (mean width), in %", "metric", *(f"K = {k}, N = {n:,}" for k, n in texts)]
  return markdown.table(headings, [
    (pair if name == SHOWN[0] else "", COLUMNS[name].heading.replace(" %", "") if name in COLUMNS else name,
     *texts.loc[pair, name]) for pair, name in itertools.product(PAIRS, (*SHOWN, *OTHERS))]) + "\n"


CELLS = itertools.product(PAIRS, SEPARATION, REPEATS, (SHOWN[0], *OTHERS))
STUDY = studies.Study("coverage_of_differences", ("pair", "classes", "size", "metric"), tuple(sorted(
  (cell for cell in CELLS if cell[1] <= FEW_CLASSES or cell[3] != CLASSWISE), key=lambda cell: cell[3] == SLOWEST)),
  coverage, table)
