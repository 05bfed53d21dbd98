"""Accuracy and proper scores, of probabilities ``[..., K]`` and integer labels ``[...]``; all take ``where``."""

import jax
import jax.numpy as jnp

from calib_jax import checks
from calib_jax.metrics.inputs import classified, mean

Array = jax.Array


def top_label(probs, labels) -> tuple[Array, Array]:
  """``(confidence, correct)``: the top probability, and whether its class is the label (lowest index in a tie).

  Args: probs ``[..., K]`` floats; labels ``[...]`` integers in ``[0, K)``. Returns: ``[...]`` floats and bools.

  >>> top_label(jnp.array([[0.5, 0.5], [0.1, 0.9]]), jnp.array([1, 1]))
  (Array([0.5, 0.9], dtype=float32), Array([False,  True], dtype=bool))
  """
  probs, labels = checks.scores_and_labels(probs, labels, name="probs")
  return jnp.max(probs, axis=-1), jax.lax.argmax(probs, probs.ndim - 1, jnp.int32) == labels


def accuracy(probs, labels, *, where=None) -> Array:
  """The fraction of labels that are the top class (lowest index in a tie).

  >>> accuracy(jnp.array([[0.5, 0.5], [0.1, 0.9]]), jnp.array([1, 1]))
  Array(0.5, dtype=float32)
  """
  probs, labels, where = classified(probs, labels, where)
  return mean(top_label(probs, labels)[1].astype(probs.dtype), where)


def _label_probability(probs: Array, labels: Array) -> Array:
  return jnp.take_along_axis(probs, labels[:, None], axis=-1)[:, 0]


def nll(probs, labels, *, where=None) -> Array:
  """Mean negative log-likelihood in nats; probabilities are clipped at the smallest normal float32.

  >>> nll(jnp.array([[0.5, 0.5]]), jnp.array([1])).round(4)
  Array(0.6931, dtype=float32)
  """
  probs, labels, where = classified(probs, labels, where)
  return mean(-jnp.log(jnp.maximum(_label_probability(probs, labels), jnp.finfo(jnp.float32).tiny)), where)


def brier_score(probs, labels, *, where=None) -> Array:
  """Mean squared distance from the probabilities to the one-hot label, summed over classes: in [0, 2].

  >>> brier_score(jnp.array([[0.5, 0.5]]), jnp.array([1]))
  Array(0.5, dtype=float32)
  """
  probs, labels, where = classified(probs, labels, where)
  onehot = jax.nn.one_hot(labels, probs.shape[-1], dtype=probs.dtype)
  return mean(jnp.sum((probs - onehot) ** 2, axis=-1), where)
