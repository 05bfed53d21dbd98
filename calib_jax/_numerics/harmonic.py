"""Harmonic numbers of real numbers: the areas under risk-coverage curves are sums of them."""

import jax

from calib_jax._numerics.binning import array_module

Array = jax.Array


def harmonic_difference(x: Array, w: Array) -> Array:
  """H(x + w) - H(x) of real numbers of at least 0, of JAX or NumPy, with H(x) = ψ(x + 1) + γ."""
  # The first 8 terms are added one by one, and from there on the difference of ψ(y + 1/2) = log y + 1/(24 y²) -
  # 7/(960 y⁴), to an eps of float32. No two large numbers are subtracted.
  first = sum(w / ((x + m) * (x + w + m)) for m in range(1, 9))
  y, z = x + 8.5, x + 8.5 + w
  tail = array_module(x).log1p(w / y) + (1 / z**2 - 1 / y**2) / 24 - (1 / z**4 - 1 / y**4) * 7 / 960
  return first + tail
