"""Calibration errors and risk-coverage curves of many resamples of the same examples, in NumPy.

A resample is how often each example counts. The examples are sorted by confidence once, so that every resample is in
order, and prefix sums over it give all bins, of equal width and of equal mass, the sums of KS and the risks of all
coverages: O(N) a resample, without a sort. ``formulas`` turns these sums into errors, as it does for the metrics of
JAX. With those, compiled for resamples, an evaluation would take more than twice as long.

Of many examples, a resample is how often each of some random blocks of them counts, and ``Blocks`` adds up the blocks.

Examples may have weights, whole numbers of ``units``: their sums are integers too, so that one which is left out leaves
no rounding behind. Only the debiased error and the sweep depend on the unit.
"""

from collections.abc import Callable
import functools
import itertools
from typing import NamedTuple

import numpy as np
import scipy.fft

from calib_jax.metrics import formulas

UNIT = 2**32  # Confidences are counted in this part of 1: prefix sums of integers are exact, and faster than of floats.
# The sum of all weights, in their units: times UNIT it is below 2^63 also in a resample that draws a row, which has
# nearly all of the weight, 15 times.
MOST = 2**27
MANY = 64  # Bins from which on a sweep looks whether single examples are in order.


def units(weights: np.ndarray | None) -> np.ndarray | None:
  """Weights ``[N]`` above 0 as int64: whole ones as they are, and others in units so small that all have ``MOST``."""
  if weights is None or (np.all(weights == np.floor(weights)) and weights.sum() <= MOST):
    return None if weights is None else weights.astype(np.int64)
  return np.rint(weights * (MOST / 2 / weights.sum())).astype(np.int64)


class Ordered:
  """The examples of one model in the order of their confidences; equal confidences are one step of the order."""

  def __init__(self, confidence: np.ndarray, num_bins: int, weights: np.ndarray | None = None):
    """Sorts ``confidence``, float32 ``[N]`` in [0, 1]; ``weights`` come from ``units``, None where all are 1."""
    self.order = np.argsort(confidence, kind="stable")
    self.num_bins, self.weights = num_bins, None if weights is None else weights[self.order]
    confidence = confidence[self.order]
    self.fixed = np.rint(confidence.astype(np.float64) * UNIT).astype(np.int64)
    self.ends = np.flatnonzero(np.append(confidence[1:] != confidence[:-1], True))
    self.values = confidence[self.ends]  # Those that differ.
    self.places = None if len(self.ends) == len(self.order) else np.append(0, self.ends + 1)
    edges = (np.arange(1, num_bins) / num_bins).astype(confidence.dtype)
    self.edges = np.concatenate([[0], self.values.searchsorted(edges, side="right"), [len(self.values)]])

  def sums(self, counts: np.ndarray, correct: np.ndarray) -> "Sums":
    """Returns the prefix sums of resamples by ``counts`` ``[R or 1, N]`` of examples and outcomes ``[(R,) N]``."""
    counts, correct = counts.take(self.order, axis=1), correct.take(self.order, axis=-1)
    if self.weights is not None:
      counts = counts * self.weights
    size, num_correct = map(self._prefix_sums, (counts, counts & correct if counts.dtype == bool else counts * correct))
    if correct.ndim == 1:
      return Sums(self, size, num_correct, self._prefix_sums((self.fixed - correct * UNIT) * counts))
    return Sums(self, size, num_correct, self._prefix_sums(self.fixed * counts) - UNIT * num_correct)

  @property
  def exact(self) -> "Ordered":
    """Itself; ``Blocks`` are approximate, and have one that is not."""
    return self

  def steps(self, correct: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, ...]]:
    """Returns a function of integers ``[R, N]`` to the steps that have errors, as ``risk_coverage`` takes them."""
    order = self.order[::-1]  # From the most confident example down.
    starts = len(order) - 1 - self.ends[::-1]
    wrong = ~correct[order]
    at = np.flatnonzero(wrong)
    step_of = np.searchsorted(starts, at, side="right") - 1  # Every step that has errors, once for each of them.
    steps, first = np.unique(step_of, return_index=True)
    before, after = starts[steps], np.append(starts, len(order))[steps + 1]

    def of_resamples(counts):
      counts = counts.take(order, axis=1)
      taken = prefix_sums(counts)
      errors = np.add.reduceat(counts[:, at], first, axis=1) if len(at) else counts[:, :0]
      return taken[:, before], taken[:, after], errors, taken[:, -1:]

    return of_resamples

  def _prefix_sums(self, x: np.ndarray) -> np.ndarray:
    sums = prefix_sums(x)
    return sums if self.places is None else sums.take(self.places, axis=1)


class Blocks:
  """The examples of one model in cells of near confidences, for resamples of random blocks in place of ``Ordered``."""

  def __init__(self, confidence: np.ndarray, correct: np.ndarray, block: np.ndarray, num_bins: int, num_cells: int,
               weights: np.ndarray | None = None):
    """Adds up the examples of each block and cell; edges of equal width divide some of the ``num_cells``."""
    ordered, self.num_bins, self._confidence = Ordered(confidence, num_bins), num_bins, confidence
    self._weights = weights
    number = np.arange(len(ordered.values))
    rank = number if len(number) <= num_cells else ordered.ends * num_cells // len(confidence)
    key = rank + np.repeat(np.arange(num_bins), np.diff(ordered.edges))
    cell = np.cumsum(np.diff(key, prepend=key[0]) > 0)  # Of each confidence, in their order.
    self.edges = np.append(0, cell + 1)[ordered.edges]
    of_ordered = np.repeat(cell, np.diff(ordered.ends, prepend=-1))
    size = self._all = np.bincount(of_ordered)
    self._cell = np.empty_like(of_ordered)
    self._cell[ordered.order] = of_ordered
    starts, fixed = np.append(0, np.cumsum(size)[:-1]), ordered.fixed
    if weights is not None:
      fixed, self._all = fixed * weights[ordered.order], np.add.reduceat(weights[ordered.order], starts)
    self._fixed = np.rint(np.add.reduceat(fixed, starts) / np.maximum(self._all, 1)).astype(np.int64)
    self.values = (self._fixed / UNIT).astype(np.float32)
    place, shape = block * len(size) + self._cell, (block.max() + 1, len(size))
    # Sums up to 2^24 are exact in float32; sums of weights exceed it.
    self._size, self._correct = (
      np.bincount(place[x], None if weights is None else weights[x], shape[0] * shape[1]).reshape(shape).astype(
        np.float32 if weights is None else np.float64) for x in (slice(None), correct))

  def sums(self, counts: np.ndarray, correct: np.ndarray) -> "Sums":
    """Returns the prefix sums of resamples by ``counts`` ``[R, blocks]``, and outcomes of blocks or of examples."""
    if correct.ndim == 1:
      size, num_correct = (counts.astype(x.dtype) @ x for x in (self._size, self._correct))
    else:
      correct = correct if self._weights is None else correct * self._weights
      size, num_correct = self._all[None], np.stack([np.bincount(self._cell, x, len(self._all)) for x in correct])
    size, num_correct = size.astype(np.int64), num_correct.astype(np.int64)
    return Sums(self, *map(prefix_sums, (size, num_correct, size * self._fixed - num_correct * UNIT)))

  @property
  def exact(self) -> Ordered:
    """The examples in the order of their own confidences."""
    return Ordered(self._confidence, self.num_bins, self._weights)

  def steps(self, correct: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, ...]]:
    """Returns a function to all cells as ``Ordered.steps`` does, of counts of blocks."""
    def of_resamples(counts):
      sums = self.sums(counts, correct)
      total = sums.size[:, -1:]
      errors = np.diff(sums.size - sums.correct, axis=1)
      return total - sums.size[:, :0:-1], total - sums.size[:, -2::-1], errors[:, ::-1], total

    return of_resamples


def prefix_sums(x: np.ndarray, dtype: type = np.int64) -> np.ndarray:
  """The sums of ``[R, N]`` before each place, and of all: ``[R, N + 1]``."""
  sums = np.zeros((len(x), 1 + x.shape[1]), dtype)
  np.cumsum(x, axis=1, out=sums[:, 1:])
  return sums


class Bins(NamedTuple):
  """Bins of R resamples, ``[R, M]`` floats: examples, correct ones, and the sum of confidence - correct."""

  size: np.ndarray
  correct: np.ndarray
  gap: np.ndarray


class Sums:
  """Sums over the examples of R resamples whose confidence is at most each of the G that differ, ``[R, 1 + G]``."""

  def __init__(self, ordered: Ordered | Blocks, size: np.ndarray, correct: np.ndarray, gap: np.ndarray):
    self.ordered, self.size, self.correct = ordered, size, correct  # How many examples, and correct ones.
    self.gap = gap  # The sum of confidence - correct, in units of ``1 / UNIT``.

  def without(self, part: "Sums") -> "Sums":
    """The sums over the examples that ``part`` leaves out of these."""
    return Sums(self.ordered, self.size - part.size, self.correct - part.correct, self.gap - part.gap)

  @property
  def count(self) -> np.ndarray:
    """The number of examples of each resample ``[R]``; 1 where there is none."""
    return np.maximum(self.size[:, -1], 1)

  @functools.cached_property
  def equal_width(self) -> Bins:
    """Bins (lo, hi], the first closed at 0."""
    # In the order of rows, so that a resample's sums are added alike however many resamples there are.
    size, correct, gap = (np.ascontiguousarray(np.diff(x[:, self.ordered.edges]), np.float64)
                          for x in (self.size, self.correct, self.gap))
    return Bins(size, correct, gap / UNIT)

  @functools.cached_property
  def equal_mass(self) -> Bins:
    """Bins whose sizes differ by at most one, larger ones first; an edge divides equal confidences in proportion."""
    return self.equal_mass_of(self.ordered.num_bins, np.arange(len(self.gap)))

  def equal_mass_of(self, num_bins: int, resamples: np.ndarray) -> Bins:
    """The equal-mass bins of some resamples, ``[len(resamples), num_bins]``."""
    row = resamples if len(self.size) > 1 else np.zeros_like(resamples)
    each, larger = np.divmod(self.size[row, -1:], num_bins)
    ranks = np.arange(num_bins + 1)
    ranks = ranks * each + np.minimum(ranks, larger)
    # The first sums over at least so many examples; a part of the last is too many. One search does all rows,
    # because each row's sums are raised above the sums of the row before.
    place = self._raised.searchsorted(ranks + row[:, None] * self._step) - row[:, None] * self.size.shape[1]
    before = np.maximum(place - 1, 0)

    def at_edges(sums):
      row = (resamples if len(sums) > 1 else np.zeros_like(resamples))[:, None]
      upper = sums[row, place]
      return upper, upper - sums[row, before]

    upper, step = at_edges(self.size)
    surplus = (upper - ranks) / np.maximum(step, 1)

    def between(sums):
      upper, step = at_edges(sums)
      return np.diff(upper - surplus * step)

    return Bins(np.diff(ranks).astype(np.float64), between(self.correct), between(self.gap) / UNIT)

  @functools.cached_property
  def _step(self) -> int:
    return int(self.size[:, -1].max()) + 1

  @functools.cached_property
  def _raised(self) -> np.ndarray:
    return (self.size + self._step * np.arange(len(self.size))[:, None]).ravel()


def binned_error(sums: Sums, *, binning: str = "equal_width", norm: float | str = 1, debias: bool = False
                      ) -> np.ndarray:
  """``metrics.calibration_error`` of each resample, ``[R]``."""
  return formulas.binned_error(*(sums.equal_width if binning == "equal_width" else sums.equal_mass), norm=norm,
                               debias=debias)


def ks(sums: Sums) -> np.ndarray:
  """``metrics.ks_calibration_error`` of each resample, ``[R]``."""
  return formulas.ks_error(sums.gap, UNIT * sums.count)


def sweep(sums: Sums) -> np.ndarray:
  """``metrics.sweep_calibration_error`` of each resample, ``[R]``."""
  count = np.broadcast_to(sums.count, len(sums.gap))
  last, active = np.ones(len(count), np.int64), np.arange(len(count))
  for num_bins in itertools.count(2):
    if num_bins == MANY:
      # Where the accuracies of single examples are in order, the accuracies of any groups of neighbours are too.
      single = np.array([_is_in_order(sums, int(count[i]), np.array([i]))[0] for i in active], bool)
      last[active[single]], active = count[active[single]], active[~single]
    active = active[count[active] >= num_bins]
    active = active[_is_in_order(sums, num_bins, active)]
    if not len(active):
      break
    last[active] = num_bins
  errors = np.empty(len(count))
  for num_bins in np.unique(last):
    resamples = np.flatnonzero(last == num_bins)
    errors[resamples] = formulas.binned_error(*sums.equal_mass_of(int(num_bins), resamples), norm=2)
  return errors


def _is_in_order(sums: Sums, num_bins: int, resamples: np.ndarray) -> np.ndarray:
  bins = sums.equal_mass_of(num_bins, resamples)
  return formulas.accuracies_rise(bins.size, bins.correct, np.zeros(len(resamples)))[0]


def smooth(sums: Sums) -> np.ndarray:
  """``metrics.smooth_calibration_error`` of each resample, ``[R]``."""
  residual = np.diff(sums.gap) / (UNIT * sums.count[:, None])
  mass = sum(np.stack([np.bincount(cell, x * share, formulas.GRID) for x in residual])
             for cell, share in formulas.grid_shares(sums.ordered.values.astype(np.float64)))
  # The Fourier coefficients of the grid followed by its mirror image are its cosine transform.
  coefficients = scipy.fft.dct(mass.astype(np.float32), axis=1)
  errors = formulas.smooth_error(coefficients, functools.partial(scipy.fft.idct, n=formulas.GRID, axis=1))
  return errors * (sums.size[:, -1] > 0)


def risk_coverage(before: np.ndarray, after: np.ndarray, errors: np.ndarray, total: np.ndarray,
                  risks: tuple[float, ...]) -> np.ndarray:
  """The area under the risk-coverage curve, its excess, and the coverage at each of ``risks``: ``[R, 2 + risks]``."""
  # The k-th most confident example has the weight H_N - H_{k-1}, and the examples of a step share their mean weight:
  # only steps with errors add to the area. Between them the risk falls as k grows, to its lowest just before a step.
  return np.concatenate([_areas(before, after, errors, total), *(
    _coverage(before, after, errors, total, risk) for risk in risks)], axis=1)


def _areas(before: np.ndarray, after: np.ndarray, errors: np.ndarray, total: np.ndarray) -> np.ndarray:
  """The area and its excess, ``[R, 2]``."""
  harmonic = np.append(0, np.cumsum(1 / np.arange(1, total.max() + 1)))  # H_k, k from 0.
  weights = np.append(0, np.cumsum(harmonic))  # The sums of H_j over j < k.
  share = errors / np.maximum(after - before, 1)
  wrong = errors.sum(1, keepdims=True)
  area = wrong * harmonic[total] - (share * (weights[after] - weights[before])).sum(1, keepdims=True)
  # The best order has the errors last: the k-th example is wrong from k = right + 1 on.
  right = total - wrong
  best = wrong * (harmonic[total]) - (weights[total] - weights[right])
  return np.concatenate([area, area - best], axis=1) / total


def _coverage(before: np.ndarray, after: np.ndarray, errors: np.ndarray, total: np.ndarray, risk: float) -> np.ndarray:
  """The largest coverage at which the risk is at most ``risk``, ``[R, 1]``."""
  made = prefix_sums(errors, np.float64)
  before = np.concatenate([before, total], axis=1)
  allowed = made / np.maximum(before, 1) <= risk
  last = before.shape[1] - 1 - allowed[:, ::-1].argmax(1)[:, None]  # Before the first error it is always allowed.
  k, made = (np.take_along_axis(x, last, axis=1) for x in (before, made))
  # Within the step that follows, which makes errors at a constant share.
  step = np.minimum(last, errors.shape[1] - 1)
  if not errors.shape[1]:
    return k / total
  end, wrong = (np.take_along_axis(x, step, axis=1) for x in (after, errors))
  share = wrong / np.maximum(end - k, 1)
  most = np.floor((share * k - made) / np.where(share > risk, share - risk, 1)) + 1
  for _ in range(2):  # Rounding may put it on the wrong side of an integer.
    most -= (made + share * (most - k)) / np.maximum(most, 1) > risk
  return np.where((last < errors.shape[1]) & (share > risk), np.clip(most, k, end), k) / total


def risk_curve(size: np.ndarray, correct: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The numbers k from 1 to N, and the share of errors among the k most confident examples, of a row of ``Sums``."""
  # From the most confident example down. The number of errors rises linearly through a tie.
  taken, wrong = np.arange(1, 1 + size[-1]), size - correct
  errors = np.interp(taken, (size[-1] - size)[::-1], (wrong[-1] - wrong)[::-1])
  return taken, errors / taken
