"""Calibration errors and risk-coverage curves of many resamples of the same examples, in NumPy.

A resample is how often each example counts. The examples are sorted by confidence once, so that every resample is in
order, and prefix sums over it give all bins, of equal width and of equal mass, the sums of KS and the risks of all
coverages: O(N) a resample, without a sort. ``formulas`` turns these sums into errors, as it does for the metrics of
JAX. With those, compiled for resamples, an evaluation would take more than twice as long.
"""

import functools
from typing import NamedTuple

import numpy as np
import scipy.fft

from calib_jax.metrics import formulas

UNIT = 2**32  # Confidences are counted in this part of 1: prefix sums of integers are exact, and faster than of floats.


class Ordered:
  """The examples of one model in the order of their confidences; equal confidences are one step of the order."""

  def __init__(self, confidence: np.ndarray, num_bins: int):
    """Sorts ``confidence``, float32 ``[N]`` in [0, 1]."""
    self.order = np.argsort(confidence, kind="stable")
    self.num_bins = num_bins
    confidence = confidence[self.order]
    self.fixed = np.rint(confidence.astype(np.float64) * UNIT).astype(np.int64)
    self.ends = np.flatnonzero(np.append(confidence[1:] != confidence[:-1], True))
    self.values = confidence[self.ends]  # Those that differ.
    edges = (np.arange(1, num_bins) / num_bins).astype(confidence.dtype)
    self.edges = np.concatenate([[0], self.values.searchsorted(edges, side="right"), [len(self.values)]])

  def sums(self, counts: np.ndarray, correct: np.ndarray) -> "Sums":
    """Returns the prefix sums of resamples.

    Args:
      counts: ``[R, N]`` bools or integers, how often each example counts in each resample.
      correct: ``[R, N]`` or ``[N]`` bools.
    """
    counts, correct = counts.take(self.order, axis=1), correct.take(self.order, axis=-1)
    gap = (self.fixed - correct.astype(np.int64) * UNIT) * counts
    return Sums(self, *(self._prefix_sums(x) for x in (counts, counts * correct, gap)))

  def sums_of_cells(self, counts: np.ndarray, correct: np.ndarray) -> "Sums":
    """Returns the prefix sums of resamples of cells that are in the order of their confidences already.

    Args:
      counts: ``[R, N]`` integers, the number of examples of each cell in each resample.
      correct: ``[R, N]`` integers, the number of correct ones among them.
    """
    return Sums(self, *(self._prefix_sums(x) for x in (counts, correct, self.fixed * counts - UNIT * correct)))

  def _prefix_sums(self, x: np.ndarray) -> np.ndarray:
    sums = np.zeros((len(x), 1 + len(self.ends)), np.int64)
    if len(self.ends) == len(self.order):
      np.cumsum(x, axis=1, out=sums[:, 1:])
    else:
      sums[:, 1:] = np.cumsum(x, axis=1, dtype=np.int64)[:, self.ends]
    return sums


class Bins(NamedTuple):
  """Bins of R resamples, ``[R, M]`` floats.

  They hold the number of examples, the number of correct ones, and the sum of confidence - correct.
  """

  size: np.ndarray
  correct: np.ndarray
  gap: np.ndarray


class Sums:
  """Sums over the examples of R resamples whose confidence is at most each of the G that differ, ``[R, 1 + G]``.

  Attributes:
    ordered: the examples.
    size: how many examples.
    correct: how many correct ones.
    gap: the sum of confidence - correct, in units of ``1 / UNIT``.
  """

  def __init__(self, ordered: Ordered, size: np.ndarray, correct: np.ndarray, gap: np.ndarray):
    self.ordered, self.size, self.correct, self.gap = ordered, size, correct, gap

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
    return Bins(*map(np.stack, zip(*(self.equal_mass_of(i, self.ordered.num_bins) for i in range(len(self.size))),
                                   strict=True)))

  def equal_mass_of(self, resample: int, num_bins: int) -> Bins:
    """The bins ``[M]`` of one resample."""
    size = self.size[resample]
    each, larger = divmod(int(size[-1]), num_bins)
    ranks = np.arange(num_bins + 1)
    ranks = ranks * each + np.minimum(ranks, larger)
    place = size.searchsorted(ranks)  # The first sums over at least so many examples, of which a part is too many.
    surplus = (size[place] - ranks) / np.maximum(size[place] - size[place - 1], 1)
    sums = self.correct[resample], self.gap[resample]
    correct, gap = (np.diff(x[place] - surplus * (x[place] - x[place - 1])) for x in sums)
    return Bins(np.diff(ranks).astype(np.float64), correct, gap / UNIT)


def calibration_error(sums: Sums, *, binning: str = "equal_width", norm: float | str = 1, debias: bool = False
                      ) -> np.ndarray:
  """``metrics.calibration_error`` of each resample, ``[R]``."""
  return formulas.binned_error(*(sums.equal_width if binning == "equal_width" else sums.equal_mass), norm=norm,
                               debias=debias)


def ks(sums: Sums) -> np.ndarray:
  """``metrics.ks_calibration_error`` of each resample, ``[R]``."""
  return formulas.ks_error(sums.gap, UNIT * sums.count)


def sweep(sums: Sums) -> np.ndarray:
  """``metrics.sweep_calibration_error`` of each resample, ``[R]``."""
  return np.array([_sweep(sums, i, int(count)) for i, count in enumerate(sums.count)])


def _sweep(sums: Sums, resample: int, count: int) -> float:
  def is_in_order(num_bins):
    bins = sums.equal_mass_of(resample, num_bins)
    return formulas.accuracies_rise(bins.size, bins.correct, np.float64(0))[0]

  # Where the accuracies of single examples are in order, those of any groups of neighbours are.
  last = count if is_in_order(count) else next(m for m in range(1, count) if not is_in_order(m + 1))
  return formulas.binned_error(*sums.equal_mass_of(resample, last), norm=2)


def smooth(sums: Sums) -> np.ndarray:
  """``metrics.smooth_calibration_error`` of each resample, ``[R]``."""
  residual = np.diff(sums.gap) / (UNIT * sums.count[:, None])
  mass = sum(np.stack([np.bincount(cell, x * share, formulas.GRID) for x in residual])
             for cell, share in formulas.grid_shares(sums.ordered.values.astype(np.float64)))
  # The Fourier coefficients of the grid followed by its mirror image are those of the cosine transform.
  errors = formulas.smooth_error(scipy.fft.dct(mass, axis=1), functools.partial(scipy.fft.idct, axis=1))
  return errors * (sums.size[:, -1] > 0)


def risk_coverage(sums: Sums, risks: tuple[float, ...]) -> np.ndarray:
  """The area under the risk-coverage curve, its excess over the best order's, and the coverage at each of ``risks``.

  Returns:
    ``[R, 2 + risks]``, of the curve of ``metrics.risk_coverage_curve`` where the risk is to be wrong.
  """
  rows = []
  for size, correct in zip(sums.size, sums.correct, strict=True):
    taken, risk = risk_curve(size, correct)
    best = formulas.risk_curve(np.maximum(taken - correct[-1], 0.0), taken)  # The best order has the errors last.
    rows.append([risk.mean(), risk.mean() - best.mean(),
                 *(taken[risk <= most].max(initial=0) / len(taken) for most in risks)])
  return np.array(rows)


def risk_curve(size: np.ndarray, correct: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The risk-coverage curve of one resample, of which the arguments are a row of its ``Sums``.

  Returns:
    The numbers k from 1 to N, and the share of errors among the k most confident examples.
  """
  # From the most confident example down. The number of errors rises linearly through a tie.
  taken, wrong = np.arange(1, 1 + size[-1]), size - correct
  errors = np.interp(taken, (size[-1] - size)[::-1], (wrong[-1] - wrong)[::-1])
  return taken, formulas.risk_curve(errors, taken)
