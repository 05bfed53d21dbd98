"""Calibrators that map each class's probability on its own and renormalise, or that map the confidence alone.

A class's function is fitted to the rows that have the class.

Isotonic regressions and histogram binning are here; those by logistic regression are in ``logistic.py``.
"""

from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import _checks as checks
from calib_jax._numerics import binning as bins
from calib_jax._numerics.softmax import log_one_minus, log_softmax, masked_as, predicted
from calib_jax._numerics.sorting import sorted_shares
from calib_jax.calibrators.base import Calibrator, by_row, fit_by, has_params, refuse_traced, register

Array = jax.Array
LEAST = 1e-6  # The smallest calibrated probability, before rows are renormalised.
MOST_ODDS = 1e5  # Log-odds beyond, as of a row's only class, count as these.
NUM_BINS = 15  # The default number of bins of histogram binning.


@register
@has_params(x="C B [0, 1] rising", y="C B [0, 1] rising")
def isotonic(*, top_label: bool = False) -> Calibrator:
  """Isotonic regression of 1[y = c] on p_c for every class, floored at 1e-6 and renormalised.

  Use it where any rising curve may be right and there are thousands of examples.

  Each class's function is the rising one of least squares, by SciPy's pool-adjacent-violators algorithm. It is linear
  between the probabilities seen and constant outside. It may change accuracy.

  Args:
    top_label: if True, one function maps the confidence, and the other classes share the rest in proportion to their
      probabilities; if False, each class has its own function.

  Returns:
    A calibrator whose params are ``x`` and ``y`` ``[K, B]``, the corners of the functions. B depends on the data, so
    that ``fit`` runs on the host and not under ``jit`` or ``vmap``.

  References:
    Zadrozny & Elkan 2002.

  >>> calibrator = isotonic()
  >>> params = calibrator.fit(jnp.log(jnp.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])), jnp.array([0, 1, 1]))
  >>> jnp.exp(calibrator.apply(params, jnp.log(jnp.array([[0.75, 0.25]])))).round(2)
  Array([[0.5, 0.5]], dtype=float32)
  """
  return on_host("isotonic", functools.partial(_joined, _isotonic_corners), _interpolated, top_label=top_label)


@register
@has_params(x="C B [0, 1] rising", y="C B [0, 1] rising")
def centered_isotonic(*, top_label: bool = False) -> Calibrator:
  """Centred isotonic regression (CIR) of 1[y = c] on p_c for every class, floored at 1e-6 and renormalised.

  Use it for isotonic regression without its flat steps, so that the ranking is kept.

  Each constant piece of isotonic regression becomes one point, at the weighted mean of its probabilities, and the
  function is linear between these points, so that it rises strictly. Pieces of value 0 and 1 stay as they are, and
  beyond the first and the last point the function is constant. It may change accuracy.

  Args:
    top_label: whether one function maps the confidence alone, as in ``isotonic``.

  Returns:
    A calibrator whose params are ``x`` and ``y`` ``[K, B]``, the corners of the functions, fitted as those of
    ``isotonic``: on the host.

  References:
    Oron & Flournoy 2017.

  >>> calibrator = centered_isotonic()
  >>> logits = np.log(np.array([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.2, 0.8]]))
  >>> params = calibrator.fit(logits, np.array([0, 1, 0, 1]))
  >>> [round(float(x), 2) for x in params["x"][0]], params["y"][0].tolist()  # Of class 0.
  ([0.2, 0.65, 0.9], [0.0, 0.5, 1.0])
  """
  return on_host("centered_isotonic", functools.partial(_joined, _centered_corners), _interpolated, top_label=top_label)


def _joined(corners: Callable[..., Any], p: Array, happened: Array, weights: Array) -> dict:
  return dict(zip("xy", by_column(corners, p, happened, weights), strict=True))


def _isotonic_corners(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The ends of the isotonic regression's constant pieces; the identity if there are no examples."""
  if not x.size:
    return np.array([0, 1], x.dtype), np.array([0, 1], x.dtype)
  from scipy import optimize  # Imported here, because the import takes 0.4 s and only isotonic regression needs it.

  values, masses, events = distinct(x, y, weights)
  fitted = optimize.isotonic_regression(events / masses, weights=masses)
  ends = np.unique([fitted.blocks[:-1], fitted.blocks[1:] - 1])
  return values[ends], fitted.x[ends].astype(x.dtype)


def _centered_corners(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The centres of those pieces; of a piece of value 0 its last point, and of one of value 1 its first."""
  if not x.size:
    return np.array([0, 1], x.dtype), np.array([0, 1], x.dtype)
  from scipy import optimize

  values, masses, events = distinct(x.astype(np.float64), y, weights)
  fitted = optimize.isotonic_regression(events / masses, weights=masses).x
  starts = np.flatnonzero(np.diff(fitted, prepend=-1))
  ends, levels = np.append(starts[1:], len(fitted)) - 1, fitted[starts]
  means = np.add.reduceat(masses * values, starts) / np.add.reduceat(masses, starts)
  points = np.where(levels == 0, values[ends], np.where(levels == 1, values[starts], means))
  return points.astype(x.dtype), levels.astype(x.dtype)


def _interpolated(params: dict[str, Any], p: Array) -> Array:
  """The values ``[K, N]`` of the functions of each column that are linear between the corners ``x`` and ``y``."""
  return jax.vmap(jnp.interp)(checks.gathered(p), params["x"], params["y"])


def by_column(function: Callable[..., Any], p: Array, happened: Array, weights: Array) -> list[Array]:
  """The arrays that a function of NumPy returns of each column's rows that count, padded with their last value."""
  columns = zip(*map(np.asarray, (p, happened, weights)), strict=True)
  of_columns = list(zip(*(function(*(x[column[2] > 0] for x in column)) for column in columns), strict=True))
  longest = [max(map(len, columns)) for columns in of_columns]
  return [jnp.asarray(np.stack([np.append(x, np.full(size - len(x), x[-1])) for x in columns]))
          for size, columns in zip(longest, of_columns, strict=True)]


def distinct(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The distinct values of ``x`` in ascending order; and for each the sums of all weights and of events'."""
  order = np.argsort(x, kind="stable")
  ordered, weights = x[order], weights[order].astype(np.float64)
  starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
  return ordered[starts], np.add.reduceat(weights, starts), np.add.reduceat(weights * y[order], starts)


def on_host(name: str, solve: Callable[..., Any], value: Callable[..., Any], *, top_label: bool, **options: Any
            ) -> Calibrator:
  """As ``one_vs_rest`` of probabilities, for a ``solve`` that runs in NumPy, because shapes depend on the data."""
  on_device = one_vs_rest(name, _unsolved, value, top_label=top_label)

  def fit(logits, labels, *, where=None, weights=None):
    refuse_traced(name, logits, labels, where, weights)
    return solve(**on_device.fit(logits, labels, where=where, weights=weights), **options)

  return Calibrator(fit, on_device.apply, name, {**options, "top_label": top_label})


def _unsolved(p: Array, happened: Array, weights: Array) -> dict:
  return {"p": p, "happened": happened, "weights": weights}


@register
@has_params(edges="C _ [0, 1] rising", values="C B [0, 1]")
def histogram_binning(num_bins: int = NUM_BINS, *, binning: str = "equal_mass", top_label: bool = False) -> Calibrator:
  """Histogram binning of p_c for every class, floored at 1e-6 and renormalised.

  Use it for output that takes few values, each the share of right answers of its bin.

  The value of a bin is the share of its examples that are of the class. An empty bin keeps its middle. It may change
  accuracy. For many classes equal-mass bins of each class are harmful: the top bin holds a share 1 / M of all rows,
  which is far more than the rows of a class, so that its high probabilities are lost.

  Args:
    num_bins: number of bins M, at least 1.
    binning: "equal_mass" for bins of equally many examples, whose edges lie midway between neighbouring probabilities
      and never divide equal ones; or "equal_width" for M equal parts of [0, 1], each without its lower edge but the
      first.
    top_label: if True, one set of bins maps the confidence, and the other classes share the rest in proportion to their
      probabilities; if False, each class has its own bins.

  Returns:
    A calibrator whose params are ``edges`` ``[K, M + 1]`` and ``values`` ``[K, M]``.

  Raises:
    ValueError, TypeError: if an option is out of range or of another type.

  References:
    Zadrozny & Elkan 2001.

  >>> calibrator = histogram_binning(2)
  >>> params = calibrator.fit(jnp.log(jnp.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])), jnp.array([0, 1, 1]))
  >>> params["values"].round(2)
  Array([[0. , 1. ],
         [0.5, 1. ]], dtype=float32)
  """
  checks.options(num_bins=(num_bins, "integer [1, inf)"), binning=(binning, ("equal_mass", "equal_width")))
  # Another fit to 2,000 x 2 logits takes 0.3 ms in place of 0.8, and the first one as long.
  return one_vs_rest("histogram_binning", _solve_histogram, _histogram, top_label=top_label, small="few passes",
                     num_bins=num_bins, binning=binning)


def _solve_histogram(p: Array, happened: Array, weights: Array, *, num_bins: int, binning: str) -> dict:
  def class_bins(column):
    x, y, weights = column
    where = weights.astype(bool)
    if binning == "equal_mass":
      edges = _equal_mass_edges(jnp.where(where, x, jnp.inf), weights, num_bins)
    else:
      edges = jnp.linspace(0, 1, num_bins + 1, dtype=x.dtype)
    index = jnp.where(where, _bin(edges, x), num_bins)
    rows = jnp.stack([jnp.ones_like(y), y], axis=-1)
    if weights.dtype != bool:
      rows = weights[:, None] * rows
    counts, positives = bins.bin_sums(rows, index, num_bins).T
    frequencies = positives / jnp.where(counts > 0, counts, 1)
    return edges, jnp.where(counts > 0, frequencies, (edges[1:] + edges[:-1]) / 2)

  edges, values = jax.lax.map(class_bins, (p, happened, weights))
  return {"edges": edges, "values": values}


def _equal_mass_edges(x: Array, weights: Array, num_bins: int) -> Array:
  """The edges of bins of equally many examples, where an integer weight is so many examples in its row's place."""
  if weights.dtype == bool:
    return bins.equal_mass_edges(sorted_shares(x), jnp.sum(weights, dtype=jnp.int32), num_bins)
  order = jnp.argsort(x)
  ranks = jnp.cumsum(weights[order])  # The examples up to each row, so that a row holds the ranks below its own number.
  start = bins.equal_mass_starts(ranks[-1].astype(jnp.int32), num_bins)[1:-1].astype(x.dtype)
  ends = [x[order][jnp.clip(jnp.searchsorted(ranks, start, side=side), 0, len(x) - 1)] for side in ("left", "right")]
  inner = jnp.where(start < ranks[-1], (ends[0] + ends[1]) / 2, 1)
  return jnp.concatenate([jnp.zeros(1, x.dtype), inner, jnp.ones(1, x.dtype)])


def _histogram(params: dict, p: Array) -> Array:
  return jax.vmap(lambda edges, values, x: values[_bin(edges, x)])(params["edges"], params["values"],
                                                                   checks.gathered(p))


def _bin(edges: Array, x: Array) -> Array:
  return jnp.searchsorted(edges[1:-1], x, side="left").astype(jnp.int32)


def one_vs_rest(name: str, solve: Callable[..., Any], value: Callable[..., Any], *, top_label: bool,
                of_odds: bool = False, small: str = "fast", **options: Any) -> Calibrator:
  """A calibrator of the columns ``[K, N]`` of probabilities or log-odds; of the confidence alone, if ``top_label``."""
  # Its params are ``solve(columns, happened [K, N], weights [K, N], **options)``, where the weights are those of
  # ``fit_batch`` and, for rows without the column's class, 0; its probabilities ``value(params, columns)`` ``[K, N]``.
  checks.choice("top_label", top_label, (True, False))
  of_columns = {"top_label": top_label, "of_odds": of_odds}
  return Calibrator(fit_by(_solve, of_counts=True, small=small, by_class=solve, **of_columns, **options),
                    by_row(_apply, value=value, **of_columns), name, {**options, "top_label": top_label})


def _columns(logits: Array, top_label: bool, of_odds: bool) -> Array:
  log_p, is_top = log_softmax(logits)
  values = jnp.clip(log_p - log_one_minus(log_p, is_top), -MOST_ODDS, MOST_ODDS) if of_odds else jnp.exp(log_p)
  return (jnp.sum(values, axis=-1, where=is_top, keepdims=True) if top_label else values).T


def _solve(logits: Array, labels: Array, weights: Array, *, by_class: Callable, top_label: bool, of_odds: bool,
           **options) -> dict:
  if top_label:
    happened, weights = (predicted(logits) == labels)[None], weights[None]
  else:
    happened = labels[None, :] == jnp.arange(logits.shape[1], dtype=jnp.int32)[:, None]
    weights = jnp.where(jnp.isneginf(logits.T), jnp.zeros((), weights.dtype), weights[None])
  return by_class(_columns(logits, top_label, of_odds), happened.astype(logits.dtype), weights, **options)


def _apply(params: dict, logits: Array, *, value: Callable, top_label: bool, of_odds: bool) -> Array:
  values = jnp.clip(value(params, _columns(logits, top_label, of_odds)), LEAST, 1 - LEAST * top_label).T
  values = checks.aligned(values, logits)  # A table's values are on all devices.
  if not top_label:
    return jax.nn.log_softmax(masked_as(jnp.log(values), logits))
  log_p, is_top = log_softmax(logits)
  log_others = jax.nn.logsumexp(log_p, axis=-1, where=~is_top, keepdims=True)
  others = log_p - log_others + jnp.log1p(-values)
  return jax.nn.log_softmax(masked_as(jnp.where(is_top, jnp.log(values), others), logits))
