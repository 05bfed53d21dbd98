"""The focal family: cross entropy times a power of a quantity that grows or falls with the label's probability.

All are computed from the log-odds d = log((1 - p_y) / p_y) of ``softmax.label_odds``. Then -log p_y = softplus(d),
-log(1 - p_y) = softplus(-d) and p_y = σ(-d) are finite, with finite gradients, also where p_y rounds to 0 or 1.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax import focal_map
from calib_jax._numerics.softmax import (
  expectation,
  infinite,
  label_odds,
  log_one_minus,
  log_softmax,
  one_hot,
  pick,
  predicted,
  with_lowest,
)
from calib_jax.losses.catalogue import PER_EXAMPLE, register

Array = jax.Array


@register(PER_EXAMPLE)
def focal(logits: ArrayLike, labels: ArrayLike, *, gamma: float | Array = 2.0, stop_gradient: bool = False,
          where: ArrayLike | None = None) -> Array:
  r"""Focal loss, in nats.

  It trains networks that are less overconfident than with cross entropy, because sure examples count less.

  .. math:: \ell(z, y) = -(1 - p_y)^\gamma \log p_y, \quad p = \mathrm{softmax}(z)

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats t, for which the loss is the sum over k of t_k
      times the loss of label k.
    gamma: exponent, at least 0; 0 gives cross entropy.
    stop_gradient: whether the factor :math:`(1 - p_y)^\gamma` carries no gradient (Lin et al. 2025).
    where: optional ``[...]`` bools; rows that are False give 0 and may hold NaN.

  Returns:
    ``[...]`` values. O(NK).

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Lin et al. 2017, Eq. 4; Zhou et al. 2025, Section 3.1.

  >>> focal(jnp.array([[2.0, 0.0, -1.0]]), jnp.array([0])).round(4)
  Array([0.0041], dtype=float32)
  """
  logits, labels = checks.examples(logits, labels, where, soft=True)
  checks.options(gamma=(gamma, "[0, inf)"), stop_gradient=(stop_gradient, bool))
  if labels.shape != logits.shape:
    values = focal_of_odds(label_odds(logits, labels), gamma, stop_gradient)
  else:
    log_p, is_top = log_softmax(logits)
    factor = _stopped_if(jnp.exp(gamma * log_one_minus(log_p, is_top)), stop_gradient)
    values = infinite(expectation(labels * factor, -log_p))
  return checks.example_values(values, labels, where, logits.shape[-1])


@register(PER_EXAMPLE)
def sample_dependent_focal(logits: ArrayLike, labels: ArrayLike, *, thresholds: Sequence[float] | Array = (0.2,),
                           gammas: Sequence[float] | Array = (5.0, 3.0), where: ArrayLike | None = None) -> Array:
  r"""Focal loss whose exponent depends on the label's probability (FLSD-53 by default), in nats.

  Use it for a focal loss without tuning γ: improbable labels get the larger exponent.

  .. math:: \ell(z, y) = -(1 - p_y)^{\gamma_i} \log p_y, \quad i = \#\{\text{thresholds} \le p_y\}

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``.
    thresholds: ascending, in [0, 1].
    gammas: one more than thresholds, each at least 0. The choice of exponent carries no gradient.
    where: optional ``[...]`` bools; rows that are False give 0 and may hold NaN.

  Returns:
    ``[...]`` values. O(NK).

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Mukhoti et al. 2020 (FLSD-53); Zhou et al. 2025, Section 5.

  >>> sample_dependent_focal(jnp.array([[0.0, 3.0]]), jnp.array([0])).round(3)
  Array([2.391], dtype=float32)
  """
  logits, labels = checks.examples(logits, labels, where)
  ascend = not checks.is_readable(*thresholds) or list(thresholds) == sorted(thresholds)
  if len(gammas) != len(thresholds) + 1 or not ascend:
    raise ValueError("gammas must be one more than thresholds, which ascend: "
                     f"got gammas={tuple(gammas)!r} and thresholds={tuple(thresholds)!r}.")
  for gamma in gammas:
    checks.options(gammas=(gamma, "[0, inf)"))
  odds = label_odds(logits, labels)
  p = jax.nn.sigmoid(-odds)
  gamma = jnp.full_like(p, gammas[0])
  for threshold, above in zip(thresholds, gammas[1:], strict=True):
    gamma = jnp.where(p >= threshold, above, gamma)
  return checks.example_values(focal_of_odds(odds, gamma), labels, where, logits.shape[-1])


@register(PER_EXAMPLE)
def inverse_focal(logits: ArrayLike, labels: ArrayLike, *, gamma: float | Array = 2.0, stop_gradient: bool = False,
                  where: ArrayLike | None = None) -> Array:
  r"""Inverse focal loss, in nats: examples whose label is already probable weigh more.

  Use it to weigh easy examples up, as a ranking of confidences for selective prediction needs.

  .. math:: \ell(z, y) = -(1 + p_y)^\gamma \log p_y

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``.
    gamma: exponent, at least 0. Above 3.5 the loss may increase with p_y, so that its gradient points the wrong way.
    stop_gradient: whether the factor :math:`(1 + p_y)^\gamma` carries no gradient (Lin et al. 2025).
    where: optional ``[...]`` bools; rows that are False give 0 and may hold NaN.

  Returns:
    ``[...]`` values. O(NK).

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Wang et al. 2021; Zhou et al. 2025, Section 3.2.

  >>> inverse_focal(jnp.array([[0.0, 0.0]]), jnp.array([0]), gamma=1.0).round(4)
  Array([1.0397], dtype=float32)
  """
  logits, labels = checks.examples(logits, labels, where)
  checks.options(gamma=(gamma, "[0, inf)"), stop_gradient=(stop_gradient, bool))
  values = inverse_focal_of_odds(label_odds(logits, labels), gamma, stop_gradient)
  return checks.example_values(values, labels, where, logits.shape[-1])


@register(PER_EXAMPLE)
def dual_focal(logits: ArrayLike, labels: ArrayLike, *, gamma: float | Array = 2.0, competitor: str = "strongest",
               stop_gradient: bool | str = False, where: ArrayLike | None = None) -> Array:
  r"""Dual focal loss, in nats.

  Use it where the focal loss leaves a network underconfident: it also lowers the strongest other class.

  .. math:: \ell(z, y) = -(1 - p_y + p_j)^\gamma \log p_y

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``.
    gamma: exponent, at least 0.
    competitor: which class is j. ``"strongest"``: the most probable of the other classes (Zhou et al. 2025, Eq. 24);
      ``"strongest_below"``: the most probable of those with p_j < p_y, and p_j = 0 if there is none (the code released
      with Tao et al. 2023; Zhou et al. print it as Eq. 26, without saying what holds if there is none).
    stop_gradient: whether the factor :math:`(1 - p_y + p_j)^\gamma` carries no gradient (Lin et al. 2025);
      ``"competitor"`` for :math:`p_j` alone, as in the code released with Lin et al.
    where: optional ``[...]`` bools; rows that are False give 0 and may hold NaN.

  Returns:
    ``[...]`` values. O(NK). Gradients through p_j go to the lowest index in a tie.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Tao et al. 2023; Zhou et al. 2025, Appendix C.3.

  >>> dual_focal(jnp.array([[0.0, 0.0]]), jnp.array([0]), gamma=1.0).round(4)
  Array([0.6931], dtype=float32)
  """
  logits, labels = checks.examples(logits, labels, where)
  checks.options(gamma=(gamma, "[0, inf)"), competitor=(competitor, ("strongest", "strongest_below")),
                 stop_gradient=(stop_gradient, (False, True, "competitor")))
  odds, label_logit = label_odds(logits, labels), with_lowest(pick(logits, labels))
  is_rival = ~one_hot(labels, logits) if competitor == "strongest" else logits < label_logit[..., None]
  rivals = jnp.where(is_rival, logits, -1e30)  # Where there is no rival, p_j is 0 and has no gradient.
  log_rival = pick(rivals, predicted(rivals)) - label_logit - jax.nn.softplus(odds)
  # 1 - p_y + p_j is a sum of two numbers above 0, whose logarithms are known.
  log_factor = jnp.logaddexp(-jax.nn.softplus(-odds), _stopped_if(log_rival, stop_gradient == "competitor"))
  values = infinite(_stopped_if(jnp.exp(gamma * log_factor), stop_gradient is True) * jax.nn.softplus(odds))
  return checks.example_values(values, labels, where, logits.shape[-1])


@register(PER_EXAMPLE)
def properized_focal(logits: ArrayLike, labels: ArrayLike, *, gamma: float | Array = 2.0,
                     where: ArrayLike | None = None) -> Array:
  r"""The proper part of the focal loss, in nats.

  Use it for the focal loss's weights without its distortion: its best prediction is the true probability.

  .. math:: \ell(z, y) = -(1 - q_y)^\gamma \log q_y, \qquad q = \hat p_\gamma^{-1}(\mathrm{softmax}(z))

  with :math:`\hat p_\gamma` the focal calibration map. Its expectation is least at the true probabilities; that of the
  focal loss is not.

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``.
    gamma: exponent, at least 0.
    where: optional ``[...]`` bools; rows that are False give 0 and may hold NaN.

  Returns:
    ``[...]`` values. O(NK) for each of about six iterations of the inverse map; the gradient is by implicit
    differentiation.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Komisarenko & Kull 2024, Propositions 2 and 4.

  >>> properized_focal(jnp.array([[0.0, 0.0]]), jnp.array([0])).round(4)
  Array([0.1733], dtype=float32)
  """
  logits, labels = checks.examples(logits, labels, where)
  checks.options(gamma=(gamma, "[0, inf)"))
  values = focal_of_odds(-pick(focal_map.inverse_log_odds(logits, gamma), labels), gamma)
  return checks.example_values(values, labels, where, logits.shape[-1])


def focal_of_odds(odds: Array, gamma: ArrayLike, stop_gradient: bool = False) -> Array:
  """-(1 - p)^γ log p from the log-odds log((1 - p) / p); inf where p belongs to a masked class."""
  return infinite(_stopped_if(jnp.exp(-gamma * jax.nn.softplus(-odds)), stop_gradient) * jax.nn.softplus(odds))


def inverse_focal_of_odds(odds: Array, gamma: ArrayLike, stop_gradient: bool = False) -> Array:
  """-(1 + p)^γ log p from the log-odds log((1 - p) / p); inf where p belongs to a masked class."""
  return infinite(_stopped_if((1 + jax.nn.sigmoid(-odds)) ** gamma, stop_gradient) * jax.nn.softplus(odds))


def _stopped_if(factor: Array, stop_gradient: bool) -> Array:
  return jax.lax.stop_gradient(factor) if stop_gradient else factor
