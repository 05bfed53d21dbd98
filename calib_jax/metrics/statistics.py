"""Standard errors and effect sizes for tables of repeated runs."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks

Array = jax.Array


def cohens_d(a: ArrayLike, b: ArrayLike) -> Array:
  r"""Cohen's d: the difference of two means in units of their pooled standard deviation.

  It says how large a difference is against the spread of runs.

  .. math:: d = \frac{\bar a - \bar b}{s}, \qquad s^2 = \frac{(n_a - 1) s_a^2 + (n_b - 1) s_b^2}{n_a + n_b - 2}

  Args:
    a: ``[n_a, ...]`` floats, with at least 2 rows.
    b: ``[n_b, ...]`` floats, with at least 2 rows.

  Returns:
    ``[...]`` values, above 0 where the mean of ``a`` is the larger.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or shape.

  References:
    Cohen 1988; Karandikar et al. 2021, Figure 1.

  >>> cohens_d(jnp.array([2.0, 3.0, 4.0]), jnp.array([1.0, 2.0, 3.0]))
  Array(1., dtype=float32)
  """
  a, b = _sample(a, "a"), _sample(b, "b")
  squares = sum(jnp.sum((x - jnp.mean(x, axis=0)) ** 2, axis=0) for x in (a, b))
  return (jnp.mean(a, axis=0) - jnp.mean(b, axis=0)) / jnp.sqrt(squares / (len(a) + len(b) - 2))


def sem(x: ArrayLike) -> Array:
  """Standard error of the mean over axis 0: the sample standard deviation (ddof 1) divided by √n.

  It says how far the mean of other runs may be.

  Args:
    x: ``[n, ...]`` floats, with at least 2 rows.

  Returns:
    ``[...]`` values.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or shape.

  >>> sem(jnp.array([1.0, 2.0, 3.0])).round(3)
  Array(0.577, dtype=float32)
  """
  x = _sample(x, "x")
  return jnp.std(x, axis=0, ddof=1) / jnp.sqrt(jnp.asarray(len(x), x.dtype))


def within_subject_sem(x: ArrayLike) -> Array:
  r"""Standard error of condition means with the differences between subjects removed, one pooled value.

  Use it for error bars of conditions that the same models were measured under.

  .. math:: \mathrm{SEM} = \sqrt{\frac{1}{n} \mathrm{MS}_{S \times C}}, \qquad \mathrm{MS}_{S \times C} =
    \frac{\sum_{ij} (x_{ij} - \bar x_{i \cdot} - \bar x_{\cdot j} + \bar x)^2}{(n - 1)(c - 1)}

  Args:
    x: ``[subjects, conditions]`` floats, at least 2 of each. In Karandikar et al. 2021, corruption types are the
      subjects and methods the conditions.

  Returns:
    A scalar.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or shape.

  References:
    Masson & Loftus 2003, Eq. 2.

  >>> within_subject_sem(jnp.array([[1.0, 2.0], [11.0, 13.0]])).round(2)
  Array(0.35, dtype=float32)
  """
  x = _sample(x, "x")
  checks.rank(x, 2, "x", "[subjects, conditions]")
  if x.shape[1] < 2:
    raise ValueError(f"x must have at least 2 conditions: got shape {x.shape}.")
  centred = x - jnp.mean(x, axis=1, keepdims=True)
  interaction = centred - jnp.mean(centred, axis=0, keepdims=True)
  return jnp.sqrt(jnp.sum(interaction**2) / ((x.shape[0] - 1) * (x.shape[1] - 1) * x.shape[0]))


def _sample(x: ArrayLike, name: str) -> Array:
  """``x`` as floats; a ValueError unless it has at least 2 rows."""
  x = checks.floating(x, name)
  if x.ndim < 1 or len(x) < 2:
    raise ValueError(f"{name} must hold at least 2 values on its first axis: got shape {x.shape}.")
  return x
