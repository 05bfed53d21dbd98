"""Soft-binned calibration errors (Karandikar et al. 2021, Section 4.1)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics import binning
from calib_jax._numerics.softmax import label_odds, log_softmax, predicted, target, targets
from calib_jax.losses import reductions
from calib_jax.losses.catalogue import PER_BATCH, register
from calib_jax.losses.reductions import global_sum, shares

Array = jax.Array
# A bin with less than this share of the rows adds nothing; the square of its size, in the gradient, would underflow.
EMPTY = 1e-15


@register(PER_BATCH)
def soft_binned_ece(logits: ArrayLike, labels: ArrayLike, *, num_bins: int = 15, temperature: float | Array = 0.01,
                    norm: float | Array = 2.0, form: str = "label", root: bool = True, low: float | Array = 0.0,
                    where: ArrayLike | None = None, weights: ArrayLike | None = None,
                    axis_name: str | None = None) -> Array:
  r"""Soft-binned expected calibration error (SB-ECE) of the top label, in [0, 1].

  Use it beside a proper loss to lower the ECE itself, by bins that have a gradient.

  With confidence :math:`c_i`, correctness :math:`a_i` (of a distribution, its probability of the top class) and soft
  membership :math:`u_j(c)` of bin j,

  .. math::
    S_j = \sum_i u_j(c_i), \quad C_j = \frac{1}{S_j} \sum_i u_j(c_i)\, c_i, \quad
    A_j = \frac{1}{S_j} \sum_i u_j(c_i)\, a_i

  .. math:: L_{\text{bin}} = \Big(\sum_j \frac{S_j}{N} |A_j - C_j|^p\Big)^{1/p}

  .. math:: L_{\text{label}} = \Big(\frac{1}{N} \sum_i \sum_j u_j(c_i)\, |A_j - c_i|^p\Big)^{1/p}

  Args:
    logits: ``[..., K]`` floats, whose leading axes are one batch of N rows.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats, distributions.
    num_bins: M, the number of bins, which are of equal width.
    temperature: T > 0 of the membership; as it tends to 0, each confidence belongs to one bin.
    norm: p, at least 1.
    form: ``"label"`` (Eq. 12, the paper's training loss) or ``"bin"`` (Eq. 11).
    root: whether to take the root 1/p. The released code's label form has none.
    low: the lower end of the bins, in [0, 1); their upper end is 1. The released code's label form has 1/K.
    where: optional ``[...]`` bools; rows that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.
    axis_name: optional mapped axis, for the value of the global batch across it.

  Returns:
    A scalar; 0 if nothing counts. Gradients flow through the memberships, as in the paper. O(NK + NM) time; devices
    exchange O(M) numbers.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Karandikar et al. 2021, Eqs. 8-12.

  >>> jax.jit(soft_binned_ece)(jnp.array([[2.0, 0.0], [0.0, 2.0]]), jnp.array([0, 1])).round(3)
  Array(0.119, dtype=float32)
  """
  logits, labels, weights = checks.batch(logits, labels, where, weights, axis_name=axis_name, soft=True)
  top = predicted(logits)
  return top_label_error(label_odds(logits, top), target(labels, top, logits), weights, axis_name, num_bins=num_bins,
                         temperature=temperature, norm=norm, form=form, root=root, low=low)


def top_label_error(odds: Array, correct: Array, weights: Array, axis_name: str | None, *, num_bins: int,
                    temperature: float, norm: float, form: str, root: bool, low: float) -> Array:
  """``soft_binned_ece`` from the log-odds of the top classes ``[N]`` and their correctness, floats ``[N]``."""
  checks.options(num_bins=(num_bins, "integer [1, inf)"), temperature=(temperature, "(0, inf)"),
                 norm=(norm, "[1, inf)"), form=(form, ("label", "bin")), root=(root, bool), low=(low, "[0, 1)"))
  confidence, share = jax.nn.sigmoid(-odds), shares(weights, odds.dtype, axis_name)
  member, size, mean = soft_bins(confidence, share, axis_name, num_bins=num_bins, temperature=temperature, low=low)
  accuracy = mean(correct)
  if form == "bin":
    error = jnp.sum(size * jnp.abs(accuracy - mean(confidence)) ** norm)
  else:
    gap = jnp.abs(accuracy[None, :] - confidence[:, None]) ** norm
    error = global_sum(jnp.sum(member * gap, axis=-1), axis_name)
  return reductions.root(error, norm) if root else error


def soft_bins(confidence: Array, share: Array, axis_name: str | None, *, num_bins: int, temperature: float,
              low: float = 0.0) -> tuple[Array, Array, Callable[[Array], Array]]:
  """The rows' memberships times their shares ``[N, M]``, the bins' sizes ``[M]``, and the means in bins of ``[N]``."""
  member = binning.soft_membership(confidence, num_bins, temperature, low) * share[:, None]
  size = global_sum(member, axis_name)
  used = size > EMPTY

  def mean(values):
    return jnp.where(used, global_sum(member * values[:, None], axis_name) / jnp.where(used, size, 1), 0)

  return member, size, mean


@register(PER_BATCH)
def soft_binned_marginal_ece(logits: ArrayLike, labels: ArrayLike, *, num_bins: int = 15,
                             temperature: float | Array = 0.01, norm: float | Array = 2.0,
                             where: ArrayLike | None = None, weights: ArrayLike | None = None,
                             axis_name: str | None = None) -> Array:
  r"""Soft-binned marginal (class-wise) calibration error, in [0, 1].

  Use it where the probability of every class must be true, not only of the predicted one.

  .. math:: L = \Big(\frac{1}{K} \sum_c \mathrm{SBECE}_{\text{bin}}\big((p_c, 1[y = c])\big)^p\Big)^{1/p}

  which is Eq. 11, the form ``"bin"`` of ``soft_binned_ece``, for the probability of every class c and whether c is the
  label, or its probability in a distribution.

  Args:
    logits: ``[..., K]`` floats, whose leading axes are one batch of N rows.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats, distributions.
    num_bins: M, the number of bins, which are of equal width.
    temperature: T > 0 of the membership; as it tends to 0, each probability belongs to one bin.
    norm: p, at least 1.
    where: optional ``[...]`` bools; rows that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.
    axis_name: optional mapped axis, for the value of the global batch across it.

  Returns:
    A scalar; 0 if nothing counts. O(NKM) time, O(NK) memory; devices exchange O(KM) numbers.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Karandikar et al. 2021, Appendix J.

  >>> jax.jit(soft_binned_marginal_ece)(jnp.array([[2.0, 0.0], [0.0, 2.0]]), jnp.array([0, 1])).round(3)
  Array(0.119, dtype=float32)
  """
  logits, labels, weights = checks.batch(logits, labels, where, weights, axis_name=axis_name, soft=True)
  checks.options(num_bins=(num_bins, "integer [1, inf)"), temperature=(temperature, "(0, inf)"),
                 norm=(norm, "[1, inf)"))
  probs = jnp.exp(log_softmax(logits)[0])
  target_probs, share = targets(labels, logits), shares(weights, logits.dtype, axis_name)
  # The memberships u_j(p), one bin j at a time and computed again for the gradient, so that memory is never [N, K, M].
  # exp(-(p - ξ_j)²/T) is divided by its value at the nearest centre ξ, which cancels in u_j and keeps the exponentials
  # from underflowing together: (p - ξ_j)² - (p - ξ)² = (ξ - ξ_j)(2p - ξ - ξ_j).
  nearest = (jnp.clip(jnp.floor(jax.lax.stop_gradient(probs) * num_bins), 0, num_bins - 1) + 0.5) / num_bins
  centers = (jnp.arange(num_bins, dtype=logits.dtype) + 0.5) / num_bins

  def unnormalised(center):
    return jnp.exp((nearest - center) * (2 * probs - nearest - center) / -temperature)

  @jax.checkpoint
  def add(total, center):
    return total + unnormalised(center), None

  normaliser, _ = jax.lax.scan(add, jnp.zeros_like(probs), centers)

  @jax.checkpoint
  def sums(center):
    member = unnormalised(center) / normaliser * share[:, None]
    return jnp.stack([jnp.sum(member * x, axis=0) for x in (jnp.ones_like(probs), target_probs, probs)])

  by_bin = global_sum(jax.lax.map(sums, centers)[None], axis_name)
  size, positive, confidence = jnp.moveaxis(by_bin, 1, 0)
  used = size > EMPTY
  gap = jnp.abs(jnp.where(used, (positive - confidence) / jnp.where(used, size, 1), 0))
  return reductions.root(jnp.sum(size * gap**norm) / logits.shape[-1], norm)
