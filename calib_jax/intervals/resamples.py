"""Intervals of metrics that NumPy computes, with the draws and formulas of ``metrics.bootstrap`` and ``assess``.

XLA compiles only the words of the draws.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from calib_jax._system import compilation
from calib_jax.intervals import draws, percentiles
from calib_jax.intervals.bias_correction import interval_of_moments, moments
from calib_jax.intervals.bias_models import BiasModel
from calib_jax.intervals.calibration_tests import p_value_of

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


def assess(errors: Mapping[str, tuple[Callable[[Any], np.ndarray], int]],
           rows: Mapping[Hashable, tuple[np.ndarray, np.ndarray]], *, ordered: Callable[[np.ndarray], Any],
           key: jax.Array, groups: np.ndarray | None = None) -> dict[Hashable, dict[str, Resampled]]:
  """Computes calibration errors of the samples of ``metrics.assess``, which are drawn once for all rows.

  Args:
    errors: by name, a function of the sums of R resamples to ``[R]``, and the number of resamples of each kind, of
      which the first has the most.
    rows: the confidences float32 ``[N, S]`` in [0, 1] of S seeds, and bools of that shape: which are correct.
    ordered: a function of the confidences ``[N]`` of a seed to the object with its ``sums`` of resamples, as
      ``resampled_errors.Ordered``.
    key: PRNG key.
    groups: optional ``[N]`` integers; examples with the same integer are drawn together.

  Returns:
    For each row and error, the arrays ``[1 + S]`` of its mean over seeds and of each seed.
  """
  count, most = len(next(iter(rows.values()))[0]), next(iter(errors.values()))[1]
  group, num_groups = draws.group_numbers(groups, count)
  order, halves, fifths, outcomes = map(np.asarray, _words(num_groups, key, most))
  assessed = {row: _Assessed(*arrays, groups, num_groups > 1, ordered, errors) for row, arrays in rows.items()}
  size = max(1, BATCH // count)
  for first in range(0, most, size):
    batch = slice(first, first + size)
    half, rest, fifth = (mask if group is None else mask[:, group] for mask in (
      _mask(index, num_groups)
      for index in (*draws.half_and_rest(halves[batch], order), draws.fifth(fifths[batch], order))))
    own = draws.uniform(outcomes[batch], count)
    for model in assessed.values():
      model.add(first, half, rest, fifth, draws.shared(outcomes[batch], own, group, num_groups, model.rho))
  return {row: model.resampled() for row, model in assessed.items()}


class _Assessed:
  """The errors of one row, some resamples at a time."""

  def __init__(self, confidence, correct, groups, has_halves, ordered, errors):
    self.chance, self.happened, self.has_halves, self.errors = confidence, correct, has_halves, errors
    self.rho = np.float32(draws.dependence(confidence, correct, draws.members(groups, len(confidence))))
    self.seeds = [ordered(confidence[:, s]) for s in range(confidence.shape[1])]
    self.sample = np.ones((1, len(confidence)), bool)
    self.observed = self._computed(self._sums(self.sample, correct), -1)
    self.pairs = None
    self.values: dict[str, list[np.ndarray]] = {name: [] for name in errors}

  def _sums(self, where, outcome):
    return [ordered.sums(where, outcome[..., s]) for s, ordered in enumerate(self.seeds)]

  def _computed(self, sums, first):
    """The errors ``[R, 1 + S]`` that have resamples from the number ``first`` on."""
    return {name: mean_first(np.stack([error(x) for x in sums], axis=1))
            for name, (error, number) in self.errors.items() if number > first}

  def add(self, first, half, rest, fifth, numbers):
    """Adds the resamples from ``first`` on: masks of halves, rests and fifths, and the ``numbers`` of redraws."""
    halves = self._sums(half, self.happened)
    if self.pairs is None:
      self.pairs = self._sums((half | rest)[:1], self.happened)  # The same of all halves and their rests.
    # Of one example or group alone, a half and its rest are the whole sample.
    rests = [x.without(y) for x, y in zip(self.pairs, halves, strict=True)] if self.has_halves else halves
    kinds = halves, rests, self._sums(fifth, self.happened), self._sums(self.sample, numbers[..., None] < self.chance)
    parts = [self._computed(sums, first) for sums in kinds]
    for name in parts[0]:
      self.values[name].append(np.stack([part[name] for part in parts]))

  def resampled(self) -> dict[str, Resampled]:
    """Returns the errors with what their intervals need."""
    resampled = {}
    for name, (_, number) in self.errors.items():
      half, rest, fifth, redrawn = np.concatenate(self.values[name], axis=1)[:, :number]
      (value,) = self.observed[name]
      resampled[name] = Resampled(value, moments(half, rest, fifth), redrawn.mean(0), p_value_of(value, redrawn),
                                  (half[:, 0]**2 - rest[:, 0]**2) / 2)
    return resampled


def subsamples(count: int, key: jax.Array, num_resamples: int) -> list[np.ndarray]:
  """Which of ``count`` examples are in each half, rest and fifth of ``metrics.bootstrap``: bools ``[R, N]``."""
  order, halves, fifths, _ = map(np.asarray, _words(count, key, num_resamples))
  return [_mask(index, count) for index in (*draws.half_and_rest(halves, order), draws.fifth(fifths, order))]


def bias_corrected(error: Callable[[np.ndarray], np.ndarray], masks: Sequence[np.ndarray]) -> Resampled:
  """Computes an error of the ``subsamples`` of ``metrics.bootstrap(method="bias_corrected")``.

  Args:
    error: a function of bools ``[R, N]``, which examples are in each resample, to ``[R, ...]``.
    masks: what ``subsamples`` returns.

  Returns:
    Arrays of the shape of the error.
  """
  every = np.ones((1, masks[0].shape[1]), bool)
  return Resampled(error(every)[0], moments(*map(error, masks)))


def percentile(metric: Callable[[np.ndarray], np.ndarray], count: int, *, key: jax.Array, num_resamples: int,
               groups: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Computes ``metrics.bootstrap(method="percentile")`` of a metric of NumPy.

  Args:
    metric: a function of int32 ``[R, N]``, how often each example counts in each resample, to ``[R, ...]``. Resamples
      for which it is nan are left out.
    count: the number N of examples.
    key: PRNG key.
    num_resamples: the number of resamples.
    groups: optional ``[N]`` integers; examples with the same integer are drawn together.

  Returns:
    ``(value, low, high)``, arrays of the shape of the metric.
  """
  group, num_groups = draws.group_numbers(groups, count)
  size, values, words = max(1, BATCH // count), [], np.asarray(_sample_words(key, num_resamples))
  for first in range(0, num_resamples, size):
    counts = _counts(draws.draw(words[first:first + size], num_groups, num_groups), num_groups)
    values.append(metric(counts if group is None else counts[:, group]))
  value = metric(np.ones((1, count), np.int32))[0]
  return value, *percentiles.ends(np.concatenate(values), value, num_groups, LEVEL)


def intervals(resampled: Mapping[Hashable, Resampled], rules: Mapping[Hashable, BiasModel]
              ) -> dict[Hashable, tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """Returns ``(estimate, low, high)`` of each error.

  Args:
    resampled: the errors.
    rules: the model of the bias of each.
  """
  parts = [np.broadcast_arrays(error.value, *error.moments, rules[name].rate, rules[name].sure_part)
           for name, error in resampled.items()]
  flat = [np.concatenate([np.ravel(x) for x in column]).astype(np.float32) for column in zip(*parts, strict=True)]
  ends = np.cumsum([part[0].size for part in parts])[:-1]
  with np.errstate(all="ignore"):  # Errors without any noise have no scale.
    split = [np.split(x, ends) for x in interval_of_moments(*flat, LEVEL)]
  return {name: tuple(x.reshape(error.value.shape) for x in interval)
          for (name, error), interval in zip(resampled.items(), zip(*split, strict=True), strict=True)}


def mean_first(values: np.ndarray) -> np.ndarray:
  """``[R, S]`` to ``[R, 1 + S]``: the mean over seeds, followed by the values of each seed."""
  return np.concatenate([values.mean(1, keepdims=True), values], axis=1)


def _counts(index: np.ndarray, count: int) -> np.ndarray:
  """How often each of ``count`` examples is in each row of ``index`` ``[R, ...]``: int32 ``[R, count]``."""
  return np.stack([np.bincount(row, minlength=count) for row in index]).astype(np.int32)


def _mask(index: np.ndarray, count: int) -> np.ndarray:
  """Bools ``[R, count]``, true at each row of ``index`` ``[R, ...]``."""
  mask = np.zeros((len(index), count), bool)
  np.put_along_axis(mask, index, True, axis=1)
  return mask


_words = compilation.once(draws.subsample_words, static_argnums=(0, 2))


@functools.partial(compilation.once, static_argnums=1)
def _sample_words(key, num_resamples):
  return draws.words(jax.random.split(key, num_resamples))
