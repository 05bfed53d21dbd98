"""The fits of Table 2 of Jung et al. 2023: to the optimum, and by the steps that the paper took.

The objectives are the mean NLL ("base"), the NLL of labels smoothed by 0.05 ("LS"), the focal loss with γ = 3 ("FL"),
class-wise loss scaling ("CLS") and, which the paper lacks, the NLL with equal weight for every class ("balanced").
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from calib_jax import calibrators, losses
from calib_jax._numerics.lbfgs import TOLERANCE, minimize
from calib_jax.calibrators import classwise

Array = jax.Array
BASES = {
  "TS": calibrators.get("temperature_scaling"),
  "ETS": calibrators.get("ensemble_temperature_scaling"),
  "PTS": calibrators.get("parameterized_temperature_scaling"),
  "CTS": calibrators.get("class_temperature_scaling"),
}
SCALED = {name: calibrators.get("classwise_loss_scaling", base=base) for name, base in BASES.items()}
OBJECTIVES = ("base", "LS", "FL", "CLS", "balanced")
SMOOTHING, GAMMA = 0.05, 3.0  # Section 5.3.
WEIGHT_DECAY = 0.002  # That of PTS.
MAX_ITERATIONS = 500

# The paper's fits start at T = 1 and take L-BFGS steps of fixed length. Each pair is a rate and the largest number of
# steps at that rate (Section 5.3). All have three pairs, so that the fits of an objective share a compiled program.
STEPS = {"base": ((0.02, 1000), (0, 0), (0, 0)), "CLS": ((0.02, 1000), (0, 0), (0, 0))}
STEPS["LS"] = STEPS["FL"] = ((0.005, 200), (0.003, 400), (0.001, 400))
FIRST_STEP, GRADIENT_TOLERANCE, CHANGE_TOLERANCE = 0.02, 1e-7, 1e-9
TO_THE_OPTIMUM = ((0.5, 200), (0, 0), (0, 0))
MEMORY, MOST_STEPS = 100, 1000
# Eq. 13, the ensemble of logits; its temperature is fitted before its weights.
# The paper's PTS has the numbers of one temperature at its optimum, and stands here for that: a network of two ReLUs a
# layer from PyTorch's random initialisation, fitted by Adam, cannot be repeated without its random numbers.
STEPPED = {"TS": (BASES["TS"], ("temperature",)), "PTS": (BASES["TS"], ("temperature",)),
           "ETS": (calibrators.get("ensemble_temperature_scaling", space="logits"), ("temperature", "weights")),
           "CTS": (BASES["CTS"], ("temperatures",))}


def converged(calibrator: str, objective: str, logits: Array, labels: Array) -> tuple[calibrators.Calibrator, dict]:
  """The calibrator, and its params at the optimum of the objective, which say whether it is one (``converged``)."""
  if calibrator == "none":
    return calibrators.get("identity"), {}
  base = BASES[calibrator]
  if objective == "CLS":
    return SCALED[calibrator], SCALED[calibrator].fit(logits, labels)
  if objective in ("base", "balanced"):
    weights = np.full(len(labels), 1 / len(labels))
    if objective == "balanced":
      weights = 1 / (np.bincount(labels, minlength=logits.shape[1])[labels] * logits.shape[1])
    return base, base.fit(logits, labels, weights=weights)
  return base, _minimized(calibrator, objective, logits, labels)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _minimized(calibrator: str, objective: str, logits: Array, labels: Array) -> dict:
  """The params that minimise the smoothed NLL or the focal loss, by the library's solver from the base's start."""
  base = BASES[calibrator]
  start = classwise.start(base, logits)
  # The inputs of the network of PTS are standardised as at the start, and its T₀ stays 1.
  fixed = {name: start.pop(name) for name in ("centre", "unit", "temperature") if calibrator == "PTS"}
  # Temperatures are fitted as logarithms, and a softmax keeps the weights of ETS on the simplex.
  made = {"temperature": jnp.exp, "temperatures": jnp.exp, "weights": jax.nn.softmax}
  start |= {name: jnp.zeros_like(x) for name, x in start.items() if name in made}

  def params(trained):
    return fixed | {name: made[name](x) if name in made else x for name, x in trained.items()}

  def value(trained):
    mean = jnp.mean(_losses(objective, base.apply(params(trained), logits), labels))
    return mean + (WEIGHT_DECAY / 2 * optax.tree.norm(trained, squared=True) if calibrator == "PTS" else 0)

  tolerance = TOLERANCE / 10 if calibrator == "PTS" else TOLERANCE / 1000
  trained, status = minimize(value, start, tolerance=tolerance, max_iterations=MAX_ITERATIONS)
  return params(trained) | status


def _losses(objective: str, log_probs: Array, labels: Array, *, stop_gradient: bool = False) -> Array:
  """The loss of each example. The paper's code stops the gradient of the focal factor."""
  if objective == "FL":
    return losses.focal(log_probs, labels, gamma=GAMMA, stop_gradient=stop_gradient)
  return losses.cross_entropy(log_probs, labels, label_smoothing=SMOOTHING if objective == "LS" else 0.0)


def class_losses(log_probs: Array, labels: Array) -> Array:
  """The mean NLL of each class, ``[K]`` (Eq. 3 as released)."""
  counts = jnp.bincount(labels, length=log_probs.shape[1]).astype(log_probs.dtype)
  return jnp.zeros_like(counts).at[labels].add(losses.cross_entropy(log_probs, labels)) / counts


def stepped(calibrator: str, objective: str, logits: Array, labels: Array, num_rates: int = 3) -> dict:
  """The params after the paper's steps, of all rates or of the first few, and what ``_stepped`` says of the steps."""
  steps = TO_THE_OPTIMUM if calibrator == "PTS" else STEPS[objective][:num_rates] + ((0, 0),) * (3 - num_rates)
  rates, most = zip(*steps, strict=True)
  return _stepped(*STEPPED[calibrator], objective, logits, labels, np.array(rates, logits.dtype), np.array(most))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _stepped(base: calibrators.Calibrator, names: tuple[str, ...], objective: str, logits: Array, labels: Array,
             rates: Array, most: Array) -> dict:
  """The params after at most so many steps at each of the ``rates``, a name after the other; and how they came."""
  occurs = jnp.bincount(labels, length=logits.shape[1]) > 0

  def of_classes(params):
    return class_losses(base.apply(params, logits), labels)

  def scaled(params, alpha, beta):
    each = of_classes(params)
    fixed = jax.lax.stop_gradient(each)
    normalized = (fixed - jnp.mean(fixed)) / jnp.std(fixed, ddof=1)
    return jnp.sum((1 + classwise.class_weights(normalized, occurs, alpha, beta)) * each)

  def value(params, alpha, beta):
    if objective == "CLS":
      return scaled(params, alpha, beta)
    return jnp.mean(_losses(objective, base.apply(params, logits), labels, stop_gradient=True))

  params, alpha, beta = classwise.start(base, logits), 1.0, 1.5
  if objective == "CLS":  # α and β are those of the first step.
    gradient = jax.grad(lambda x: scaled(params | {names[0]: x}, alpha, beta))(params[names[0]])
    after = params | {names[0]: params[names[0]] - FIRST_STEP * _shortened(gradient) * gradient}
    alpha, beta = classwise.scaling_parameters(of_classes(params), of_classes(after), occurs, "standard")
  iterations = 0
  for name in names:
    fixed = params
    x, taken, path = _steps(lambda x: value(fixed | {name: x}, alpha, beta), params[name], rates, most)  # noqa: B023
    params, iterations = params | {name: x}, iterations + jnp.sum(taken)
  return params | {"iterations": iterations, "steps": taken, "path": path}


def _shortened(gradient: Array) -> Array:
  """The factor of the first step: 1 / ‖g‖₁, at most 1."""
  return jnp.minimum(1, 1 / jnp.sum(jnp.abs(gradient)))


def _steps(value, start: Array, rates: Array, most: Array) -> tuple[Array, Array, Array]:
  """L-BFGS steps of fixed lengths, without a line search; returns the ends, their number by rate, and x after each."""
  # Of one parameter L-BFGS uses the last pair only: what is left of the gradient for those before is 0.
  lbfgs = optax.scale_by_lbfgs(memory_size=MEMORY if start.size > 1 else 1, scale_init_precond=False)

  def at_rate(x, steps):
    rate, most = steps

    def unfinished(carry):
      *_, i, stopped, _ = carry
      return (i < most) & ~stopped

    def step(carry):
      x, state, before, gradient, i, _, path = carry
      direction, state = lbfgs.update(gradient, state, x)
      change = rate * jnp.where(i == 0, _shortened(gradient), 1) * direction
      x = x - change
      now, gradient = jax.value_and_grad(value)(x)
      still = (jnp.abs(now - before) < CHANGE_TOLERANCE) | (jnp.max(jnp.abs(change)) <= CHANGE_TOLERANCE)
      stopped = still | (jnp.max(jnp.abs(gradient)) <= GRADIENT_TOLERANCE)
      return x, state, now, gradient, i + 1, stopped, path.at[i].set(x)

    path = jnp.zeros((MOST_STEPS, *x.shape), x.dtype)
    carry = (x, lbfgs.init(x), *jax.value_and_grad(value)(x), 0, False, path)
    x, *_, taken, _, path = jax.lax.while_loop(unfinished, step, carry)
    return x, (taken, path)

  x, (taken, path) = jax.lax.scan(at_rate, start, (rates, most))
  return x, taken, path
