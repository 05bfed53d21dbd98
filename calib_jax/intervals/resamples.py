"""Intervals of metrics that NumPy computes, with the draws and formulas of ``metrics.bootstrap`` and ``assess``.

XLA compiles only the words of the draws.
"""

import collections
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
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
MOST_EXAMPLES = 50_000  # Examples up to which resamples draw them one by one, and not in blocks.
LEAST_REDRAWS = 100  # Of fewer, no p-value could be below 0.0125, the limit of one of four tests.
BLOCKS, CELLS = 512, 4096  # Blocks that are drawn of more examples, and cells of confidences whose sums they have.


class Resampled(NamedTuple):
  """An error and what its resamples say of its noise, arrays of one shape."""

  value: np.ndarray  # The error.
  moments: tuple[np.ndarray, ...]  # What ``interval_of_moments`` needs.
  floor: np.ndarray | None = None  # The mean error of redrawn outcomes; None without redraws.
  p_value: np.ndarray | None = None  # The p-value of ``metrics.calibration_test``; None without redraws.
  # ``[R]``, half the difference of the squares of the first element, of each half and of its rest; None without
  # redraws. Redraws of two errors of the same examples say how they vary together.
  noise: np.ndarray | None = None
  # The 97.5% quantile of the error of redrawn outcomes, of class-wise errors; None of others.
  most_by_chance: np.ndarray | None = None


def random_blocks(count: int, groups: np.ndarray | None, number: int, rng: np.random.Generator) -> np.ndarray:
  """Puts ``count`` examples into ``number`` random blocks of one size; of fewer groups, into their own."""
  group, num_groups = draws.group_numbers(groups, count)
  block = rng.permutation(num_groups) % min(number, num_groups)
  return block if group is None else block[group]


def blocks_of(count: int, groups: np.ndarray | None) -> np.ndarray | None:
  """The block of each example, because resamples draw whole blocks; None up to ``MOST_EXAMPLES`` examples."""
  # Of so many examples 200 resamples are drawn anyway. Each block is drawn as one group. The width of an interval of
  # 512 groups has a standard error of 3%, which is less than that from 200 resamples, and it covers as often
  # (docs/coverage.md).
  if count <= MOST_EXAMPLES:
    return None
  return random_blocks(count, groups, BLOCKS, np.random.default_rng(0))


def summed(block: np.ndarray | None, values: Iterable[np.ndarray], weights: np.ndarray | None = None) -> np.ndarray:
  """Weighted sums of values ``[N]`` and of weights by block, ``[values + 1, blocks]``; without blocks the terms."""
  values = [np.asarray(x, np.float64) for x in values]
  values = [*values, np.ones_like(values[0])]
  if weights is not None:
    values = [x * weights for x in values]
  return np.stack(values if block is None else [np.bincount(block, x) for x in values])


def errors_of_rows(errors: Mapping[str, tuple[Callable[[Any], np.ndarray], int]],  # noqa: C901
           rows: Mapping[Hashable, tuple[np.ndarray, np.ndarray, Sequence[Any]]], *, key: jax.Array,
           groups: np.ndarray | None = None, block: np.ndarray | None = None) -> dict[Hashable, dict[str, Resampled]]:
  """Computes calibration errors of the samples of ``metrics.assess``, which are drawn once for all rows."""
  # ``errors`` has by name a function of the sums of R resamples to ``[R]``, and the number of resamples of each kind,
  # the most for the first. A row has the confidences ``[N, S]`` of S seeds, which are correct, and for each
  # seed its examples: a ``resampled_errors.Ordered``, or with a ``block`` a ``Blocks``. The result has for each row and
  # error the arrays ``[1 + S]`` of its mean over seeds and of each seed.
  count, most = len(next(iter(rows.values()))[0]), next(iter(errors.values()))[1]
  group, num_groups = draws.group_numbers(groups, count)
  unit, num_units = (group, num_groups) if block is None else (None, block.max() + 1)
  redraws = {name: max(number, LEAST_REDRAWS) if number == most else number for name, (_, number) in errors.items()}
  order, halves, fifths, outcomes = subsample_words(num_units, key, max(redraws.values()))
  values: dict[tuple, list[np.ndarray]] = collections.defaultdict(list)

  def drawn(index):
    mask = _mask(index, num_units)
    return mask if unit is None else mask[:, unit]

  def sums(row, where, outcome):
    return [x.sums(where, outcome[..., s]) for s, x in enumerate(rows[row][2])]

  def add(row, kind, first, sums):
    """Adds the errors ``[R, 1 + S]`` that have resamples from the number ``first`` on."""
    for name, (error, number) in errors.items():
      if (redraws[name] if kind == "redrawn" else number) > first:
        values[row, name, kind].append(mean_first(np.stack([error(x) for x in sums], axis=1)))

  # A half and its rest are the same examples together, whatever the half is: all, or all but one.
  pair = drawn(order[None, :max(len(order) // 2 * 2, 1)])
  pairs = {row: sums(row, pair, correct) for row, (_, correct, _) in rows.items()}
  for batch in batches(most, count if block is None else CELLS):
    half = drawn(draws.half_and_rest(halves[:most][batch], order)[0])
    fifth = drawn(draws.fifth(fifths[:most][batch], order))
    for row, (_, correct, _) in rows.items():
      of_half = sums(row, half, correct)
      # Of one example or group alone, a half and its rest are the whole sample.
      of_rest = [x.without(y) for x, y in zip(pairs[row], of_half, strict=True)] if num_units > 1 else of_half
      for kind, of_kind in (("half", of_half), ("rest", of_rest), ("fifth", sums(row, fifth, correct))):
        add(row, kind, batch.start, of_kind)
  members, sample = draws.members(groups, count), np.ones((1, count if block is None else num_units), bool)
  rho = {row: np.float32(draws.dependence(*arrays, members)) for row, (*arrays, _) in rows.items()}
  for batch in batches(max(redraws.values()), count):
    own = draws.uniform(outcomes[batch], count)
    for row, (confidence, *_) in rows.items():
      numbers = draws.shared(outcomes[batch], own, group, num_groups, rho[row])
      add(row, "redrawn", batch.start, sums(row, sample, numbers[..., None] < confidence))
  assessed: dict[Hashable, dict[str, Resampled]] = {}
  for row, (_, correct, seeds) in rows.items():
    add(row, "observed", -1, [x.exact.sums(np.ones((1, count), bool), correct[:, s]) for s, x in enumerate(seeds)])
    for name, (_, number) in errors.items():
      half, rest, fifth, (value,) = (
        np.concatenate(values[row, name, kind])[:number] for kind in ("half", "rest", "fifth", "observed"))
      redrawn = np.concatenate(values[row, name, "redrawn"])[:redraws[name]]
      assessed.setdefault(row, {})[name] = Resampled(
        value, moments(half, rest, fifth), redrawn.mean(0), p_value_of(value, redrawn),
        (half[:, 0]**2 - rest[:, 0]**2) / 2)
  return assessed


def batches(number: int, size: int) -> Iterator[slice]:
  """The resamples of ``size`` numbers each that are computed at a time."""
  step = max(1, BATCH // size)
  return (slice(first, first + step) for first in range(0, number, step))


def subsamples(count: int, key: jax.Array, num_resamples: int) -> list[np.ndarray]:
  """Which of ``count`` examples are in each half, rest and fifth of ``metrics.bootstrap``: bools ``[R, N]``."""
  order, halves, fifths, _ = subsample_words(count, key, num_resamples)
  return [_mask(index, count) for index in (*draws.half_and_rest(halves, order), draws.fifth(fifths, order))]


def bias_corrected(error: Callable[[np.ndarray], np.ndarray], masks: Sequence[np.ndarray]) -> Resampled:
  """Computes an error of what ``subsamples`` returns, from bools ``[R, N]`` to ``[R, ...]``."""
  every = np.ones((1, masks[0].shape[1]), bool)
  return Resampled(error(every)[0], moments(*map(error, masks)))


def percentile(metric: Callable[[np.ndarray], np.ndarray], count: int, *, key: jax.Array, num_resamples: int,
               groups: np.ndarray | None = None, size: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """``(value, low, high)`` of ``metrics.bootstrap(method="percentile")`` for a metric of NumPy."""
  # The metric maps int32 ``[R, N]``, how often each example or block counts in each resample, to ``[R, ...]``; nan is
  # left out. ``size`` has the numbers that it computes of a resample; by default N.
  group, num_groups = draws.group_numbers(groups, count)
  values, words = [], np.asarray(sample_words(key, num_resamples))
  for batch in batches(num_resamples, size or count):
    counts = _counts(draws.draw(words[batch], num_groups, num_groups), num_groups)
    values.append(metric(counts if group is None else counts[:, group]))
  value = metric(np.ones((1, count), np.int32))[0]
  return value, *percentiles.ends(np.concatenate(values), value, num_groups, LEVEL)


def intervals(resampled: Mapping[Hashable, Resampled], rules: Mapping[Hashable, BiasModel]
              ) -> dict[Hashable, tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """Returns ``(estimate, low, high)`` of each error, by the model of its bias in ``rules``."""
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


def subsample_words(count: int, key: jax.Array, num_resamples: int) -> list[np.ndarray]:
  """``draws.subsample_words`` in NumPy's arrays, by two programs: another count compiles that of its order alone."""
  return [np.asarray(_order(key, count)), *map(np.asarray, _words_of_kinds(key, num_resamples))]


_order = compilation.once(draws.order, static_argnums=1)
_words_of_kinds = compilation.once(draws.words_of_kinds, static_argnums=1)


@functools.partial(compilation.once, static_argnums=1)
def sample_words(key: jax.Array, num_resamples: int) -> jax.Array:
  """The random words of so many resamples, ``draws.words`` of as many keys."""
  return draws.words(jax.random.split(key, num_resamples))
