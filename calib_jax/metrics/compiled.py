"""Runs the formula of a metric as one compiled program.

A metric checks its options and the values of its arrays, and hands its formula to ``of_pairs`` or ``of_classes``. The
formula is a function of its module, so that ``jax.jit`` compiles it once for each combination of options.
"""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks

Array = jax.Array


def of_pairs(formula: Callable, scores: ArrayLike, values: ArrayLike, where: ArrayLike | None, *arrays: ArrayLike,
             names: tuple[str, str] = ("confidence", "correct"), **options):
  """``formula(scores [N], values [N], where [N], *arrays, **options)`` of what ``checks.paired`` returns.

  Args:
    formula: a function of a module.
    scores: floats of any shape.
    values: numbers of that shape.
    where: optional bools of that shape.
    *arrays: more arrays, passed on as they are.
    names: what errors call ``scores`` and ``values``.
    **options: Python values, for each combination of which the formula is compiled.

  Returns:
    The formula's value.
  """
  return _of_pairs(formula, names, tuple(options.items()), scores, values, where, *arrays)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _of_pairs(formula, names, options, scores, values, where, *arrays):
  return formula(*checks.paired(scores, values, where, names=names), *arrays, **dict(options))


def of_classes(formula: Callable, probs: ArrayLike, labels: ArrayLike, where: ArrayLike | None, *arrays: ArrayLike,
               **options):
  """As ``of_pairs``, of what ``checks.classified`` returns.

  The floats of the value are NaN where a label that counts is out of range, because traced labels raise no error.
  """
  return _of_classes(formula, tuple(options.items()), probs, labels, where, *arrays)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _of_classes(formula, options, probs, labels, where, *arrays):
  probs, labels, where = checks.classified(probs, labels, where)
  outside = jnp.any(checks.out_of_range(labels, probs.shape[1]))
  return jax.tree.map(lambda x: jnp.where(outside, jnp.nan, x) if jnp.issubdtype(x.dtype, jnp.floating) else x,
                      formula(probs, labels, where, *arrays, **dict(options)))
