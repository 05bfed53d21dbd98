"""AdaFocal: a focal loss whose exponents follow the calibration of the validation split, bin by bin."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics import binning
from calib_jax._numerics.softmax import label_odds
from calib_jax.losses.catalogue import PER_EXAMPLE, register
from calib_jax.losses.focal import focal_of_odds, inverse_focal_of_odds

Array = jax.Array


class AdaptiveFocalState(NamedTuple):
  """What AdaFocal learns: the exponents ``gammas`` ``[B]`` of the bins between ``bin_edges`` ``[B + 1]``."""

  gammas: Array
  bin_edges: Array


@register(PER_EXAMPLE)
def adaptive_focal(logits: ArrayLike, labels: ArrayLike, *, gammas: ArrayLike, bin_edges: ArrayLike,
                   where: ArrayLike | None = None) -> Array:
  r"""AdaFocal loss, in nats.

  Use it to let the validation split choose γ for each range of confidence, epoch by epoch.

  With :math:`\gamma` the exponent of the bin that holds :math:`p_y`, it is

  .. math::
    \ell(z, y) = -(1 - p_y)^\gamma \log p_y \;\; (\gamma \ge 0), \qquad -(1 + p_y)^{|\gamma|} \log p_y \;\; (\gamma < 0)

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``.
    gammas: ``[B]`` floats, the exponents of ``AdaptiveFocalState``. They carry no gradient.
    bin_edges: ``[B + 1]`` floats, the edges of ``AdaptiveFocalState``. Bins are [lo, hi); values below the first edge
      belong to the first bin, values above the last edge to the last bin.
    where: optional ``[...]`` bools; rows that are False give 0 and may hold NaN.

  Returns:
    ``[...]`` values. O(NK + NB).

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or shape.

  References:
    Ghosh et al. 2022, AdaFocal.

  >>> state = init_adaptive_focal(num_bins=4, gamma=2.0)
  >>> adaptive_focal(jnp.array([[2.0, 0.0, -1.0]]), jnp.array([0]), **state._asdict()).round(4)
  Array([0.0041], dtype=float32)
  """
  logits, labels = checks.examples(logits, labels, where)
  gammas, edges = (jax.lax.stop_gradient(checks.floating(x, n)) for x, n in ((gammas, "gammas"),
                                                                             (bin_edges, "bin_edges")))
  if gammas.ndim != 1 or edges.shape != (len(gammas) + 1,):
    raise ValueError(f"gammas must be [B] and bin_edges [B + 1]: got shapes {gammas.shape} and {edges.shape}.")
  odds = label_odds(logits, labels)
  p = jax.lax.stop_gradient(jax.nn.sigmoid(-odds))
  index = jnp.searchsorted(edges[1:-1].astype(p.dtype), p, side="right", method="compare_all")
  gamma = jnp.dot(jax.nn.one_hot(index, len(gammas), dtype=odds.dtype), gammas.astype(odds.dtype), precision="highest")
  # Each branch gets an exponent of at least 0: also the one that is not chosen must be finite, or the gradient is NaN.
  values = jnp.where(gamma >= 0, focal_of_odds(odds, jnp.maximum(gamma, 0)),
                     inverse_focal_of_odds(odds, jnp.maximum(-gamma, 0)))
  return checks.example_values(values, labels, where, logits.shape[-1])


def init_adaptive_focal(num_bins: int = 15, gamma: float | Array = 1.0) -> AdaptiveFocalState:
  """The state before training.

  Args:
    num_bins: B, the number of bins, which are of equal width.
    gamma: the exponent of every bin.

  Returns:
    The state.

  Raises:
    TypeError, ValueError: if an argument has the wrong kind or range.

  >>> init_adaptive_focal(num_bins=2).bin_edges
  Array([0. , 0.5, 1. ], dtype=float32)
  """
  checks.options(num_bins=(num_bins, "integer [1, inf)"), gamma=(gamma, "(-inf, inf)"))
  return AdaptiveFocalState(jnp.full(num_bins, gamma, jnp.float32), binning.equal_width_edges(num_bins, jnp.float32))


def update_adaptive_focal(state: AdaptiveFocalState, confidence: ArrayLike, correct: ArrayLike, *,
                          rate: float | Array = 1.0, switch: float | Array = 0.2, gamma_min: float | Array = -2.0,
                          gamma_max: float | Array = 20.0) -> AdaptiveFocalState:
  r"""The state after an epoch, from the top-label predictions on the validation split.

  The bins become equal-mass bins of ``confidence``: groups as by ``numpy.array_split`` of the sorted values, inner
  edges midway between neighbouring groups, outer edges 0 and 1. Then the exponent of each bin, whose mean confidence is
  :math:`\bar{c}` and accuracy :math:`\bar{a}`, becomes

  .. math::
    \gamma \leftarrow \gamma\, e^{\text{rate}\,(\bar{c} - \bar{a})} \;\; (\gamma > 0), \qquad
    \gamma \leftarrow \gamma\, e^{-\text{rate}\,(\bar{c} - \bar{a})} \;\; (\gamma \le 0)

  An exponent whose size is then below ``switch`` changes its sign: it becomes -switch if it was above 0, and +switch
  otherwise. It is clipped to ``[gamma_min, gamma_max]``. A bin without examples keeps its exponent.

  Args:
    state: the state after the epoch before.
    confidence: ``[N]`` floats, probabilities of the top class.
    correct: ``[N]`` bools, zeros and ones, or credits in [0, 1], whether the top class was the label.
    rate: how fast exponents change, at least 0.
    switch: the size below which an exponent changes its sign, at least 0.
    gamma_min: the smallest exponent.
    gamma_max: the largest exponent.

  Returns:
    The new state.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Ghosh et al. 2022, AdaFocal.

  >>> state = init_adaptive_focal(num_bins=2)
  >>> jax.jit(update_adaptive_focal)(state, jnp.array([0.6, 0.8]), jnp.array([True, False])).gammas.round(3)
  Array([0.67 , 2.226], dtype=float32)
  """
  checks.options(rate=(rate, "[0, inf)"), switch=(switch, "[0, inf)"))
  if checks.is_readable(gamma_min, gamma_max) and not gamma_min <= gamma_max:
    raise ValueError(f"gamma_min must not exceed gamma_max: got {gamma_min!r} and {gamma_max!r}.")
  checks.rank(jnp.asarray(confidence), 1, "confidence", "[N]")
  confidence, correct, _ = checks.paired(confidence, checks.credits(confidence, correct), None)
  num_bins, n = len(state.gammas), len(confidence)
  order = jnp.argsort(confidence, stable=True)
  confidence, gap = confidence[order], (confidence - correct)[order]
  index = binning.equal_mass_index(jnp.arange(n, dtype=jnp.int32), n, num_bins)
  counts = binning.bin_sums(jnp.ones(n, jnp.int32), index, num_bins)
  mean_gap = binning.bin_sums(gap, index, num_bins) / jnp.maximum(counts, 1).astype(gap.dtype)
  positive = state.gammas > 0
  moved = state.gammas * jnp.exp(jnp.where(positive, rate, -rate) * mean_gap)
  moved = jnp.where(jnp.abs(moved) < switch, jnp.where(positive, -switch, switch), moved)
  gammas = jnp.where(counts > 0, jnp.clip(moved, gamma_min, gamma_max), state.gammas)
  return AdaptiveFocalState(gammas, binning.equal_mass_edges(confidence, n, num_bins))
