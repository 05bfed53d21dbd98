"""The focal family: cross entropy times a power of how probable the label already is."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from calib_jax import checks, focal_map
from calib_jax.rows import first, label_odds, log_softmax, one_hot, pick, reduce_rows, relative_to_top

Array = jax.Array


def focal(logits, labels, *, gamma: float = 2.0) -> Array:
  r"""Focal loss, in nats.

  .. math:: \ell(z, y) = -(1 - p_y)^\gamma \log p_y, \quad p = \mathrm{softmax}(z)

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats t, for which it is the sum over k of t_k times the
      loss of label k.
    gamma: exponent, at least 0; 0 gives cross entropy.
  Returns: ``[...]`` values. O(NK).
  References: Lin et al. 2017, Eq. 4; Zhou et al. 2025, Section 3.1.

  >>> focal(jnp.array([[2.0, 0.0, -1.0]]), jnp.array([0])).round(4)
  Array([0.0041], dtype=float32)
  """
  checks.number("gamma", gamma, low=0)
  logits, labels = checks.scores_and_labels(logits, labels, soft=True)
  if labels.shape != logits.shape:
    return _focal(label_odds(logits, labels), gamma)
  log_p, is_top = log_softmax(logits)
  # log(1 - p) without cancellation: of the top class from the others, of the others (p <= 1/2) directly.
  log_others = jax.nn.logsumexp(log_p, axis=-1, where=~is_top, keepdims=True)
  log_not_p = jnp.where(is_top, log_others, jnp.log1p(-jnp.where(is_top, 0, jnp.exp(log_p))))
  return jnp.sum(-labels * jnp.exp(gamma * log_not_p) * log_p, axis=-1)


def sample_dependent_focal(logits, labels, *, thresholds: Sequence[float] = (0.2,),
                           gammas: Sequence[float] = (5.0, 3.0)) -> Array:
  r"""Focal loss whose exponent depends on the label's probability (FLSD-53 by default), in nats.

  .. math:: \ell(z, y) = -(1 - p_y)^{\gamma_i} \log p_y, \quad i = \#\{\text{thresholds} \le p_y\}

  Args:
    logits, labels: as for ``focal``, integer labels only.
    thresholds: ascending, in [0, 1].
    gammas: one more than thresholds, each at least 0. The choice of exponent carries no gradient.
  Returns: ``[...]`` values. O(NK).
  References: Mukhoti et al. 2020; Zhou et al. 2025, Section 5.

  >>> sample_dependent_focal(jnp.array([[0.0, 3.0]]), jnp.array([0])).round(3)
  Array([2.391], dtype=float32)
  """
  if len(gammas) != len(thresholds) + 1 or list(thresholds) != sorted(thresholds):
    raise ValueError("gammas must be one more than thresholds, which ascend: "
                     f"got gammas={tuple(gammas)!r} and thresholds={tuple(thresholds)!r}.")
  for gamma in gammas:
    checks.number("gammas", gamma, low=0)
  logits, labels = checks.scores_and_labels(logits, labels)
  odds = label_odds(logits, labels)
  p = jax.nn.sigmoid(-odds)
  gamma = jnp.full_like(p, gammas[0])
  for threshold, above in zip(thresholds, gammas[1:], strict=True):
    gamma = jnp.where(p >= threshold, above, gamma)
  return _focal(odds, gamma)


def inverse_focal(logits, labels, *, gamma: float = 2.0) -> Array:
  r"""Inverse focal loss, in nats: more weight for what is already probable.

  .. math:: \ell(z, y) = -(1 + p_y)^\gamma \log p_y

  Args: logits, labels: as for ``focal``, integer labels only; gamma: at least 0, above 3.5 it may turn gradients round.
  Returns: ``[...]`` values. O(NK). References: Wang et al. 2021; Zhou et al. 2025, Section 3.2.

  >>> inverse_focal(jnp.array([[0.0, 0.0]]), jnp.array([0]), gamma=1.0).round(4)
  Array([1.0397], dtype=float32)
  """
  checks.number("gamma", gamma, low=0)
  logits, labels = checks.scores_and_labels(logits, labels)
  return _inverse_focal(label_odds(logits, labels), gamma)


def dual_focal(logits, labels, *, gamma: float = 2.0, competitor: str = "strongest") -> Array:
  r"""Dual focal loss, in nats.

  .. math:: \ell(z, y) = -(1 - p_y + p_j)^\gamma \log p_y

  Args:
    logits, labels: as for ``focal``, integer labels only.
    gamma: at least 0.
    competitor: ``"strongest"``: p_j is the largest of the other probabilities (Zhou et al. 2025, Eq. 24);
      ``"strongest_below"``: the largest that is below p_y, 0 if none is (the code released with Tao et al. 2023, which
      Zhou et al. print, without that fallback, as Eq. 26).
  Returns: ``[...]`` values. O(NK). Gradients flow through p_j.

  >>> dual_focal(jnp.array([[0.0, 0.0]]), jnp.array([0]), gamma=1.0).round(4)
  Array([0.6931], dtype=float32)
  """
  checks.number("gamma", gamma, low=0)
  checks.choice("competitor", competitor, ("strongest", "strongest_below"))
  logits, labels = checks.scores_and_labels(logits, labels)
  odds = label_odds(logits, labels)
  of_label = pick(logits, labels)
  rivals = ~one_hot(labels, logits) if competitor == "strongest" else logits < of_label[..., None]
  index, found = _strongest(jax.lax.stop_gradient(logits), rivals)
  # A rival at -1e30 has probability 0 and no gradient.
  rival = jnp.where(found, pick(logits, index), -1e30)
  log_rival = rival - of_label - jax.nn.softplus(odds)
  # 1 - p_y + p_j as a sum of positive numbers, in logarithms.
  return jnp.exp(gamma * jnp.logaddexp(-jax.nn.softplus(-odds), log_rival)) * jax.nn.softplus(odds)


def properized_focal(logits, labels, *, gamma: float = 2.0) -> Array:
  r"""The proper part of the focal loss, in nats.

  .. math:: \ell(z, y) = -(1 - q_y)^\gamma \log q_y, \qquad q = \hat p_\gamma^{-1}(\mathrm{softmax}(z))

  with :math:`\hat p_\gamma` the focal calibration map: minimised, in expectation, by the true probabilities, where the
  focal loss is not.

  Args: logits: ``[..., K]`` floats; labels: ``[...]`` integers in ``[0, K)``; gamma: at least 0.
  Returns: ``[...]`` values. O(NK) an iteration of the inverse map, about six; gradient by implicit differentiation.
  References: Komisarenko & Kull 2024, Propositions 2 and 4.

  >>> properized_focal(jnp.array([[0.0, 0.0]]), jnp.array([0])).round(4)
  Array([0.1733], dtype=float32)
  """
  checks.number("gamma", gamma, low=0)
  logits, labels = checks.scores_and_labels(logits, labels)
  odds = focal_map.inverse_log_odds(logits, gamma)
  return _focal(-pick(odds, labels), gamma)


def _strongest(logits: Array, among: Array) -> tuple[Array, Array]:
  """The first of the largest logits of each row among those marked, and whether any is."""
  # As integers, whose minimum XLA's CPU code vectorises: floats from 0 up are ordered as their bits.
  below = jnp.abs(relative_to_top(logits))
  bits = jax.lax.bitcast_convert_type(below, jnp.int64 if below.dtype == jnp.float64 else jnp.int32)
  none = jnp.iinfo(bits.dtype).max
  nearest, = reduce_rows((jax.lax.min, none, jnp.where(among, bits, none)))
  return reduce_rows(first(among & (bits == nearest[..., None])))[0], nearest < none


def _focal(odds: Array, gamma) -> Array:
  """-(1 - p)^γ log p from log((1 - p) / p): finite also where p rounds to 1."""
  return jnp.exp(-gamma * jax.nn.softplus(-odds)) * jax.nn.softplus(odds)


def _inverse_focal(odds: Array, gamma) -> Array:
  return (1 + jax.nn.sigmoid(-odds)) ** gamma * jax.nn.softplus(odds)
