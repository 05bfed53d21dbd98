"""Intervals of metrics that NumPy computes, with the draws and formulas of ``metrics.bootstrap`` and ``assess``.

XLA compiles only the words of the draws.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
import functools
from typing import NamedTuple

import jax
import numpy as np

from calib_jax._system import compilation
from calib_jax.metrics import draws, percentiles
from calib_jax.metrics.bias_correction import interval_of_moments, moments
from calib_jax.metrics.bias_models import BiasModel
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


def assess(errors: Mapping[str, tuple[Callable[[Sums], np.ndarray], int]],
           rows: Mapping[Hashable, tuple[np.ndarray, np.ndarray]], *, num_bins: int, key: jax.Array,
           groups: np.ndarray | None = None) -> dict[Hashable, dict[str, Resampled]]:
  """Computes calibration errors of the samples of ``metrics.assess``, which are drawn once for all rows.

  Args:
    errors: by name, a function of the sums of R resamples to ``[R]``, and the number of resamples of each kind, of
      which the first has the most.
    rows: the confidences float32 ``[N, S]`` in [0, 1] of S seeds, and bools of that shape: which are correct.
    num_bins: the number of bins.
    key: PRNG key.
    groups: optional ``[N]`` integers; examples with the same integer are drawn together.

  Returns:
    For each row and error, the arrays ``[1 + S]`` of its mean over seeds and of each seed.
  """
  members = draws.members(groups, len(next(iter(rows.values()))[0]))
  is_member, most = (members >= 0).reshape(-1), next(iter(errors.values()))[1]
  place, halves, fifths, outcomes = map(np.asarray, _words(len(members), key, most))

  def of_members(is_taken):
    return np.repeat(is_taken, members.shape[1], axis=1) & is_member if members.shape[1] > 1 else is_taken

  # A half and its rest leave out one of an odd number. Of one alone, both are the whole sample.
  in_pairs = of_members((place // 2 < len(place) // 2)[None]) if len(place) > 1 else None
  models = {row: _Assessed(*arrays, members, in_pairs, num_bins, errors) for row, arrays in rows.items()}
  size = max(1, BATCH // is_member.size)
  for first in range(0, most, size):
    batch = slice(first, first + size)
    half, fifth = (of_members(draws.is_taken(kind, words[batch], place))
                   for kind, words in ((draws.HALF, halves), (draws.FIFTH_PART, fifths)))
    for model in models.values():
      model.add(first, half, fifth, draws.numbers(outcomes[batch], members, model.rho))
  return {row: model.resampled() for row, model in models.items()}


class _Assessed:
  """The errors of one row, some resamples at a time."""

  def __init__(self, confidence, correct, members, in_pairs, num_bins, errors):
    index = np.maximum(members, 0).reshape(-1)
    self.chance, self.happened, self.errors = confidence[index], correct[index], errors
    self.rho = np.float32(draws.dependence(confidence, correct, members))
    self.seeds = [Ordered(self.chance[:, s], num_bins) for s in range(self.chance.shape[1])]
    self.sample = (members >= 0).reshape(1, -1)
    self.observed = self._computed(self._sums(self.sample, self.happened), -1)
    self.pairs = None if in_pairs is None else self._sums(in_pairs, self.happened)
    self.values: dict[str, list[np.ndarray]] = {name: [] for name in errors}

  def _sums(self, where, outcome):
    return [ordered.sums(where, outcome[..., s]) for s, ordered in enumerate(self.seeds)]

  def _computed(self, sums, first):
    """The errors ``[R, 1 + S]`` that have resamples from the number ``first`` on."""
    return {name: mean_first(np.stack([error(x) for x in sums], axis=1))
            for name, (error, number) in self.errors.items() if number > first}

  def add(self, first, half, fifth, numbers):
    """Adds the resamples from ``first`` on: the masks of halves and fifths, and the ``numbers`` of redraws."""
    halves = self._sums(half, self.happened)
    rests = [pairs.without(x) for pairs, x in zip(self.pairs, halves, strict=True)] if self.pairs else halves
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
  """How often each of ``count`` examples is in each half, rest and fifth of ``metrics.bootstrap``: int32 ``[R, N]``."""
  order, halves, fifths = map(np.asarray, _subsample_words(count, key, num_resamples))
  return [_counts(index, count) for index in (*draws.half_and_rest(halves, order), draws.fifth(fifths, order))]


def bias_corrected(error: Callable[[np.ndarray], np.ndarray], counts: Sequence[np.ndarray]) -> Resampled:
  """Computes an error of the ``subsamples`` of ``metrics.bootstrap(method="bias_corrected")``.

  Args:
    error: a function of ``[R, N]`` integers, how often each example counts in each resample, to ``[R, ...]``.
    counts: what ``subsamples`` returns.

  Returns:
    Arrays of the shape of the error.
  """
  every = np.ones((1, counts[0].shape[1]), np.int32)
  return Resampled(error(every)[0], moments(*map(error, counts)))


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
  group = np.arange(count) if groups is None else np.unique(groups, return_inverse=True)[1]
  num_groups = group.max() + 1
  size, values, words = max(1, BATCH // count), [], np.asarray(_sample_words(key, num_resamples))
  for first in range(0, num_resamples, size):
    counts = _counts(draws.draw(words[first:first + size], num_groups, num_groups), num_groups)
    values.append(metric(counts if groups is None else counts[:, group]))
  value = metric(np.ones((1, count), np.int32))[0]
  return value, *percentiles.ends(np.concatenate(values), value, int(num_groups), LEVEL)


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


_words = compilation.once(draws.assess_words, static_argnums=(0, 2))
_subsample_words = compilation.once(draws.subsample_words, static_argnums=(0, 2))


@functools.partial(compilation.once, static_argnums=1)
def _sample_words(key, num_resamples):
  return draws.words(jax.random.split(key, num_resamples))
