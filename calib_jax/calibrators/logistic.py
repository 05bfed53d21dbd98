"""Platt, quadratic and beta calibration: logistic regressions for each class, or for the confidence alone."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax._numerics.lbfgs import shares
from calib_jax._numerics.logistic_regression import TOLERANCE, minimize_nll, nll
from calib_jax.calibrators.base import Calibrator, has_params, register
from calib_jax.calibrators.one_vs_rest import one_vs_rest

Array = jax.Array


@register
@has_params(scale="C (-inf, inf)", bias="C (-inf, inf)")
def platt(*, top_label: bool = False) -> Calibrator:
  r"""Platt scaling for every class: :math:`\sigma(a_c s_c + b_c)`, s the log-odds of p_c, renormalised.

  Use it for two classes, or for each class against the rest, with few examples.

  a and b minimise the mean NLL of 1[y = c], a convex problem, by Newton steps. Where s_c alone tells the examples of c
  from the others, or one of the two is absent, the optimum is at infinity, and would promise that no prediction is ever
  wrong: the n examples of c then count as (n + 1)/(n + 2), and m others as 1/(m + 2), where a weight counts as so many
  examples. It may change accuracy.

  Args:
    top_label: whether one function maps the confidence alone, as in ``isotonic``.

  Returns:
    A calibrator whose params are ``scale`` and ``bias`` ``[K]``, ``converged`` and ``iterations``, the most that a
    class took.

  References:
    Platt 1999, who smooths the targets in this way always.

  >>> calibrator = platt()
  >>> params = calibrator.fit(jnp.array([[3.0, 0.0], [3.0, 0.0], [0.0, 3.0], [0.0, 3.0]]), jnp.array([0, 1, 1, 0]))
  >>> jnp.exp(calibrator.apply(params, jnp.array([[9.0, 0.0]]))).round(2)
  Array([[0.5, 0.5]], dtype=float32)
  """
  return one_vs_rest("platt", _solve_platt, _platt, top_label=top_label, of_odds=True)


def _solve_platt(odds: Array, happened: Array, counts: Array) -> dict:
  return _by_column(lambda x, y, weights: _logistic(x[:, None], y, weights), odds, happened, counts,
                    names=("scale", "bias"), mirror=((0, 1), (1, -1)))


def _by_column(fit: Callable, odds: Array, happened: Array, counts: Array, *, names: Sequence[str],
               mirror: tuple[tuple[int, ...], tuple[int, ...]], may_fall: bool = True) -> dict[str, Any]:
  """The coefficients ``[K]`` by their ``names`` of ``fit`` to all columns ``[K, N]``, and how the fits ended."""
  # Two classes have opposite log-odds and events, so that one fit is enough: ``mirror`` says for each coefficient of
  # the second class which one of the first it is, and times what.
  columns = odds, _softened(odds, happened, counts, may_fall), jax.vmap(shares, in_axes=(0, None))(counts, odds.dtype)
  if len(odds) == 2:
    first, left, iterations = fit(*(x[0] for x in columns))
    order, sign = (np.array(x) for x in mirror)
    coefficients = jnp.stack([first, first[order] * sign.astype(left.dtype)])
  else:
    coefficients, left, iterations = jax.lax.map(lambda column: fit(*column), columns)
  return dict(zip(names, coefficients.T, strict=True)) | ended(left, iterations)


def _softened(odds: Array, happened: Array, counts: Array, may_fall: bool) -> Array:
  """``happened`` ``[K, N]``; Platt's targets for columns in which the log-odds tell the events from the others."""
  def bounds(of):
    return (jnp.min(odds, axis=1, where=of, initial=jnp.inf), jnp.max(odds, axis=1, where=of, initial=-jnp.inf),
            jnp.sum(counts.astype(odds.dtype), axis=1, where=of))

  least, most, events = bounds((happened == 1) & counts.astype(bool))
  least_other, most_other, others = bounds((happened == 0) & counts.astype(bool))
  rises = (most_other <= least) & (least_other < most)  # Even if some are equal.
  falls = (most <= least_other) & (least < most_other)
  is_separable = (events == 0) | (others == 0) | rises | (may_fall & falls)
  targets = jnp.where(happened == 1, ((events + 1) / (events + 2))[:, None], (1 / (others + 2))[:, None])
  return jnp.where(is_separable[:, None], targets, happened)


def ended(left: Array, iterations: Array) -> dict[str, Any]:
  """How the fits of all classes ended, from what is left to gain in each and how many iterations each took."""
  return {"converged": jnp.all(left <= TOLERANCE), "iterations": jnp.max(iterations)}


def _platt(params: dict, odds: Array) -> Array:
  return jax.nn.sigmoid(params["scale"][:, None] * odds + params["bias"][:, None])


@register
@has_params(a="C (-inf, inf)", b="C (-inf, inf)", c="C (-inf, inf)")
def quadratic_scaling(*, top_label: bool = False) -> Calibrator:
  r"""Quadratic scaling for every class: :math:`\sigma(a_c s_c + b_c s_c^2 + c_c)`, s the log-odds of p_c, renormalised.

  Use it where a sigmoid does not fit and there are too few examples for a free curve.

  a, b and c minimise the mean NLL of 1[y = c], a convex problem, by Newton steps, as ``platt`` does, with its targets
  where s_c tells the examples of c from the others. Where these lie on both sides of them, the optimum is at infinity,
  and the fit ends where less than 1e-6 nats are left to gain. With two classes it is one function of their log-odds. It
  need not rise, and may change accuracy.

  Args:
    top_label: whether one function maps the confidence alone, as in ``isotonic``.

  Returns:
    A calibrator whose params are ``a``, ``b`` and ``c`` ``[K]``, and ``converged`` and ``iterations`` as in ``platt``.

  References:
    Berta et al. 2026; it is ``BinaryLogisticCalibrator("quadratic")`` of their package probmetrics.

  >>> calibrator = quadratic_scaling()
  >>> logits = jnp.repeat(jnp.array([[3.0, 0.0], [2.0, 0.0], [-1.0, 0.0]]), 4, axis=0)
  >>> params = calibrator.fit(logits, jnp.array([0, 0, 0, 1, 0, 0, 1, 1, 1, 1, 1, 0]))
  >>> jnp.exp(calibrator.apply(params, logits[::4])).round(2)
  Array([[0.75, 0.25],
         [0.5 , 0.5 ],
         [0.25, 0.75]], dtype=float32)
  """
  return one_vs_rest("quadratic_scaling", _solve_quadratic, _quadratic, top_label=top_label, of_odds=True)


def _quadratic_features(odds: Array) -> Array:
  return jnp.stack([odds, odds**2], axis=-1)


def _solve_quadratic(odds: Array, happened: Array, counts: Array) -> dict:
  return _by_column(lambda x, y, weights: _logistic(_quadratic_features(x), y, weights, (1, 0)), odds, happened,
                    counts, names="abc", mirror=((0, 1, 2), (1, -1, -1)))


def _quadratic(params: dict, odds: Array) -> Array:
  slopes = jnp.stack([params["a"], params["b"]], axis=-1)
  return jax.nn.sigmoid(jnp.sum(_quadratic_features(odds) * slopes[:, None, :], axis=-1) + params["c"][:, None])


@register
@has_params(a="C [0, inf)", b="C [0, inf)", c="C (-inf, inf)")
def beta_calibration(*, top_label: bool = False) -> Calibrator:
  r"""Beta calibration for every class: :math:`\sigma(a_c \log p_c - b_c \log(1 - p_c) + c_c)`, renormalised.

  Use it where a sigmoid does not fit, because probabilities near 0 and 1 are off by other amounts.

  It rises with p_c, because a and b are at least 0. They and c minimise the mean NLL of 1[y = c], a convex problem: by
  Newton steps without the bounds, and, where the optimum violates them, on the bounds. Where every example of c has a
  higher p_c than the others, or one of the two is absent, the targets are as in ``platt``. It may change accuracy.

  Args:
    top_label: whether one function maps the confidence alone, as in ``isotonic``.

  Returns:
    A calibrator whose params are ``a``, ``b`` and ``c`` ``[K]``, and ``converged`` and ``iterations`` as in ``platt``.

  References:
    Kull et al. 2017.

  >>> calibrator = beta_calibration()
  >>> params = calibrator.fit(jnp.array([[3.0, 0.0], [3.0, 0.0], [0.0, 3.0], [0.0, 3.0]]), jnp.array([0, 1, 1, 0]))
  >>> jnp.exp(calibrator.apply(params, jnp.array([[9.0, 0.0]]))).round(2)
  Array([[0.5, 0.5]], dtype=float32)
  """
  return one_vs_rest("beta_calibration", _solve_beta, _beta, top_label=top_label, of_odds=True)


def _beta_features(odds: Array) -> Array:
  return jnp.stack([jax.nn.log_sigmoid(odds), jax.nn.softplus(odds)], axis=-1)


def _solve_beta(odds: Array, happened: Array, counts: Array) -> dict:
  faces = jnp.array([[1, 1], [0, 1], [1, 0], [0, 0]], odds.dtype)  # Which coefficients are free; of others, 0.

  def class_fit(x, y, weights):
    features = _beta_features(x)
    rows = jnp.concatenate([features, jnp.ones_like(features[:, :1])], axis=1)

    def fit(face):
      return _logistic(features * face[None, :], y, weights)

    def goes_on(state):
      # Where the optimum is at infinity, all of the NLL is left to gain, and a fit on the bounds may end at less.
      number, (at, left, _), values = state
      is_best = jnp.all(at[0, :2] >= 0) & (left[0] <= 1e-3 * values[0])
      return (number < 1) | ((number < len(faces)) & ~is_best)

    def add(state):
      number, fits, values = state
      new = fit(faces[number])
      return (number + 1, jax.tree.map(lambda all_of, x: all_of.at[number].set(x), fits, new),
              values.at[number].set(nll(rows, y, weights, new[0])))

    # A loop, which compiles one fit for the first face and the others.
    none = jax.tree.map(lambda x: jnp.zeros((len(faces), *x.shape), x.dtype), jax.eval_shape(fit, faces[0]))
    start = jnp.int32(0), none, jnp.full(len(faces), jnp.inf, y.dtype)
    number, fits, values = jax.lax.while_loop(goes_on, add, start)
    # A convex problem's optimum under the bounds is the best of the optima on their faces that satisfy them.
    best = jnp.argmin(jnp.where(jnp.all(fits[0][:, :2] >= 0, axis=1), values, jnp.inf))
    at, left, iterations = jax.tree.map(lambda x: x[jnp.where(number == 1, 0, best)], fits)
    return at, jnp.maximum(left, _gain_of_rising(features, y, weights, at)), iterations

  return _by_column(class_fit, odds, happened, counts, names="abc", mirror=((1, 0, 2), (1, 1, -1)), may_fall=False)


def _beta(params: dict, odds: Array) -> Array:
  coefficients = jnp.stack([params[name] for name in "abc"], axis=-1)
  return jax.nn.sigmoid(jnp.sum(_beta_features(odds) * coefficients[:, None, :2], axis=-1) + coefficients[:, 2:])


def _gain_of_rising(features: Array, y: Array, weights: Array, at: Array) -> Array:
  """How far the NLL could fall, to second order, if one coefficient rose from its bound 0 and the constant followed."""
  p = jax.nn.sigmoid(jnp.dot(features, at[:-1], precision="highest") + at[-1])
  curvature = weights * p * (1 - p)
  tiny = jnp.finfo(y.dtype).tiny
  centre = jnp.dot(curvature, features, precision="highest") / jnp.maximum(jnp.sum(curvature), tiny)
  centred = features - centre[None, :]
  slopes = jnp.dot(weights * (p - y), centred, precision="highest")
  gains = jnp.minimum(slopes, 0) ** 2 / (2 * jnp.maximum(jnp.dot(curvature, centred**2, precision="highest"), tiny))
  return jnp.max(gains)


def _logistic(features: Array, y: Array, weights: Array, slopes: tuple[int, ...] | None = None
              ) -> tuple[Array, Array, Array]:
  """``(coefficients [D + 1], what is left to gain, iterations)`` of the regression of ``y`` on ``features``."""
  # The features are centred and scaled to unit variance. Coefficients begin at ``slopes`` for the features as they
  # were, which is no calibration at all. Newton's steps from there may fail where the sigmoids are saturated, as those
  # of an overconfident model are; the fit then begins at those for the scaled features.
  centre = jnp.dot(weights, features, precision="highest")
  variance = jnp.dot(weights, (features - centre[None, :]) ** 2, precision="highest")
  constant = variance <= (jnp.finfo(y.dtype).eps * jnp.maximum(jnp.abs(centre), 1)) ** 2
  unit = jnp.where(constant, 1, jnp.sqrt(variance))
  rows = jnp.where(constant[None, :], 0, (features - centre[None, :]) / unit[None, :])
  rows = jnp.concatenate([rows, jnp.ones_like(rows[:, :1])], axis=1)
  start = jnp.where(constant, 0, jnp.ones_like(unit) if slopes is None else jnp.asarray(slopes, y.dtype))
  at, left, iterations = minimize_nll(rows, y, weights, jnp.append(start * unit, jnp.sum(start * centre)))
  at, left, more = jax.lax.cond(left <= TOLERANCE, lambda: (at, left, jnp.zeros_like(iterations)),
                                lambda: minimize_nll(rows, y, weights, jnp.append(start, 0)))
  slopes = at[:-1] / unit
  return jnp.append(slopes, at[-1] - jnp.dot(slopes, centre, precision="highest")), left, iterations + more
