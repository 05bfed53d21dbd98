"""The lowest confidence at which predictions may be accepted, with at most so many errors among them."""

import decimal
import math
from typing import NamedTuple

from jax.typing import ArrayLike
import numpy as np
from scipy import special

from calib_jax import _checks as checks
from calib_jax.intervals import draws
from calib_jax.thresholds.means import binomial_interval, mean_interval, of_groups

METHODS = ("binomial", "hoeffding_bentkus")
RISKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # The one that can be reached is named.
DIGITS = 4  # The fewest digits of a cut.
STEP = 1.05  # Each cut accepts so many times the examples of the one before: few cuts, and none far from the best.


class Threshold(NamedTuple):
  """A cut of the confidence: predictions at or above it are accepted.

  Attributes:
    cut: the shortest decimal, of four digits or more, that accepts the same calibration examples; nan if no cut has the
      guarantee. Confidences are compared with it in their own type, in which 0.95 accepts a stated 0.95.
    coverage: the fraction of the calibration examples that are accepted.
    risk: the mean risk of the accepted calibration examples; with groups, of the mean risks of theirs; nan if there
      are none.
    risk_bound: what the risk of accepted examples is at most, with probability ``level``.
    n: the number of calibration examples; with groups, of groups.
    level: the probability of the guarantee, over draws of the calibration set.
    reachable: if no cut is shown to have the risk, the lowest of some round risks for which one is; else nan. To choose
      a risk after a look at the data is no longer covered by ``level``.
    counts_groups: whether each group counts once in the risk.
  """

  cut: float
  coverage: float
  risk: float
  risk_bound: float
  n: int
  level: float
  reachable: float = math.nan
  counts_groups: bool = False

  def __str__(self) -> str:
    """One sentence for people."""
    sure = f"{100 * self.level:g}% sure{', each group counts once' if self.counts_groups else ''}"
    if not math.isnan(self.cut):
      return (f"automate {100 * self.coverage:.0f}% of the cases at ≤ {100 * self.risk_bound:g}% errors ({sure}): "
              f"cut {written(self.cut)}")
    other = "" if math.isnan(self.reachable) else (
      f"; ≤ {100 * self.reachable:g}% would, but that is a choice after a look")
    return (f"no cut is shown to have ≤ {100 * self.risk_bound:g}% errors with {self.n:,} "
            f"{'groups' if self.counts_groups else 'examples'} ({sure}){other}")


class Check(NamedTuple):
  """What new examples say of a cut.

  Attributes:
    accepted: the number of examples at or above the cut.
    risk: their error rate, with groups the mean over groups; nan if none is accepted.
    low: the lower end of its two-sided interval, which without groups is exact (Clopper & Pearson 1934).
    high: its upper end.
    p_value: of the exact test that the risk is at most what was asked: small where the cut no longer holds.
  """

  accepted: int
  risk: float
  low: float
  high: float
  p_value: float


def selective_threshold(confidence: ArrayLike, correct: ArrayLike, *, risk: float = 0.05, level: float = 0.95,
                        method: str = "binomial", groups: ArrayLike | None = None) -> Threshold:
  r"""The lowest cut at which the risk of accepted examples is at most ``risk``, with probability ``level``.

  Cuts are tested from the most confident examples downwards. With k losses among the n examples at or above a cut, the
  p-value of "the risk is above α" is

  .. math:: p = P(\mathrm{Bin}(n, \alpha) \le k), \qquad p = \min(a, b), \quad
    a = e^{-n\,\mathrm{kl}(\min(\hat R, \alpha), \alpha)}, \quad
    b = e\,P(\mathrm{Bin}(n, \alpha) \le \lceil n \hat R \rceil)

  for ``"binomial"`` and ``"hoeffding_bentkus"``, whose losses 1 - ``correct`` may be any numbers in [0, 1]. A cut is
  accepted if p is at most the level that it has, which then goes on to the next cut; 1 - ``level`` is divided equally
  between the starts, which accept 1, 2, 4, ... times the fewest examples that can be enough (the fallback procedure of
  Wiens 2003, of which the fixed sequence of Angelopoulos et al. 2021 is the case of one start). So an error among the
  few most confident examples does not end the search. Which cuts are tested depends on the confidences alone, and
  examples of equal confidence stay together. The lowest accepted cut has the guarantee, whatever the model.

  Args:
    confidence: ``[N]`` finite floats: the larger, the surer.
    correct: ``[N]`` bools, or for ``"hoeffding_bentkus"`` floats in [0, 1].
    risk: the largest risk α, in (0, 1).
    level: the probability of the guarantee, in (0, 1).
    method: ``"binomial"`` for errors, ``"hoeffding_bentkus"`` for bounded losses.
    groups: optional ``[N]`` integers; rows of one group are dependent, and groups are not. Each group counts once: its
      loss is the mean one of its accepted rows, in [0, 1], and R̂ the mean over the n groups that have any, by the
      p-value of ``"hoeffding_bentkus"``. The risk is a group's, and not a row's: rows are wrong more often where
      large groups are, and a few hundred groups may hold none of these.

  Returns:
    The threshold. If no cut has the guarantee, its ``cut`` is nan, and nothing should be accepted.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    Geifman & El-Yaniv 2017; Angelopoulos et al. 2021, Learn then Test; Wiens 2003, Pharmaceutical Statistics 2.

  >>> confidence = np.linspace(1, 0.5, 400)
  >>> print(selective_threshold(confidence, np.arange(400) < 340))
  automate 86% of the cases at ≤ 5% errors (95% sure): cut 0.5689
  >>> print(selective_threshold(confidence[:50], np.arange(50) % 25 > 0))
  no cut is shown to have ≤ 5% errors with 50 examples (95% sure); ≤ 15% would, but that is a choice after a look
  """
  checks.options(risk=(risk, "(0, 1)"), level=(level, "(0, 1)"), method=(method, METHODS))
  dtype = np.asarray(confidence).dtype
  confidence, loss = _pairs(confidence, correct, method)
  groups, n = draws.group_numbers(groups, len(loss))
  groups = None if n == len(loss) else groups
  order = np.argsort(-confidence, kind="stable")
  confidence, loss = confidence[order], loss[order]
  ends = np.flatnonzero(np.diff(confidence, append=-np.inf)) + 1  # How many examples a cut may accept.
  if groups is None:
    sizes, losses = ends.astype(float), np.cumsum(loss)[ends - 1]
  else:  # Whose losses are fractions.
    sizes, losses = (x[ends - 1] for x in _of_groups(loss, groups[order]))
    method = "hoeffding_bentkus"
  place = _lowest(sizes, losses, risk, 1 - level, method)
  if place is None:
    reachable = next((other for other in RISKS if other > risk and _lowest(sizes, losses, other, 1 - level, method)
                      is not None), math.nan)
    return Threshold(math.nan, 0.0, math.nan, risk, n, level, reachable, groups is not None)
  accepted = int(ends[place])
  cut = shortest(confidence[accepted - 1], confidence[accepted] if accepted < len(loss) else -math.inf, dtype)
  return Threshold(cut, accepted / len(loss), float(losses[place] / sizes[place]), risk, n, level,
                   counts_groups=groups is not None)


def check_threshold(cut: float, confidence: ArrayLike, correct: ArrayLike, *, risk: float = 0.05, level: float = 0.95,
                    groups: ArrayLike | None = None) -> Check:
  """Whether a stored cut still holds on new examples: the error rate of what it accepts, and an exact test.

  The p-value is P(Bin(n, risk) ≥ k) for k errors among the n accepted examples. With groups it is that of
  ``"hoeffding_bentkus"`` for the mean losses of the n groups that have any, and the interval that of
  ``decision_threshold``.

  Args:
    cut: the lowest accepted confidence, which is rounded to the type of the confidences.
    confidence: ``[N]`` finite floats of new examples.
    correct: ``[N]`` bools.
    risk: the risk that was asked for, in (0, 1).
    level: the level of the interval, in (0, 1).
    groups: optional ``[N]`` integers, as in ``selective_threshold``.

  Returns:
    The check; with no accepted example its risk is nan, its interval [0, 1] and its p-value 1.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  >>> check = check_threshold(0.8, np.array([0.9, 0.95, 0.85, 0.7]), np.array([True, False, True, False]))
  >>> check.accepted, round(check.risk, 2), round(check.p_value, 2)
  (3, 0.33, 0.14)
  """
  from scipy import stats  # Imported where it is used, because the import takes 0.4 s.

  checks.options(risk=(risk, "(0, 1)"), level=(level, "(0, 1)"))
  cut = rounded_as(cut, np.asarray(confidence).dtype)
  confidence, loss = _pairs(confidence, correct, "binomial")
  accepted = confidence >= cut
  if not accepted.any():
    return Check(0, math.nan, 0.0, 1.0, 1.0)
  groups, number = draws.group_numbers(groups, len(loss))
  if number < len(loss):
    losses = of_groups(loss[accepted], groups[accepted])
    (p_value,) = _p_values(np.array([float(len(losses))]), np.array([np.sum(1 - losses)]), 1 - risk, METHODS[1])
    return Check(int(accepted.sum()), *mean_interval(losses, (0.0, 1.0), level), float(p_value))
  n, errors = int(accepted.sum()), int(loss[accepted].sum())
  return Check(n, errors / n, *binomial_interval(errors / n, n, level), float(stats.binom.sf(errors - 1, n, risk)))


def rounded_as(cut: float, dtype: np.dtype) -> float:
  """A cut in the type of the confidences: a stated 0.95 is 0.949999988 in float32, which is below 0.95 in float64."""
  return float(np.asarray(cut).astype(dtype)) if dtype.kind not in "biu" else float(cut)


def shortest(value: float, below: float, dtype: np.dtype) -> float:
  """The shortest decimal, of four digits or more, that is above ``below`` and at most ``value`` in the type ``dtype``.

  As a cut it accepts what ``value`` accepts, wherever no confidence lies between the two.
  """
  exact = decimal.Decimal(float(value))
  for digits in range(DIGITS, 18):
    unit = decimal.Decimal((0, (1,), exact.adjusted() - digits + 1))
    for rounding in (decimal.ROUND_HALF_EVEN, decimal.ROUND_FLOOR):
      cut = float(exact.quantize(unit, rounding))
      if below < rounded_as(cut, dtype) <= value:
        return cut
  return float(value)


def written(cut: float) -> str:
  """A cut with all of its digits, so that it can be given back."""
  return next(text for digits in range(DIGITS, 18) if float(text := f"{cut:.{digits}g}") == cut)


def _lowest(sizes: np.ndarray, losses: np.ndarray, risk: float, error: float, method: str) -> int | None:
  """The place of the lowest of the cuts of ``sizes`` examples that is accepted, wrongly with probability ``error``."""
  number, starts = 0, [0.0]
  while len(starts) > number:  # As many starts as fit, with equal shares.
    number = len(starts)
    fewest = math.log(error / number) / math.log1p(-risk)  # So many examples without a loss have that p-value.
    starts = [fewest * 2**i for i in range(64) if fewest * 2**i <= sizes.max()]
  if not starts:
    return None
  steps = math.ceil(math.log(sizes.max() / starts[0]) / math.log(STEP)) + 1
  wanted = np.append(starts, starts[0] * STEP ** np.arange(steps))
  places = np.unique(np.searchsorted(sizes, np.minimum(wanted, sizes[-1])))
  p_values = _p_values(sizes[places], losses[places], risk, method)
  carried, lowest, begins = 0.0, None, np.searchsorted(sizes[places], starts)
  for i, (place, p_value) in enumerate(zip(places, p_values, strict=True)):
    own = carried + error / number * np.sum(begins == i)
    carried = own if p_value <= own else 0.0
    if carried:
      lowest = int(place)
  return lowest


def _p_values(n: np.ndarray, losses: np.ndarray, risk: float, method: str) -> np.ndarray:
  """The p-values of risks above ``risk``; losses that are no integers are rounded to the safe side."""
  from scipy import stats

  p_values = stats.binom.cdf(np.ceil(losses - 1e-9), n, risk)
  if method == "binomial":
    return p_values
  rate = np.minimum(losses / n, risk)
  divergence = special.rel_entr(rate, risk) + special.rel_entr(1 - rate, 1 - risk)
  return np.minimum(np.exp(-n * divergence), np.e * p_values)


def _of_groups(loss: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """How many groups have one of the first 1, 2, … examples, and the sum of the mean losses of these in each group."""
  order = np.argsort(groups, kind="stable")
  starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
  sizes = np.diff(starts, append=len(groups))
  total = np.cumsum(loss[order])
  total -= np.repeat(total[starts] - loss[order][starts], sizes)  # Of the group, up to each of its examples.
  count = np.arange(len(groups)) - np.repeat(starts, sizes) + 1
  mean = total / count
  change = mean - np.where(count > 1, np.roll(mean, 1), 0)
  in_place = np.empty((2, len(groups)))
  in_place[:, order] = count == 1, change
  return tuple(np.cumsum(in_place, axis=1))


def _pairs(confidence: ArrayLike, correct: ArrayLike, method: str) -> tuple[np.ndarray, np.ndarray]:
  """Confidences and losses as float64, checked."""
  correct, confidence = np.asarray(correct).astype(np.float64), np.asarray(confidence).astype(np.float64)
  if confidence.ndim != 1 or not len(confidence):
    raise ValueError(f"confidence must have shape [N] with N of at least 1: got shape {confidence.shape}.")
  checks.pair_values(correct, confidence, names=("correct", "confidence"))  # In [0, 1], and finite.
  if method == "binomial" and not np.isin(correct, (0, 1)).all():
    raise ValueError("correct must be 0 or 1; for losses between them take method='hoeffding_bentkus'.")
  return confidence, 1 - correct
