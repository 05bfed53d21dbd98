"""Selective prediction and detection: risk-coverage curves and areas, and areas and points of ROC curves."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics import binning
from calib_jax._numerics.sorting import ordered_key, tie_bounds
from calib_jax.metrics import formulas
from calib_jax.metrics.compiled import of_pairs

Array = jax.Array
_RISK, _POSITIVES = ("confidence", "risk"), ("scores", "positives")  # What errors call the arrays.


class RiskCoverage(NamedTuple):
  """A risk-coverage curve.

  Attributes:
    coverage: ``[N]`` floats, k / N for k from 1 to N.
    risk: ``[N]`` floats, the mean risk of the k most confident examples. Where only N' < N examples count, both arrays
      are those of N' examples, followed by nan.
  """

  coverage: Array
  risk: Array


def risk_coverage_curve(confidence: ArrayLike, risk: ArrayLike, *, where: ArrayLike | None = None) -> RiskCoverage:
  """The mean risk of the k most confident examples, for k from 1 to N.

  Where k divides a tie, the value is the mean over all orders of the tied examples, so that it does not depend on the
  order of the rows: each of the tied examples that are taken adds the mean risk of the tie.

  Args:
    confidence: scores of any shape and range; the prediction with the higher score is the more confident one.
    risk: any per-example loss of that shape, or bools that are True where the prediction is wrong (``~correct``).
    where: optional bools of that shape; examples that are False are ignored and may hold NaN.

  Returns:
    ``RiskCoverage`` of ``[N]`` arrays. O(N log N).

  Raises:
    TypeError: if an argument has the wrong dtype.
    ValueError: if an argument has the wrong shape.

  >>> risk_coverage_curve(jnp.array([0.9, 0.6, 0.6]), jnp.array([False, True, False])).risk
  Array([0.        , 0.25      , 0.33333334], dtype=float32)
  """
  checks.pair_values(confidence, risk, where, names=_RISK, high=math.inf)
  return of_pairs(_risk_coverage_curve, confidence, risk, where, names=_RISK)


def _risk_coverage_curve(confidence: Array, risk: Array, where: Array) -> RiskCoverage:
  # The most confident examples come first, and rows that do not count last.
  key = jnp.where(where, ~ordered_key(confidence), jnp.iinfo(ordered_key(confidence).dtype).max)
  key, risk = jax.lax.sort((key, risk), num_keys=1, is_stable=False)
  count = jnp.sum(where, dtype=jnp.int32)
  counted = jnp.arange(len(key), dtype=jnp.int32) < count
  first, last = tie_bounds(key)
  total = jnp.cumsum(jnp.where(counted, risk, 0))
  before = jnp.where(first > 0, total[first - 1], 0)
  taken = jnp.arange(1, 1 + len(key), dtype=jnp.int32)
  sums = before + (total[last] - before) * ((taken - first) / (last - first + 1)).astype(total.dtype)
  coverage = taken.astype(total.dtype) / jnp.maximum(count, 1).astype(total.dtype)
  return RiskCoverage(*(jnp.where(counted, x, jnp.nan) for x in (coverage, formulas.risk_curve(sums, taken))))


def aurc(confidence: ArrayLike, risk: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  r"""Area under the risk-coverage curve.

  .. math:: \frac{1}{N} \sum_k \frac{1}{k} \sum_{j \le k} \ell_{(j)} = \frac{1}{N} \sum_i (H_N - H_{N - r_i}) \ell_i

  where :math:`\ell_{(j)}` is the risk of the j-th most confident example and :math:`r_i` the rank of example i by
  ascending confidence. Tied examples share the mean of their weights, so that the value does not depend on the order of
  the rows.

  Args:
    confidence: scores of any shape and range.
    risk: any per-example loss of that shape, or bools that are True where the prediction is wrong.
    where: optional bools of that shape; examples that are False are ignored and may hold NaN.

  Returns:
    A scalar; 0 if nothing counts. O(N log N).

  Raises:
    TypeError: if an argument has the wrong dtype.
    ValueError: if an argument has the wrong shape.

  References:
    Zhou et al. 2025, Section 3.3.

  >>> aurc(jnp.array([0.9, 0.6, 0.3, 0.1]), jnp.array([False, True, False, True])).round(1)
  Array(0.3, dtype=float32)
  """
  checks.pair_values(confidence, risk, where, names=_RISK, high=math.inf)
  return of_pairs(_aurc, confidence, risk, where, names=_RISK)


def _aurc(confidence: Array, risk: Array, where: Array) -> Array:
  curve = risk_coverage_curve(confidence, risk, where=where).risk
  counted = ~jnp.isnan(curve)
  return binning.masked_mean(curve, counted)


def excess_aurc(confidence: ArrayLike, risk: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  """``aurc`` minus the smallest area of any ordering, which is the ordering by the risk itself (E-AURC).

  Args:
    confidence: scores of any shape and range.
    risk: any per-example loss of that shape, or bools that are True where the prediction is wrong.
    where: optional bools of that shape; examples that are False are ignored and may hold NaN.

  Returns:
    A scalar, at least 0 up to rounding; 0 if nothing counts. O(N log N).

  Raises:
    TypeError: if an argument has the wrong dtype.
    ValueError: if an argument has the wrong shape.

  >>> excess_aurc(jnp.array([0.9, 0.6, 0.3]), jnp.array([False, True, True]))
  Array(0., dtype=float32)
  """
  checks.pair_values(confidence, risk, where, names=_RISK, high=math.inf)
  return of_pairs(_excess_aurc, confidence, risk, where, names=_RISK)


def _excess_aurc(confidence: Array, risk: Array, where: Array) -> Array:
  return aurc(confidence, risk, where=where) - aurc(-risk, risk, where=where)


def auroc(scores: ArrayLike, positives: ArrayLike, *, where: ArrayLike | None = None) -> Array:
  """Area under the ROC curve: the chance that a positive scores above a negative, where ties count half.

  Args:
    scores: floats of any shape and range.
    positives: bools of that shape.
    where: optional bools of that shape; examples that are False are ignored and may hold NaN.

  Returns:
    A scalar in [0, 1]; nan if there are no positives or no negatives. O(N log N).

  Raises:
    TypeError: if an argument has the wrong dtype.
    ValueError: if an argument has the wrong shape.

  >>> auroc(jnp.array([0.9, 0.6, 0.6, 0.1]), jnp.array([True, True, False, False]))
  Array(0.875, dtype=float32)
  """
  _check_detection(scores, positives, where)
  return of_pairs(_auroc, scores, positives, where, names=_POSITIVES)


def _auroc(scores: Array, positives: Array, where: Array) -> Array:
  key, is_positive, is_negative = _descending(scores, positives, where)
  first, last = tie_bounds(key)
  negatives_above = jnp.cumsum(is_negative, dtype=jnp.int32)
  negatives, total = (jnp.sum(x, dtype=jnp.int32) for x in (is_negative, is_positive))
  # Each positive contributes the share of negatives that score lower, and half the share of those that tie with it.
  lower = negatives - negatives_above[last]
  tied = negatives_above[last] - jnp.where(first > 0, negatives_above[first - 1], 0)
  share = (lower.astype(jnp.float32) + tied.astype(jnp.float32) / 2) / jnp.maximum(negatives, 1).astype(jnp.float32)
  area = binning.pairwise_sum(jnp.where(is_positive, share, 0)) / jnp.maximum(total, 1).astype(jnp.float32)
  return jnp.where((negatives > 0) & (total > 0), area, jnp.nan)


def fpr_at_tpr(scores: ArrayLike, positives: ArrayLike, *, tpr: float = 0.95, where: ArrayLike | None = None) -> Array:
  """False-positive rate at the highest threshold whose true-positive rate is at least ``tpr`` (FPR95 by default).

  Args:
    scores: floats of any shape and range.
    positives: bools of that shape.
    tpr: in (0, 1].
    where: optional bools of that shape; examples that are False are ignored and may hold NaN.

  Returns:
    A scalar in [0, 1]; nan if there are no positives or no negatives. O(N log N).

  Raises:
    TypeError: if an argument has the wrong dtype.
    ValueError: if an argument has the wrong shape or value.

  >>> fpr_at_tpr(jnp.array([0.9, 0.6, 0.6, 0.1]), jnp.array([True, True, False, False]))
  Array(0.5, dtype=float32)
  """
  checks.options(tpr=(tpr, "(0, 1]"))
  _check_detection(scores, positives, where)
  return of_pairs(_fpr_at_tpr, scores, positives, where, tpr, names=_POSITIVES)


def _fpr_at_tpr(scores: Array, positives: Array, where: Array, tpr: Array) -> Array:
  key, is_positive, is_negative = _descending(scores, positives, where)
  _, last = tie_bounds(key)
  caught, alarms = jnp.cumsum(is_positive, dtype=jnp.int32), jnp.cumsum(is_negative, dtype=jnp.int32)
  positives, negatives = jnp.sum(is_positive, dtype=jnp.int32), jnp.sum(is_negative, dtype=jnp.int32)
  place = jnp.argmax(caught[last] >= formulas.fewest(positives, tpr)) if len(key) else 0
  false_rate = (alarms[last[place]] if len(key) else 0) / jnp.maximum(negatives, 1)
  return jnp.where((positives > 0) & (negatives > 0), false_rate.astype(jnp.float32), jnp.nan)


def _check_detection(scores: ArrayLike, positives: ArrayLike, where: ArrayLike | None) -> None:
  """Refuses positives that are not bools, and scores that are not finite."""
  if jnp.asarray(positives).dtype != jnp.bool_:
    raise TypeError(f"positives must be boolean: got dtype {jnp.asarray(positives).dtype}.")
  checks.pair_values(scores, positives, where, names=_POSITIVES, high=math.inf)


def _descending(scores: Array, positives: Array, where: Array) -> tuple[Array, Array, Array]:
  """Sort keys from the highest score down, and which places hold positives, and negatives, that count: ``[N]``."""
  key = ~ordered_key(scores)
  # A positive is 1, a negative 0, and a row that does not count is 2, so that its place does not matter.
  kind = jnp.where(where, positives.astype(jnp.int32), 2)
  key, kind = jax.lax.sort((key, kind), num_keys=1, is_stable=False)
  return key, kind == 1, kind == 0
