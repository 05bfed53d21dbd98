"""Binary and multi-label tasks as logits of two classes, and losses as functions that Keras trains with.

>>> from calib_jax import losses, metrics
>>> logits, labels = jnp.array([2.0, -1.0, 0.5]), jnp.array([1, 0, 0])
>>> binary = jnp.where(labels == 1, jax.nn.softplus(-logits), jax.nn.softplus(logits))
>>> bool(jnp.allclose(losses.cross_entropy(two_class(logits), labels), binary))
True
>>> metrics.accuracy(jax.nn.softmax(two_class(logits[:2])), labels[:2])
Array(1., dtype=float32)

Multi-label logits are ``[N, L]``, with labels ``[N, L]`` of 0 and 1. Losses per batch and metrics take all labels of
all rows together, and ``jax.vmap`` over axis 1 gives one value a label:

>>> logits, labels = jnp.array([[2.0, -1.0], [0.5, 3.0]]), jnp.array([[1, 0], [0, 1]])
>>> losses.focal(two_class(logits), labels).shape, jax.jit(losses.soft_binned_ece)(two_class(logits), labels).shape
((2, 2), ())
>>> jax.jit(jax.vmap(losses.soft_binned_ece, in_axes=1))(two_class(logits), labels).shape
(2,)
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax.losses import catalogue

Array = jax.Array


def two_class(logits: ArrayLike) -> Array:
  r"""Logits of two classes from a binary label's: ``stack([0, z], axis=-1)``.

  With it binary models, whose output is one logit, use every loss of this package.

  .. math:: \mathrm{softmax}([0, z])_1 = \sigma(z)

  Args:
    logits: ``[...]`` floats z, the log-odds of label 1.

  Returns:
    ``[..., 2]`` logits, for labels ``[...]`` of 0 and 1.

  Raises:
    TypeError: if logits are not floats.

  >>> two_class(jnp.array([3.0, -1.0]))
  Array([[ 0.,  3.],
         [ 0., -1.]], dtype=float32)
  """
  logits = checks.floating(logits, "logits")
  return jnp.stack([jnp.zeros_like(logits), logits], axis=-1)


def keras(name: str, **options: Any) -> Callable[[ArrayLike, ArrayLike], Array]:
  """The loss called ``name`` as a function of ``(y_true, y_pred)``, for ``model.compile(loss=…)`` of Keras 3 on JAX.

  With it a model of Keras trains on any loss of this package.

  The model's last layer must have no softmax, because ``y_pred`` are logits ``[B, ..., K]``. ``y_true`` are the numbers
  of classes, ``[B, ...]`` or ``[B, ..., 1]``, which Keras makes floats, or distributions over classes ``[B, ..., K]``,
  such as one-hot labels. A number that is no integer makes the loss of its row, or of the batch, NaN.

  Args:
    name: the name of a loss per example or per batch.
    **options: any of that loss's options.

  Returns:
    A function that gives ``[B, ...]`` values for a loss per example, which Keras weights by ``sample_weight``, and one
    value for a loss per batch, because Keras knows no weights of its rows.

  Raises:
    ValueError: for an unknown name.
    TypeError: for an unknown option.

  >>> logits = jnp.array([[2.0, 0.0, -1.0], [0.0, 0.5, 0.0]])
  >>> loss = keras("focal", gamma=1.0)  # model.compile(optimizer="adam", loss=loss)
  >>> bool(jnp.allclose(loss(jnp.array([[0.0], [2.0]]), logits), loss(jax.nn.one_hot(jnp.array([0, 2]), 3), logits)))
  True
  """
  loss = catalogue.get(name, **options)

  def of_keras(y_true: ArrayLike, y_pred: ArrayLike) -> Array:
    labels, logits = jnp.asarray(y_true), jnp.asarray(y_pred)
    if labels.ndim == logits.ndim and labels.shape[-1] == logits.shape[-1]:
      return loss(logits, labels.astype(logits.dtype))
    if labels.ndim == logits.ndim and labels.shape[-1] == 1:
      labels = labels[..., 0]
    numbers = labels.astype(jnp.int32)  # A number out of range makes a traced loss NaN.
    return loss(logits, jnp.where(numbers.astype(labels.dtype) == labels, numbers, -1))

  of_keras.__name__ = name
  return of_keras
