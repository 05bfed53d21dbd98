"""Spline calibration: a smooth function of the log-odds for every class, or for the confidence alone."""

import jax
import jax.numpy as jnp

from calib_jax._numerics.lbfgs import shares
from calib_jax._numerics.logistic_regression import minimize_nll
from calib_jax.calibrators.base import Calibrator, has_params, register
from calib_jax.calibrators.logistic import ended
from calib_jax.calibrators.one_vs_rest import one_vs_rest

Array = jax.Array
PENALTIES = tuple(10.0**-i for i in range(8))  # From the largest, nearly Platt scaling, so that ties go to it.
# The least distance of two knots, as a share of their span, and as one of the largest log-odds, beyond rounding.
GAP, ROUNDING = 1e-3, 1e-5
NUM_KNOTS, FOLDS = 10, 5


@register
@has_params(knots="C _ (-inf, inf) rising", level="C (-inf, inf)", slope="C (-inf, inf)", curvature="C B (-inf, inf)")
def spline_calibration(*, top_label: bool = False) -> Calibrator:
  r"""Spline calibration for every class: :math:`\sigma(f_c(s_c))`, s the log-odds of p_c, renormalised.

  Use it for a smooth rising or falling curve whose freedom the data choose.

  Each f is a natural cubic spline, which is linear beyond its first and last knot. With u the log-odds in units of the
  distance between these knots, f minimises the mean NLL of 1[y = c] plus a penalty on its curvature,

  .. math:: J(f) = \frac{1}{N} \sum_i -\log p(y_i \mid f(s_i)) + \frac{\lambda}{2} \int f''(u)^2 du,

  a convex problem, by Newton steps. Each class's λ has the lowest NLL by cross-validation in 5 folds, of 1, 0.1, …,
  1e-7; a large λ gives Platt scaling. The function need not rise, and may change accuracy.

  Unlike the released code (splinecalib 0.0.13), nothing is random: the M = 10 knots are quantiles at levels
  (j - 1/2) / M, in which events and non-events weigh alike, and examples of equal log-odds share a fold, to which their
  rank modulo 5 assigns them. The released code draws 30 knots from the data and adds nine. It penalises the squared
  coefficients of truncated powers, the constant and the slope among them, which pulls the function towards 1/2 and
  depends on the basis; to make up for it, it adds 20 artificial examples on the diagonal. It chooses λ on one fold, and
  its last fit leaves that fold out.

  Args:
    top_label: whether one function maps the confidence alone, as in ``isotonic``.

  Returns:
    A calibrator whose params are ``knots`` ``[K, M]``; ``level`` and ``slope`` ``[K]``, the value of f at the first
    knot and its slope there; ``curvature`` ``[K, M - 2]``, f'' at the inner knots; ``penalty`` ``[K]``; ``converged``;
    and ``iterations``, the most that the last fit of a class took.

  References:
    Lucena 2018.

  >>> calibrator = spline_calibration()
  >>> logits = jnp.tile(jnp.array([[4.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 4.0]]), (3, 1))
  >>> params = calibrator.fit(logits, jnp.array([0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 1, 0]))
  >>> params["curvature"].shape, bool(params["converged"])
  ((2, 8), True)
  """
  return one_vs_rest("spline_calibration", _solve, _spline, top_label=top_label, of_odds=True)


def _solve(odds: Array, happened: Array, counts: Array) -> dict:
  weights = jax.vmap(shares, in_axes=(0, None))(counts, odds.dtype)

  def class_fit(column):
    x, y, weights = column
    knots = _knots(x, y, weights)
    span = knots[-1] - knots[0]
    rows, to_curvature = _features((x - knots[0]) / span, (knots - knots[0]) / span)
    chosen, at, left, iterations = _path(rows, y, weights, _fold(x, weights))
    return {"knots": knots, "level": at[0], "slope": at[1] / span, "curvature": to_curvature(at[2:]) / span**2,
            "penalty": chosen}, left, iterations

  params, left, iterations = jax.lax.map(class_fit, (odds, happened, weights))
  return params | ended(left, iterations)


def _spline(params: dict, odds: Array) -> Array:
  def of_class(knots, level, slope, curvature, x):
    return level + slope * (x - knots[0]) + jnp.sum(ramps(x, knots) * curvature[None, :], axis=-1)

  return jax.nn.sigmoid(jax.vmap(of_class)(*(params[name] for name in ("knots", "level", "slope", "curvature")), odds))


def ramps(x: Array, knots: Array) -> Array:
  """The splines ``[N, M - 2]`` that are 0 left of an inner knot and whose second derivative is its hat function."""
  # Together with 1 and x they span the natural cubic splines, with factors that are second derivatives at the knots.
  left, middle, right = knots[None, :-2], knots[None, 1:-1], knots[None, 2:]
  x = x[:, None]
  before = jnp.clip(x - left, 0, middle - left) ** 3 / (6 * (middle - left))
  after = jnp.clip(right - x, 0, right - middle) ** 3 / (6 * (right - middle))
  return jnp.where(x < middle, before, (right - left) / 2 * (x - (left + middle + right) / 3) + after)


def _features(x: Array, knots: Array):
  """``(rows [N, M], to_curvature)``: 1, x and combinations of ramps whose coefficients θ have the penalty ‖θ‖² / 2."""
  # With R the products of the hat functions, the penalty is cᵀ R c / 2 for the curvatures c; R = L Lᵀ and θ = Lᵀ c.
  width = jnp.diff(knots)
  root = jnp.linalg.cholesky(jnp.diag((width[1:] + width[:-1]) / 3) + jnp.diag(width[1:-1] / 6, 1)
                             + jnp.diag(width[1:-1] / 6, -1))
  solve = jax.scipy.linalg.solve_triangular
  combined = solve(root, ramps(x, knots).T, lower=True).T
  return (jnp.concatenate([jnp.stack([jnp.ones_like(x), x], axis=1), combined], axis=1),
          lambda theta: solve(root, theta, lower=True, trans=1))


def _knots(x: Array, y: Array, weights: Array) -> Array:
  """Quantiles of ``x`` in which events and non-events weigh alike, moved apart where they coincide."""
  sides = jnp.stack([weights * y, weights * (1 - y)])
  masses = jnp.sum(jax.vmap(shares, in_axes=(0, None))(sides, x.dtype), axis=0)
  order = jnp.argsort(jnp.where(weights > 0, x, jnp.inf))
  ordered, ranks = x[order], jnp.cumsum(masses[order])
  levels = (jnp.arange(NUM_KNOTS, dtype=x.dtype) + 0.5) / NUM_KNOTS * ranks[-1]
  # A level that sums of masses reach but for rounding lies between two examples, whatever order rows come in.
  near = 8 * jnp.finfo(x.dtype).eps * ranks[-1]
  at = [ordered[jnp.clip(jnp.searchsorted(ranks, levels + sign * near, side=side), 0, len(x) - 1)]
        for sign, side in ((-1, "left"), (1, "right"))]
  quantiles = (at[0] + at[1]) / 2
  gap = jnp.maximum(GAP * (quantiles[-1] - quantiles[0]), ROUNDING * jnp.maximum(1, jnp.max(jnp.abs(quantiles))))
  offsets = gap * jnp.arange(NUM_KNOTS, dtype=x.dtype)
  return jax.lax.cummax(quantiles - offsets) + offsets


def _fold(x: Array, weights: Array) -> Array:
  """The fold of each example: its rank modulo ``FOLDS``, where equal values have the same rank."""
  order = jnp.argsort(jnp.where(weights > 0, x, jnp.inf))
  ordered = x[order]
  # Equal rows may differ by a rounding error, as vector and scalar instructions round differently.
  is_new = jnp.diff(ordered) > 8 * jnp.finfo(x.dtype).eps * jnp.maximum(1, jnp.abs(ordered[1:]))
  rank = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(is_new, dtype=jnp.int32)])
  return jnp.zeros(len(x), jnp.int32).at[order].set(rank % FOLDS)


def _path(rows: Array, y: Array, weights: Array, fold: Array) -> tuple[Array, ...]:
  """``(penalty, coefficients [M], what is left to gain, iterations)`` of the fit to all by the best penalty."""
  # Each fit begins where the fit of the penalty before ended. The last of the fits holds out no example.
  is_held_out = fold[None, :] == jnp.arange(FOLDS + 1, dtype=jnp.int32)[:, None]
  training = jax.vmap(shares, in_axes=(0, None))(jnp.where(is_held_out, 0, weights), y.dtype)
  held_out = jnp.where(is_held_out, weights, 0)

  def next_penalty(starts, penalty):
    ridge = jnp.where(jnp.arange(rows.shape[1]) < 2, 0, penalty)
    at, left, iterations = jax.vmap(minimize_nll, in_axes=(None, None, 0, 0, None))(rows, y, training, starts, ridge)
    scores = jnp.dot(rows, at.T, precision="highest")
    nll = jnp.sum(held_out.T * (jax.nn.softplus(scores) - y[:, None] * scores))
    return at, (nll, penalty, at[-1], left[-1], iterations[-1])

  start = jnp.zeros((FOLDS + 1, rows.shape[1]), y.dtype)
  _, (nll, *fits) = jax.lax.scan(next_penalty, start, jnp.asarray(PENALTIES, y.dtype))
  best = jnp.argmin(jnp.where(jnp.isfinite(nll), nll, jnp.inf))
  return tuple(x[best] for x in fits)
