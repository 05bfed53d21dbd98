"""Differences of metrics between two models on the same examples."""

from collections.abc import Sequence
import functools

import jax
from jax.typing import ArrayLike

from calib_jax.metrics.bootstrap_intervals import bootstrap
from calib_jax.metrics.draws import Metric

Array = jax.Array


def paired_difference(metric: Metric, a: Sequence[ArrayLike], b: Sequence[ArrayLike], *, key: Array,
                      num_resamples: int = 1000, level: float = 0.95,
                      groups: ArrayLike | None = None) -> tuple[Array, Array, Array]:
  """The difference of a metric between two models on the same examples, with its percentile bootstrap interval.

  Both models are resampled with the same examples, so that the examples' difficulty, which both share, cancels.

  Args:
    metric: a function of the arrays of one model to a scalar or an array, traceable by ``jit``.
    a: the arguments of the metric for one model, ``[N, ...]`` arrays.
    b: the arguments of the metric for the other model, ``[N, ...]`` arrays of the same examples.
    key: PRNG key; the same key gives the same interval.
    num_resamples: number of resamples.
    level: the probability that the interval is meant to cover, in (0, 1).
    groups: optional ``[N]`` integers, as for ``bootstrap``.

  Returns:
    ``(difference, low, high)``, where ``difference`` is the metric of ``a`` minus that of ``b``.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  >>> a, b = jnp.arange(100.0), jnp.arange(100.0) - 1
  >>> difference, low, high = paired_difference(jnp.mean, [a], [b], key=jax.random.key(0))
  >>> [round(float(x), 4) for x in (difference, low, high)]
  [1.0, 1.0, 1.0]
  """
  if len(a) != len(b):
    raise ValueError(f"a and b must have the same number of arrays: got {len(a)} and {len(b)}.")
  return bootstrap(_difference(metric, len(a)), *a, *b, key=key, num_resamples=num_resamples, level=level,
                   groups=groups)


@functools.cache
def _difference(metric: Metric, num_arrays: int) -> Metric:
  """A function of the arrays of two models. It is cached so that ``bootstrap`` compiles it once for each metric."""
  return lambda *arrays, **where: metric(*arrays[:num_arrays], **where) - metric(*arrays[num_arrays:], **where)
