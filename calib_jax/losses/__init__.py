"""Losses for training calibrated classifiers: pure functions of ``logits`` ``[N, K]`` and ``labels`` ``[N]``.

Per-example losses return ``[N]``; per-batch losses return a scalar, take ``where`` for padding, and ``axis_name`` for
the value of the global batch over a mapped axis.

>>> logits, labels = jnp.array([[2.0, 0.0, -1.0], [0.0, 0.5, 0.0]]), jnp.array([0, 2])
>>> focal(logits, labels, gamma=1.0).shape
(2,)
>>> soft_avuc(logits, labels, where=jnp.array([True, False])).shape
()
>>> jax.grad(lambda z: composite("focal", "soft_avuc", 0.5)(z, labels)[0])(logits).shape
(2, 3)
"""

from calib_jax.losses.composition import PER_BATCH, PER_EXAMPLE, composite, get
from calib_jax.losses.focal import focal
from calib_jax.losses.proper import brier, cross_entropy
from calib_jax.losses.soft_binned import soft_binned_ece
from calib_jax.losses.uncertainty import soft_avuc

__all__ = ["PER_BATCH", "PER_EXAMPLE", "brier", "composite", "cross_entropy", "focal", "get", "soft_avuc",
           "soft_binned_ece"]
