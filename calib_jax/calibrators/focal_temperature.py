"""The focal calibration map as a calibrator, alone and after a temperature (Komisarenko & Kull 2024)."""

from collections.abc import Callable
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import _checks as checks
from calib_jax import losses, metrics
from calib_jax._numerics.lbfgs import minimize, shares
from calib_jax._numerics.softmax import one_hot, pick, predicted, relative_to_top, tempered, unmasked
from calib_jax._numerics.temperature import temperature_and_bound
from calib_jax.calibrators.base import Calibrator, by_row, fit_by, has_params, keep_top, nothing_to_fit, register
from calib_jax.calibrators.temperature import bound_objective
from calib_jax.focal_map import log_focal_map, log_weight

Array = jax.Array

# The grid of Section 5.1.
GAMMAS = (-0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)
TEMPERATURES = np.arange(1, 501) / 100
# The line search finds the best temperatures at two γ, in a coarse and a fine step, and then tries γ along the line.
LINE_GAMMAS = (-0.25, 0.75)
COARSE, FINE = 7, 5
ALONG = np.linspace(-0.5, 2.0, 12)
# The gradient search keeps γ + 1 within the first factor of 1, and T within the second factor of the NLL's T.
GAMMA_RANGE, TEMPERATURE_RANGE = math.log(10.0), math.log(100.0)


@register
@has_params()
def focal_calibration(gamma: float) -> Calibrator:
  r"""The focal calibration map :math:`\hat p_\gamma(\mathrm{softmax}(z))`, which has nothing to fit.

  It maps the best prediction of the focal loss to the true probability; an overconfident network becomes more so.

  It turns the outputs that minimise the focal loss of that γ into probabilities. Accuracy is unchanged.

  Args:
    gamma: γ of the focal loss that trained the model, above -1.

  Returns:
    A calibrator without params.

  Raises:
    ValueError, TypeError: if ``gamma`` is out of range or not a number.

  References:
    Komisarenko & Kull 2024, Eq. 1.

  >>> calibrator = focal_calibration(2.0)
  >>> params = calibrator.fit(jnp.zeros((1, 2)), jnp.array([0]))
  >>> jnp.exp(calibrator.apply(params, jnp.log(jnp.array([[0.6, 0.4]])))).round(2)
  Array([[0.75, 0.25]], dtype=float32)
  """
  checks.options(gamma=(gamma, "(-1, inf)"))
  return Calibrator(nothing_to_fit, by_row(lambda params, logits: keep_top(log_focal_map(logits, gamma), logits)),
                    "focal_calibration", {"gamma": gamma})


@register
@has_params(temperature="(0, inf)", gamma="(-1, inf)")
def focal_temperature_scaling(*, objective: str | Callable[..., Any] = "ece", search: str = "grid") -> Calibrator:
  r"""Focal temperature scaling: :math:`\hat p_\gamma(\mathrm{softmax}(z / T))`, with T and γ fitted.

  Use it to compare with temperature scaling after the focal loss; in our trainings it rarely had the lower log loss.

  Accuracy is unchanged. γ and T change probabilities in nearly the same way (1/T acts as γ + 1 does), so that pairs far
  apart may be equally good.

  Args:
    objective: what T and γ minimise: ``"ece"``, the error of the top label in 15 equal-mass bins, norm 1; ``"nll"``; or
      a batch loss ``(logits, labels, *, where)`` that returns a scalar and is given the mapped log-probabilities.
    search: ``"grid"`` tries all pairs of the nine γ of Section 5.1, from -0.5 to 5, and T from 0.01 to 5 in steps of
      0.01. ``"line"`` uses Section 5.2's observation that the best T is nearly linear in γ: it finds the best T at two
      γ, in a coarse and a fine step around the NLL's temperature, then tries 12 γ from -0.5 to 2 along the line through
      both, 36 evaluations in all. ``"gradient"`` runs L-BFGS from the NLL's temperature and γ = 0 to a local optimum
      with 0.1 <= γ + 1 <= 10 and T within a factor of 100 of that temperature; for ``"ece"`` it minimises
      ``losses.get("soft_binned_ece", form="bin")``, which is differentiable.

  Returns:
    A calibrator whose params are the scalars ``temperature``, ``gamma``, ``value`` of the objective, ``iterations``,
    the number of evaluations, ``converged`` and ``at_bound``. Where the grid's best T is the grid's first or last, this
    is True and ``converged`` is False; of other searches it is the NLL temperature's.

  Raises:
    ValueError: for an unknown objective or search.

  References:
    Komisarenko & Kull 2024, Sections 4.2 and 5.

  >>> calibrator = focal_temperature_scaling(search="line")
  >>> params = calibrator.fit(jnp.array([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0]]), jnp.array([0, 1, 1]))
  >>> params["iterations"], bool(params["temperature"] > 0)
  (Array(36, dtype=int32), True)
  """
  checks.choice("search", search, SEARCHES)
  if not callable(objective):
    checks.choice("objective", objective, ("ece", "nll"))

  options = {"objective": objective, "search": search}
  return Calibrator(fit_by(_solve, of_counts=True, **options), by_row(_apply), "focal_temperature_scaling", options)


def _solve(logits: Array, labels: Array, weights: Array, *, objective: str | Callable, search: str) -> dict:
  first = temperature_and_bound(logits, labels, shares(weights, logits.dtype))
  (temperature, gamma, value), status = SEARCHES[search](objective, logits, labels, weights, first["temperature"])
  return first | {"temperature": temperature, "gamma": gamma, "value": value} | status


def _apply(params: dict, logits: Array) -> Array:
  return keep_top(log_focal_map(tempered(logits, params["temperature"]), params["gamma"]), logits)


def objective_value(objective: str | Callable[..., Any], logits: Array, labels: Array,
                    weights: Array) -> Callable[[Array, Array], Array]:
  """Returns a function of T and of several γ ``[G]`` that gives the objective's values ``[G]``."""
  if callable(objective):
    loss = bound_objective(objective, weights)

    def of_function(temperature, gammas):
      log_q = jax.nn.log_softmax(logits / temperature)
      return jax.lax.map(lambda gamma: loss(log_focal_map(log_q, gamma), labels), gammas)

    return of_function
  if objective == "ece":
    error = bound_objective(metrics.calibration_error, weights, binning="equal_mass")
  relative, top = relative_to_top(logits), predicted(logits)
  of_label, correct = pick(relative, labels), top == labels
  # The top class, whose 1 - q may round to 0, is treated separately from the others, for which q <= 1/2.
  others = jnp.where(one_hot(top, logits) | (logits == -jnp.inf), -jnp.inf, relative)
  weights, tiny = shares(weights, logits.dtype), jnp.finfo(logits.dtype).tiny

  def values(temperature, gammas):
    exponentials = jnp.exp(others / temperature)
    rest = jnp.maximum(jnp.sum(exponentials, axis=-1), tiny)
    log_total = jnp.log1p(rest)
    # w(q) = q / ((1 - q)^γ (1 + γ r(q))): all but the power is the same for every γ.
    q = exponentials * jnp.exp(-log_total)[:, None]
    log_not, ratio = jnp.log1p(-q), q * (log_total[:, None] - unmasked(others) / temperature) / (1 - q)

    def of_gamma(gamma):
      mapped = jnp.sum(q * jnp.exp(-gamma * log_not) / (1 + gamma * ratio), axis=-1)
      log_top = log_weight(-log_total, jnp.log(rest) - log_total, gamma)
      odds = jnp.log(jnp.maximum(mapped, tiny)) - log_top
      if objective == "ece":
        return error(jax.nn.sigmoid(-odds), correct)
      log_label = jnp.where(correct, -1, of_label / temperature - log_total)
      of_others = log_top - log_weight(log_label, jnp.log1p(-jnp.exp(log_label)), gamma)
      return jnp.sum(weights * (jax.nn.softplus(odds) + jnp.where(correct, 0, of_others)))

    return jax.lax.map(of_gamma, gammas)

  return values


def _grid(objective, logits, labels, weights, start):
  del start
  value = objective_value(objective, logits, labels, weights)
  gammas, temperatures = (jnp.asarray(x, logits.dtype) for x in (GAMMAS, TEMPERATURES))
  values = jax.lax.map(lambda t: value(t, gammas), temperatures)
  best = jnp.argmin(values)
  at = best // len(GAMMAS), best % len(GAMMAS)
  inside = (at[0] > 0) & (at[0] < len(TEMPERATURES) - 1)
  status = _ended(values.size) | {"converged": inside, "at_bound": ~inside}
  return (temperatures[at[0]], gammas[at[1]], values[at]), status


def _line(objective, logits, labels, weights, start):
  value = objective_value(objective, logits, labels, weights)
  gammas = jnp.asarray(LINE_GAMMAS, logits.dtype)

  def best_of(gamma):
    def level(middle, steps):
      candidates = middle * jnp.exp(steps)
      values = jax.lax.map(lambda t: value(t, gamma[None])[0], candidates)
      best = jnp.argmin(values)
      return candidates[best], values[best]

    width = math.log(1.6)
    coarse, first = level(start * (1 + gamma), jnp.linspace(-width, width, COARSE, dtype=start.dtype))
    finer = width * 2 / (COARSE - 1)
    fine, second = level(coarse, finer * jnp.linspace(-1, 1, FINE + 2, dtype=start.dtype)[1:-1])
    return jnp.where(second <= first, fine, coarse), jnp.minimum(first, second)

  temperatures, ends = jax.lax.map(best_of, gammas)
  slope = (temperatures[1] - temperatures[0]) / (gammas[1] - gammas[0])
  along = jnp.asarray(ALONG, logits.dtype)
  on_line = jnp.maximum(temperatures[0] + slope * (along - gammas[0]), 0.1 * start)
  line_values = jax.lax.map(lambda at: value(at[0], at[1:])[0], jnp.stack([on_line, along], axis=1))
  every = [jnp.concatenate(x) for x in ((on_line, temperatures), (along, gammas), (line_values, ends))]
  best = jnp.argmin(every[2])
  return tuple(x[best] for x in every), _ended(2 * (COARSE + FINE) + len(ALONG))


def _ended(evaluations: int) -> dict[str, Array]:
  return {"converged": jnp.ones((), bool), "iterations": jnp.asarray(evaluations, jnp.int32)}


def _gradient(objective, logits, labels, weights, start):
  if objective == "ece":
    objective = functools.partial(losses.soft_binned_ece, form="bin")
  loss = bound_objective(objective, weights) if callable(objective) else None
  weights = shares(weights, logits.dtype)

  def parameters(steps):
    log_t, log_g = (r * jnp.tanh(x / r) for r, x in zip((TEMPERATURE_RANGE, GAMMA_RANGE), steps, strict=True))
    return start * jnp.exp(log_t), jnp.expm1(log_g)

  def value(steps):
    temperature, gamma = parameters(steps)
    log_probs = log_focal_map(tempered(logits, temperature), gamma)
    if objective == "nll":
      return -jnp.sum(weights * pick(log_probs, labels))
    return loss(log_probs, labels)

  steps, status = minimize(value, jnp.zeros(2, logits.dtype))
  return (*parameters(steps), value(steps)), status


SEARCHES: dict[str, Callable[..., Any]] = {"grid": _grid, "line": _line, "gradient": _gradient}
