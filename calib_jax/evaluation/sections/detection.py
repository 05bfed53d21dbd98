"""How well each confidence score separates a data set from an out-of-distribution one."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import confidence
from calib_jax._system import compilation
from calib_jax.evaluation.numbers import cell
from calib_jax.evaluation.predictions.calibrated import Calibrated
from calib_jax.evaluation.predictions.fitting import Model
from calib_jax.evaluation.predictions.predictions import Predictions
from calib_jax.evaluation.resampled_detection import Separation
from calib_jax.evaluation.results import LEVEL, Interval, Results
from calib_jax.evaluation.sections import SECTIONS, Section, Table
from calib_jax.intervals import resamples
from calib_jax.thresholds.means import binomial_interval

# What is measured, with its heading.
HEADINGS = {"auroc": "AUROC %", "fpr_at_95_tpr": "FPR95 %", "auroc_outside": "AUROC %, outside positive",
            "fpr_at_95_tpr_outside": "FPR95 %, outside positive"}
SPREAD = "negative_spread"  # The score of an ensemble, which is the highest where its members agree.

Detection = dict[str, dict[str, Interval]]  # Measures by confidence score.


def compute(results: Results, models: Mapping[str, Model]) -> dict[str, dict[str, dict[str, Detection]]]:
  """Measures every confidence score of each row on each out-of-distribution set."""
  test_set = results.first[0]
  return {set_name: {
    name: {label: detection(model.calibrated(test_set, label), model.calibrated(set_name, label),
                            num_resamples=results.num_resamples) for label in model.labels}
    for name, model in models.items() if set_name in model.sets}
    for set_name, evaluated in results.sets.items() if evaluated.kind == "out_of_distribution"}


def table(content: Mapping[str, Any], results: Results) -> Table:
  """Returns how well confidence scores detect out-of-distribution sets."""
  rows = [[set_name, model, label, score, *(cell(measured[key], 100) for key in HEADINGS)]
          for set_name, by_model in content.items() for model, by_label in by_model.items()
          for label, scores in by_label.items() for score, measured in scores.items()]
  return Table("Detection of out-of-distribution sets",
               ["set", "trained with", "calibrated by", "score", *HEADINGS.values()], rows)


def detection(inside: Sequence[Predictions | Calibrated], outside: Sequence[Predictions | Calibrated], *,
              num_resamples: int = 1000) -> Detection:
  """Measures how well each confidence score separates a data set from an out-of-distribution one.

  Args:
    inside: predictions of the data set, calibrated or not, one element a seed.
    outside: predictions of the out-of-distribution set, one element a seed.
    num_resamples: the number of resamples of the bootstrap.

  Returns:
    ``{score: {measure: interval}}`` of the scores of ``confidence`` and, for ensembles, of minus the members'
    ``spread``; means over seeds with 95% bootstrap intervals. The measures are ``auroc`` and
    ``fpr_at_95_tpr``, which count the examples of ``inside`` as positives, and ``auroc_outside`` and
    ``fpr_at_95_tpr_outside``, which count the examples of ``outside``, with the negative score.
  """
  inside, outside = (list(map(Calibrated.of, sources)) for sources in (inside, outside))
  groups = _groups(inside[0], outside[0])
  names = [*confidence.SCORES, *([SPREAD] if inside[0].part.spread is not None else [])]
  inside, outside = ([_scores(source) for source in sources] for sources in (inside, outside))
  size = len(inside[0])
  separations = [[Separation(*(x[:, i] for x in pair)) for i in range(len(names))]
                 for pair in zip(inside, outside, strict=True)]

  def measured(counts):
    """The measures ``[R, scores, HEADINGS]``, means over seeds."""
    of_seeds = [[separation.measures(counts[:, :size], counts[:, size:]) for separation in of_seed]
                for of_seed in separations]
    auroc, false_rate, outside_false_rate = np.moveaxis(np.mean(of_seeds, axis=0), (2, 1), (0, 1))
    return np.stack([auroc, false_rate, auroc, outside_false_rate], axis=-1)

  ends = resamples.percentile(measured, size + len(outside[0]), key=jax.random.key(0), num_resamples=num_resamples,
                              groups=groups)
  units = [len(x[0]) for x in (inside, outside)] if groups is None else [
    len(np.unique(part)) for part in (groups[:size], groups[size:])]
  return {name: {key: _as_wide(Interval(*(float(x[i, j]) for x in ends)), key, *units)
                 for j, key in enumerate(HEADINGS)} for i, name in enumerate(names)}


def _as_wide(interval: Interval, key: str, num_inside: int, num_outside: int) -> Interval:
  """An interval that is at least as wide as one that allows for what was not seen: sets may be parted by chance.

  It is the exact one of a share, and for an area method 5 of Newcombe 2006, whose variance is of the area that it
  tests, and not of the one that was measured.
  """
  measured = interval.estimate
  if not key.startswith("auroc"):
    low, high = binomial_interval(measured, num_outside if key == "fpr_at_95_tpr" else num_inside, LEVEL)
  else:
    area, mean = np.linspace(0, 1, 10_001), (num_inside + num_outside) / 2
    variance = area * (1 - area) * (1 + (mean - 1) * ((1 - area) / (2 - area) + area / (1 + area))) / (
      num_inside * num_outside)
    held = area[np.abs(area - measured) <= 1.96 * np.sqrt(variance)]
    low, high = held.min(initial=measured), held.max(initial=measured)
  return Interval(measured, min(interval.low, float(low)), max(interval.high, float(high)))


def _groups(inside: Calibrated, outside: Calibrated) -> np.ndarray | None:
  """The groups of both sets, none in both; None if no set has any."""
  if inside.part.groups is None and outside.part.groups is None:
    return None
  numbers = [np.arange(len(source.part.labels)) if source.part.groups is None
             else np.unique(source.part.groups, return_inverse=True)[1] for source in (inside, outside)]
  return np.concatenate([numbers[0], numbers[0].max() + 1 + numbers[1]])


def _scores(source: Calibrated) -> np.ndarray:
  """Every confidence score, ``[N, scores]``; an ensemble's members have the last."""
  scores = np.empty((len(source.part.labels), len(confidence.SCORES)), np.float32)
  computed = compilation.sized(_of_chunk, source.part.logits.size)
  for rows, _, log_probs in source.chunks():
    scores[rows] = computed(source.probs(rows, log_probs))
  return scores if source.part.spread is None else np.column_stack([scores, -source.part.spread])


def _of_chunk(probs: jax.Array) -> jax.Array:
  return jnp.stack([score(probs) for score in confidence.SCORES.values()], axis=1)


SECTIONS["detection"] = Section(compute, table, in_json=1, on_page=6)
