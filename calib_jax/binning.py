"""Bins of confidence in [0, 1], hard and soft: the one binning used by every loss and metric."""

import jax
import jax.numpy as jnp

Array = jax.Array


def soft_membership(confidence: Array, num_bins: int, temperature: float) -> Array:
  r"""Soft membership of each confidence in equal-width bins: ``[...]`` to ``[..., num_bins]``, rows sum to 1.

  .. math:: u_j(c) = \mathrm{softmax}_j(-(c - \xi_j)^2 / T), \qquad \xi_j = (j - 1/2) / M

  Tends to hard binning as ``temperature`` tends to 0. Reference: Karandikar et al. 2021, Section 4.1.

  >>> soft_membership(jnp.array([0.25]), 2, 0.01).round(3)
  Array([[1., 0.]], dtype=float32)
  """
  centers = (jnp.arange(num_bins, dtype=confidence.dtype) + 0.5) / num_bins
  distance = confidence[..., None] - centers.reshape((1,) * confidence.ndim + (-1,))
  return jax.nn.softmax(-(distance**2) / temperature, axis=-1)


def equal_width_index(confidence: Array, num_bins: int, closed: str = "right") -> Array:
  """Index of each value's bin among ``num_bins`` equal-width bins of [0, 1]; ints in ``[0, num_bins)``.

  ``closed="right"``: bins are (lo, hi], the first closed at 0; ``"left"``: [lo, hi), the last closed at 1. Inner
  edges ``j / num_bins`` are rounded to the precision of the data, so a float32 0.2 lies on the edge 0.2 of 5 bins.

  >>> equal_width_index(jnp.array([0.0, 0.2, 0.21, 1.0]), 5)
  Array([0, 0, 1, 4], dtype=int32)
  """
  edges = (jnp.arange(1, num_bins) / num_bins).astype(confidence.dtype)
  return jnp.searchsorted(edges, confidence, side="left" if closed == "right" else "right")
