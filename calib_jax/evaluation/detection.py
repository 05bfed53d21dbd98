"""How well each confidence score separates a data set from an out-of-distribution one."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import confidence, metrics
from calib_jax.evaluation.predictions import Predictions
from calib_jax.evaluation.rowwise import Calibrated

KEYS = ("auroc", "fpr_at_95_tpr", "auroc_outside", "fpr_at_95_tpr_outside")


def detection(inside: Sequence[Predictions | Calibrated], outside: Sequence[Predictions | Calibrated], *,
              num_resamples: int = 1000) -> dict[str, dict[str, dict[str, float]]]:
  """Measures how well each confidence score separates a data set from an out-of-distribution one.

  Args:
    inside: predictions of the data set, calibrated or not, one element a seed.
    outside: predictions of the out-of-distribution set, one element a seed.
    num_resamples: the number of resamples of the bootstrap.

  Returns:
    ``{score: {measure: {"estimate", "low", "high"}}}``, means over seeds with 95% bootstrap intervals. The measures are
    ``auroc`` and ``fpr_at_95_tpr``, which count the examples of ``inside`` as positives, and ``auroc_outside`` and
    ``fpr_at_95_tpr_outside``, which count those of ``outside``, with the negative score.
  """
  inside, outside = ([_scores(source) for source in map(Calibrated.of, sources)] for sources in (inside, outside))
  scores = [np.concatenate(pair) for pair in zip(inside, outside, strict=True)]
  is_inside = np.arange(len(scores[0])) < len(inside[0])
  found = metrics.bootstrap(_separation, np.stack(scores, axis=1), is_inside, key=jax.random.key(0),
                            num_resamples=num_resamples)
  return {name: {key: dict(zip(("estimate", "low", "high"), (float(x[i, j]) for x in found), strict=True))
                 for j, key in enumerate(KEYS)} for i, name in enumerate(confidence.SCORES)}


def _scores(source: Calibrated) -> np.ndarray:
  """Every confidence score, ``[N, scores]``."""
  found = np.empty((len(source.part.labels), len(confidence.SCORES)), np.float32)
  for rows, _, log_probs in source.chunks():
    found[rows] = _of_chunk(source.probs(rows, log_probs))
  return found


@jax.jit
def _of_chunk(probs: jax.Array) -> jax.Array:
  return jnp.stack([score(probs) for score in confidence.SCORES.values()], axis=1)


def _separation(scores: jax.Array, is_inside: jax.Array) -> jax.Array:
  """``[scores, KEYS]`` of ``[N, S, scores]``, means over seeds."""
  def of_score(score):
    return jnp.stack([measure(sign * score, positives) for sign, positives in ((1, is_inside), (-1, ~is_inside))
                      for measure in (metrics.auroc, metrics.fpr_at_tpr)])

  over_seeds = jax.vmap(of_score, in_axes=1)
  return jax.vmap(lambda x: jnp.mean(over_seeds(x), axis=0), in_axes=2)(scores)
