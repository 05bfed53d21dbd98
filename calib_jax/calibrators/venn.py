"""Venn-Abers prediction: isotonic regressions of the examples and of one more, whose label is either 0 or 1."""

from collections.abc import Callable
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import _checks as checks
from calib_jax.calibrators.base import Calibrator, has_params, refuse_weights, register
from calib_jax.calibrators.one_vs_rest import by_column, distinct, on_host
from calib_jax.intervals.groups import stratified_folds

Array = jax.Array


@register
@has_params(x="F C B [0, 1] rising", p0="F C _ [0, 1]", p1="F C _ [0, 1]")
def venn_abers(kind: str = "inductive", *, folds: int = 5, top_label: bool = False) -> Calibrator:
  r"""Venn-Abers calibration of p_c for every class, renormalised.

  Use it for probabilities with a guarantee: one of two stated ones is calibrated.

  The example to predict is added to the fit's, once with the label 0 and once with 1. The isotonic regressions
  of both give it the probabilities p0 and p1; one is perfectly calibrated whatever the distribution. They are
  merged into

  .. math:: p = \frac{p_1}{1 - p_0 + p_1}, \qquad \text{cross: } p = \frac{G(p_1)}{G(1 - p_0) + G(p_1)}

  where G is the geometric mean over folds with a p0 and p1 each. All p0 and p1 are computed in the fit,
  in O(N log N) for N examples. It may change accuracy.

  Args:
    kind: ``"inductive"`` (IVAP), or ``"cross"`` (CVAP), which merges the predictors of ``folds`` parts of the examples.
    folds: the number of parts of ``"cross"``, at least 2; they are stratified by class and the same in every call.
    top_label: whether one function maps the confidence alone, as in ``isotonic``.

  Returns:
    A calibrator whose params are ``x`` ``[F, K, B]``, the probabilities seen, and ``p0`` and ``p1`` ``[F, K, B + 1]``,
    steps between them: an example at x, or at least it and below the next, has the p0 after x, and one at x, or above
    the one before, the p1 before x. F is 1, or ``folds``. Shapes depend on the data, so that ``fit`` runs on the host.

  Raises:
    ValueError, TypeError: for an unknown kind, folds out of range, or weights of ``"cross"``, which divides examples.

  References:
    Vovk et al. 2015, Algorithms 1-6.

  >>> calibrator = venn_abers()
  >>> params = calibrator.fit(jnp.log(jnp.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])), jnp.array([0, 1, 1]))
  >>> [[round(float(p), 2) for p in params[name][0, 0]] for name in ("p0", "p1")]  # Of class 0.
  [[0.0, 0.0, 0.0, 0.5], [0.33, 0.5, 1.0, 1.0]]
  """
  checks.options(kind=(kind, ("inductive", "cross")), folds=(folds, "integer [2, inf)"))
  return on_host("venn_abers", _solve, _merged, top_label=top_label, kind=kind, folds=folds)


def _solve(p: Array, happened: Array, weights: Array, *, kind: str, folds: int) -> dict:
  if kind == "inductive":
    parts = [np.asarray(weights)]
  else:
    refuse_weights(weights, 'venn_abers("cross")', "it divides the examples into folds")
    weights = np.asarray(weights)
    counted = np.flatnonzero(weights.any(0))
    fold = np.full(weights.shape[1], -1)
    # Of one column the event, and of several the class, is what folds have their share of.
    fold[counted] = stratified_folds(np.asarray(happened).argmax(0)[counted] if len(happened) > 1
                                     else np.asarray(happened)[0, counted].astype(int), folds)
    parts = [weights & (fold == i) for i in range(folds)]
  # Of two classes without further ties, the second asks what the first one did, which is looked up.
  steps = functools.partial(_steps, one_more=functools.lru_cache(maxsize=2)(_with_one_more))
  of_parts = list(zip(*(by_column(steps, p, happened, part) for part in parts), strict=True))
  longest = [max(x.shape[-1] for x in arrays) for arrays in of_parts]
  x, p0, p1 = (jnp.stack([jnp.pad(x, ((0, 0), (0, size - x.shape[-1])), mode="edge") for x in arrays])
               for size, arrays in zip(longest, of_parts, strict=True))
  return {"x": x, "p0": p0, "p1": p1}


def _merged(params: dict, p: Array) -> Array:
  """The merged probabilities ``[K, N]``."""
  def of_column(x, p0, p1, values):
    return p0[jnp.searchsorted(x, values, side="right")], p1[jnp.searchsorted(x, values, side="left")]

  of_part = jax.vmap(of_column)
  p0, p1 = jax.vmap(of_part, in_axes=(0, 0, 0, None))(params["x"], params["p0"], params["p1"], checks.gathered(p))
  happens, fails = (jnp.exp(jnp.mean(jnp.log(x), axis=0)) for x in (p1, 1 - p0))
  return happens / (happens + fails)


def _steps(x: np.ndarray, y: np.ndarray, weights: np.ndarray, one_more: Callable[[bytes, bytes], np.ndarray]
           ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The probabilities seen, and p0 and p1 before the first, between them, and after the last."""
  if not x.size:
    return np.zeros(1, x.dtype), np.zeros(2, x.dtype), np.ones(2, x.dtype)
  values, masses, happened = distinct(x, y, weights)
  p1 = np.append(one_more(masses.tobytes(), happened.tobytes()), 1)
  # Reversed, and with the labels exchanged, what a 0 does is what a 1 does.
  p0 = np.append(0, 1 - one_more(masses[::-1].tobytes(), (masses - happened)[::-1].tobytes())[::-1])
  return values, p0.astype(x.dtype), p1.astype(x.dtype)


def _with_one_more(masses: bytes, happened: bytes) -> np.ndarray:
  """For each group of equal scores, the isotonic regression there if one more example of it has the label 1."""
  # It is the slope of the greatest convex minorant of the points (sum of masses, sum of events). The example comes
  # first before all, and then changes places with one group after another, which moves one point each time; a stack
  # keeps the corners of the minorant from there on (Algorithms 1 and 2). Neighbouring groups of nothing but events
  # count as one, which halves the time where scores are good. The arguments are bytes, which can be looked up.
  masses, happened = np.frombuffer(masses), np.frombuffer(happened)
  certain = masses == happened
  starts = np.flatnonzero(~certain | ~np.append(False, certain[:-1]))
  x, y = (np.append(0, np.cumsum(np.add.reduceat(values, starts))).tolist() for values in (masses, happened))
  corners = [(x[-1], y[-1], math.inf)]
  for point in zip(x[-2::-1], y[-2::-1], strict=True):
    _push(corners, *point)
  _push(corners, -1.0, -1.0)
  slopes, moved_x, moved_y = [], -1.0, -1.0
  for i in range(1, len(x)):
    top_x, top_y, slope = corners[-1]
    slopes.append(slope)
    moved_x, moved_y = moved_x + x[i] - x[i - 1], moved_y + y[i] - y[i - 1]
    if moved_y < top_y + slope * (moved_x - top_x):
      corners.pop()
      _push(corners, moved_x, moved_y)
  return np.repeat(slopes, np.diff(starts, append=len(masses)))


def _push(corners: list[tuple[float, float, float]], x: float, y: float) -> None:
  """Adds a point, with its slope to the next, on the left of a convex chain, without the corners then above it."""
  while True:
    right_x, right_y, right_slope = corners[-1]
    slope = (right_y - y) / (right_x - x)
    if slope < right_slope:
      corners.append((x, y, slope))
      return
    corners.pop()
