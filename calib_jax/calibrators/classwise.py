"""Class-wise loss scaling (Jung et al. 2023): fits in which classes of larger loss have larger weights."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics.softmax import pick
from calib_jax._numerics.temperature import solve_nll
from calib_jax.calibrators import ensemble, flexible, temperature
from calib_jax.calibrators.base import Calibrator, fit_by, has_params, register, wrapped

Array = jax.Array
# The starting α and β of Eq. 5 and the length of the first gradient step, as in the released code.
ALPHA, BETA, STEP = 1.0, 1.5, 0.02
ALPHA_LEAST, BETA_MOST = 0.1, 2.0
MAX_ROUNDS, TOLERANCE = 50, 2e-3
NORMALIZATIONS = ("standard", "minmax", "centered")
CLASS_LOSSES = ("mean", "sum")


@register
@has_params(alpha="(-inf, inf)", beta="(-inf, inf)", class_weights="K (-inf, inf)")
def classwise_loss_scaling(base: str | Calibrator = "temperature_scaling", *, normalization: str = "standard",
                           class_loss: str = "mean", **base_options: Any) -> Calibrator:
  r"""Class-wise loss scaling around temperature, ensemble, parameterized or class temperature scaling.

  Use it for long-tailed data, where the fit would follow frequent classes alone.

  .. math::
    L = \sum_c (1 + w_c)\, L_c, \qquad w_c = \frac{\beta}{1 + e^{-\bar L_c / \alpha}} - \frac{\beta}{2}

  :math:`L_c` is the NLL of class c (Eq. 3), and :math:`\bar L` are the losses normalised over the classes that occur.
  As in the released code, the weights w follow the losses without a gradient: the fit ends where the base, fitted with
  the weights w, has the losses that give w. α and β minimise Eq. 6 within [0.1, max(0.1, ln(K)/2)] × [1.5, 2], with L⁰
  at the base's starting parameters and L¹ after one gradient step of length 0.02 min(1, 1/‖g‖₁). Accuracy is unchanged
  if the base leaves it unchanged. Where every example is right, temperature and ensemble temperature scaling soften the
  labels here too.

  Args:
    base: the base calibrator: the name of one of the four, or one that its factory made.
    normalization: how the losses are normalised: ``"standard"``, minus the mean, divided by the standard deviation with
      ddof 1 (Eq. 9); ``"minmax"``, minus the smallest, divided by the range (Eq. 10); or ``"centered"``, minus the
      mean, divided by the range (Eq. 11). Equal losses, and classes that do not occur, have weight 0.
    class_loss: how the NLL of a class's examples becomes :math:`L_c`: ``"mean"``, as in the released code, or
      ``"sum"``, as Eq. 3 is printed. Sums differ with the numbers of examples more than with how well classes are
      fitted, so that frequent classes get the large weights, where the method means those that are fitted badly.
    **base_options: options of a base chosen by name.

  Returns:
    A calibrator whose params are the base's, ``alpha``, ``beta``, ``class_weights`` w ``[K]``, ``rounds``, the
    number of fits of the base, and ``converged``: the weights moved by less than 2e-3 in the last round, and the base
    converged in it.

  Raises:
    ValueError: for an unknown base, normalization or class loss, or a base that is not fitted by a mean NLL.
    TypeError: for options beside a base that is a calibrator already.

  References:
    Jung et al. 2023, Eqs. 3-8 and 9-11.

  >>> calibrator = classwise_loss_scaling("temperature_scaling")
  >>> logits = jnp.tile(jnp.array([[4.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 4.0]]), (3, 1))
  >>> params = calibrator.fit(logits, jnp.array([0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 1, 0]))
  >>> bool(params["converged"]), params["class_weights"].shape
  (True, (2,))
  """
  checks.options(normalization=(normalization, NORMALIZATIONS), class_loss=(class_loss, CLASS_LOSSES))
  if isinstance(base, str):
    checks.choice("base", base, BASES)
  base = wrapped(base, base_options)
  if base.name not in BASES or base.options.get("objective", "nll") != "nll":
    raise ValueError(f"base must be fitted by a mean NLL, as {', '.join(BASES)} are: got another calibrator.")
  options = {"base": base, "normalization": normalization, "class_loss": class_loss}
  return Calibrator(fit_by(_solve, of_counts=True, **options), base.apply, "classwise_loss_scaling", options)


# Of each base, its params before a fit, from the logits and its options, and with the smallest weighted NLL. The
# rounds below call the latter in place of ``base.fit(weights=…)``, which would mask the logits again in each of them,
# give a network's NLL another share beside its penalty, and begin its layers anew, so that the weights need not
# settle.
BASES: dict[str, Any] = {
  "temperature_scaling": (temperature.start, solve_nll),
  "ensemble_temperature_scaling": (ensemble.start, ensemble.solve),
  "parameterized_temperature_scaling": (flexible.start_network, flexible.solve_network),
  "class_temperature_scaling": (flexible.start_classes, flexible.solve_classes),
}


def start(base: Calibrator, logits: Array) -> dict[str, Any]:
  """The params of a base before its fit."""
  return BASES[base.name][0](logits, **_options(base))


def _options(base: Calibrator) -> dict:
  return {option: value for option, value in base.options.items() if option != "objective"}  # It is the NLL.


def _solve(logits: Array, labels: Array, weights: Array, *, base: Calibrator, normalization: str,
           class_loss: str) -> dict:
  weights = weights.astype(logits.dtype)
  counts = jnp.zeros(logits.shape[1], logits.dtype).at[labels].add(weights)
  occurs = counts > 0
  # L_c is the sum over class c of shares times NLL.
  shares = weights / jnp.where(occurs, counts, 1)[labels] if class_loss == "mean" else weights
  number = jnp.sum(occurs).astype(logits.dtype) if class_loss == "mean" else jnp.sum(counts)
  number = jnp.where(number > 0, number, 1)  # The bases' fits take weights whose sum is 1 where all w are 0.

  def class_losses(params):
    losses = -pick(base.apply(params, logits), labels)
    return jnp.zeros_like(counts).at[labels].add(shares * losses)

  def weights_of(losses, alpha, beta):
    return class_weights(_normalized(losses, occurs, normalization), occurs, alpha, beta)

  def solve(w, params):
    # From the last round's layers: a fit that began anew might end in another optimum, and the weights not settle.
    more = {"parameterized_temperature_scaling": {"start": params}, "class_temperature_scaling": {}}.get(
      base.name, {"count": jnp.sum(counts)})
    return BASES[base.name][1](logits, labels, (1 + w)[labels] * shares / number, **more, **_options(base))

  first = start(base, logits)
  before = class_losses(first)
  scale = 1 + weights_of(before, ALPHA, BETA)
  after = class_losses(_first_step(lambda params: jnp.sum(scale * class_losses(params)), first))
  alpha, beta = scaling_parameters(before, after, occurs, normalization)

  def unfinished(carry):
    _, _, moved, rounds = carry
    return (moved > TOLERANCE) & (rounds < MAX_ROUNDS)

  def step(carry):
    w, params, _, rounds = carry
    params = solve(w, params)
    moved = weights_of(class_losses(params), alpha, beta) - w
    # Steps are a quarter of the way: as a class's weight rises its loss falls, so that whole steps would oscillate.
    return w + moved / 4, params, jnp.max(jnp.abs(moved)), rounds + 1

  w = weights_of(before, alpha, beta)
  shapes = jax.eval_shape(solve, w, first)
  params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes) | first
  w, params, moved, rounds = jax.lax.while_loop(
    unfinished, step, (w, params, jnp.asarray(jnp.inf, w.dtype), jnp.zeros((), jnp.int32)))
  return params | {"alpha": alpha, "beta": beta, "class_weights": w, "rounds": rounds,
                   "converged": params["converged"] & (moved <= TOLERANCE)}


def _first_step(loss: Callable[[dict], Array], start: dict) -> dict:
  """The parameters after one gradient step of length 0.02 min(1, 1/‖g‖₁)."""
  gradient = jax.grad(loss)(start)
  norm = sum(jnp.sum(jnp.abs(g)) for g in jax.tree.leaves(gradient))
  length = STEP * jnp.minimum(1, 1 / jnp.where(norm > 0, norm, 1))
  return jax.tree.map(lambda p, g: p - length * g, start, gradient)


def class_weights(normalized: Array, occurs: Array, alpha: ArrayLike, beta: ArrayLike) -> Array:
  """The weights w of Eq. 5: between -β/2 and β/2; 0 for classes that do not occur."""
  return jnp.where(occurs, beta * (jax.nn.sigmoid(normalized / alpha) - 0.5), 0)


def _normalized(losses: Array, occurs: Array, normalization: str) -> Array:
  """Eqs. 9-11 over the classes that occur; 0 where all losses are equal."""
  count = jnp.sum(occurs).astype(losses.dtype)
  mean = jnp.sum(losses, where=occurs) / jnp.maximum(count, 1)
  least = jnp.min(losses, where=occurs, initial=jnp.inf)
  spread = jnp.max(losses, where=occurs, initial=-jnp.inf) - least
  if normalization == "standard":
    unit = jnp.sqrt(jnp.sum((losses - mean) ** 2, where=occurs) / jnp.maximum(count - 1, 1))
  else:
    unit = spread
  # Differences as small as rounding errors count as none. A loss below 1 is a difference of larger numbers, and has the
  # rounding errors of these.
  differ = occurs & (spread > 8 * jnp.finfo(losses.dtype).eps * jnp.maximum(jnp.abs(mean), 1))
  origin = least if normalization == "minmax" else mean
  return jnp.where(differ, losses - origin, 0) / jnp.where(jnp.any(differ), unit, 1)


def scaling_parameters(before: Array, after: Array, occurs: Array, normalization: str) -> tuple[Array, Array]:
  """``(α, β)`` that minimise Eq. 6 in their box, from the class losses before and after the first step."""
  # The objective is quadratic in β, whose best value for any α is known; α is found on grids, each finer than the one
  # before. The paper's SLSQP finds the same, or a worse local optimum.
  mean = jnp.sum(after, where=occurs) / jnp.maximum(jnp.sum(occurs), 1).astype(after.dtype)
  normalized = _normalized(after, occurs, normalization)
  offset = jnp.where(occurs, before - mean, 0)
  top = jnp.maximum(jnp.log(jnp.asarray(len(after), after.dtype)) / 2, ALPHA_LEAST)

  def best_beta(alpha):
    slope = class_weights(normalized, occurs, alpha, 1.0) * (after - before)
    square = jnp.sum(slope**2)
    beta = jnp.clip(jnp.sum(slope * offset) / jnp.where(square > 0, square, 1), BETA, BETA_MOST)
    return jnp.where(square > 0, beta, BETA), jnp.sum((offset - beta * slope) ** 2)

  def level(carry, _):
    low, high = carry
    grid = low + (high - low) * jnp.linspace(0, 1, 65, dtype=after.dtype)
    best = jnp.argmin(jax.vmap(best_beta)(grid)[1])
    return (grid[jnp.maximum(best - 1, 0)], grid[jnp.minimum(best + 1, 64)]), grid[best]

  _, alphas = jax.lax.scan(level, (jnp.asarray(ALPHA_LEAST, after.dtype), top), None, length=4)
  return alphas[-1], best_beta(alphas[-1])[0]
