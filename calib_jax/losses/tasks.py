"""Binary and multi-label tasks: their logits as logits of two classes, which losses, metrics and calibrators take.

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
>>> losses.focal(two_class(logits), labels).shape, losses.soft_binned_ece(two_class(logits), labels).shape
((2, 2), ())
>>> jax.vmap(losses.soft_binned_ece, in_axes=1)(two_class(logits), labels).shape
(2,)
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks

Array = jax.Array


def two_class(logits: ArrayLike) -> Array:
  r"""Logits of two classes from those of a binary label: ``stack([0, z], axis=-1)``.

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
