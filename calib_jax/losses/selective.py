"""Losses of selective classification: areas under the risk-coverage curve (Zhou et al. 2025)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import checks
from calib_jax import confidence as scores
from calib_jax.losses.proper import cross_entropy
from calib_jax.losses.reductions import gather, global_sum, own, prepare
from calib_jax.ordering import from_key, ordered_key
from calib_jax.rows import log_softmax, pick, row_statistics

Array = jax.Array


def aurc(logits, labels, *, confidence: str | Callable = "msp", loss: str | Callable = cross_entropy,
         estimator: str = "harmonic", where=None, axis_name: str | None = None) -> Array:
  r"""Area under the risk-coverage curve, as a reweighted risk.

  .. math:: \frac{1}{N} \sum_i w_i \ell_i, \qquad \text{harmonic: } w_i = H_N - H_{N - r_i}, \qquad
    \text{log: } w_i = -\ln\Big(1 - \frac{r_i}{N + 1}\Big)

  with :math:`r_i` (1 to N) the ascending rank of the confidence score in the global batch, ties in batch order, and
  :math:`H_n` the harmonic numbers. The weights carry no gradient. Harmonic is the exact empirical area.

  Args:
    logits: ``[N, K]`` floats.
    labels: ``[N]`` integers in ``[0, K)``.
    confidence: score by name (``"msp"``, ``"margin"``, ``"negative_entropy"``) or a function of probabilities.
    loss: per-example loss, by name or as a function ``(logits, labels) -> [N]``.
    estimator: ``"harmonic"`` or ``"log"``.
    where, axis_name: as for ``soft_binned_ece``.
  Returns: a scalar; 0 if nothing counts. O(NK + N log N); devices exchange the N scores.
  References: Zhou et al. 2025, Section 3.3.

  >>> aurc(jnp.array([[2.0, 0.0], [0.0, 1.0]]), jnp.array([0, 0])).round(2)
  Array(0.42, dtype=float32)
  """
  checks.choice("estimator", estimator, ("harmonic", "log"))
  logits, labels, where = prepare(logits, labels, where)
  score, losses = _scores_and_losses(logits, labels, confidence, loss)
  every, valid = gather(jax.lax.stop_gradient(score), axis_name), gather(where, axis_name)
  size = len(every)
  order = jnp.argsort(ordered_key(jnp.where(valid, every, jnp.inf)), stable=True)
  rank = own(jnp.zeros(size, jnp.int32).at[order].set(jnp.arange(1, size + 1, dtype=jnp.int32)), len(labels), axis_name)
  count = jnp.sum(valid, dtype=jnp.int32)
  if estimator == "harmonic":
    harmonic = jnp.asarray(np.concatenate([[0.0], np.cumsum(1 / np.arange(1, size + 1))]), logits.dtype)
    weights = harmonic[count] - harmonic[jnp.maximum(count - rank, 0)]
  else:
    weights = -jnp.log1p(-rank.astype(logits.dtype) / (jnp.maximum(count, rank) + 1).astype(logits.dtype))
  total = global_sum(jnp.where(where, weights * losses, 0), axis_name)
  return total / jnp.maximum(count, 1).astype(logits.dtype)


def selective_risk(logits, labels, *, low_confidence_coverage: float = 0.9, smoothing: float = 0.1,
                   num_bins: int = 20, confidence: str | Callable = "msp",
                   score_range: tuple[float, float] | None = None, loss: str | Callable = cross_entropy, where=None,
                   axis_name: str | None = None) -> Array:
  r"""Selective risk over the low-confidence region, with a differentiable distribution of scores.

  .. math::
    \hat G_\nu(g) = \frac{1}{N} \sum_k \hat h_k\, \sigma\Big(\frac{g - c_k}{\nu}\Big), \quad
    \hat\beta_i = -\ln(1 - \hat G_\nu(\min(g_i, \tau))), \quad \frac{1}{N} \sum_i \hat\beta_i \ell_i

  with counts :math:`\hat h_k` of the scores in ``num_bins`` equal bins of their whole range (centres :math:`c_k`), and
  τ the ``low_confidence_coverage`` quantile of the scores of the global batch, interpolated linearly. Neither counts
  nor τ carry a gradient; :math:`\hat\beta_i` does where :math:`g_i < \tau`.

  Args:
    logits: ``[N, K]`` floats.
    labels: ``[N]`` integers in ``[0, K)``.
    low_confidence_coverage: κ, in [0, 1].
    smoothing: ν > 0; carries no gradient.
    num_bins: of the scores; [lo, hi), the last closed; scores are clamped to the range.
    confidence, loss: as for ``aurc``.
    score_range: ``(low, high)`` of the score; needed for a score of your own.
    where, axis_name: as for ``soft_binned_ece``.
  Returns: a scalar; 0 if nothing counts. O(NK + NM + N log N); devices exchange the N scores.
  References: Zhou et al. 2025, Eqs. 13-17, Appendix E.2.

  >>> selective_risk(jnp.array([[2.0, 0.0], [0.0, 1.0]]), jnp.array([0, 0])).round(2)
  Array(0.32, dtype=float32)
  """
  checks.number("low_confidence_coverage", low_confidence_coverage, low=0, high=1)
  checks.number("smoothing", smoothing, low=0, open_low=True)
  checks.number("num_bins", num_bins, low=1, integer=True)
  logits, labels, where = prepare(logits, labels, where)
  if score_range is None:
    score_range = scores.score_range(confidence, logits.shape[1])
  low, high = score_range
  if not low < high:
    raise ValueError(f"score_range must be (low, high) with low < high: got {score_range!r}.")
  score, losses = _scores_and_losses(logits, labels, confidence, loss)
  score = jnp.clip(score, low, high)
  every, valid = gather(jax.lax.stop_gradient(score), axis_name), gather(where, axis_name)
  count = jnp.maximum(jnp.sum(valid, dtype=jnp.int32), 1)
  ordered = from_key(jax.lax.sort(ordered_key(jnp.where(valid, every, jnp.inf)), is_stable=False))
  edges = jnp.asarray(low + np.arange(1, num_bins) * (high - low) / num_bins, logits.dtype)
  starts = jnp.searchsorted(ordered, edges, method="compare_all").astype(logits.dtype)
  counts = jnp.diff(starts, prepend=0, append=jnp.sum(valid, dtype=logits.dtype))
  threshold = _quantile(ordered, count, low_confidence_coverage)
  below = score < threshold
  # Where the score equals τ the two branches agree in value; the constant one is taken.
  limited = jnp.where(below, score, threshold)
  centers = jnp.asarray(low + (np.arange(num_bins) + 0.5) * (high - low) / num_bins, logits.dtype)
  smoothing = jax.lax.stop_gradient(jnp.asarray(smoothing, logits.dtype))
  log_survival = _log_tails(limited / smoothing, centers / smoothing, counts)
  size = count.astype(logits.dtype)
  beta = jnp.where(where, jnp.log(size) - log_survival, 0)
  return global_sum(jnp.where(where, beta * losses, 0), axis_name) / size


@jax.custom_jvp
def _log_tails(x: Array, centers: Array, counts: Array) -> Array:
  """log Σ_k counts_k σ(centers_k - x) for each x ``[N]``; differentiable in x alone."""
  return _tails_and_slope(x, centers, counts)[0]


@_log_tails.defjvp
def _log_tails_jvp(primals, tangents):
  value, slope = _tails_and_slope(*primals)
  return value, slope * tangents[0]


def _tails_and_slope(x: Array, centers: Array, counts: Array) -> tuple[Array, Array]:
  # Each tail over e^b is 1 / (e^(b - a) + e^b), with a = centers - x: for every b the sum is the same, and with b
  # the logarithm of the largest or so it keeps its digits where all are tiny. None below e^-40 of that could be seen.
  highest = jnp.max(jnp.where(counts > 0, centers, centers[0]))
  offset = jnp.minimum(highest - x, 0)
  beyond = jnp.exp(jnp.minimum(offset[None, :] + (x[None, :] - centers[:, None]), 40))
  divisor = beyond + jnp.exp(offset)[None, :]
  tails = counts[:, None] / divisor
  total = jnp.maximum(jnp.sum(tails, axis=0), jnp.finfo(x.dtype).tiny)
  return offset + jnp.log(total), -jnp.sum(tails * beyond / divisor, axis=0) / total


def _scores_and_losses(logits: Array, labels: Array, confidence, loss) -> tuple[Array, Array]:
  if isinstance(loss, str):
    from calib_jax.losses.composition import per_example  # By name only now: that module imports this one.

    loss = per_example(loss)
  score = scores.get(confidence)
  if score not in (scores.msp, scores.negative_entropy):
    return score(jnp.exp(log_softmax(logits)[0])), loss(logits, labels)
  # What these would give of the softmax, in fewer passes over the logits: -log p_y = -log p_top + z_top - z_y.
  row = row_statistics(logits)
  if loss is cross_entropy:
    losses = jax.nn.softplus(row.odds) + (pick(logits, row.top) - pick(logits, labels))
  else:
    losses = loss(logits, labels)
  return -row.entropy if score is scores.negative_entropy else jax.nn.sigmoid(-row.odds), losses


def _quantile(ordered: Array, count: Array, q) -> Array:
  """``numpy.quantile`` of the first ``count`` ordered values, by linear interpolation."""
  place = q * (count - 1).astype(ordered.dtype)
  lower = jnp.floor(place)
  index = lower.astype(jnp.int32)
  first, second = ordered[index], ordered[jnp.minimum(index + 1, count - 1)]
  quantile = first + (place - lower) * (second - first)
  return jnp.where(jnp.isfinite(first), quantile, 0)
