"""Soft-binned calibration errors (Karandikar et al. 2021, Section 4.1)."""

import jax
import jax.numpy as jnp

from calib_jax import binning, checks
from calib_jax.losses.reductions import global_sum, prepare, root
from calib_jax.rows import log_softmax, row_statistics

Array = jax.Array


def soft_binned_ece(logits, labels, *, num_bins: int = 15, temperature: float = 0.01, norm: float = 2.0,
                    form: str = "label", where=None, axis_name: str | None = None) -> Array:
  r"""Soft-binned expected calibration error (SB-ECE) of the top label, in [0, 1].

  With confidence :math:`c_i`, correctness :math:`a_i` and soft membership :math:`u_j(c)` of bin j,

  .. math::
    S_j = \sum_i u_j(c_i), \quad C_j = \frac{1}{S_j} \sum_i u_j(c_i)\, c_i, \quad
    A_j = \frac{1}{S_j} \sum_i u_j(c_i)\, a_i

    \text{bin: } \Big(\sum_j \frac{S_j}{N} |A_j - C_j|^p\Big)^{1/p} \qquad
    \text{label: } \Big(\frac{1}{N} \sum_i \sum_j u_j(c_i)\, |A_j - c_i|^p\Big)^{1/p}

  Args:
    logits: ``[N, K]`` floats.
    labels: ``[N]`` integers in ``[0, K)``.
    num_bins: M, equal-width bins.
    temperature: T > 0 of the membership; hard binning as it tends to 0.
    norm: p, at least 1.
    form: ``"label"`` (Eq. 12, the paper's training loss) or ``"bin"`` (Eq. 11).
    where: optional ``[N]`` bools; rows that are False count for nothing and may hold NaN.
    axis_name: optional mapped axis, for the value of the global batch across it.
  Returns: a scalar; 0 if nothing counts. Gradients flow through the memberships, as in the paper.
  References: Karandikar et al. 2021, Eqs. 8-12. O(NK + NM) time; devices exchange O(M) numbers.

  >>> soft_binned_ece(jnp.array([[2.0, 0.0], [0.0, 2.0]]), jnp.array([0, 1])).round(3)
  Array(0.119, dtype=float32)
  """
  checks.number("num_bins", num_bins, low=1, integer=True)
  checks.number("temperature", temperature, low=0, open_low=True)
  checks.number("norm", norm, low=1)
  checks.choice("form", form, ("label", "bin"))
  logits, labels, where = prepare(logits, labels, where)
  row = row_statistics(logits)
  confidence, correct = jax.nn.sigmoid(-row.odds), (row.top == labels).astype(logits.dtype)
  weight = where.astype(logits.dtype)
  member = binning.soft_membership(confidence, num_bins, temperature) * weight[:, None]
  count = jnp.maximum(global_sum(weight, axis_name), 1)
  size = global_sum(member, axis_name)
  # A bin that holds less than could ever matter: the square of its size, in the gradient, would underflow.
  used = size > 1e-15
  divisor = jnp.where(used, size, 1)
  accuracy = jnp.where(used, global_sum(member * correct[:, None], axis_name) / divisor, 0)
  if form == "bin":
    mean = jnp.where(used, global_sum(member * confidence[:, None], axis_name) / divisor, 0)
    return root(jnp.sum(size * jnp.abs(accuracy - mean) ** norm) / count, norm)
  gap = jnp.abs(accuracy[None, :] - confidence[:, None]) ** norm
  return root(global_sum(jnp.sum(member * gap, axis=-1), axis_name) / count, norm)


def soft_binned_marginal_ece(logits, labels, *, num_bins: int = 15, temperature: float = 0.01, norm: float = 2.0,
                             where=None, axis_name: str | None = None) -> Array:
  r"""Soft-binned marginal (class-wise) calibration error, in [0, 1].

  .. math:: \Big(\frac{1}{K} \sum_c \mathrm{SBECE}_{\text{bin}}\big((p_c, 1[y = c])\big)^p\Big)^{1/p}

  Eq. 11 of ``soft_binned_ece`` with ``form="bin"``, of every class's probability and whether it is the label.

  Args: as for ``soft_binned_ece``. Returns: a scalar; 0 if nothing counts.
  References: Karandikar et al. 2021, Appendix J. O(NKM) time, O(NK) memory; devices exchange O(KM) numbers.

  >>> soft_binned_marginal_ece(jnp.array([[2.0, 0.0], [0.0, 2.0]]), jnp.array([0, 1])).round(3)
  Array(0.119, dtype=float32)
  """
  checks.number("num_bins", num_bins, low=1, integer=True)
  checks.number("temperature", temperature, low=0, open_low=True)
  checks.number("norm", norm, low=1)
  logits, labels, where = prepare(logits, labels, where)
  probs = jnp.exp(log_softmax(logits)[0])
  onehot = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
  weight = where.astype(logits.dtype)
  # Memberships relative to the nearest bin, one bin at a time: never [N, K, M].
  nearest = (jnp.clip(jnp.floor(jax.lax.stop_gradient(probs) * num_bins), 0, num_bins - 1) + 0.5) / num_bins

  def unnormalised(center):
    return jnp.exp((nearest - center) * (2 * probs - nearest - center) / -temperature)

  centers = (jnp.arange(num_bins, dtype=logits.dtype) + 0.5) / num_bins
  add = jax.checkpoint(lambda total, center: (total + unnormalised(center), None))
  normaliser, _ = jax.lax.scan(add, jnp.zeros_like(probs), centers)

  @jax.checkpoint
  def sums(center):
    member = unnormalised(center) / normaliser * weight[:, None]
    return jnp.stack([jnp.sum(member * x, axis=0) for x in (jnp.ones_like(probs), onehot, probs)])

  size, positive, confidence = jnp.moveaxis(global_sum(jax.lax.map(sums, centers)[None], axis_name), 1, 0)
  used = size > 1e-15
  gap = jnp.abs(jnp.where(used, (positive - confidence) / jnp.where(used, size, 1), 0))
  count = jnp.maximum(global_sum(weight, axis_name), 1)
  return root(jnp.sum(size * gap**norm) / (count * logits.shape[-1]), norm)

