"""Temperature scaling, for the likelihood or directly for a calibration error."""

from collections.abc import Callable
import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp

from calib_jax import _checks as checks
from calib_jax import losses, metrics
from calib_jax._numerics.lbfgs import shares
from calib_jax._numerics.softmax import tempered
from calib_jax._numerics.temperature import solve_nll
from calib_jax.calibrators.base import Calibrator, by_row, fit_by, has_params, keep_top, refuse_weights, register

Array = jax.Array
ArrayLike = jax.typing.ArrayLike

# The optima of calibration errors may be far from any sensible temperature: they are sought around the NLL's.
SEARCH_RANGE = 10.0
SEARCH_POINTS, SEARCH_LEVELS = 33, 4


def hard_binned_ece(logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None,
                    weights: ArrayLike | None = None, num_bins: int = 15, binning: str = "equal_mass",
                    norm: float | str = 1) -> Array:
  """``metrics.calibration_error`` of the top label, as a function of logits ``[N, K]`` and labels ``[N]``."""
  return metrics.expected_calibration_error(jax.nn.softmax(logits), labels, where=where, weights=weights,
                                            num_bins=num_bins, binning=binning, norm=norm)


OBJECTIVES: dict[str, Callable[..., Array] | None] = {
  "nll": None,
  "soft_binned_ece": functools.partial(losses.soft_binned_ece, form="bin"),
  "ece": hard_binned_ece,
}


@register
@has_params(temperature="(0, inf)")
def temperature_scaling(objective: str | Callable[..., Array] = "nll", *, num_bins: int | None = None,
                        norm: float | str | None = None, binning: str | None = None, form: str | None = None,
                        temperature: float | None = None) -> Calibrator:
  r"""Temperature scaling: ``log softmax(z / T)``, one T > 0 that minimises an objective on held-out data.

  Try it first: it has one number, keeps the accuracy, and needs few examples.

  Accuracy is unchanged. The mean NLL (Guo et al. 2017) is convex in 1/T and is minimised by safeguarded Newton steps,
  each of which reads the logits once, to the precision of float32. Where every one of n examples is right, its optimum
  is at 0, which would promise that no prediction is ever wrong: T then has the smallest NLL for labels mixed
  with equal probabilities, of weight 1/(n + 1), as Platt (1999) and structured scaling soften labels and probabilities.
  Where no T is better than uniform, T is the bound, 1e4 times the mean spread (top minus mean) of the logits. Both set
  ``at_bound``. Constant logits give T = 1. The other objectives need not be convex or smooth: they are evaluated at 33
  log-spaced temperatures within a factor of 10 of the NLL's, then between the neighbours of the best, four times in all
  (T to about 1e-4 relative).

  The paper does not print which form of the soft-binned error tunes T. Here it is ``form="bin"`` (Eq. 11), which
  vanishes for calibrated classifiers. The loss's own default, ``form="label"`` (Eq. 12), also counts the spread of
  confidences within a bin, and so prefers overconfident temperatures for very accurate classifiers.

  Args:
    objective: ``"nll"``; ``"soft_binned_ece"`` (TS-SB-ECE), that loss in its form "bin"; ``"ece"`` (TS-HB-ECE), the
      hard-binned error of the top label in 15 equal-mass bins, norm 1; or a function ``(logits, labels, *, where)``
      that returns a scalar.
    num_bins: number of bins of ``"soft_binned_ece"`` or ``"ece"``; None for the objective's default, here and below.
    norm: norm p of ``"soft_binned_ece"`` or ``"ece"``.
    binning: ``"equal_width"`` or ``"equal_mass"``, of ``"ece"``.
    form: ``"label"`` or ``"bin"``, of ``"soft_binned_ece"``.
    temperature: width of the soft bins of ``"soft_binned_ece"``, not of the calibrator.

  Returns:
    A calibrator whose params are the scalars ``temperature``, ``converged``, ``iterations`` and ``at_bound``, which
    says that the mean NLL has no optimum, or, of the other objectives, that their best T is at an end of the search.

  Raises:
    ValueError: for an unknown objective or an option out of range.
    TypeError: for an option that the objective does not have.

  References:
    Karandikar et al. 2021, Section 5.2 and Appendix C.

  >>> calibrator = temperature_scaling()
  >>> params = calibrator.fit(jnp.array([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0]]), jnp.array([0, 1, 1]))
  >>> params["temperature"].round(2), params["converged"]
  (Array(5.77, dtype=float32), Array(True, dtype=bool))
  >>> bool(jnp.allclose(jnp.exp(calibrator.apply(params, jnp.array([[4.0, 0.0]]))), jnp.array([[2 / 3, 1 / 3]])))
  True
  """
  options = {"num_bins": num_bins, "norm": norm, "binning": binning, "form": form, "temperature": temperature}
  chosen = {name: value for name, value in options.items() if value is not None}
  if not callable(objective) and (objective != "nll" or chosen):
    _check_options(objective, chosen)
  fit = fit_by(solve, of_counts=True, objective=objective, **chosen)
  return Calibrator(fit, by_row(_apply), "temperature_scaling", {"objective": objective, **chosen})


def _check_options(objective: str, options: dict) -> None:
  """Refuses an unknown objective, and options that it does not have."""
  checks.choice("objective", objective, OBJECTIVES)
  function = OBJECTIVES[objective]
  accepted = [] if function is None else [name for name in inspect.signature(function).parameters
                                          if name in ("num_bins", "norm", "binning", "form", "temperature")]
  for option in options:
    if option not in accepted:
      raise TypeError(f"objective {objective!r} has no option {option!r}; it has {', '.join(accepted) or 'none'}.")
  if function is not None:  # Wrong values are refused here, not in a fit.
    jax.eval_shape(functools.partial(function, **options), jnp.zeros((2, 2)), jnp.zeros(2, jnp.int32))


def solve(logits: Array, labels: Array, weights: Array, *, objective: str | Callable[..., Array], **options) -> dict:
  """The params of the best temperature, for example weights that are not divided by their sum."""
  params = solve_nll(logits, labels, shares(weights, logits.dtype), jnp.sum(weights, dtype=logits.dtype))
  if objective == "nll":
    return params
  value = bound_objective(objective if callable(objective) else OBJECTIVES[objective], weights, **options)
  best, evaluations = _search(lambda t: value(logits / t, labels), params["temperature"])
  factor = jnp.maximum(best / params["temperature"], params["temperature"] / best)
  return {"temperature": best, "iterations": params["iterations"] + evaluations, "converged": params["converged"],
          "at_bound": params["at_bound"] | (factor >= 0.999 * SEARCH_RANGE)}


def bound_objective(function: Callable[..., Array], weights: Array, **options: Any) -> Callable[[Array, Array], Array]:
  """``function`` of logits and labels, for the examples that count; weights are refused if it does not take any."""
  if weights.dtype != bool and "weights" in inspect.signature(function).parameters:
    options["weights"] = weights
  else:
    refuse_weights(weights, "this objective", "it counts examples, and has no argument weights")
  return functools.partial(function, where=weights.astype(bool), **options)


def _apply(params: dict, logits: Array) -> Array:
  return keep_top(jax.nn.log_softmax(tempered(logits, params["temperature"])), logits)


def start(logits: Array) -> dict[str, Array]:
  """The params before a fit, which change nothing."""
  return {"temperature": jnp.ones((), logits.dtype)}


def _search(objective: Callable[[Array], Array], centre: Array) -> tuple[Array, Array]:
  """Returns the best of log-spaced temperatures around ``centre``, at ever finer spacing, and how many it tried."""
  steps = jnp.linspace(-1, 1, SEARCH_POINTS, dtype=centre.dtype)

  def level(carry, _):
    middle, half, best, lowest = carry
    candidates = middle + half * steps
    values = jax.lax.map(lambda log_t: objective(jnp.exp(log_t)), candidates)
    i = jnp.argmin(values)
    better = values[i] < lowest
    best = jnp.where(better, candidates[i], best)
    return (best, half * 2 / (SEARCH_POINTS - 1), best, jnp.where(better, values[i], lowest)), None

  start = jnp.log(centre)
  half = jnp.log(jnp.asarray(SEARCH_RANGE, centre.dtype))
  (_, _, best, _), _ = jax.lax.scan(level, (start, half, start, objective(centre)), None, length=SEARCH_LEVELS)
  return jnp.exp(best), jnp.asarray(SEARCH_POINTS * SEARCH_LEVELS + 1, jnp.int32)
