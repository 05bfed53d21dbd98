"""Proper scores, per example: cross entropy and the Brier score."""

import jax
import jax.numpy as jnp

from calib_jax import checks
from calib_jax.rows import label_odds, log_softmax, odds_and_rest, one_hot, pick, reduce_rows, relative_to_top

Array = jax.Array


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
  if labels.shape == logits.shape:
    return jnp.sum((jax.nn.softmax(logits) - labels) ** 2, axis=-1)
  return _brier(logits, labels)


@jax.custom_jvp
def _brier(logits: Array, labels: Array) -> Array:
  """(1 - p_y)² (1 + c), with c the sum of the squares of the other classes' shares of 1 - p_y."""
  odds, log_rest = odds_and_rest(logits, labels)
  x = relative_to_top(logits)
  at_top = x == 0
  below, ties = reduce_rows((jax.lax.add, 0, jnp.where(at_top, 0, jnp.exp(2 * x))),
                            (jax.lax.add, 0, at_top.astype(jnp.int32)))
  squares = below + (ties.astype(x.dtype) - jnp.exp(2 * pick(x, labels)))
  concentration = squares / jnp.maximum(jnp.exp(2 * log_rest), jnp.finfo(x.dtype).tiny)
  return jax.nn.sigmoid(odds) ** 2 * (1 + concentration)


@_brier.defjvp
def _brier_jvp(primals, tangents):
  logits, labels = primals
  odds, log_rest = odds_and_rest(logits, labels)
  value, factor = _brier(logits, labels), 2 * jax.nn.sigmoid(odds) ** 2
  of_label = -jax.nn.sigmoid(-odds) * 2 * value
  share = jnp.exp(relative_to_top(logits) - log_rest[..., None])
  # With s = 1 - p_y, the others' shares q: 2 s² q (p_y (1 + c) + q - c), where c - p_y (1 + c) = s (1 + c) - 1.
  of_others = share * (factor[..., None] * (share + 1) - 2 * (value * jax.nn.sigmoid(odds))[..., None])
  slope = jnp.where(one_hot(labels, logits), of_label[..., None], of_others)
  return value, jnp.sum(slope * tangents[0], axis=-1)
