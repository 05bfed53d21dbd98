"""Vector, matrix and Dirichlet scaling: softmax regressions on the logits or on log-probabilities."""

import jax
import jax.numpy as jnp

from calib_jax import checks
from calib_jax.calibrators.base import Calibrator, WeightedFit
from calib_jax.calibrators.solver import TOLERANCE, minimize, minimize_in_rounds
from calib_jax.calibrators.temperature import solve_nll
from calib_jax.losses.proper import cross_entropy

Array = jax.Array


def vector_scaling() -> Calibrator:
  r"""Vector scaling: ``log softmax(a ⊙ z + b)``, by the mean NLL (Guo et al. 2017).

  Convex; solved by L-BFGS from temperature scaling's optimum, each direction in units of its curvature there. May
  change accuracy; a is not held positive. Where the optimum is at infinity (separable data, a class that never occurs),
  the fit ends, finite, where its gradient is within tolerance; of data that are all right it is temperature scaling's
  bound.
  Params: ``scale`` ``[K]``, ``bias`` ``[K]``, ``converged``, ``iterations``, ``gradient_norm`` (in the solver's units).

  >>> calibrator = vector_scaling()
  >>> params = calibrator.fit(jnp.array([[3.0, 0.0], [3.0, 0.0], [3.0, 0.0], [0.0, 3.0]]), jnp.array([0, 0, 1, 1]))
  >>> bool(params["converged"])
  True
  >>> probs = jnp.exp(calibrator.apply(params, jnp.array([[3.0, 0.0]])))
  >>> bool(jnp.allclose(probs, jnp.array([[2 / 3, 1 / 3]]), atol=1e-3))
  True
  """
  def start(logits):
    num_classes = logits.shape[-1]
    return {"scale": jnp.ones(num_classes, logits.dtype), "bias": jnp.zeros(num_classes, logits.dtype)}

  def apply(params, logits):
    return jax.nn.log_softmax(_scaled(params, checks.floating(logits, "logits")))

  return Calibrator(WeightedFit(_solve_vector, start), apply)


def _scaled(params: dict, logits: Array) -> Array:
  return params["scale"][None, :] * logits + params["bias"][None, :]


def _solve_vector(logits: Array, labels: Array, weights: Array) -> dict:
  num_classes = logits.shape[1]
  inverse = 1 / solve_nll(logits, labels, weights)["temperature"]
  curvature, mass = _curvatures(logits, inverse, weights)
  centre, scale_unit = _units(logits, curvature, mass)
  bias_unit = jax.lax.rsqrt(mass)

  def parameters(steps):
    slope = steps[0] * scale_unit
    return {"scale": inverse + slope, "bias": steps[1] * bias_unit - slope * centre}

  def nll(steps):
    return jnp.sum(weights * cross_entropy(_scaled(parameters(steps), logits), labels))

  steps, status = minimize(nll, jnp.zeros((2, num_classes), logits.dtype))
  return parameters(steps) | status


def _curvatures(features: Array, inverse: Array, weights: Array) -> tuple[Array, Array]:
  """Weighted p (1 - p) at the best temperature, ``[N, K]``; and its sums ``[K]``, at least a hundredth of even."""
  p = jax.nn.softmax(inverse * features)
  curvature = weights[:, None] * p * (1 - p)
  return curvature, jnp.sum(curvature, axis=0) + 0.01 / features.shape[1]


def _units(features: Array, curvature: Array, mass: Array) -> tuple[Array, Array]:
  """What to measure each class's feature from, and its slope in, for curvatures near 1: ``[K]`` each."""
  centre = jnp.sum(curvature * features, axis=0) / mass
  spread = jnp.sum(curvature * (features - centre[None, :]) ** 2, axis=0)
  return centre, jax.lax.rsqrt(spread + 0.01 * jnp.mean(spread) + _least(spread))


def _least(x: Array) -> Array:
  """What keeps a division by ``x`` finite."""
  return jnp.where(jnp.any(x > 0), 0, 1).astype(x.dtype)


def matrix_scaling(*, l2: float = 1.0, off_diagonal: float = 100.0) -> Calibrator:
  r"""Matrix scaling: ``log softmax(W z + b)`` (Guo et al. 2017), regularised.

  .. math:: \text{mean NLL} + \lambda\,\operatorname{mean}_{i \ne j} W_{ij}^2 + \mu\,\operatorname{mean}_i b_i^2

  Args: l2: μ, at least 0; off_diagonal: λ, at least 0.
  Convex; solved by L-BFGS from temperature scaling's optimum, the features whitened. May change accuracy. For optima
  at infinity, see ``vector_scaling``. Params: ``weights`` ``[K, K]``, ``bias`` ``[K]``, and how the fit ended.

  >>> calibrator = matrix_scaling()
  >>> params = calibrator.fit(jnp.array([[3.0, 0.0], [3.0, 0.0], [0.0, 3.0]]), jnp.array([0, 1, 1]))
  >>> params["weights"].shape, bool(params["converged"])
  ((2, 2), True)
  """
  return _matrix(lambda logits: logits, l2, off_diagonal)


def dirichlet(*, l2: float = 1.0, off_diagonal: float = 100.0) -> Calibrator:
  r"""Dirichlet calibration with off-diagonal and intercept regularisation (ODIR): ``log softmax(W log p + b)``.

  Args, objective, params: as for ``matrix_scaling``, on the log-probabilities.
  References: Kull et al. 2019; Karandikar et al. 2021, Appendix I.

  >>> calibrator = dirichlet()
  >>> params = calibrator.fit(jnp.array([[3.0, 0.0], [3.0, 0.0], [0.0, 3.0]]), jnp.array([0, 1, 1]))
  >>> bool(jnp.isclose(jnp.exp(calibrator.apply(params, jnp.array([[3.0, 0.0]]))).sum(), 1))
  True
  """
  return _matrix(jax.nn.log_softmax, l2, off_diagonal)


def _matrix(features, l2: float, off_diagonal: float) -> Calibrator:
  checks.number("l2", l2, low=0)
  checks.number("off_diagonal", off_diagonal, low=0)

  def start(logits):
    num_classes = logits.shape[-1]
    return {"weights": jnp.eye(num_classes, dtype=logits.dtype), "bias": jnp.zeros(num_classes, logits.dtype)}

  def solve(logits, labels, weights):
    return _solve_matrix(features(logits), labels, weights, l2, off_diagonal)

  def apply(params, logits):
    x = features(checks.floating(logits, "logits"))
    return jax.nn.log_softmax(jnp.dot(x, params["weights"].T, precision="highest") + params["bias"][None, :])

  return Calibrator(WeightedFit(solve, start), apply)


def _solve_matrix(x: Array, labels: Array, weights: Array, l2, off_diagonal) -> dict:
  num_classes = x.shape[1]
  pairs = num_classes * (num_classes - 1)
  # A constant so large that its weights are penalised as the others are.
  penalty = 2 * off_diagonal / pairs
  constant = jnp.sqrt(jnp.clip(penalty * num_classes / (2 * l2) if l2 else jnp.inf, 1e-4, 1e4)).astype(x.dtype)
  features = jnp.concatenate([x, jnp.full_like(x[:, :1], constant)], axis=1)
  own = jnp.eye(num_classes, dtype=bool)

  def measured_at(params):
    # Steps are along the axes of the features' moments where predictions are uncertain, for each class in units of its
    # own curvature there. The last, largest axis is near a constant, of log-probabilities above all: along the others,
    # and along the diagonal of W, which is free of the penalty and has steps of its own, each class goes with as much
    # of the last as leaves its predictions where they were on average.
    base = jnp.dot(x, params["weights"].T, precision="highest") + params["bias"][None, :]
    curvature, mass = _curvatures(base, 1, weights)
    moments = jnp.dot((jnp.sum(curvature, axis=1)[:, None] * features).T, features, precision="highest")
    axes = jnp.linalg.eigh(moments / jnp.sum(mass))[1]
    rotated = jnp.dot(features, axes, precision="highest")
    last = rotated[:, -1:]
    curvature = curvature + 0.001 * jnp.mean(curvature)
    squares = jnp.dot(curvature.T, rotated**2, precision="highest") + penalty
    last_squares = squares[:, -1:]

    def unit_and_share(squares, products):
      """What to measure a direction in, and its share of the last; sums by class of squares, and products with last."""
      share = products / last_squares
      return jax.lax.rsqrt(jnp.maximum(squares - share * products, 1e-6 * squares) + _least(squares)), share

    unit, share = unit_and_share(squares[:, :-1], jnp.dot(curvature.T, rotated[:, :-1] * last, precision="highest"))
    scale_unit, scale_share = unit_and_share(jnp.sum(curvature * x**2, axis=0)[:, None],
                                             jnp.sum(curvature * x * last, axis=0)[:, None])

    def coefficients(steps):
      """The change of the diagonal, ``[K]``, and of W and b along the axes, ``[K, K + 1]``."""
      slope = steps["scale"] * scale_unit
      others = steps["axes"] * unit
      along = steps["last"] * jax.lax.rsqrt(last_squares)
      along = along - jnp.sum(share * others, axis=1, keepdims=True) - scale_share * slope
      return slope[:, 0], jnp.concatenate([others, along], axis=1)

    def parameters(steps):
      slope, along = coefficients(steps)
      both = jnp.dot(along, axes.T, precision="highest")
      matrix = params["weights"] + both[:, :-1] + jnp.where(own, slope[:, None], 0)
      bias = params["bias"] + constant * both[:, -1]
      # The same added to every class changes no prediction: of all such, those of the smallest penalties.
      common = jnp.sum(matrix, axis=0, where=~own) / (num_classes - 1)
      return {"weights": matrix - common[None, :], "bias": bias - jnp.mean(bias)}

    def objective(steps):
      slope, along = coefficients(steps)
      scores = base + slope[None, :] * x + jnp.dot(rotated, along.T, precision="highest")
      p = parameters(steps)
      nll = jnp.sum(weights * cross_entropy(scores, labels))
      return nll + off_diagonal / pairs * jnp.sum(p["weights"] ** 2, where=~own) + l2 * jnp.mean(p["bias"] ** 2)

    return objective, parameters, {name: jnp.zeros((num_classes, size), x.dtype) for name, size in
                                   (("axes", num_classes), ("last", 1), ("scale", 1))}

  inverse = 1 / solve_nll(x, labels, weights)["temperature"]
  start = {"weights": jnp.where(own, inverse, 0), "bias": jnp.zeros(num_classes, x.dtype)}
  # The penalties leave directions of little curvature, along which a small gradient may still be far from the optimum.
  params, status = minimize_in_rounds(measured_at, start, tolerance=TOLERANCE / 10)
  return params | status
