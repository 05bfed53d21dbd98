"""Ensemble temperature scaling: a mixture of the scaled, the plain and the uniform prediction."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import _checks as checks
from calib_jax import metrics
from calib_jax._numerics.lbfgs import shares
from calib_jax._numerics.softmax import masked_as, pick, tempered, unmasked
from calib_jax._numerics.temperature import solve_nll
from calib_jax.calibrators import temperature as scaling
from calib_jax.calibrators.base import Calibrator, by_row, fit_by, has_params, keep_top, register

Array = jax.Array
MAX_ITERATIONS = 100
GAP_IN_EPS = 16  # The tolerance of the duality gap, in units of the dtype's eps: 2e-6 nats in float32.


@register
@has_params(temperature="(0, inf)", weights="3 [0, 1] shares")
def ensemble_temperature_scaling(*, space: str = "probs", objective: str = "nll") -> Calibrator:
  r"""Ensemble temperature scaling (ETS): :math:`w_1\,\mathrm{softmax}(z/T) + w_2\,\mathrm{softmax}(z) + w_3/K`.

  Use it where one temperature is too little: it mixes three fixed shapes, and keeps the accuracy.

  The mean NLL gives first T, as in ``temperature_scaling`` (with softened labels where every example is right),
  then the weights on the simplex. Accuracy is unchanged. The problem of the weights is convex and is solved by Newton
  steps, each to the exact minimum of the quadratic model over the simplex. The logits are read once, because the steps
  need only three numbers of each example. K is the number of classes that a row has.

  Args:
    space: ``"probs"`` for the mixture of probabilities, or ``"logits"`` for
      :math:`\mathrm{softmax}(w_1 z/T + w_2 z + w_3/K)`, as Jung et al. print it (Eq. 13). The latter is only a
      temperature; the best is T itself with w = (1, 0, 0).
    objective: ``"nll"``, or ``"mse"`` for the mean squared error of the probabilities, which the code that Zhang et al.
      released minimises for T and for the weights.

  Returns:
    A calibrator whose params are ``temperature``, ``weights`` ``[3]``, ``gap``, ``converged``, ``iterations`` and
    ``at_bound``, of T.
    ``converged`` certifies that T converged and that the duality gap of the weights, ``gap``, is at most 16 eps (2e-6
    nats in float32). ``gap`` of ``"mse"`` is in units of the Brier score.

  Raises:
    ValueError: for an unknown space or objective.

  References:
    Zhang et al. 2020.

  >>> calibrator = ensemble_temperature_scaling()
  >>> params = calibrator.fit(jnp.array([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0]]), jnp.array([0, 1, 1]))
  >>> bool(params["converged"]), params["weights"].sum().round(3)
  (True, Array(1., dtype=float32))
  """
  checks.options(space=(space, ("probs", "logits")), objective=(objective, ("nll", "mse")))
  return Calibrator(fit_by(_fit, of_counts=True, space=space, objective=objective), by_row(_apply, space=space),
                    "ensemble_temperature_scaling", {"space": space, "objective": objective})


def start(logits: Array, *, space: str) -> dict[str, Any]:
  """The params before a fit, which change nothing."""
  del space
  return {"temperature": jnp.ones((), logits.dtype), "weights": jnp.array([1, 0, 0], logits.dtype)}


def _fit(logits: Array, labels: Array, weights: Array, *, space: str, objective: str) -> dict[str, Any]:
  if objective == "mse":
    return _solve_mse(logits, labels, weights, space=space)
  return solve(logits, labels, shares(weights, logits.dtype), jnp.sum(weights, dtype=logits.dtype), space=space)


def solve(logits: Array, labels: Array, weights: Array, count: Array | None = None, *, space: str) -> dict[str, Any]:
  """The params of the smallest weighted NLL, with the T of ``solve_nll``."""
  params = solve_nll(logits, labels, weights, count)
  if space == "logits":
    return params | {"weights": jnp.array([1, 0, 0], logits.dtype), "gap": jnp.zeros((), logits.dtype)}
  of_label = jnp.stack([pick(x, labels) for x in _components(logits, params["temperature"])], axis=-1)
  mixture, gap, iterations = _simplex(of_label, weights)
  return params | {"weights": mixture, "gap": gap, "converged": params["converged"] & (gap <= _tolerance(gap.dtype)),
                   "iterations": params["iterations"] + iterations}


def _brier(logits: Array, labels: Array, *, where: Array, weights: Array | None = None) -> Array:
  return metrics.brier_score(jax.nn.softmax(logits), labels, where=where, weights=weights)


def _solve_mse(logits: Array, labels: Array, weights: Array, *, space: str) -> dict[str, Any]:
  """The params of the smallest Brier score of T, and then of the mixture, which is quadratic in its weights."""
  params = scaling.solve(logits, labels, weights, objective=_brier)
  mixture = jnp.array([1, 0, 0], logits.dtype)
  if space == "logits":
    return params | {"weights": mixture, "gap": jnp.zeros((), logits.dtype)}
  truth = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
  errors = jnp.stack([jnp.exp(x) - truth for x in _components(logits, params["temperature"])], axis=-1)
  # As the weights sum to 1, the error of the mixture is that of its parts: the mean of (Σ_j w_j e_ijk)², summed over k.
  products = jnp.einsum("n,nka,nkb->ab", shares(weights, logits.dtype), errors, errors, precision="highest")
  for _ in range(3):  # A step is exact but for what keeps its system regular.
    step = _newton_step(mixture, 2 * products @ mixture, 2 * products)
    mixture = jnp.maximum(mixture + step, 0)
    mixture /= jnp.sum(mixture)
  slope = 2 * products @ mixture
  gap = jnp.dot(slope, mixture) - jnp.min(slope)
  return params | {"weights": mixture, "gap": gap, "converged": params["converged"] & (gap <= _tolerance(gap.dtype))}


def _apply(params: dict, logits: Array, *, space: str) -> Array:
  mixture, temperature = params["weights"], params["temperature"]
  if space == "logits":
    factor = mixture[0] / temperature + mixture[1]
    return keep_top(jax.nn.log_softmax(tempered(logits, 1 / factor)), logits)
  components = jnp.stack([unmasked(x) for x in _components(logits, temperature)], axis=-1)
  mixture = mixture[None, None, :]
  # A component of weight 0 is left out, because the logarithm of its weight is not finite.
  mixed = jax.nn.logsumexp(components, axis=-1, b=mixture, where=mixture > 0)
  return keep_top(masked_as(mixed, logits), logits)


def _components(logits: Array, temperature: Array) -> tuple[Array, Array, Array]:
  """The logarithms of the scaled, the plain and the uniform probabilities ``[N, K]``."""
  uniform = masked_as(jnp.zeros_like(logits), logits)
  return tuple(map(jax.nn.log_softmax, (tempered(logits, temperature), tempered(logits, 1), uniform)))


_SHORTEST = 2.0**-24  # Of the steps of the weights, as a share of Newton's.
# The faces of the simplex of three weights, by which of them are free.
_FACES = np.array([face for face in itertools.product((0, 1), repeat=3) if any(face)], bool)


def _simplex(log_likelihoods: Array, weights: Array) -> tuple[Array, Array, Array]:
  """Returns the mixture weights w ``[3]`` that minimise -Σ weights log Σ_j w_j exp(l_j), the gap and the iterations."""
  weights = shares(weights, weights.dtype)
  # Likelihoods are relative to the largest of the three, which is at least 1/K, so that none overflows.
  likelihoods = jnp.exp(log_likelihoods - jnp.max(log_likelihoods, axis=-1, keepdims=True))
  differences = likelihoods[:, :, None] - likelihoods[:, None, :]

  def derivatives(w):
    """The gains ``[3]``, how fast the objective falls towards each vertex, and its Hessian."""
    # The rate is Σ_i weights_i (l_ij - m_i) / m_i, m_i = Σ_k w_k l_ik. As Σ_k w_k = 1, the numerator is
    # Σ_k w_k (l_ij - l_ik): numerically stable where l_ij / m_i is near 1.
    mixture = jnp.dot(likelihoods, w, precision="highest")[:, None]
    gains = jnp.dot(weights, jnp.dot(differences, w, precision="highest") / mixture, precision="highest")
    ratios = likelihoods / mixture
    return gains, jnp.dot((weights[:, None] * ratios).T, ratios, precision="highest")

  def change(w, step):
    """The change of the objective, numerically stable however small it is."""
    relative = jnp.dot(likelihoods, step, precision="highest") / jnp.dot(likelihoods, w, precision="highest")
    return -jnp.sum(weights * jnp.log1p(jnp.maximum(relative, -1)))

  def unfinished(carry):
    # The objective is convex, so that the largest gain bounds how far it can still fall: this is the duality gap.
    _, gains, _, moved, iterations = carry
    return (jnp.max(gains) > _tolerance(gains.dtype) / 4) & moved & (iterations < MAX_ITERATIONS)

  def step(carry):
    w, gains, hessian, _, iterations = carry
    newton = _newton_step(w, -gains, hessian)
    # The objective falls at the rate gains · newton along the step, which is halved until a part of that is gained.
    rate = jnp.dot(gains, newton, precision="highest")
    length = jax.lax.while_loop(
      lambda length: (length > _SHORTEST) & ~(change(w, length * newton) < -1e-4 * length * rate),
      lambda length: length / 2, jnp.ones((), w.dtype))
    falls = length > _SHORTEST
    new = jnp.maximum(w + length * newton, 0)
    new = jnp.where(falls, new / jnp.sum(new), w)
    return new, *derivatives(new), falls, iterations + 1

  w = jnp.full(3, 1 / 3, likelihoods.dtype)
  w, gains, _, _, iterations = jax.lax.while_loop(
    unfinished, step, (w, *derivatives(w), jnp.ones((), bool), jnp.zeros((), jnp.int32)))
  return w, jnp.maximum(jnp.max(gains), 0), iterations


def _tolerance(dtype) -> float:
  return GAP_IN_EPS * float(jnp.finfo(dtype).eps)


def _newton_step(w: Array, gradient: Array, hessian: Array) -> Array:
  """The step to the minimum over the simplex of a quadratic model at ``w``: the best of the minima over its faces."""
  # In units of the curvatures, and not as a difference of points: one label that is as unlikely as 1e-8 makes the
  # curvature of the uniform prediction 1e12, and the step from weight 0 less than the rounding of 1.
  unit = jax.lax.rsqrt(jnp.diag(hessian) + 1)  # As wᵀHw = 1, 1 is of the size of a curvature.
  hessian = unit[:, None] * hessian * unit[None, :] + 1e-6 * jnp.eye(3, dtype=w.dtype)
  gradient = unit * gradient

  def on_face(free):
    # The Lagrange conditions give the minimum of gradient·x + x H x / 2 where the weights that are not free become 0,
    # and the free ones keep the sum.
    both, last = free[:, None] & free[None, :], jnp.where(free, 0, -w / unit)
    system = jnp.zeros((4, 4), w.dtype).at[:3, :3].set(jnp.where(both, hessian, jnp.diag((~free).astype(w.dtype))))
    system = system.at[:3, 3].set(jnp.where(free, unit, 0)).at[3, :3].set(jnp.where(free, unit, 0))
    slope = gradient + jnp.dot(hessian, last, precision="highest")
    x = jnp.linalg.solve(system, jnp.append(jnp.where(free, -slope, last), jnp.sum(w, where=~free)))[:3]
    curved = jnp.dot(x, jnp.dot(hessian, x, precision="highest"), precision="highest")
    model = jnp.dot(gradient, x, precision="highest") + curved / 2
    step = jnp.where(free, unit * x, -w)
    return step, jnp.where(jnp.all(w + step >= 0), model, jnp.inf)

  steps, values = jax.vmap(on_face)(jnp.asarray(_FACES))
  return steps[jnp.argmin(values)]
