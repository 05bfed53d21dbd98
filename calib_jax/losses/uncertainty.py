"""Accuracy versus uncertainty (Karandikar et al. 2021, Section 4.2)."""

import math

import jax
import jax.numpy as jnp

from calib_jax import checks
from calib_jax.losses.reductions import global_sum, prepare
from calib_jax.rows import row_statistics

Array = jax.Array


def avuc(logits, labels, *, threshold: float, stop_gradient: bool = False, where=None,
         axis_name: str | None = None) -> Array:
  r"""Accuracy-versus-uncertainty calibration loss (AvUC), and AvUC-GS with ``stop_gradient``.

  With confidence :math:`c_i` and entropy :math:`h_i` in nats; certain (C) where :math:`h_i` < ``threshold``,

  .. math::
    n_{AU} = \sum_{AU} c_i \tanh h_i, \quad n_{IC} = \sum_{IC} (1 - c_i)(1 - \tanh h_i)

    n_{AC} = \sum_{AC} c_i (1 - \tanh h_i), \quad n_{IU} = \sum_{IU} (1 - c_i) \tanh h_i

    \log\Big(1 + \frac{n_{AU} + n_{IC}}{\max(n_{AC} + n_{IU}, 10^{-5})}\Big)

  Args:
    logits: ``[N, K]`` floats.
    labels: ``[N]`` integers in ``[0, K)``.
    threshold: κ, in nats, at least 0.
    stop_gradient: whether the factors :math:`c_i` and :math:`1 - c_i` carry no gradient (AvUC-GS, Appendix F).
    where: optional ``[N]`` bools; rows that are False count for nothing and may hold NaN.
    axis_name: optional mapped axis, for the value of the global batch across it.
  Returns: a scalar; 0 if nothing counts.
  References: Karandikar et al. 2021, Eqs. 13-14 (the floor of the denominator is ours). O(NK); devices exchange two
    numbers.

  >>> avuc(jnp.array([[4.0, 0.0], [0.2, 0.0]]), jnp.array([0, 0]), threshold=0.5).round(2)
  Array(0.31, dtype=float32)
  """
  checks.number("threshold", threshold, low=0)
  checks.choice("stop_gradient", stop_gradient, (True, False))
  logits, labels, where = prepare(logits, labels, where)
  row = row_statistics(logits)
  odds = jax.lax.stop_gradient(row.odds) if stop_gradient else row.odds
  confidence, rest = jax.nn.sigmoid(-odds), jax.nn.sigmoid(odds)
  certain, accurate = row.entropy < threshold, row.top == labels
  # 1 - tanh h = 2 σ(-2h), which keeps its digits.
  value = jnp.where(accurate, confidence, rest) * jnp.where(certain, 2 * jax.nn.sigmoid(-2 * row.entropy),
                                                            jnp.tanh(row.entropy))
  placed = accurate == certain
  return _log_ratio(jnp.where(placed, 0, value), jnp.where(placed, value, 0), where, axis_name)


def soft_avuc(logits, labels, *, threshold: float = 0.5, temperature: float = 1.0, where=None,
              axis_name: str | None = None) -> Array:
  r"""Soft accuracy-versus-uncertainty calibration loss (S-AvUC).

  With entropy :math:`h_i` in nats, :math:`h^*_i = h_i / \log K` and soft uncertainty
  :math:`t_i = \sigma((\mathrm{logit}\, h^*_i - \mathrm{logit}\, \kappa) / T)`,

  .. math::
    n_{AU} = \sum_{a_i = 1} t_i \tanh h_i, \quad n_{IC} = \sum_{a_i = 0} (1 - t_i)(1 - \tanh h_i)

    n_{AC} = \sum_{a_i = 1} (1 - t_i)(1 - \tanh h_i), \quad n_{IU} = \sum_{a_i = 0} t_i \tanh h_i

    \log\Big(1 + \frac{n_{AU} + n_{IC}}{\max(n_{AC} + n_{IU}, 10^{-5})}\Big)

  Args:
    logits: ``[N, K]`` floats.
    labels: ``[N]`` integers in ``[0, K)``.
    threshold: κ, in (0, 1).
    temperature: T > 0.
    where: optional ``[N]`` bools; rows that are False count for nothing and may hold NaN.
    axis_name: optional mapped axis, for the value of the global batch across it.
  Returns: a scalar; 0 if nothing counts. t is 0 where h* is 0 and 1 where it is 1, with gradient 0 there.
  References: Karandikar et al. 2021, Eqs. 15-16 (the floor of the denominator is ours). O(NK); devices exchange four
    numbers.

  >>> soft_avuc(jnp.array([[4.0, 0.0], [0.2, 0.0]]), jnp.array([0, 0])).round(3)
  Array(0.565, dtype=float32)
  """
  checks.number("threshold", threshold, low=0, high=1, open_low=True, open_high=True)
  checks.number("temperature", temperature, low=0, open_low=True)
  logits, labels, where = prepare(logits, labels, where)
  top, _, entropy, divergence, _ = row_statistics(logits)
  # h* / (1 - h*) is the entropy over the divergence from uniform: log K cancels.
  inside = (entropy > 0) & (divergence > 0)
  log_odds = jnp.log(jnp.where(inside, entropy, 1)) - jnp.log(jnp.where(inside, divergence, 1))
  beyond = (log_odds - math.log(threshold / (1 - threshold))) / temperature
  # The logarithm of t is 0 or -inf at the ends: large numbers stand for both.
  beyond = jnp.where(inside, beyond, jnp.where(entropy > 0, 1e4, -1e4))
  # 1 - tanh h = 2 σ(-2h), which keeps its digits, as σ(-x) = 1 - t does.
  high = jax.nn.sigmoid(beyond) * jnp.tanh(entropy)
  low = 2 * jax.nn.sigmoid(-beyond) * jax.nn.sigmoid(-2 * entropy)
  accurate = top == labels
  return _log_ratio(jnp.where(accurate, high, low), jnp.where(accurate, low, high), where, axis_name)


def _log_ratio(misplaced: Array, placed: Array, where: Array, axis_name: str | None) -> Array:
  """log(1 + (n_AU + n_IC) / (n_AC + n_IU)) of each example's share in either sum, over the global batch."""
  sums = global_sum(jnp.where(where[:, None], jnp.stack([misplaced, placed], axis=-1), 0), axis_name)
  return jnp.log1p(sums[0] / jnp.maximum(sums[1], 1e-5))

