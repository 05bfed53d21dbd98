"""Calibrators with a temperature for every class, or for every example from a small network."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from calib_jax import _checks as checks
from calib_jax._numerics.lbfgs import (
  TOLERANCE,
  least_squares,
  minimize,
  minimize_in_rounds,
  shares,
  weighted_nll,
)
from calib_jax._numerics.softmax import masked_as, tempered, unmasked
from calib_jax._numerics.temperature import RANGE, spread, temperature_and_bound
from calib_jax.calibrators.base import Calibrator, by_row, fit_by, has_params, keep_top, register

Array = jax.Array
LOG_RANGE = 3.0  # The temperatures of examples stay within a factor of e³ of temperature scaling's.

# What the params of a network are, whose sizes ``apply`` compares.
NETWORK = {"layer_#/kernel": "_ _ (-inf, inf)", "layer_#/bias": "_ (-inf, inf)"}


@register
@has_params(temperatures="K (0, inf)")
def class_temperature_scaling() -> Calibrator:
  r"""Class-based temperature scaling (CTS): :math:`\mathrm{softmax}(z_k / T_k)`, by NLL.

  Use it where classes are overconfident by different amounts and each has many examples.

  Every T_k is positive and within a factor of 1e4 of where the fit begins: at temperature scaling's T, or at ten times
  the mean of how far logits lie below the top one, if that is less. The problem is convex in 1/T_k. It may change
  accuracy.

  Returns:
    A calibrator whose params are ``temperatures`` ``[K]``, ``converged``, ``iterations``, ``gradient_norm``, in the
    solver's units, and ``at_bound``, of temperature scaling's T.

  References:
    Frenkel & Goldberger 2021; Jung et al. 2023, Eq. 15.

  >>> calibrator = class_temperature_scaling()
  >>> params = calibrator.fit(jnp.array([[4.0, 1.0], [4.0, 1.0], [1.0, 4.0]]), jnp.array([0, 1, 1]))
  >>> params["temperatures"].shape, bool(params["converged"])
  ((2,), True)
  """
  return Calibrator(fit_by(solve_classes), by_row(_apply_classes), "class_temperature_scaling")


def _apply_classes(params: dict, logits: Array) -> Array:
  return jax.nn.log_softmax(masked_as(unmasked(logits) / params["temperatures"][None, :], logits))


def start_classes(logits: Array) -> dict[str, Any]:
  """The params before a fit, which change nothing."""
  return {"temperatures": jnp.ones(logits.shape[-1], logits.dtype)}


def solve_classes(logits: Array, labels: Array, weights: Array) -> dict[str, Any]:
  """Minimises the weighted NLL by steps of each log(1 / T_k), in rounds, because their curvatures change on the way."""
  # With q = p (1 - p) the curvature of the NLL in a score s, that in log(1 / T_k) is near Σ q s_k² at the optimum.
  num_classes = logits.shape[1]
  first, finite = temperature_and_bound(logits, labels, weights), unmasked(logits)
  start = jnp.minimum(first["temperature"], 10 * spread(logits, weights))

  def round_from(params):
    factors = params["factors"]  # start / T_k.
    scaled = finite / start * factors[None, :]
    p = jax.nn.softmax(masked_as(scaled, logits))
    squares = jnp.sum(weights[:, None] * p * (1 - p) * scaled**2, axis=0) + least_squares(scaled, weights)
    unit = jax.lax.rsqrt(jnp.where(squares > 0, squares, 1))

    def parameters(steps):
      bound = jnp.log(jnp.asarray(RANGE, logits.dtype))
      return {"factors": jnp.exp(jnp.clip(jnp.log(factors) + unit * steps, -bound, bound))}

    def nll(steps):
      scores = finite / start * parameters(steps)["factors"][None, :]
      return weighted_nll(masked_as(scores, logits), labels, weights)

    return nll, parameters, jnp.zeros_like(factors)

  # Class-wise loss scaling compares the class losses of one fit with the next's, which needs a small tolerance.
  # Beyond 100 classes it grows with their number, because the rounding errors of all slopes add up in their norm.
  params, status = minimize_in_rounds(round_from, {"factors": jnp.ones(num_classes, logits.dtype)},
                                      tolerance=TOLERANCE / 1000 * max(1, num_classes / 100))
  return {"temperatures": start / params["factors"], "at_bound": first["at_bound"]} | status


@register
@has_params(temperature="(0, inf)", centre="I (-inf, inf)", unit="I (0, inf)", **NETWORK)
def parameterized_temperature_scaling(*, top_k: int = 10, hidden: int = 5, layers: int = 2,
                                      weight_decay: float = 0.002, seed: int = 0) -> Calibrator:
  r"""Parameterized temperature scaling (PTS): :math:`z / h_\theta(z_s)`, by mean NLL + weight_decay/2 ‖θ‖².

  Use it where the right temperature depends on the prediction.

  The inputs of the network are the ``top_k`` largest logits in descending order, each standardised; its units are tanh.
  Where a row has fewer classes, the inputs that it lacks are 0 once standardised, as their means are.
  Its output gives T = T₀ exp(3 tanh(output / 3)), which is positive and within a factor of e³ of T₀, temperature
  scaling's T, with which the fit begins. Accuracy is therefore unchanged. The problem is not convex: ``converged``
  certifies a local optimum.

  Args:
    top_k: number of inputs, at least 1; all logits if there are fewer.
    hidden: number of units of a hidden layer, at least 1.
    layers: number of hidden layers, at least 1.
    weight_decay: weight of the penalty on the network's parameters θ, at least 0; the default is from Jung et al.,
      whose released code never uses it.
    seed: seed of the initial weights.

  Returns:
    A calibrator whose params are ``temperature`` T₀, ``centre`` and ``unit`` of the inputs, ``layer_0`` … with
    ``kernel`` and ``bias``, ``converged``, ``iterations``, ``gradient_norm`` and ``at_bound``, of T₀.

  Raises:
    ValueError, TypeError: if an option is out of range or of another type.

  References:
    Tomani et al. 2022; Jung et al. 2023, Eq. 14.

  >>> calibrator = parameterized_temperature_scaling()
  >>> logits = jnp.array([[4.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 4.0]])
  >>> params = calibrator.fit(logits, jnp.array([0, 1, 1, 1]))
  >>> log_probs = calibrator.apply(params, logits)
  >>> bool((log_probs.argmax(-1) == logits.argmax(-1)).all())
  True
  """
  whole = "integer [1, inf)"
  checks.options(top_k=(top_k, whole), hidden=(hidden, whole), layers=(layers, whole),
                 weight_decay=(weight_decay, "[0, inf)"), seed=(seed, "integer (-inf, inf)"))
  options = {"top_k": top_k, "hidden": hidden, "layers": layers, "weight_decay": weight_decay, "seed": seed}
  return Calibrator(fit_by(solve_network, **options), by_row(_apply_network, top_k=top_k),
                    "parameterized_temperature_scaling", options)


def _apply_network(params: dict, logits: Array, *, top_k: int) -> Array:
  temperature = _temperatures(params, _largest(logits, top_k))[:, None]
  return keep_top(jax.nn.log_softmax(tempered(logits, temperature)), logits)


def _largest(logits: Array, top_k: int) -> Array:
  return jax.lax.top_k(checks.gathered(logits, -1), min(top_k, logits.shape[-1]))[0]


def start_network(logits: Array, *, top_k: int, hidden: int, layers: int, seed: int, **_: Any) -> dict[str, Any]:
  """The params before a fit: T is 1, the layers are random, and the last one is 0."""
  x = _largest(logits, top_k)
  units = standard(x, jnp.full(len(x), 1 / len(x), x.dtype))
  return {"temperature": jnp.ones((), x.dtype)} | units | start_layers((x.shape[1], *[hidden] * layers), seed, x.dtype)


def start_layers(sizes: tuple[int, ...], seed: int, dtype: Any) -> dict[str, Any]:
  """Random layers from one size to the next, and a last one from there to one output, which is 0."""
  kernels = [jax.random.normal(key, (fan_in, fan_out), dtype) / math.sqrt(fan_in) for key, fan_in, fan_out
             in zip(jax.random.split(jax.random.key(seed), len(sizes) - 1), sizes, sizes[1:], strict=False)]
  return {f"layer_{i}": {"kernel": kernel, "bias": jnp.zeros(kernel.shape[1], dtype)}
          for i, kernel in enumerate([*kernels, jnp.zeros((sizes[-1], 1), dtype)])}


def solve_network(logits: Array, labels: Array, weights: Array, start: dict[str, Any] | None = None, *, top_k: int,
                  weight_decay: float, **network: Any) -> dict[str, Any]:
  """The params of a local optimum of the weighted NLL and the penalty, from ``start`` or from new layers."""
  x = _largest(logits, top_k)
  start = start or start_network(logits, top_k=top_k, **network)
  fixed = standard(x, weights) | temperature_and_bound(logits, labels, weights)

  def objective(trained):
    scores = tempered(logits, _temperatures(fixed | trained, x)[:, None])
    nll = weighted_nll(scores, labels, weights)
    return nll + weight_decay / 2 * sum(jnp.sum(x**2) for x in jax.tree.leaves(trained))

  # The weight decay leaves directions of little curvature, along which a small gradient may be far from the optimum:
  # with ten times this tolerance, one fit of ten ended 1% above it.
  layers = {name: layer for name, layer in start.items() if name.startswith("layer_")}
  trained, status = minimize(objective, layers, tolerance=TOLERANCE / 1000)
  return fixed | trained | status


def _temperatures(params: dict, x: Array) -> Array:
  """The temperature of each row of inputs ``[N, k]``."""
  return params["temperature"] * jnp.exp(LOG_RANGE * jnp.tanh(output(params, x) / LOG_RANGE))


def output(params: dict[str, Any], x: Array) -> Array:
  """The output ``[N]`` of the network of tanh units for inputs ``[N, k]``, standardised; infinite ones become 0."""
  absent = jnp.isinf(x)
  x = (jnp.where(absent, params["centre"][None, :], x) - params["centre"][None, :]) / params["unit"][None, :]
  for i in range(sum(name.startswith("layer_") for name in params)):
    x = jnp.dot(jnp.tanh(x) if i else x, params[f"layer_{i}"]["kernel"], precision="highest")
    x = x + params[f"layer_{i}"]["bias"][None, :]
  return x[:, 0]


def standard(x: Array, weights: Array) -> dict[str, Array]:
  """The means and deviations of the finite inputs ``[N, k]``, which are not trained."""
  share, absent = shares(weights, x.dtype), jnp.isinf(x)
  mean = functools.partial(jnp.dot, share, precision="highest")
  mass = jnp.maximum(1 - mean(absent.astype(x.dtype)), jnp.finfo(x.dtype).tiny)
  centre = mean(jnp.where(absent, 0, x)) / mass
  unit = jnp.sqrt(mean(jnp.where(absent, 0, x - centre[None, :]) ** 2) / mass)
  return {"centre": centre, "unit": jnp.where(unit > 0, unit, 1)}
