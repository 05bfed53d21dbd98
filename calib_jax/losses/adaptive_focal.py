"""AdaFocal: a focal loss whose exponents follow the calibration of the validation split, bin by bin."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from calib_jax import binning, checks
from calib_jax.losses.focal import _focal, _inverse_focal
from calib_jax.rows import label_odds

Array = jax.Array


class AdaptiveFocalState(NamedTuple):
  """What AdaFocal learns: ``gammas`` ``[B]`` and ``bin_edges`` ``[B + 1]``."""

  gammas: Array
  bin_edges: Array


def adaptive_focal(logits, labels, *, gammas, bin_edges) -> Array:
  r"""AdaFocal loss, in nats: with :math:`\gamma` that of the bin of p_y,

  .. math::
    \ell(z, y) = -(1 - p_y)^\gamma \log p_y \;\; (\gamma \ge 0), \qquad -(1 + p_y)^{|\gamma|} \log p_y \;\; (\gamma < 0)

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``.
    gammas, bin_edges: ``[B]`` and ``[B + 1]``, as in ``AdaptiveFocalState``; bins are [lo, hi), and values below the
      first edge belong to the first bin, above the last to the last. They carry no gradient.
  Returns: ``[...]`` values. O(NK + NB).
  References: Ghosh et al. 2022.

  >>> state = init_adaptive_focal(num_bins=4, gamma=2.0)
  >>> adaptive_focal(jnp.array([[2.0, 0.0, -1.0]]), jnp.array([0]), **state._asdict()).round(4)
  Array([0.0041], dtype=float32)
  """
  logits, labels = checks.scores_and_labels(logits, labels)
  gammas, edges = (jax.lax.stop_gradient(checks.floating(x, n)) for x, n in ((gammas, "gammas"),
                                                                             (bin_edges, "bin_edges")))
  if gammas.ndim != 1 or edges.shape != (len(gammas) + 1,):
    raise ValueError(f"gammas must be [B] and bin_edges [B + 1]: got shapes {gammas.shape} and {edges.shape}.")
  odds = label_odds(logits, labels)
  p = jax.lax.stop_gradient(jax.nn.sigmoid(-odds))
  gamma = gammas[jnp.searchsorted(edges[1:-1].astype(p.dtype), p, side="right")].astype(odds.dtype)
  # Each branch sees an exponent that is safe for it.
  return jnp.where(gamma >= 0, _focal(odds, jnp.maximum(gamma, 0)), _inverse_focal(odds, jnp.maximum(-gamma, 0)))


def init_adaptive_focal(num_bins: int = 15, gamma: float = 1.0) -> AdaptiveFocalState:
  """The state before training: ``num_bins`` bins of equal width, every exponent ``gamma``."""
  checks.number("num_bins", num_bins, low=1, integer=True)
  checks.number("gamma", gamma)
  return AdaptiveFocalState(jnp.full(num_bins, gamma, jnp.float32), binning.equal_width_edges(num_bins, jnp.float32))


def update_adaptive_focal(state: AdaptiveFocalState, confidence, correct, *, rate: float = 1.0, switch: float = 0.2,
                          gamma_min: float = -2.0, gamma_max: float = 20.0) -> AdaptiveFocalState:
  r"""The state after an epoch, from the top-label ``confidence`` and ``correct`` ``[N]`` of the validation split.

  The bins become equal-mass bins of ``confidence`` (groups as by ``numpy.array_split`` of the sorted values, inner
  edges midway between neighbouring groups, outer edges 0 and 1). Then, by bin,

  .. math:: \gamma \leftarrow \gamma\, e^{\pm \text{rate}\,(\bar{c} - \bar{a})}, \quad + \text{ for } \gamma > 0

  where :math:`|\gamma| <` ``switch`` it jumps to -switch (from :math:`\gamma > 0`) or +switch, and it is clipped to
  ``[gamma_min, gamma_max]``. A bin without examples keeps its exponent.

  >>> state = init_adaptive_focal(num_bins=2)
  >>> update_adaptive_focal(state, jnp.array([0.6, 0.8]), jnp.array([True, False])).gammas.round(3)
  Array([0.67 , 2.226], dtype=float32)
  """
  for name, value, low in (("rate", rate, 0), ("switch", switch, 0)):
    checks.number(name, value, low=low)
  if not gamma_min <= gamma_max:
    raise ValueError(f"gamma_min must not exceed gamma_max: got {gamma_min!r} and {gamma_max!r}.")
  confidence, correct = checks.floating(confidence, "confidence"), jnp.asarray(correct)
  checks.rank(confidence, 1, "confidence", "[N]")
  if correct.shape != confidence.shape:
    raise ValueError(f"correct must have the shape of confidence, {confidence.shape}: got {correct.shape}.")
  num_bins, n = len(state.gammas), len(confidence)
  order = jnp.argsort(confidence, stable=True)
  confidence, gap = confidence[order], (confidence - correct.astype(confidence.dtype))[order]
  index = binning.equal_mass_index(jnp.arange(n, dtype=jnp.int32), n, num_bins)
  counts = binning.bin_sums(jnp.ones(n, jnp.int32), index, num_bins)
  mean_gap = binning.bin_sums(gap, index, num_bins) / jnp.maximum(counts, 1).astype(gap.dtype)
  positive = state.gammas > 0
  moved = state.gammas * jnp.exp(jnp.where(positive, rate, -rate) * mean_gap)
  moved = jnp.where(jnp.abs(moved) < switch, jnp.where(positive, -switch, switch), moved)
  gammas = jnp.where(counts > 0, jnp.clip(moved, gamma_min, gamma_max), state.gammas)
  return AdaptiveFocalState(gammas, binning.equal_mass_edges(confidence, n, num_bins))
