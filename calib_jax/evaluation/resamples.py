"""Intervals of metrics that NumPy computes, with the draws and formulas of ``metrics.bootstrap`` and ``assess``.

XLA compiles only the draws and, once for all numbers of a table, the ends of the intervals.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax._system import compilation
from calib_jax.metrics import draws, percentiles
from calib_jax.metrics.bias_correction import checked_rate, interval_of_moments, moments
from calib_jax.metrics.calibration_tests import p_value_of
from calib_jax.metrics.resampled_errors import Ordered, Sums

LEVEL = 0.95
BATCH = 100_000  # Numbers of the resamples that are in memory at a time. More would not stay in a CPU's cache.


class Resampled(NamedTuple):
  """An error and what its resamples say of its noise, arrays of one shape.

  Attributes:
    value: the error.
    moments: what ``interval_of_moments`` needs.
    floor: the mean error of redrawn outcomes; None without redraws.
    p_value: the p-value of ``metrics.calibration_test``; None without redraws.
    noise: ``[R]``, half the difference of the squares of the first element, of each half and of its rest; None without
      redraws. Those of two errors of the same examples say how they vary together.
    most_by_chance: the 97.5% quantile of the error of redrawn outcomes, of class-wise errors; None of others.
  """

  value: np.ndarray
  moments: tuple[np.ndarray, ...]
  floor: np.ndarray | None = None
  p_value: np.ndarray | None = None
  noise: np.ndarray | None = None
  most_by_chance: np.ndarray | None = None


def assess(errors: Mapping[str, tuple[Callable[[Sums], np.ndarray], int]], confidence: np.ndarray, correct: np.ndarray,
           *, num_bins: int, key: jax.Array, groups: np.ndarray | None = None) -> dict[str, Resampled]:
  """Computes calibration errors of the samples of ``metrics.assess``.

  Args:
    errors: by name, a function of the sums of R resamples to ``[R]``, and the number of resamples of each kind, of
      which the first has the most.
    confidence: float32 ``[N, S]`` in [0, 1], of S seeds.
    correct: bools of that shape.
    num_bins: the number of bins.
    key: PRNG key.
    groups: optional ``[N]`` integers; examples with the same integer are drawn together.

  Returns:
    For each error, the arrays ``[1 + S]`` of its mean over seeds and of each seed.
  """
  members = draws.members(groups, len(confidence))
  index = np.maximum(members, 0).reshape(-1)
  chance, happened = confidence[index], correct[index]
  rho = np.float32(draws.dependence(confidence, correct, members))
  seeds = [Ordered(chance[:, s], num_bins) for s in range(chance.shape[1])]

  def computed(outcome, where, first):
    """The errors ``[R, 1 + S]`` that have resamples from the number ``first`` on."""
    sums = [ordered.sums(where, outcome[..., s]) for s, ordered in enumerate(seeds)]
    return {name: mean_first(np.stack([error(x) for x in sums], axis=1))
            for name, (error, number) in errors.items() if number > first}

  most = next(iter(errors.values()))[1]
  size = max(1, min(most, BATCH // (4 * chance.size)))
  place, *keys = _keys(len(members), key, most)
  observed = computed(happened[None], (members >= 0).reshape(1, -1), -1)
  values: dict[str, list[np.ndarray]] = {name: [] for name in errors}
  for first, seen in _steps(most, size):
    outcome, where = map(np.asarray, _samples(first, size, keys, place, members, chance, happened, rho))
    for name, error in computed(outcome, where, first + seen).items():
      values[name].append(error.reshape(4, size, -1)[:, seen:])
  resampled = {}
  for name, (_, number) in errors.items():
    half, rest, fifth, redrawn = np.concatenate(values[name], axis=1)[:, :number]
    (value,) = observed[name]
    resampled[name] = Resampled(value, moments(half, rest, fifth), redrawn.mean(0), p_value_of(value, redrawn),
                                (half[:, 0]**2 - rest[:, 0]**2) / 2)
  return resampled


def bias_corrected(error: Callable[[np.ndarray], np.ndarray], count: int, *, key: jax.Array, num_resamples: int
                   ) -> Resampled:
  """Computes an error of the subsamples of ``metrics.bootstrap(method="bias_corrected")``.

  Args:
    error: a function of ``[R, N]`` integers, how often each example counts in each resample, to ``[R, ...]``.
    count: the number N of examples.
    key: PRNG key.
    num_resamples: the number of resamples of each size.

  Returns:
    Arrays of the shape of the error.
  """
  half, rest, fifth = (error(_counts(np.asarray(index), count))
                       for index in _subsamples(count, key, num_resamples))
  return Resampled(error(np.ones((1, count), np.int64))[0], moments(half, rest, fifth))


def percentile(metric: Callable[[np.ndarray], np.ndarray], count: int, *, key: jax.Array, num_resamples: int,
               groups: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Computes ``metrics.bootstrap(method="percentile")`` of a metric of NumPy.

  Args:
    metric: a function of ``[R, N]`` integers, how often each example counts in each resample, to ``[R, ...]``.
    count: the number N of examples.
    key: PRNG key.
    num_resamples: the number of resamples.
    groups: optional ``[N]`` integers; examples with the same integer are drawn together.

  Returns:
    ``(value, low, high)``, arrays of the shape of the metric.
  """
  group = np.arange(count) if groups is None else np.unique(groups, return_inverse=True)[1]
  num_groups = group.max() + 1
  size, values = max(1, min(num_resamples, BATCH // count)), []
  for first, seen in _steps(num_resamples, size):
    counts = _counts(np.asarray(_indices(first, size, num_groups, key, num_resamples))[seen:], num_groups)
    values.append(metric(counts if groups is None else counts[:, group]))
  value = metric(np.ones((1, count), np.int64))[0]
  return value, *percentiles.ends(np.concatenate(values), value, int(num_groups), LEVEL)


def intervals(resampled: Mapping[Hashable, Resampled], rules: Mapping[Hashable, tuple[float, float]]
              ) -> dict[Hashable, tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """Returns ``(estimate, low, high)`` of each error, all computed by one compiled program.

  Args:
    resampled: the errors.
    rules: the ``bias_rate`` of ``metrics.bootstrap`` and the ``sure_part`` of each.
  """
  parts = [np.broadcast_arrays(error.value, *error.moments, checked_rate(rate), part)
           for error, (rate, part) in ((error, rules[name]) for name, error in resampled.items())]
  flat = [np.concatenate([np.ravel(x) for x in column]).astype(np.float32) for column in zip(*parts, strict=True)]
  ends = np.cumsum([part[0].size for part in parts])[:-1]
  split = [np.split(np.asarray(x), ends) for x in _intervals(*flat, LEVEL)]
  return {name: tuple(x.reshape(error.value.shape) for x in interval)
          for (name, error), interval in zip(resampled.items(), zip(*split, strict=True), strict=True)}


def mean_first(values: np.ndarray) -> np.ndarray:
  """``[R, S]`` to ``[R, 1 + S]``: the mean over seeds, followed by the values of each seed."""
  return np.concatenate([values.mean(1, keepdims=True), values], axis=1)


def _steps(total: int, size: int) -> Iterator[tuple[int, int]]:
  """Yields where each step of ``size`` begins and how much of it was in the steps before it: steps have one size."""
  for start in range(0, total, size):
    first = min(start, total - size)
    yield first, start - first


def _counts(index: np.ndarray, count: int) -> np.ndarray:
  """How often each of ``count`` examples is in each row of ``index`` ``[R, ...]``: integers ``[R, count]``."""
  return np.stack([np.bincount(row, minlength=count) for row in index])


_keys = compilation.once(draws.assess_keys, static_argnums=(0, 2))
_intervals = compilation.once(interval_of_moments, static_argnums=7)


@functools.partial(jax.jit, static_argnums=1)
def _samples(first, size, keys, place, members, chance, happened, rho):
  """The outcomes and masks of ``assess`` of ``size`` halves, as many rests, fifths and redraws, ``[4 size, ...]``."""
  halves, fifths, outcomes = (jax.lax.dynamic_slice_in_dim(x, first, size) for x in keys)
  kinds = jnp.repeat(jnp.array([draws.HALF, draws.REST, draws.FIFTH_PART, draws.REDRAWN]), size)
  return jax.vmap(lambda kind, key: draws.assess_sample(kind, key, place, members, chance, happened, rho))(
    kinds, jnp.concatenate([halves, halves, fifths, outcomes]))


@functools.partial(jax.jit, static_argnums=(1, 2, 4))
def _indices(first, size, count, key, num_resamples):
  keys = jax.lax.dynamic_slice_in_dim(jax.random.split(key, num_resamples), first, size)
  return jax.vmap(lambda key: draws.draw(key, count, count))(keys)


@functools.partial(compilation.once, static_argnums=(0, 2))
def _subsamples(count, key, num_resamples):
  order, keys_of_halves, keys_of_fifths = draws.subsample_keys(count, key, num_resamples)
  return (*jax.vmap(lambda key: draws.half_and_rest(key, order))(keys_of_halves),
          jax.vmap(lambda key: draws.fifth(key, order))(keys_of_fifths))
