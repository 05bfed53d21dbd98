"""Checks the arrays of a metric and runs its formula as one compiled program.

A metric checks its options and hands its arrays and its formula to ``of_pairs`` or ``of_classes``. The formula is a
function of its module, so that ``jax.jit`` compiles it once for each combination of options.
"""

from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks

Array = jax.Array


def of_pairs(formula: Callable[..., Any], scores: ArrayLike, values: ArrayLike, where: ArrayLike | None,
             weights: ArrayLike | None, *arrays: ArrayLike, names: tuple[str, str] = ("confidence", "correct"),
             high: float = 1.0, counts_credits: bool = False, **options: Any):
  """``formula(scores [N], values [N], counts [N], *arrays, **options)`` of checked arrays; ``names`` are for errors.

  Where ``names`` has ``correct``, its values are bools or credits; credits have weights as ``counts``, all 1 without
  any, if the formula ``counts_credits`` in another way than it counts correct examples.
  """
  scores, are_credits = checks.array(scores, names[0]), names[1] == "correct"
  weights, where = checks.weights_and_where(weights, where, scores)
  if are_credits:
    values = checks.credits(scores, values, where, names=names, high=high)
    if counts_credits and weights is None and values.dtype != bool:
      weights = np.ones(np.shape(scores), np.float32)
  else:
    values = checks.array(values, names[1])
    checks.pair_values(scores, values, where, names=names, high=high)
  return _of_pairs(formula, names, tuple(options.items()), scores, values, where, weights, *arrays)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _of_pairs(formula, names, options, scores, values, where, weights, *arrays):
  are_credits = names[1] == "correct" and values.dtype != bool
  scores, values, counts = checks.paired(scores, values, where, weights, names=names)
  result = formula(scores, values, counts, *arrays, **dict(options))
  return _nan_where(jnp.any(checks.is_outside(values)), result) if are_credits else result


def _nan_where(wrong: Array, result: Any) -> Any:
  """A result whose floats are NaN if something that could not be checked is ``wrong``."""
  return jax.tree.map(lambda x: jnp.where(wrong, jnp.nan, x) if jnp.issubdtype(x.dtype, jnp.floating) else x, result)


def of_classes(formula: Callable[..., Any], probs: ArrayLike, labels: ArrayLike, where: ArrayLike | None,
               weights: ArrayLike | None, *arrays: ArrayLike, **options: Any):
  """As ``of_pairs``, of what ``checks.classified`` returns; NaN where a traced label that counts is out of range."""
  probs, labels = checks.array(probs, "probs"), checks.array(labels, "labels")
  weights, where = checks.weights_and_where(weights, where, labels)
  checks.class_values(probs, labels, where)
  return _of_classes(formula, tuple(options.items()), probs, labels, where, weights, *arrays)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _of_classes(formula, options, probs, labels, where, weights, *arrays):
  probs, labels, counts = checks.classified(probs, labels, where, weights)
  outside = jnp.any(checks.out_of_range(labels, probs.shape[1]))
  return _nan_where(outside, formula(probs, labels, counts, *arrays, **dict(options)))


def counted(counts: Array) -> dict[str, Array]:
  """The keyword argument by which a formula hands its ``counts`` on to a metric: ``where`` or ``weights``."""
  return {"where" if counts.dtype == bool else "weights": counts}
