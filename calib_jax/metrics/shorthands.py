"""Binned calibration errors of the top label, by the names under which papers report them."""

import jax
from jax.typing import ArrayLike

from calib_jax.intervals.bias_models import biased_as, of_norm
from calib_jax.metrics.binned import checked_options, error_of_pairs
from calib_jax.metrics.compiled import of_classes
from calib_jax.metrics.scores import top_of_classes

Array = jax.Array


@biased_as(of_norm)
def expected_calibration_error(probs: ArrayLike, labels: ArrayLike, *, num_bins: int = 15, binning: str = "equal_width",
                               norm: float | str = 1, form: str = "bin", debias: bool = False, closed: str = "right",
                               ties: str = "share", sign: str = "both", where: ArrayLike | None = None,
                               weights: ArrayLike | None = None) -> Array:
  """``calibration_error`` of the top label (ECE), in [0, 1].

  It is what papers report; it depends on the bins, and is above 0 for a calibrated model too.

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1.
    labels: ``[...]`` integers in ``[0, K)``.
    num_bins: M, the number of bins.
    binning: ``"equal_width"`` or ``"equal_mass"``.
    norm: p, at least 1, or ``"max"``.
    form: ``"bin"`` or ``"label"``.
    debias: whether to subtract the bias of the squared gaps.
    closed: ``"right"`` or ``"left"``, the end that belongs to an equal-width bin.
    ties: ``"share"`` or ``"order"``, for equal-mass edges that divide a tie.
    sign: ``"both"``, ``"over"`` or ``"under"``: which gaps count.
    where: optional ``[...]`` bools; examples that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.

  Returns:
    A scalar; 0 if nothing counts.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    Guo et al. 2017, Eq. 3.

  >>> expected_calibration_error(jnp.array([[0.75, 0.25], [0.25, 0.75]]), jnp.array([0, 0]))
  Array(0.25, dtype=float32)
  """
  return of_classes(_of_top_label, probs, labels, where, weights, rows=top_of_classes, num_bins=num_bins,
                    binning=binning, norm=norm, form=form, debias=debias, closed=closed, ties=ties, sign=sign)


@biased_as(of_norm)
def maximum_calibration_error(probs: ArrayLike, labels: ArrayLike, *, num_bins: int = 15,
                              binning: str = "equal_width", form: str = "bin", closed: str = "right",
                              ties: str = "share", sign: str = "both", where: ArrayLike | None = None,
                              weights: ArrayLike | None = None) -> Array:
  """``calibration_error`` of the top label with ``norm="max"`` (MCE), in [0, 1]: the largest gap of a bin.

  It shows the worst range of confidence; small bins make it noisy.

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1.
    labels: ``[...]`` integers in ``[0, K)``.
    num_bins: M, the number of bins.
    binning: ``"equal_width"`` or ``"equal_mass"``.
    form: ``"bin"``, or ``"label"`` for the largest gap of an example.
    closed: ``"right"`` or ``"left"``, the end that belongs to an equal-width bin.
    ties: ``"share"`` or ``"order"``, for equal-mass edges that divide a tie.
    sign: ``"both"``, ``"over"`` or ``"under"``: which gaps count.
    where: optional ``[...]`` bools; examples that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.

  Returns:
    A scalar; 0 if nothing counts.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    Guo et al. 2017, Eq. 5.

  >>> maximum_calibration_error(jnp.array([[0.75, 0.25], [0.1, 0.9]]), jnp.array([0, 0])).round(2)
  Array(0.9, dtype=float32)
  """
  return of_classes(_of_top_label, probs, labels, where, weights, rows=top_of_classes, num_bins=num_bins,
                    binning=binning, norm="max", form=form, debias=False, closed=closed, ties=ties, sign=sign)


@biased_as(of_norm)
def adaptive_calibration_error(probs: ArrayLike, labels: ArrayLike, *, num_bins: int = 15, norm: float | str = 1,
                               form: str = "bin", debias: bool = False, ties: str = "share", sign: str = "both",
                               where: ArrayLike | None = None, weights: ArrayLike | None = None) -> Array:
  """``calibration_error`` of the top label with equal-mass bins (AdaECE), in [0, 1].

  Use it where confidences crowd near 1, so that equal-width bins are nearly empty.

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1.
    labels: ``[...]`` integers in ``[0, K)``.
    num_bins: M, the number of bins.
    norm: p, at least 1, or ``"max"``.
    form: ``"bin"`` or ``"label"``.
    debias: whether to subtract the bias of the squared gaps.
    ties: ``"share"`` or ``"order"``, for edges that divide a tie.
    sign: ``"both"``, ``"over"`` or ``"under"``: which gaps count.
    where: optional ``[...]`` bools; examples that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.

  Returns:
    A scalar; 0 if nothing counts.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  References:
    Mukhoti et al. 2020.

  >>> adaptive_calibration_error(jnp.array([[0.75, 0.25], [0.25, 0.75]]), jnp.array([0, 0]), num_bins=1)
  Array(0.25, dtype=float32)
  """
  return of_classes(_of_top_label, probs, labels, where, weights, rows=top_of_classes, num_bins=num_bins,
                    binning="equal_mass", norm=norm, form=form, debias=debias, closed="right", ties=ties, sign=sign)


def _of_top_label(confidence: Array, correct: Array, counts: Array, **options) -> Array:
  return error_of_pairs(confidence, correct.astype(confidence.dtype), counts, **checked_options(**options))
