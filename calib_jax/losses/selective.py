"""Losses of selective classification: areas under the risk-coverage curve (Zhou et al. 2025)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax import confidence as scores
from calib_jax._checks.registry import find
from calib_jax._numerics import binning
from calib_jax.losses.catalogue import PER_BATCH, PER_EXAMPLE, register
from calib_jax.losses.ranks import rank_weights
from calib_jax.losses.reductions import gather, global_sum, weighted

Array = jax.Array
VARIANTS = ("stopped", "printed", "clamped", "released")
Loss = str | Callable[[Array, Array], Array]  # A loss per example, by name or as a function of logits and labels.


@register(PER_BATCH)
def aurc(logits: ArrayLike, labels: ArrayLike, *, confidence: scores.Score = "msp", loss: Loss = "cross_entropy",
         estimator: str = "harmonic", where: ArrayLike | None = None, weights: ArrayLike | None = None,
         axis_name: str | None = None) -> Array:
  r"""Area under the risk-coverage curve, as a reweighted risk.

  Use it to train a model whose confidence ranks its errors last.

  .. math:: \frac{1}{N} \sum_i w_i \ell_i, \qquad \text{harmonic: } w_i = H_N - H_{N - r_i}, \qquad
    \text{log: } w_i = -\ln\Big(1 - \frac{r_i}{N + 1}\Big)

  with :math:`r_i` (1 to N) the ascending rank of the confidence score in the global batch, ties in batch order, and
  :math:`H_n` the harmonic numbers. The weights carry no gradient. The harmonic weights give the empirical area exactly.

  The released code takes the score of softmax(softmax(z)), for which ``confidence=lambda p: msp(jax.nn.softmax(p))``
  stands, and gives a last batch that is smaller than the others the lowest weights of a full one.

  Args:
    logits: ``[..., K]`` floats, whose leading axes are one batch of N rows.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats, distributions, if ``loss`` takes them.
    confidence: score by name (``"msp"``, ``"margin"``, ``"negative_entropy"``) or a function of probabilities.
    loss: per-example loss, by name or as a function ``(logits, labels) -> [N]``.
    estimator: ``"harmonic"`` or ``"log"``.
    where: optional ``[...]`` bools; rows that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row,
      which take ranks one after another. N is their sum, so that weights whose sum is 1 stand for one row.
    axis_name: optional mapped axis, for the value of the global batch across it.

  Returns:
    A scalar; 0 if nothing counts. O(NK + N log N); devices exchange the N scores.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    Zhou et al. 2025, Section 3.3.

  >>> jax.jit(aurc)(jnp.array([[2.0, 0.0], [0.0, 1.0]]), jnp.array([0, 0])).round(2)
  Array(0.42, dtype=float32)
  """
  logits, labels, weights = checks.batch(logits, labels, where, weights, axis_name=axis_name, soft=True)
  checks.options(estimator=(estimator, ("harmonic", "log")))
  score, losses = _scores(jax.nn.softmax(logits), confidence), _losses(logits, labels, loss)
  every, every_weight = gather(jax.lax.stop_gradient(score), axis_name), gather(weights, axis_name)
  of_ranks = rank_weights(every, every_weight, estimator)
  if axis_name is not None:  # Of all devices' rows, this device's own.
    of_ranks = jax.lax.dynamic_slice_in_dim(of_ranks, jax.lax.axis_index(axis_name) * len(labels), len(labels))
  if weights.dtype == jnp.bool_:
    of_ranks = jnp.where(weights, of_ranks, 0)
  return global_sum(weighted(of_ranks, losses), axis_name) / _size(every_weight).astype(logits.dtype)


class SelectiveRiskState(NamedTuple):
  """What selective risk has seen: ``counts`` ``[num_bins]``, the number of scores in each bin."""

  counts: Array


@register(PER_BATCH)
def selective_risk(logits: ArrayLike, labels: ArrayLike, *, variant: str = "released",
                   low_confidence_coverage: float | Array = 0.9, smoothing: float | Array = 0.1, num_bins: int = 64,
                   confidence: scores.Score = "msp", score_range: tuple[float, float] | None = None,
                   loss: Loss = "cross_entropy", counts: ArrayLike | None = None,
                   where: ArrayLike | None = None, weights: ArrayLike | None = None, axis_name: str | None = None
                   ) -> Array:
  r"""Selective risk over the low-confidence region: examples that the model is surer of weigh more, up to a quantile.

  Use it to train for a share of examples that the model may refuse.

  .. math::
    \hat G_\nu(g) = \frac{1}{n} \sum_k \hat h_k\, \sigma\Big(\frac{g - c_k}{\nu}\Big), \quad
    \hat\beta_i = -\ln(1 - \hat G_\nu(\min(g_i, \tau))), \quad \frac{1}{N} \sum_i \hat\beta_i \ell_i

  with scores :math:`g_i` on [0, 1] (negative entropy as 1 + Σ p log p / log K, msp and margin as they are), and
  :math:`\hat h_k` the number of scores in bin k of ``num_bins`` equal bins of [0, 1], with centre :math:`c_k`: the
  batch's scores, plus ``counts`` seen before; n is their sum and N the size of the global batch. The numbers of scores
  carry no gradient. τ is the ``low_confidence_coverage`` quantile of the global batch's scores, interpolated linearly.

  ``variant`` says how the loss is read:

  * ``"released"``: :math:`\hat G_\nu` is clamped to [1/(N + 1), N/(N + 1)], gradients flow through :math:`\hat\beta_i`
    and τ, and scores are of softmax(p) in place of p, as the released code computes them. Its msp is at most
    e/(e + K - 1). Its normalised negative entropy has the sign of one bound wrong and is the constant 1, so that with
    this score the loss is :math:`-\ln(1 - \hat G_\nu(1))` times the mean of :math:`\ell_i`: 0.73297 times at ν = 0.1
    and 0.77432 times at ν = 0.05, with 64 bins.
  * ``"stopped"``: scores of p, clamped, and :math:`\hat\beta_i` has no gradient.
  * ``"printed"``: Eq. 17, where gradients flow through :math:`\hat\beta_i` if :math:`g_i < \tau`; nothing is clamped.
  * ``"clamped"``: the same, clamped.

  ``"released"`` with msp is the default because it had the lowest log loss of all variants on the three networks of the
  leaderboards, as trained and after temperature scaling. The released code's own default score is negative entropy.

  In ``"printed"`` and ``"clamped"`` every example gains by being less confident than the numbers of scores say, and
  training from scratch lost accuracy or collapsed; see docs/selective_risk.md. The defaults of κ and ν are those that
  the paper prints for ResNets on CIFAR-10; the leaderboards tune both for networks that memorise.

  Args:
    logits: ``[..., K]`` floats, whose leading axes are one batch of N rows.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats, distributions, if ``loss`` takes them.
    variant: ``"stopped"``, ``"printed"``, ``"clamped"`` or ``"released"``, as above.
    low_confidence_coverage: κ, in [0, 1].
    smoothing: ν > 0.
    num_bins: number of bins of the scores; bins are [lo, hi), the last closed.
    confidence: score by name (``"msp"``, ``"margin"``, ``"negative_entropy"``) or a function of probabilities.
    score_range: ``(low, high)`` of the score, which become 0 and 1; needed for a score of your own. Scores outside are
      clamped.
    loss: per-example loss, by name or as a function ``(logits, labels) -> [N]``.
    counts: optional ``[num_bins]`` floats, the numbers of scores seen before (``SelectiveRiskState.counts``); the same
      on all devices.
    where: optional ``[...]`` bools; rows that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.
      N is their sum, so that weights whose sum is 1 stand for one row. Like the numbers of scores, τ and the
      :math:`\hat\beta_i` follow them without a gradient.
    axis_name: optional mapped axis, for the value of the global batch across it.

  Returns:
    A scalar; 0 if nothing counts. O(NK + NM + N log N) with M bins; devices exchange the N scores.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    Zhou et al. 2025, Eqs. 13-17, Appendix E.2. What the paper does not say (64 bins, the clamp, numbers of scores kept
    over an epoch) follows the code released with it. Values and gradients of ``"released"`` are compared with those
    that this code gave.

  >>> jax.jit(selective_risk)(jnp.array([[2.0, 0.0], [0.0, 1.0]]), jnp.array([0, 0])).round(2)
  Array(0.41, dtype=float32)
  """
  logits, labels, weights = checks.batch(logits, labels, where, weights, axis_name=axis_name, soft=True)
  checks.options(variant=(variant, VARIANTS), low_confidence_coverage=(low_confidence_coverage, "[0, 1]"),
                 smoothing=(smoothing, "(0, inf)"), num_bins=(num_bins, "integer [1, inf)"))
  score = _unit_scores(logits, confidence, score_range, variant)
  losses = _losses(logits, labels, loss)
  every, every_weight = gather(score, axis_name), gather(weights, axis_name)
  every = every if variant == "released" else jax.lax.stop_gradient(every)
  threshold, size = _quantile(every, every_weight, low_confidence_coverage), _size(every_weight).astype(logits.dtype)
  limited = jnp.where(score < threshold, score, threshold)
  seen = _counts(every, every_weight, num_bins)
  if counts is not None:
    before = checks.floating(counts, "counts")
    if before.shape != (num_bins,):
      raise ValueError(f"counts must have shape ({num_bins},), one number for each of num_bins: got {before.shape}.")
    seen += jax.lax.stop_gradient(before).astype(seen.dtype)
  # 1 - Ĝ = (1/n) Σ_k h_k σ((c_k - g) / ν), whose logarithm is numerically stable also where all terms are tiny.
  centers = jnp.asarray((np.arange(num_bins) + 0.5) / num_bins, logits.dtype)
  tails = jax.nn.log_sigmoid((centers[None, :] - limited[:, None]) / smoothing)
  share = jnp.where(jnp.any(every_weight.astype(bool)), seen / _size(seen), 1)
  log_rest = jax.nn.logsumexp(tails, b=share[None, :], axis=1)
  if variant != "printed":
    log_rest = jnp.clip(log_rest, -jnp.log1p(size), -jnp.log1p(1 / size))
  if variant == "stopped":
    log_rest = jax.lax.stop_gradient(log_rest)
  else:  # A loss that is infinite, of a masked label, would make its weight's gradient NaN.
    log_rest = jnp.where(losses < jnp.inf, log_rest, jax.lax.stop_gradient(log_rest))
  return global_sum(weighted(weights.astype(logits.dtype), -log_rest * losses), axis_name) / size


def init_selective_risk(num_bins: int = 64) -> SelectiveRiskState:
  """The state before any score has been seen.

  Args:
    num_bins: the number of bins of the loss.

  Returns:
    The state.

  Raises:
    TypeError, ValueError: if the number is not an integer of at least 1.

  >>> init_selective_risk(num_bins=2).counts
  Array([0., 0.], dtype=float32)
  """
  checks.options(num_bins=(num_bins, "integer [1, inf)"))
  return SelectiveRiskState(jnp.zeros(num_bins, jnp.float32))


def update_selective_risk(state: SelectiveRiskState, logits: ArrayLike, *, variant: str = "released",
                          confidence: scores.Score = "msp", score_range: tuple[float, float] | None = None,
                          where: ArrayLike | None = None, weights: ArrayLike | None = None,
                          axis_name: str | None = None) -> SelectiveRiskState:
  """The state after a training step: the scores of its global batch are counted too.

  The released code counts over the steps of an epoch, and starts each epoch from ``init_selective_risk()``.

  Args:
    state: from before the step; the loss of that step takes its ``counts``.
    logits: ``[..., K]`` floats of the step.
    variant: the ``variant`` of the loss, because the scores of ``"released"`` are others.
    confidence: the score of the loss, by name or as a function of probabilities.
    score_range: the ``score_range`` of the loss.
    where: optional ``[...]`` bools; rows that are False are not counted and may hold NaN.
    weights: the weights of the loss.
    axis_name: optional mapped axis, over whose devices the batch is spread.

  Returns:
    The new state.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    the code released with Zhou et al. 2025.

  >>> update_selective_risk(init_selective_risk(num_bins=8), jnp.array([[9.0, 0.0], [0.0, 0.0]])).counts
  Array([0., 0., 0., 0., 1., 1., 0., 0.], dtype=float32)
  """
  checks.options(variant=(variant, VARIANTS))
  logits = checks.over_classes(logits, "logits")
  labels = jnp.zeros(logits.shape[:-1], jnp.int32)
  logits, _, weights = checks.batch(logits, labels, where, weights, axis_name=axis_name)
  score = gather(jax.lax.stop_gradient(_unit_scores(logits, confidence, score_range, variant)), axis_name)
  added = _counts(score, gather(weights, axis_name), len(state.counts))
  return SelectiveRiskState(state.counts + added.astype(state.counts.dtype))


def _unit_scores(logits: Array, confidence, score_range, variant: str) -> Array:
  """The confidence score of each example on [0, 1]; ``"released"`` takes it of softmax(p)."""
  low, high = scores.score_range(confidence, logits.shape[1]) if score_range is None else score_range
  if score_range is None:
    low = min(low, 0.0)  # A score whose range lies in [0, 1] stays as it is.
  if checks.is_readable(low, high) and not low < high:
    raise ValueError(f"score_range must be (low, high) with low < high: got {score_range!r}.")
  probs = jax.nn.softmax(logits)
  if variant == "released":
    probs = jax.nn.softmax(probs)
    if score_range is None:
      low = abs(low)  # The sign that is wrong there: the score is then above both log K and 0, and is clamped to 1.
  return jnp.clip((_scores(probs, confidence) - low) / (high - low), 0, 1)


def _size(weights: Array) -> Array:
  """N, the number of rows that count or the sum of their weights; 1 if nothing counts."""
  total = jnp.sum(weights, dtype=jnp.int32 if weights.dtype == jnp.bool_ else weights.dtype)
  return jnp.where(total == 0, 1, total)


def _counts(scores: Array, weights: Array, num_bins: int) -> Array:
  """The number of scores that count in each bin."""
  return binning.bin_sums(weights.astype(scores.dtype), binning.equal_width_index(scores, num_bins, "left"), num_bins)


def _scores(probs: Array, confidence) -> Array:
  return checks.one_value_each("confidence", scores.get(confidence)(probs), len(probs))


def _losses(logits: Array, labels: Array, loss) -> Array:
  return checks.one_value_each("loss", find("loss", loss, PER_EXAMPLE)(logits, labels), len(logits))


def _quantile(x: Array, weights: Array, q) -> Array:
  """``numpy.quantile`` of the ``x`` ``[N]`` that count, each as often as its weight says; 0 if nothing counts."""
  last = _size(weights) - 1  # The places of the values in ascending order are 0 to ``last``.
  if weights.dtype == jnp.bool_:
    ordered, ends = jnp.sort(jnp.where(weights, x, jnp.inf)), None
  else:
    order = jnp.argsort(jnp.where(weights > 0, x, jnp.inf))
    ordered, ends = x[order], jnp.cumsum(weights[order])[:-1]

  def value_at(place):
    index = place.astype(jnp.int32) if ends is None else jnp.searchsorted(ends, place, side="right")
    # The gradient of ``ordered[index]`` does not go through meshes with explicit axes (JAX 0.11).
    return jnp.sum(jnp.where(jnp.arange(len(ordered), dtype=index.dtype) == index, ordered, 0))

  # The fraction of the place q · last, by which two rows share the gradient, would lose seven bits at 100 in float32.
  # The product with the first 12 bits of q is exact for last < 2^12, and that with the others is small.
  q = jnp.asarray(q, x.dtype)
  first = jnp.round(4096 * q) / 4096
  place, more = (part * jnp.maximum(last, 0).astype(x.dtype) for part in (first, q - first))
  lower = jnp.floor(place + more)
  below, above = value_at(lower), value_at(jnp.minimum(lower + 1, last.astype(x.dtype)))
  return jnp.where(jnp.isfinite(below), below + (place - lower + more) * (above - below), 0)
