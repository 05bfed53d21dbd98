"""Centred isotonic regression: isotonic regression that rises where it can."""

import numpy as np

from calib_jax.calibrators.base import Calibrator, register
from calib_jax.calibrators.one_vs_rest import by_column, distinct, interpolated, on_host


@register
def centered_isotonic(*, top_label: bool = False) -> Calibrator:
  """Centred isotonic regression (CIR) of 1[y = c] on p_c for every class, floored at 1e-6 and renormalised.

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
  return on_host("centered_isotonic", _solve, interpolated, top_label=top_label)


def _solve(p, happened, weights) -> dict:
  return dict(zip("xy", by_column(_corners, p, happened, weights), strict=True))


def _corners(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The points that the function is linear between; the identity if there are no examples."""
  if not x.size:
    return np.array([0, 1], x.dtype), np.array([0, 1], x.dtype)
  from scipy import optimize  # Imported here, because the import takes 0.4 s and only isotonic regression needs it.

  values, masses, events = distinct(x.astype(np.float64), y, weights)
  fitted = optimize.isotonic_regression(events / masses, weights=masses).x
  starts = np.flatnonzero(np.diff(fitted, prepend=-1))
  ends = np.append(starts[1:], len(fitted)) - 1
  means = np.add.reduceat(masses * values, starts) / np.add.reduceat(masses, starts)
  levels = fitted[starts]
  # A piece of value 0 is the first, and one of value 1 the last: what lies beyond its inner end is constant anyway.
  points = np.where(levels == 0, values[ends], np.where(levels == 1, values[starts], means))
  return points.astype(x.dtype), levels.astype(x.dtype)
