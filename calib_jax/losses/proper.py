"""Proper scores, per example: cross entropy and the Brier score."""

import jax
import jax.numpy as jnp

from calib_jax import checks
from calib_jax.losses.reductions import label_odds, log_softmax, pick

Array = jax.Array


def _targets(logits: Array, labels: Array) -> Array:
  """Integer labels as one-hot rows; distributions as they are."""
  return labels if labels.shape == logits.shape else jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)


def cross_entropy(logits, labels, *, label_smoothing: float = 0.0) -> Array:
  r"""Cross entropy, in nats.

  .. math::
    \ell(z, y) = -\sum_k t_k \log p_k, \quad p = \mathrm{softmax}(z), \quad t = (1 - a)\,\mathrm{onehot}(y) + a/K

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats, distributions.
    label_smoothing: a, in [0, 1].
  Returns: ``[...]`` values.

  >>> cross_entropy(jnp.array([[2.0, 0.0, -1.0]]), jnp.array([0])).round(4)
  Array([0.1698], dtype=float32)
  """
  checks.number("label_smoothing", label_smoothing, low=0, high=1)
  logits, labels = checks.scores_and_labels(logits, labels, soft=True)
  if labels.shape == logits.shape:
    targets = (1 - label_smoothing) * labels + label_smoothing / logits.shape[-1]
    return -jnp.sum(targets * log_softmax(logits)[0], axis=-1)
  hard = jax.nn.softplus(label_odds(logits, labels))
  if isinstance(label_smoothing, int | float) and label_smoothing == 0:
    return hard
  # -log p_k = -log p_y + z_y - z_k, averaged over k for the smoothed part.
  return hard + label_smoothing * (pick(logits, labels) - jnp.mean(logits, axis=-1))


def brier(logits, labels) -> Array:
  r"""Brier score: the squared distance from the probabilities to the label, in [0, 2].

  .. math:: \ell(z, y) = \sum_k (p_k - t_k)^2, \quad p = \mathrm{softmax}(z)

  Args:
    logits: ``[..., K]`` floats.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats, distributions.
  Returns: ``[...]`` values.
  References: Zhou et al. 2025, Appendix A.2; the "MSE" primary loss of Karandikar et al. 2021.

  >>> brier(jnp.array([[0.0, 0.0]]), jnp.array([1]))
  Array([0.5], dtype=float32)
  """
  logits, labels = checks.scores_and_labels(logits, labels, soft=True)
  return jnp.sum((jax.nn.softmax(logits) - _targets(logits, labels)) ** 2, axis=-1)
