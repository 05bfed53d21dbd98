"""The calibration errors of other tools: for the same data, the same number.

Tools differ in the number of bins, in which end of a bin belongs to it, in the bin of 1.0, in norms and in how edges
are rounded. Each entry of ``CONVENTIONS`` is a frozen set of options for ``calibration_error`` or, where options are
not enough, a function of ``(confidence, correct)`` whose ``num_bins`` defaults to the tool's own. docs/ece.md shows
both calls.

>>> from calib_jax.metrics import calibration_error
>>> confidence, correct = jnp.array([0.95, 1.0, 1.0, 0.3]), jnp.array([True, True, False, True])
>>> calibration_error(confidence, correct, **CONVENTIONS["guo"]).round(4)
Array(0.4125, dtype=float32)
>>> CONVENTIONS["torchmetrics"](confidence, correct).round(4)  # 1.0 has a bin of its own.
Array(0.4375, dtype=float32)
"""

from collections.abc import Callable, Mapping
import functools
import types
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax._numerics import binning as bins
from calib_jax.metrics import formulas

Array = jax.Array


def _checked(formula: Callable) -> Callable:
  """A convention of any ``(confidence, correct)``, from one of checked arrays, of JAX or of NumPy."""
  @functools.wraps(formula)
  def convention(confidence: ArrayLike, correct: ArrayLike, **options) -> Array:
    correct = checks.credits(confidence, correct)
    confidence, correct, _ = checks.paired(confidence, correct, None)
    return formula(confidence, correct, **options)

  return convention


def of_arrays(name: str, confidence: np.ndarray, correct: np.ndarray) -> float:
  """The error by the convention ``name`` of arrays ``[N]`` of NumPy, at least one, which compiles nothing."""
  rule = CONVENTIONS[name]
  if callable(rule):
    return float(rule.__wrapped__(confidence, correct))
  num_bins = rule["num_bins"]
  if rule["binning"] == "equal_mass":  # In the order of rows, where confidences are equal.
    index = np.empty(len(confidence), np.int32)
    index[np.argsort(confidence, kind="stable")] = bins.equal_mass_index(np.arange(len(confidence)), len(confidence),
                                                                         num_bins)
  else:
    index = np.searchsorted((np.arange(1, num_bins) / num_bins).astype(confidence.dtype), confidence)
  return float(formulas.binned_error(*_sums(confidence, correct, index, num_bins), norm=rule["norm"]))


@_checked
def _torchmetrics(confidence: Array, correct: Array, *, num_bins: int = 15) -> Array:
  """``multiclass_calibration_error(norm="l1")``: bins [lo, hi), one for 1.0, and edges as of ``torch.linspace``."""
  step = np.float32(1) / np.float32(num_bins)
  j = np.arange(num_bins + 1)
  # ``torch.linspace`` counts the lower half of its values from the start, and the upper half from the end.
  edges = np.where(j < (num_bins + 1) // 2, j * np.float64(step), 1 - (num_bins - j) * np.float64(step))
  return _weighted_gap(confidence, correct, edges[1:].astype(np.float32), "left")


@_checked
def _netcal(confidence: Array, correct: Array, *, num_bins: int = 10) -> Array:
  """``netcal.metrics.ECE(bins).measure``: bins are [lo, hi), the last closed; edges are float64."""
  return _weighted_gap(confidence, correct, np.linspace(0, 1, num_bins + 1)[1:-1], "left")


@_checked
def _uncertainty_calibration(confidence: Array, correct: Array, *, num_bins: int = 15) -> Array:
  """``calibration.get_calibration_error``: equal mass with ties in one bin, norm 2, debiased (Kumar et al. 2019)."""
  xp = bins.array_module(confidence)
  ordered = xp.sort(confidence)
  edges = bins.equal_mass_edges(ordered, len(ordered), min(num_bins, len(ordered)))
  index = xp.searchsorted(edges[1:-1], confidence, side="left").astype(xp.int32)
  _, squares, _ = _sums(confidence, correct**2, index, num_bins)
  return formulas.binned_error(*_sums(confidence, correct, index, num_bins), norm=2, debias=True, squares=squares)


@_checked
def _scikit_learn(confidence: Array, correct: Array, *, num_bins: int = 5) -> Array:
  """The gaps of ``calibration_curve`` weighted by counts: bins are (lo, hi]; edges are float64."""
  return _weighted_gap(confidence, correct, np.linspace(0, 1, num_bins + 1)[1:-1], "right")


@_checked
def _mapie(confidence: Array, correct: Array, *, num_bins: int = 50) -> Array:
  """``expected_calibration_error``: ``num_bins`` edges make one bin fewer, (lo, hi], and exactly 0 has one more."""
  return _weighted_gap(confidence, correct, np.linspace(0, 1, num_bins)[:-1], "right")


@_checked
def _relplot(confidence: Array, correct: Array, *, num_bins: int = 10) -> Array:
  """``binnedECE``: the bin is c / (1 / num_bins) truncated, in the precision of c, so that 1.0 has one more."""
  return _weighted_gap(confidence, correct, lambda c: np.trunc(c / c.dtype.type(1 / num_bins)), "left", num_bins)


@_checked
def _robustness_metrics(confidence: Array, correct: Array, *, num_bins: int = 15) -> Array:
  """``ece``, as ``tf.histogram_fixed_width_bins``: the bin is c * num_bins truncated, in the precision of c."""
  return _weighted_gap(confidence, correct, lambda c: np.trunc(c * c.dtype.type(num_bins)), "left", num_bins - 1)


@_checked
def _adafocal(confidence: Array, correct: Array, *, num_bins: int = 15) -> Array:
  """AdaECE of AdaFocal's code: bins are (lo, hi] between interpolated quantiles; the lowest value is in no bin."""
  xp = bins.array_module(confidence)
  ordered = xp.sort(confidence)
  position = np.linspace(0, len(ordered), num_bins + 1)
  left = np.minimum(position.astype(int), len(ordered) - 1)
  step = ordered[np.minimum(left + 1, len(ordered) - 1)] - ordered[left]
  edges = ordered[left] + xp.asarray(position - left, ordered.dtype) * step
  index = xp.searchsorted(edges, confidence, side="left").astype(xp.int32) - 1
  return formulas.binned_error(*_sums(confidence, correct, index, num_bins), count=len(ordered))


@_checked
def _hle(confidence: Array, correct: Array, *, per_bin: int = 100) -> Array:
  """``calib_err`` of Humanity's Last Exam: norm 2 over bins of ``per_bin`` by rank, without the last of them.

  The last bin, which holds the most confident answers, is divided by and never added: with all right or all wrong there
  the number is the same, it is 0 below 2 bins, and NaN without one, where that code stops. Equal confidences are in the
  order of rows; that code leaves their order to the machine.
  """
  xp = bins.array_module(confidence)
  number = len(confidence) // per_bin
  if number < 2:
    return xp.asarray(0.0 if number else np.nan, confidence.dtype)
  order = xp.argsort(confidence, stable=True)[:(number - 1) * per_bin]
  gap = (confidence[order] - correct[order]).reshape(number - 1, per_bin).sum(-1)
  return formulas.binned_error(xp.full(number - 1, per_bin), None, gap, count=len(confidence), norm=2)


def _weighted_gap(confidence: Array, correct: Array, edges: np.ndarray | Callable, closed: str,
                  top: int | None = None) -> Array:
  """The calibration error, norm 1, of bins between ``edges``, numbers or a function from confidence to bin."""
  xp, dtype = bins.array_module(confidence), confidence.dtype
  if callable(edges):
    edges = np.array([_first_in(edges, j, dtype) for j in range(1, top + 1)], dtype)
  elif edges.dtype != dtype:
    edges = _directed(edges, dtype, closed)
  index = xp.searchsorted(xp.asarray(edges), confidence, side="left" if closed == "right" else "right")
  return formulas.binned_error(*_sums(confidence, correct, index.astype(xp.int32), len(edges) + 1))


def _sums(confidence: Array, correct: Array, index: Array, num_bins: int) -> tuple[Array, Array, Array]:
  """The examples, the correct ones, and the sum of confidence - correct of each bin."""
  if isinstance(confidence, np.ndarray):
    return tuple(np.bincount(index + 1, x, num_bins + 1)[1:] for x in (None, correct, confidence - correct))
  size, num_correct, total = (bins.bin_sums(x, index, num_bins)
                              for x in (jnp.ones_like(confidence), correct, confidence))
  return size, num_correct, total - num_correct


def _directed(edges: np.ndarray, dtype, closed: str) -> np.ndarray:
  """Edges in ``dtype`` that put every number of ``dtype`` into the same bin as the float64 ``edges`` do."""
  near = edges.astype(dtype)
  if closed == "right":  # c > e holds exactly if c is above the largest number of ``dtype`` that is at most e.
    return np.where(near.astype(np.float64) > edges, np.nextafter(near, dtype.type(-np.inf)), near)
  return np.where(near.astype(np.float64) < edges, np.nextafter(near, dtype.type(np.inf)), near)


def _first_in(rule: Callable, j: int, dtype) -> float:
  """The smallest number of ``dtype`` that ``rule``, which never decreases, puts into bin j or above."""
  bits = np.dtype(f"i{dtype.itemsize}")
  low, high = 0, int(np.asarray(2, dtype).view(bits))  # Positive floats are in the order of their bits.
  while low < high:
    middle = (low + high) // 2
    low, high = (low, middle) if rule(np.asarray(middle, bits).view(dtype)[()]) >= j else (middle + 1, high)
  return np.asarray(low, bits).view(dtype)[()]


# The calibration error of other tools by the name of the tool: options of ``calibration_error``, or a function.
CONVENTIONS: Mapping[str, Mapping[str, Any] | Callable[..., Any]] = types.MappingProxyType({
  "soft_calibration": types.MappingProxyType({"num_bins": 15, "binning": "equal_mass", "norm": 2, "ties": "order"}),
  "guo": types.MappingProxyType({"num_bins": 15, "binning": "equal_width", "norm": 1}),
  "torchmetrics": _torchmetrics, "netcal": _netcal, "uncertainty_calibration": _uncertainty_calibration,
  "scikit_learn": _scikit_learn, "mapie": _mapie, "relplot": _relplot, "robustness_metrics": _robustness_metrics,
  "adafocal": _adafocal, "hle": _hle,
})
OF_RECORDS = ("hle",)  # Those that measure stated confidences, so that evaluations of classifiers leave them out.
