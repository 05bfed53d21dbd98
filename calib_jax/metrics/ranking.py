"""Selective prediction and detection: risk-coverage curves and areas, and areas and points of ROC curves."""

from collections.abc import Callable
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics import binning
from calib_jax._numerics.sorting import exact_cumsum, ordered_key, sum_between, tie_bounds
from calib_jax.intervals.bias_models import unbiased
from calib_jax.metrics import formulas
from calib_jax.metrics.compiled import of_pairs

Array = jax.Array
_POSITIVES = ("scores", "positives")  # What errors call the arrays.


class RiskCoverage(NamedTuple):
  """A risk-coverage curve.

  Attributes:
    coverage: ``[N]`` floats, k / N for k from 1 to N, or the share of the weights of the k most confident examples.
    risk: ``[N]`` floats, the mean risk of the k most confident examples. Where only N' < N examples count, both arrays
      are of N' examples, followed by nan.
  """

  coverage: Array
  risk: Array


def risk_coverage_curve(confidence: ArrayLike, correct: ArrayLike | None = None, *, risk: ArrayLike | None = None,
                        where: ArrayLike | None = None, weights: ArrayLike | None = None) -> RiskCoverage:
  """The mean risk of the k most confident examples, for k from 1 to N.

  It shows what refusing the least sure examples gains.

  Where k divides a tie, the value is the mean over all orders of the tied examples, so that it does not depend on the
  order of the rows: each of the tied examples that are taken adds the mean risk of the tie.

  Args:
    confidence: scores of any shape and range; the prediction with the higher score is the more confident one.
    correct: bools, zeros and ones, or credits in [0, 1], of that shape: whether the prediction is right. The risk is
      then 1 - ``correct``.
    risk: any per-example loss of that shape, in place of ``correct``.
    where: optional bools of that shape; examples that are False are ignored and may hold NaN.
    weights: optional example weights of that shape, at least 0; an integer weight w equals w copies of the row. The
      curve has one point an example all the same, at which all of its weight is taken.

  Returns:
    ``RiskCoverage`` of ``[N]`` arrays. O(N log N).

  Raises:
    TypeError: if an argument has the wrong dtype, or both or neither of ``correct`` and ``risk`` are given.
    ValueError: if an argument has the wrong shape or value.

  >>> risk_coverage_curve(jnp.array([0.9, 0.6, 0.6]), jnp.array([True, False, True])).risk
  Array([0.        , 0.25      , 0.33333334], dtype=float32)
  """
  return _of_risk(_risk_coverage_curve, confidence, correct, risk, where, weights)


def _of_risk(summary: Callable, confidence: ArrayLike, correct: ArrayLike | None, risk: ArrayLike | None,
             where: ArrayLike | None, weights: ArrayLike | None):
  """``summary(confidence [N], risk [N], counts [N])``; the risk without one is 1 - ``correct``."""
  if (correct is None) == (risk is None):
    raise TypeError("give either correct, whether each prediction is right, or risk=, a loss of each example: got "
                    f"{'neither' if risk is None else 'both'}.")
  is_risk = risk is not None
  return of_pairs(_with_risk, confidence, risk if is_risk else correct, where, weights, high=math.inf,
                  names=("confidence", "risk" if is_risk else "correct"), summary=summary, is_risk=is_risk)


def _with_risk(confidence: Array, values: Array, counts: Array, summary, is_risk):
  return summary(confidence, values if is_risk else 1 - values, counts)


def _risk_coverage_curve(confidence: Array, risk: Array, counts: Array) -> RiskCoverage:
  if counts.dtype != bool:
    return _weighted_curve(_tied(confidence, risk, counts))
  key, risk = _most_confident_first(confidence, counts, risk)
  count = jnp.sum(counts, dtype=jnp.int32)
  is_counted = jnp.arange(len(key), dtype=jnp.int32) < count
  first, last = tie_bounds(key)
  total = jnp.cumsum(jnp.where(is_counted, risk, 0))
  before = jnp.where(first > 0, total[first - 1], 0)
  taken = jnp.arange(1, 1 + len(key), dtype=jnp.int32)
  sums = before + (total[last] - before) * ((taken - first) / (last - first + 1)).astype(total.dtype)
  coverage = taken.astype(total.dtype) / jnp.maximum(count, 1).astype(total.dtype)
  mean_risk = sums / taken.astype(total.dtype)
  return RiskCoverage(*(jnp.where(is_counted, x, jnp.nan) for x in (coverage, mean_risk)))


def _most_confident_first(confidence: Array, counts: Array, *others: Array) -> list[Array]:
  """Sort keys from the highest confidence down, rows that do not count last, and ``others`` in their order: ``[N]``."""
  key = ordered_key(confidence)
  key = jnp.where(counts.astype(bool), ~key, jnp.iinfo(key.dtype).max)
  return jax.lax.sort((key, *others), num_keys=1, is_stable=False)


class _Tied(NamedTuple):
  """Examples from the most confident down, with the sums of their ties: ``[N]`` each."""

  weights: Array  # The weight of each example.
  is_last: Array  # Whether an example is the last of its tie.
  taken: Array  # The sum of the weights of all examples up to each.
  before: Array  # The weight of all examples before its tie.
  mass: Array  # The weight of its tie.
  risk_before: Array  # The sum of weights times risks before its tie.
  risk: Array  # The risk of its tie.


def _tied(confidence: Array, risk: Array, weights: Array) -> _Tied:
  key, risk, weights = _most_confident_first(confidence, weights, risk, weights)
  first, last = tie_bounds(key)
  place, masses, risks = jnp.arange(len(key), dtype=jnp.int32), exact_cumsum(weights), exact_cumsum(weights * risk)
  before = [(high + low)[first] for high, low in (masses, risks)]
  return _Tied(weights, place == last, sum(masses)[1:], before[0], sum_between(masses, first, last + 1),
               before[1], sum_between(risks, first, last + 1))


def _weighted_curve(tied: _Tied) -> RiskCoverage:
  sums = tied.risk_before + tied.risk * (tied.taken - tied.before) / binning.divisor(tied.mass)
  curve = tied.taken / binning.divisor(tied.taken[-1]), sums / binning.divisor(tied.taken)
  return RiskCoverage(*(jnp.where(tied.weights != 0, x, jnp.nan) for x in curve))


@unbiased
def aurc(confidence: ArrayLike, correct: ArrayLike | None = None, *, risk: ArrayLike | None = None,
         where: ArrayLike | None = None, weights: ArrayLike | None = None) -> Array:
  r"""Area under the risk-coverage curve.

  It says how well the confidence ranks the errors, over all shares of examples that may be refused.

  .. math:: \frac{1}{N} \sum_k \frac{1}{k} \sum_{j \le k} \ell_{(j)} = \frac{1}{N} \sum_i (H_N - H_{N - r_i}) \ell_i

  where :math:`\ell_{(j)}` is the risk of the j-th most confident example and :math:`r_i` the rank of example i by
  ascending confidence. Tied examples share the mean of their weights, so that the value does not depend on the order of
  the rows.

  Args:
    confidence: scores of any shape and range.
    correct: bools, zeros and ones, or credits in [0, 1], of that shape: whether the prediction is right. The risk is
      then 1 - ``correct``.
    risk: any per-example loss of that shape, in place of ``correct``.
    where: optional bools of that shape; examples that are False are ignored and may hold NaN.
    weights: optional example weights of that shape, at least 0; an integer weight w equals w copies of the row, and N
      is their sum. For others H is the harmonic number of any real number, :math:`H_x = \psi(x + 1) + \gamma`, so that
      the scale of the weights matters, and less so the larger they are.

  Returns:
    A scalar; 0 if nothing counts. O(N log N).

  Raises:
    TypeError: if an argument has the wrong dtype, or both or neither of ``correct`` and ``risk`` are given.
    ValueError: if an argument has the wrong shape or value.

  References:
    Zhou et al. 2025, Section 3.3.

  >>> aurc(jnp.array([0.9, 0.6, 0.3, 0.1]), jnp.array([True, False, True, False])).round(1)
  Array(0.3, dtype=float32)
  >>> aurc(jnp.array([0.9, 0.6]), risk=jnp.array([0.5, 2.5]))  # (0.5 + (0.5 + 2.5) / 2) / 2
  Array(1., dtype=float32)
  """
  return _of_risk(_aurc, confidence, correct, risk, where, weights)


def _aurc(confidence: Array, risk: Array, counts: Array) -> Array:
  if counts.dtype != bool:
    tied = _tied(confidence, risk, counts)
    areas = formulas.risk_area(tied.risk_before, tied.risk, tied.before, tied.mass)
    return binning.pairwise_sum(jnp.where(tied.is_last, areas, 0)) / binning.divisor(tied.taken[-1])
  curve = _risk_coverage_curve(confidence, risk, counts).risk
  return binning.masked_mean(curve, ~jnp.isnan(curve))


@unbiased
def excess_aurc(confidence: ArrayLike, correct: ArrayLike | None = None, *, risk: ArrayLike | None = None,
                where: ArrayLike | None = None, weights: ArrayLike | None = None) -> Array:
  """``aurc`` minus the smallest area of any ordering, which is the ordering by the risk itself (E-AURC).

  Use it to compare rankings of models of different accuracy.

  Args:
    confidence: scores of any shape and range.
    correct: bools, zeros and ones, or credits in [0, 1], of that shape: whether the prediction is right. The risk is
      then 1 - ``correct``.
    risk: any per-example loss of that shape, in place of ``correct``.
    where: optional bools of that shape; examples that are False are ignored and may hold NaN.
    weights: optional example weights of that shape, at least 0, as for ``aurc``.

  Returns:
    A scalar, at least 0 up to rounding; 0 if nothing counts. O(N log N).

  Raises:
    TypeError: if an argument has the wrong dtype, or both or neither of ``correct`` and ``risk`` are given.
    ValueError: if an argument has the wrong shape or value.

  >>> excess_aurc(jnp.array([0.9, 0.6, 0.3]), jnp.array([True, False, False]))
  Array(0., dtype=float32)
  """
  return _of_risk(_excess_aurc, confidence, correct, risk, where, weights)


def _excess_aurc(confidence: Array, risk: Array, counts: Array) -> Array:
  return _aurc(confidence, risk, counts) - _aurc(-risk, risk, counts)


@unbiased
def auroc(scores: ArrayLike, positives: ArrayLike, *, where: ArrayLike | None = None, weights: ArrayLike | None = None
          ) -> Array:
  """Area under the ROC curve: the chance that a positive scores above a negative, where ties count half.

  It says how well a score tells two kinds of examples apart, such as right from wrong.

  Args:
    scores: floats of any shape and range.
    positives: bools of that shape.
    where: optional bools of that shape; examples that are False are ignored and may hold NaN.
    weights: optional example weights of that shape, at least 0; an integer weight w equals w copies of the row.

  Returns:
    A scalar in [0, 1]; nan if there are no positives or no negatives. O(N log N).

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or shape.

  >>> auroc(jnp.array([0.9, 0.6, 0.6, 0.1]), jnp.array([True, True, False, False]))
  Array(0.875, dtype=float32)
  """
  _check_positives(positives)
  return of_pairs(_auroc, scores, positives, where, weights, names=_POSITIVES, high=math.inf)


def _auroc(scores: Array, positives: Array, counts: Array) -> Array:
  key, of_positives, of_negatives = _descending(scores, positives, counts)
  first, last = tie_bounds(key)
  negatives_above = jnp.cumsum(of_negatives, dtype=of_negatives.dtype)
  negatives, total = (jnp.sum(x, dtype=x.dtype) for x in (of_negatives, of_positives))
  # Each positive contributes the share of negatives that score lower, and half the share of those that tie with it.
  lower = negatives - negatives_above[last]
  tied = negatives_above[last] - jnp.where(first > 0, negatives_above[first - 1], 0)
  share = (lower.astype(jnp.float32) + tied.astype(jnp.float32) / 2) / binning.divisor(negatives).astype(jnp.float32)
  area = binning.pairwise_sum(of_positives.astype(jnp.float32) * share) / binning.divisor(total).astype(jnp.float32)
  return jnp.where((negatives > 0) & (total > 0), area, jnp.nan)


@unbiased
def fpr_at_tpr(scores: ArrayLike, positives: ArrayLike, *, tpr: float = 0.95, where: ArrayLike | None = None,
               weights: ArrayLike | None = None) -> Array:
  """False-positive rate at the highest threshold whose true-positive rate is at least ``tpr`` (FPR95 by default).

  It says how many false alarms a detector gives where it misses few.

  Args:
    scores: floats of any shape and range.
    positives: bools of that shape.
    tpr: in (0, 1].
    where: optional bools of that shape; examples that are False are ignored and may hold NaN.
    weights: optional example weights of that shape, at least 0; an integer weight w equals w copies of the row.

  Returns:
    A scalar in [0, 1]; nan if there are no positives or no negatives. O(N log N).

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  >>> fpr_at_tpr(jnp.array([0.9, 0.6, 0.6, 0.1]), jnp.array([True, True, False, False]))
  Array(0.5, dtype=float32)
  """
  checks.options(tpr=(tpr, "(0, 1]"))
  _check_positives(positives)
  return of_pairs(_fpr_at_tpr, scores, positives, where, weights, tpr, names=_POSITIVES, high=math.inf)


def _fpr_at_tpr(scores: Array, positives: Array, counts: Array, tpr: Array) -> Array:
  key, of_positives, of_negatives = _descending(scores, positives, counts)
  _, last = tie_bounds(key)
  caught, alarms = (jnp.cumsum(x, dtype=x.dtype) for x in (of_positives, of_negatives))
  positives, negatives = (jnp.sum(x, dtype=x.dtype) for x in (of_positives, of_negatives))
  if counts.dtype == bool:
    enough = caught >= formulas.fewest(positives, tpr)
  else:  # Sums of weights are rounded, so that a rate may be below tpr by rounding alone.
    rate = caught.astype(jnp.float32) / binning.divisor(positives).astype(jnp.float32)
    enough = rate >= jnp.asarray(tpr, jnp.float32) * (1 - 4 * jnp.finfo(jnp.float32).eps)
  place = jnp.argmax(enough[last]) if len(key) else 0
  false_rate = (alarms[last[place]] if len(key) else 0) / binning.divisor(negatives)
  return jnp.where((positives > 0) & (negatives > 0), false_rate.astype(jnp.float32), jnp.nan)


def _check_positives(positives: ArrayLike) -> None:
  """Raises a TypeError unless positives are bools."""
  if (dtype := checks.array(positives, "positives").dtype) != jnp.bool_:
    raise TypeError(f"positives must be boolean: got dtype {dtype}.")


def _descending(scores: Array, positives: Array, counts: Array) -> tuple[Array, Array, Array]:
  """Sort keys from the highest score down, and what places count as positives and negatives ``[N]``, weights or 1."""
  key = ~ordered_key(scores)
  # A positive is 1, a negative 0, and a row that does not count is 2, so that its place does not matter.
  kind = jnp.where(counts.astype(bool), positives.astype(jnp.int32), 2)
  weights = () if counts.dtype == bool else (counts,)
  key, kind, *weights = jax.lax.sort((key, kind, *weights), num_keys=1, is_stable=False)
  is_positive, is_negative = kind == 1, kind == 0
  if weights:
    return key, jnp.where(is_positive, weights[0], 0), jnp.where(is_negative, weights[0], 0)
  return key, is_positive.astype(jnp.int32), is_negative.astype(jnp.int32)
