"""How metrics are defined: functions of two arrays whose arguments are checked, and which ``jax.jit`` compiles."""

from collections.abc import Callable, Collection
import functools
import inspect

import jax
import jax.numpy as jnp

from calib_jax import _checks as checks


def metric(prepare: Callable, values: Callable, *, traced: Collection[str] = ("where",),
           **limits) -> Callable[[checks.Function], checks.Function]:
  """A decorator that checks a metric's arguments and compiles it.

  Args:
    prepare: maps the two arrays and ``where`` to what the metric gets, as ``checks.paired`` does.
    values: refuses wrong values in the two arrays, as ``checks.pair_values`` does.
    traced: the keyword-only parameters that are arrays. For each combination of the others the metric is compiled anew.
    **limits: what each option may be, as in ``limits.limited``.

  Returns:
    The decorator.
  """
  def decorate(function):
    parameters = inspect.signature(function).parameters.values()
    static = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in traced]
    compiled = jax.jit(checks.arguments(prepare)(function), static_argnames=static)
    return checks.arguments(values=values, **limits)(compiled)

  return decorate


def of_classes(**limits) -> Callable[[checks.Function], checks.Function]:
  """``metric`` of ``probs`` and ``labels``; its floats are NaN where a label that counts is out of range.

  Args:
    **limits: what each option may be.

  Returns:
    The decorator.
  """
  def decorate(function):
    @functools.wraps(function)
    def with_nan(probs, labels, *args, **options):
      outside = jnp.any(checks.out_of_range(labels, probs.shape[1]))
      return jax.tree.map(lambda x: jnp.where(outside, jnp.nan, x) if jnp.issubdtype(x.dtype, jnp.floating) else x,
                          function(probs, labels, *args, **options))

    return metric(checks.classified, checks.class_values, **limits)(with_nan)

  return decorate


# Metrics of a binary pair such as ``confidence`` and ``correct``.
of_pairs = functools.partial(metric, checks.paired, checks.pair_values)
