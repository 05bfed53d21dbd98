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

from calib_jax import _checks as checks

Array = jax.Array


def of_pairs(formula: Callable[..., Any], scores: ArrayLike, values: ArrayLike, where: ArrayLike | None,
             weights: ArrayLike | None, *arrays: ArrayLike, names: tuple[str, str] = ("confidence", "correct"),
             high: float = 1.0, binary: bool = False, **options: Any):
  """``formula(scores [N], values [N], counts [N], *arrays, **options)`` of checked arrays; ``names`` are for errors."""
  scores, values = checks.array(scores, names[0]), checks.array(values, names[1])
  weights, where = checks.weights_and_where(weights, where, scores)
  checks.pair_values(scores, values, where, names=names, high=high, binary=binary)
  return _of_pairs(formula, names, tuple(options.items()), scores, values, where, weights, *arrays)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _of_pairs(formula, names, options, scores, values, where, weights, *arrays):
  return formula(*checks.paired(scores, values, where, weights, names=names), *arrays, **dict(options))


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
  return jax.tree.map(lambda x: jnp.where(outside, jnp.nan, x) if jnp.issubdtype(x.dtype, jnp.floating) else x,
                      formula(probs, labels, counts, *arrays, **dict(options)))


def counted(counts: Array) -> dict[str, Array]:
  """The keyword argument by which a formula hands its ``counts`` on to a metric: ``where`` or ``weights``."""
  return {"where" if counts.dtype == bool else "weights": counts}
