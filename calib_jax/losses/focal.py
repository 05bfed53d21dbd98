"""The focal loss."""

import jax
import jax.numpy as jnp

from calib_jax import checks
from calib_jax.losses.reductions import log_softmax

Array = jax.Array


def focal(logits, labels, *, gamma: float = 2.0) -> Array:
  r"""Focal loss, in nats.

  .. math:: \ell(z, y) = -(1 - p_y)^\gamma \log p_y, \quad p = \mathrm{softmax}(z)

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats t, for which it is the sum over k of t_k times the
      loss of label k.
    gamma: exponent, at least 0; 0 gives cross entropy.
  Returns: ``[...]`` values.
  References: Lin et al. 2017, Eq. 4; Zhou et al. 2025, Section 3.1.

  >>> focal(jnp.array([[2.0, 0.0, -1.0]]), jnp.array([0])).round(4)
  Array([0.0041], dtype=float32)
  """
  checks.number("gamma", gamma, low=0)
  logits, labels = checks.scores_and_labels(logits, labels, soft=True)
  log_p, is_top = log_softmax(logits)
  # log(1 - p) without cancellation: of the top class from the others, of the others (p <= 1/2) directly.
  log_others = jax.nn.logsumexp(log_p, axis=-1, where=~is_top, keepdims=True)
  log_not_p = jnp.where(is_top, log_others, jnp.log1p(-jnp.where(is_top, 0, jnp.exp(log_p))))
  losses = -jnp.exp(gamma * log_not_p) * log_p
  if labels.shape == logits.shape:
    return jnp.sum(labels * losses, axis=-1)
  return jnp.sum(losses, axis=-1, where=jax.nn.one_hot(labels, logits.shape[-1], dtype=bool))
