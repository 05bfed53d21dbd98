"""Binned calibration errors of any binary pair, and reliability diagrams."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics import binning as bins
from calib_jax._numerics import radix_selection
from calib_jax._numerics.binning import masked_mean
from calib_jax._numerics.sorting import correct_before, sorted_pairs
from calib_jax._numerics.weighted_ranks import ranked
from calib_jax.intervals.bias_models import biased_as, of_norm
from calib_jax.metrics import formulas
from calib_jax.metrics.compiled import counted, of_classes, of_pairs

Array = jax.Array
BINNINGS = ("equal_width", "equal_mass")
TIES = ("share", "order")
NORM = "[1, inf) or max"


class Reliability(NamedTuple):
  """The numbers of a reliability diagram of M bins.

  Attributes:
    edges: ``[M + 1]`` floats, from 0 to 1.
    counts: ``[M]`` integers, the number of examples in each bin, or floats, the sum of their weights.
    mean_confidence: ``[M]`` floats, nan where a bin is empty.
    accuracy: ``[M]`` floats, nan where a bin is empty.
  """

  edges: Array
  counts: Array
  mean_confidence: Array
  accuracy: Array


class _Binned(NamedTuple):
  """Examples with their bins, and the sums of each bin."""

  # ``[N]`` floats, in the order of the examples for bins of equal width, ascending for equal mass; with weights, an
  # example at an edge of equal mass may be there in several parts.
  confidence: Array | None
  counts: Array | None  # ``[N]`` bools or, where there are weights, the weights of the ``confidence``.
  index: Array | None  # ``[N]`` integers, the bin of each ``confidence``; M where the example does not count.
  size: Array  # ``[M]`` integers, the number of examples in each bin, or floats, the sum of their weights.
  correct: Array  # ``[M]`` floats, the number of correct examples.
  total: Array  # ``[M]`` floats, the sum of the confidences.
  edges: Array | None  # ``[M + 1]`` floats.

  @property
  def divisor(self) -> Array:
    """The size of each bin as a float, and 1 where a bin is empty."""
    return bins.divisor(self.size).astype(self.total.dtype)


def _bin(confidence: Array, correct: Array, counts: Array, num_bins: int, binning: str, closed: str, ties: str, *,
         sums_only: bool = False) -> _Binned:
  """The bins of all examples; with ``sums_only``, fields other than the sums of the bins may be None."""
  if binning == "equal_mass" and closed == "left":
    raise ValueError("closed='left' is for binning='equal_width': equal-mass bins are groups of sorted values.")
  if counts.dtype != bool:
    return _bin_by_weight(confidence, correct, counts, num_bins, binning, closed, ties)
  where = counts
  is_selectable = len(confidence) >= radix_selection.SMALLEST and 1 < num_bins <= radix_selection.MOST_BINS
  if binning == "equal_mass" and sums_only and ties == "share" and is_selectable and confidence.dtype == jnp.float32:
    return _Binned(None, None, None, *radix_selection.equal_mass_sums(confidence, correct, where, num_bins), None)
  if binning == "equal_width":
    index = jnp.where(where, bins.equal_width_index(confidence, num_bins, closed), num_bins)
    flags = jnp.stack([where, correct > 0], axis=-1).astype(jnp.int32)
    size, num_correct = bins.bin_sums(flags, index, num_bins).T
    edges = bins.equal_width_edges(num_bins, confidence.dtype)
  else:
    count = jnp.sum(where, dtype=jnp.int32)
    starts = bins.equal_mass_starts(count, num_bins)
    confidence, correct = sorted_pairs(confidence, correct, where, ties)
    whole, fraction = correct_before(confidence, correct, starts, ties)
    rank = jnp.arange(len(confidence), dtype=jnp.int32)
    index = jnp.where(rank < count, bins.equal_mass_index(rank, count, num_bins), num_bins)
    size, num_correct = jnp.diff(starts), jnp.diff(whole).astype(fraction.dtype) + jnp.diff(fraction)
    edges = bins.equal_mass_edges(confidence, count, num_bins)
  total = bins.bin_sums(confidence, index, num_bins)
  return _Binned(confidence, index < num_bins, index, size, num_correct.astype(confidence.dtype), total, edges)


def _bin_by_weight(confidence: Array, correct: Array, weights: Array, num_bins: int, binning: str, closed: str,
                   ties: str) -> _Binned:
  if binning == "equal_width":
    index = jnp.where(weights == 0, num_bins, bins.equal_width_index(confidence, num_bins, closed))
    edges = bins.equal_width_edges(num_bins, confidence.dtype)
  else:
    confidence, correct, weights, index, edges = ranked(confidence, correct, weights, ties).cut(num_bins)
  rows = weights[:, None] * jnp.stack([jnp.ones_like(confidence), correct, confidence], axis=-1)
  return _Binned(confidence, weights, index, *bins.bin_sums(rows, index, num_bins).T, edges)


@biased_as(of_norm, of_pairs=True)
def calibration_error(confidence: ArrayLike, correct: ArrayLike, *, num_bins: int = 15, binning: str = "equal_width",
                      norm: float | str = 1, form: str = "bin", debias: bool = False, closed: str = "right",
                      ties: str = "share", sign: str = "both", where: ArrayLike | None = None,
                      weights: ArrayLike | None = None) -> Array:
  r"""Binned calibration error of predicted probabilities of a binary event, in [0, 1].

  It says how far stated probabilities are from how often the event happens.

  .. math::
    E_{\text{bin}} = \Big(\sum_b \frac{n_b}{N} |A_b - C_b|^p\Big)^{1/p} \qquad
    E_{\text{label}} = \Big(\frac{1}{N} \sum_i |A_{b_i} - c_i|^p\Big)^{1/p}

  Bin b holds :math:`n_b` of the N examples, :math:`A_b` is the mean of ``correct`` in it and :math:`C_b` the mean of
  ``confidence``; :math:`c_i` is the confidence of example i and :math:`b_i` its bin.

  Args:
    confidence: floats of any shape, in [0, 1]: the top probability, or the probability of a positive class.
    correct: bools, zeros and ones, or credits in [0, 1], of that shape: whether the event happened, or how much of it.
    num_bins: M, the number of bins.
    binning: ``"equal_width"``, or ``"equal_mass"``, which sorts the examples by confidence and splits them into M
      groups whose sizes differ by at most one, larger groups first, as ``numpy.array_split`` does.
    norm: p, at least 1, or ``"max"``, the largest gap of a bin (of an example, for ``form="label"``).
    form: ``"bin"`` (Eq. 6) compares the means of a bin; ``"label"`` (Eq. 7) compares each confidence with the accuracy
      of its bin.
    debias: whether to subtract from each squared gap an estimate of its bias,
      :math:`\sum_b \frac{n_b}{N} [(A_b - C_b)^2 - \frac{A_b (1 - A_b)}{n_b - 1}]`, where bins of one example are left
      out and the sum is clipped at 0 before the root (Kumar et al. 2019); for ``norm=2`` and ``form="bin"`` only. Of
      credits, the variance of those in the bin stands for :math:`A_b (1 - A_b)`.
    closed: which end of an equal-width bin belongs to it. ``"right"``: bins are (lo, hi], the first closed at 0;
      ``"left"``: bins are [lo, hi), the last closed at 1. Edges j / M are rounded to the precision of the data.
    ties: what happens where an equal-mass edge divides examples of equal confidence. ``"share"``: each of them counts
      as the mean of ``correct`` over all of them, so that the value does not depend on the order of the examples;
      ``"order"``: they keep their order, as in tools that use a stable sort.
    sign: which gaps count: ``"both"``; ``"over"``, those where the confidence exceeds the accuracy; or ``"under"``, the
      reverse. For norm 1, the errors of ``"over"`` and ``"under"`` add up to ``"both"``'s.
    where: optional bools of that shape; examples that are False are ignored and may hold NaN.
    weights: optional example weights of that shape, at least 0; an integer weight w equals w copies of the row. If they
      are not all whole, each of M equal-mass bins has the M-th part of their sum, and an example at an edge belongs in
      parts to both sides. With ``debias`` the scale of the weights matters: :math:`n_b` is the sum of a bin's.

  Returns:
    A scalar. Empty bins contribute 0, and the value is 0 if nothing counts. Without ``debias`` it is biased upwards,
    and more so the fewer examples a bin has. O(NM) time for equal width, and a sort for equal mass.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    Karandikar et al. 2021, Eqs. 6-7.

  >>> calibration_error(jnp.array([0.9, 0.8, 0.6, 0.2]), jnp.array([True, True, False, False]), num_bins=2).round(3)
  Array(0.125, dtype=float32)
  """
  return of_pairs(error_of_pairs, confidence, correct, where, weights, counts_credits=True, **checked_options(
    num_bins=num_bins, binning=binning, norm=norm, form=form, debias=debias, closed=closed, ties=ties, sign=sign))


def checked_options(*, num_bins, binning, norm, form, debias, closed, ties, sign) -> dict[str, Any]:
  """The options of ``calibration_error``, once they are checked."""
  checks.options(num_bins=(num_bins, "integer [1, inf)"), binning=(binning, BINNINGS), norm=(norm, NORM),
                 form=(form, ("bin", "label")), closed=(closed, ("right", "left")), ties=(ties, TIES),
                 sign=(sign, ("both", "over", "under")))
  if debias and (norm != 2 or form != "bin"):
    raise ValueError(f"debias=True needs norm=2 and form='bin': got norm={norm!r} and form={form!r}.")
  if debias and sign != "both":
    raise ValueError(f"debias=True needs sign='both': got sign={sign!r}.")
  return {"num_bins": num_bins, "binning": binning, "norm": norm, "form": form, "debias": debias, "closed": closed,
          "ties": ties, "sign": sign}


def error_of_pairs(confidence: Array, correct: Array, counts: Array, num_bins, binning, norm, form, debias, closed,  # noqa: PLR0917
                   ties, sign) -> Array:
  """``calibration_error`` of checked arrays ``[N]`` and options."""
  b = _bin(confidence, correct, counts, num_bins, binning, closed, ties, sums_only=form == "bin")
  if form == "bin":
    squares = None  # Zeros and ones are their own squares.
    if debias and counts.dtype != bool:
      squares = _bin(confidence, correct**2, counts, num_bins, binning, closed, ties).correct
    return formulas.binned_error(b.size, b.correct, b.total - b.correct, norm=norm, debias=debias, sign=sign,
                                 squares=squares)
  gap = b.confidence - (b.correct / b.divisor)[jnp.minimum(b.index, num_bins - 1)]
  gap = jnp.where(b.index < num_bins, formulas.signed_size(gap, sign), 0)
  return formulas.power_mean(gap, lambda x: masked_mean(x, b.counts), norm)


@biased_as(lambda **options: dataclasses.replace(of_norm(**options), compares=False))
def classwise_calibration_error(probs: ArrayLike, labels: ArrayLike, *, num_bins: int = 15,
                                binning: str = "equal_width", norm: float | str = 1, ties: str = "share",
                                where: ArrayLike | None = None, weights: ArrayLike | None = None) -> Array:
  r"""Class-wise calibration error, in [0, 1]: the mean over classes of the error of the class's probability.

  Use it where the probability of every class matters, not only of the predicted one.

  .. math:: \Big(\frac{1}{K} \sum_c \mathrm{CE}\big((p_c, 1[y = c])\big)^p\Big)^{1/p}

  CE is ``calibration_error`` of the probability of class c and whether c is the label.

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1.
    labels: ``[...]`` integers in ``[0, K)``.
    num_bins: M, the number of bins.
    binning: ``"equal_width"`` or ``"equal_mass"``.
    norm: p, at least 1, or ``"max"``, the largest gap of any bin of any class.
    ties: ``"share"`` or ``"order"``, for equal-mass edges that divide a tie.
    where: optional ``[...]`` bools; examples that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0, as for ``calibration_error``; classes have none.

  Returns:
    A scalar; 0 if nothing counts. O(NKM) time, or K sorts for equal mass.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    Zhou et al. 2025, Definition 3.7; Kumar et al. 2019.

  >>> classwise_calibration_error(jnp.array([[0.75, 0.25], [0.25, 0.75]]), jnp.array([0, 0]))
  Array(0.5, dtype=float32)
  """
  checks.options(num_bins=(num_bins, "integer [1, inf)"), binning=(binning, BINNINGS), norm=(norm, NORM),
                 ties=(ties, TIES))
  return of_classes(_classwise_calibration_error, probs, labels, where, weights, num_bins=num_bins, binning=binning,
                    norm=norm, ties=ties)


def _classwise_calibration_error(probs: Array, labels: Array, counts: Array, num_bins, binning, norm, ties) -> Array:
  num_classes = probs.shape[1]
  if binning == "equal_mass":
    def class_error(column):
      class_probs, label = column
      return calibration_error(class_probs, labels == label, num_bins=num_bins, binning=binning, norm=norm, ties=ties,
                               **counted(counts))

    errors = jax.lax.map(class_error, (probs.T, jnp.arange(num_classes, dtype=jnp.int32)))
  else:
    index = jnp.where(counts.astype(bool)[:, None], bins.equal_width_index(probs, num_bins), num_bins)
    is_label = labels[:, None] == jnp.arange(num_classes, dtype=jnp.int32)[None]
    size, gap = _sums_by_class(probs - is_label.astype(probs.dtype), index, num_bins, counts)
    # For norm 1 the sizes of the bins are not needed, so that XLA does not compute them.
    errors = formulas.binned_error(size, None, gap, count=bins.total(counts), norm=norm)
  return formulas.power_mean(errors, jnp.mean, norm)


def _sums_by_class(values: Array, index: Array, num_bins: int, counts: Array) -> tuple[Array, Array]:
  """(Weighted) number and sum of each class's ``values`` in each bin, ``[K, num_bins]``, added as ``bin_sums``."""
  num_classes = values.shape[1]
  block = jnp.arange(len(values), dtype=jnp.int32)[:, None] // bins.BLOCK
  blocks = max(-(-len(values) // bins.BLOCK), 1)
  place = (block * num_classes + jnp.arange(num_classes, dtype=jnp.int32)[None, :]) * num_bins + index
  place = jnp.where(index < num_bins, place, blocks * num_classes * num_bins)

  def sums(x):
    total = jnp.zeros(blocks * num_classes * num_bins, x.dtype).at[place].add(x, mode="drop")
    return bins.pairwise_sum(total.reshape(blocks, num_classes, num_bins))

  if counts.dtype == bool:
    return sums(jnp.ones_like(index)), sums(values)
  return sums(jnp.broadcast_to(counts[:, None], values.shape)), sums(counts[:, None] * values)


def reliability(confidence: ArrayLike, correct: ArrayLike, *, num_bins: int = 15, binning: str = "equal_width",
                ties: str = "share", where: ArrayLike | None = None, weights: ArrayLike | None = None
                ) -> Reliability:
  """The numbers of a reliability diagram, with the bins of ``calibration_error``.

  It shows at which confidences a model is wrong, and by how much.

  Args:
    confidence: floats of any shape, in [0, 1].
    correct: bools, zeros and ones, or credits in [0, 1], of that shape: whether the event happened, or how much of it.
    num_bins: M, the number of bins.
    binning: ``"equal_width"`` or ``"equal_mass"``.
    ties: ``"share"`` or ``"order"``, for equal-mass edges that divide a tie.
    where: optional bools of that shape; examples that are False are ignored and may hold NaN.
    weights: optional example weights of that shape, at least 0, as for ``calibration_error``.

  Returns:
    ``Reliability``. Inner edges of equal-mass bins lie midway between neighbouring groups.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  >>> reliability(jnp.array([0.9, 0.7, 0.2]), jnp.array([True, False, False]), num_bins=2).accuracy
  Array([0. , 0.5], dtype=float32)
  """
  checks.options(num_bins=(num_bins, "integer [1, inf)"), binning=(binning, BINNINGS), ties=(ties, TIES))
  with jax.debug_nans(False):  # That an empty bin has no mean is no error.
    return of_pairs(_reliability, confidence, correct, where, weights, counts_credits=True, num_bins=num_bins,
                    binning=binning, ties=ties)


def _reliability(confidence: Array, correct: Array, counts: Array, num_bins, binning, ties) -> Reliability:
  b = _bin(confidence, correct, counts, num_bins, binning, "right", ties)
  return Reliability(b.edges, b.size, *(jnp.where(b.size > 0, x / b.divisor, jnp.nan) for x in (b.total, b.correct)))
