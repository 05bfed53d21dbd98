"""Vector, matrix and Dirichlet scaling: softmax regressions on the logits or on log-probabilities."""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from calib_jax import _checks as checks
from calib_jax._numerics.lbfgs import TOLERANCE, least_squares, minimize_in_rounds, shares, weighted_nll
from calib_jax._numerics.softmax import masked_as, one_hot, unmasked
from calib_jax._numerics.temperature import solve_nll
from calib_jax.calibrators.base import Calibrator, by_row, fit_by, has_params, register

Array = jax.Array
SEPARATED = 0.1  # Where classes overlap, the p (1 - p) of a class have a sum near the number of its wrong examples.
PLUNGE = 10.0  # Where they overlap, the least log p of a fit is within this factor of temperature scaling's.


@register
@has_params(scale="K (-inf, inf)", bias="K (-inf, inf)")
def vector_scaling() -> Calibrator:
  r"""Vector scaling: ``log softmax(a ⊙ z + b)``, by the mean NLL (Guo et al. 2017).

  Use it where classes are over- and underconfident by different amounts.

  The problem is convex and is solved by L-BFGS from temperature scaling's optimum. It may change accuracy, and a may be
  negative. Where examples can be told from others without an error, or a class never occurs, the optimum is at infinity
  and would promise that no prediction is ever wrong: the labels of the n examples are then mixed with equal
  probabilities, of weight 1/(n + 1), as in ``temperature_scaling``. A class that a row does not have keeps
  probability 0 there, whatever its bias.

  Returns:
    A calibrator whose params are ``scale`` a and ``bias`` b ``[K]``, ``converged``, ``iterations``,
    ``gradient_norm``, in the solver's units, and ``at_bound``, which says that every class was told from the others.

  >>> calibrator = vector_scaling()
  >>> params = calibrator.fit(jnp.array([[3.0, 0.0], [3.0, 0.0], [3.0, 0.0], [0.0, 3.0]]), jnp.array([0, 0, 1, 1]))
  >>> bool(params["converged"])
  True
  >>> probs = jnp.exp(calibrator.apply(params, jnp.array([[3.0, 0.0]])))
  >>> bool(jnp.allclose(probs, jnp.array([[2 / 3, 1 / 3]]), atol=1e-3))
  True
  """
  return Calibrator(fit_by(_solve_vector, of_counts=True), by_row(_apply_vector), "vector_scaling")


def _apply_vector(params: dict, logits: Array) -> Array:
  scores = params["scale"][None, :] * unmasked(logits) + params["bias"][None, :]
  return jax.nn.log_softmax(masked_as(scores, logits))


def _unless_separated(solve: Callable[[Array], tuple[dict, dict]], start: dict, scores: Callable[[dict], Array],
                      weights: Array, count: Array) -> dict:
  """Fits, and where that tells some examples from others without an error, fits again with mixed labels.

  ``solve`` is given the part of each label that is equal probabilities, 0 at first, and returns params and the solver's
  status. A class is separated where the p (1 - p) of all examples together are below ``SEPARATED``. Where a feature
  tells some examples of two classes apart, as log-probabilities near 0 do, log p fall far below the start's.
  """
  def least(params):
    log_probs = jax.nn.log_softmax(scores(params))
    return jnp.min(log_probs, where=(log_probs > -jnp.inf) & (weights[:, None] > 0), initial=0)

  def parted_by(params):
    p = jax.nn.softmax(scores(params))
    separated = count * jnp.sum(weights[:, None] * p * (1 - p), axis=0) < SEPARATED
    return jnp.all(separated), jnp.any(separated) | (least(params) < jnp.minimum(PLUNGE * least(start), -100))

  def advance(carry):
    number, _, parted = carry
    params, status = solve(jnp.where(number > 0, 1 / (count + 1), 0.0).astype(weights.dtype))
    return number + 1, (params, status), jax.tree.map(lambda x, y: jnp.where(number > 0, x, y), parted,
                                                      parted_by(params))

  def unfinished(carry):
    number, _, (_, is_any) = carry
    return (number == 0) | ((number == 1) & is_any)

  empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(solve, jnp.zeros((), weights.dtype)))
  no = jnp.zeros((), bool)
  _, (params, status), (is_all, _) = jax.lax.while_loop(unfinished, advance, (jnp.zeros((), jnp.int32), empty,
                                                                              (no, no)))
  return params | status | {"at_bound": is_all}


def _pull(logits: Array, labels: Array, weights: Array) -> Array:
  """What a part of equal probabilities in the labels adds to the gradient of the NLL in the scores, ``[N, K]``."""
  present = (logits != -jnp.inf).astype(weights.dtype)
  even = present / jnp.sum(present, axis=1, keepdims=True)
  return weights[:, None] * (one_hot(labels, logits).astype(weights.dtype) - even)


def _solve_vector(logits: Array, labels: Array, weights: Array) -> dict:
  """Minimises the weighted NLL by steps of each class's slope and bias for which its curvature is near 1, in rounds."""
  # With q = p (1 - p) the curvature of the NLL in a score where a round begins, class k's slope is measured about the
  # q-weighted mean of z_k, so that it has no product with the bias. Where all q are near 0, ``least_squares`` bound
  # its unit.
  count, weights = jnp.sum(weights, dtype=logits.dtype), shares(weights, logits.dtype)
  inverse = 1 / solve_nll(logits, labels, weights, count)["temperature"]
  # Columns are measured from their means, because scores lose their digits where logits are far from 0. A logit whose
  # score is more than 30 nats below the top one does not move them any further, nor does an absent class.
  of_class = jnp.where(logits == -jnp.inf, 0, weights[:, None])
  total = jnp.maximum(jnp.sum(of_class, axis=0), jnp.finfo(logits.dtype).tiny)
  near = jnp.maximum(logits, jnp.max(logits, axis=1, keepdims=True) - 30 / inverse)
  origin = jnp.sum(of_class / total[None, :] * near, axis=0)
  relative = unmasked(logits - origin[None, :])

  pull = _pull(logits, labels, weights)
  of_scale, of_bias = jnp.sum(pull * relative, axis=0), jnp.sum(pull, axis=0)

  def scores(params):
    return masked_as(params["scale"][None, :] * relative + params["bias"][None, :], logits)

  def round_from(mixed, params):
    curvature, mass = _curvatures(scores(params), weights)
    by_class = jnp.sum(curvature, axis=0)
    centre = jnp.sum(curvature * relative, axis=0) / jnp.where(by_class > 0, by_class, 1)
    centred = relative - centre[None, :]
    squares = jnp.sum(curvature * centred**2, axis=0) + least_squares(inverse * centred, weights) / inverse**2
    scale_unit, bias_unit = jax.lax.rsqrt(jnp.where(squares > 0, squares, 1)), jax.lax.rsqrt(mass)

    def parameters(steps):
      slope = steps[0] * scale_unit
      return {"scale": params["scale"] + slope, "bias": params["bias"] + steps[1] * bias_unit - slope * centre}

    def nll(steps):
      new = params["scale"] + steps[0] * scale_unit
      constant = params["bias"] + params["scale"] * centre + steps[1] * bias_unit
      new_scores = new[None, :] * (relative - centre[None, :]) + constant[None, :]
      of_labels = jnp.sum(of_scale * new) + jnp.sum(of_bias * parameters(steps)["bias"])
      return weighted_nll(masked_as(new_scores, logits), labels, weights) + mixed * of_labels

    return nll, parameters, jnp.zeros((2, logits.shape[1]), logits.dtype)

  start = {"scale": jnp.full(logits.shape[1], inverse), "bias": jnp.zeros(logits.shape[1], logits.dtype)}
  params = _unless_separated(lambda mixed: minimize_in_rounds(
    functools.partial(round_from, mixed), start, tolerance=TOLERANCE), start, scores, weights, count)
  bias = params["bias"] - params["scale"] * origin
  return params | {"bias": bias - jnp.mean(bias)}


def _curvatures(scores: Array, weights: Array) -> tuple[Array, Array]:
  """Weighted p (1 - p) ``[N, K]`` of softmax scores; and its sums ``[K]``, kept above a hundredth of an even share."""
  p = jax.nn.softmax(scores)
  curvature = weights[:, None] * p * (1 - p)
  return curvature, jnp.sum(curvature, axis=0) + 0.01 / scores.shape[1]


@register
@has_params(weights="K K (-inf, inf)", bias="K (-inf, inf)")
def matrix_scaling(*, l2: float = 1.0, off_diagonal: float = 100.0) -> Calibrator:
  r"""Matrix scaling: ``log softmax(W z + b)`` (Guo et al. 2017), regularised.

  Use it for many examples of few classes; with few examples it overfits.

  .. math:: J = \text{mean NLL} + \lambda\,\operatorname{mean}_{i \ne j} W_{ij}^2 + \mu\,\operatorname{mean}_i b_i^2

  The problem is convex and is solved by L-BFGS from temperature scaling's optimum. It may change accuracy.
  ``vector_scaling`` says what is done where the optimum is at infinity. A class that a row does not have keeps
  probability 0 there, and counts as a feature of 0 in the scores of the others.

  Args:
    l2: weight μ of the penalty on the bias, at least 0.
    off_diagonal: weight λ of the penalty on the off-diagonal weights, at least 0.

  Returns:
    A calibrator whose params are ``weights`` W ``[K, K]``, ``bias`` b ``[K]``, ``converged``, ``iterations``,
    ``gradient_norm``, in the solver's units, and ``at_bound``, as ``vector_scaling`` has it.

  Raises:
    ValueError, TypeError: if an option is out of range or of another type.

  >>> calibrator = matrix_scaling()
  >>> params = calibrator.fit(jnp.array([[3.0, 0.0], [3.0, 0.0], [0.0, 3.0]]), jnp.array([0, 1, 1]))
  >>> params["weights"].shape, bool(params["converged"])
  ((2, 2), True)
  """
  return _matrix("matrix_scaling", jnp.asarray, l2, off_diagonal)


@register
@has_params(weights="K K (-inf, inf)", bias="K (-inf, inf)")
def dirichlet(*, l2: float = 1.0, off_diagonal: float = 100.0) -> Calibrator:
  r"""Dirichlet calibration with off-diagonal and intercept regularisation (ODIR): ``log softmax(W log p + b)``.

  Use it where classes are confused with each other and each has many examples.

  It is ``matrix_scaling`` of the log-probabilities: the same objective, options and params.

  Args:
    l2: weight μ of the penalty on the bias, at least 0.
    off_diagonal: weight λ of the penalty on the off-diagonal weights, at least 0.

  Returns:
    A calibrator with the params of ``matrix_scaling``.

  Raises:
    ValueError, TypeError: if an option is out of range or of another type.

  References:
    Kull et al. 2019; Karandikar et al. 2021, Appendix I.

  >>> calibrator = dirichlet()
  >>> params = calibrator.fit(jnp.array([[3.0, 0.0], [3.0, 0.0], [0.0, 3.0]]), jnp.array([0, 1, 1]))
  >>> bool(jnp.isclose(jnp.exp(calibrator.apply(params, jnp.array([[3.0, 0.0]]))).sum(), 1))
  True
  """
  return _matrix("dirichlet", jax.nn.log_softmax, l2, off_diagonal)


def _matrix(name: str, features: Callable[[Array], Array], l2: float, off_diagonal: float) -> Calibrator:
  checks.options(l2=(l2, "[0, inf)"), off_diagonal=(off_diagonal, "[0, inf)"))
  options = {"l2": l2, "off_diagonal": off_diagonal}
  fit = fit_by(_solve_matrix, of_counts=True, features=features, **options)
  return Calibrator(fit, by_row(_apply_matrix, features=features), name, options)


def _apply_matrix(params: dict, logits: Array, *, features: Callable[[Array], Array]) -> Array:
  return jax.nn.log_softmax(_matrix_scores(params, features(logits)))


def _matrix_scores(params: dict, x: Array) -> Array:
  scores = jnp.dot(unmasked(x), params["weights"].T, precision="highest") + params["bias"][None, :]
  return masked_as(scores, x)


def _solve_matrix(logits: Array, labels: Array, weights: Array, *, features: Callable[[Array], Array], l2: float,
                  off_diagonal: float) -> dict:
  """Minimises the penalised NLL of ``softmax(W x + b)`` in rounds, each with its own ``Directions``."""
  x, count, weights = features(logits), jnp.sum(weights, dtype=logits.dtype), shares(weights, logits.dtype)
  pull = _pull(logits, labels, weights)
  of_weights, of_bias = jnp.dot(pull.T, unmasked(x), precision="highest"), jnp.sum(pull, axis=0)
  num_classes = x.shape[1]
  pairs = num_classes * (num_classes - 1)
  penalty = 2 * off_diagonal / pairs
  # The bias is the weight of a constant feature, so large that its weight is penalised as the others are.
  constant = jnp.sqrt(jnp.clip(penalty * num_classes / (2 * l2) if l2 else jnp.inf, 1e-4, 1e4)).astype(x.dtype)
  own = jnp.eye(num_classes, dtype=bool)

  def round_from(mixed, params):
    base = _matrix_scores(params, x)
    directions = _directions(unmasked(x), constant, base, weights, penalty)

    def parameters(steps):
      slope, change = directions.change(steps)
      matrix = params["weights"] + change[:, :-1] + jnp.where(own, slope[:, None], 0)
      bias = params["bias"] + constant * change[:, -1]
      # Adding the same to every class changes no prediction, so the shift with the smallest penalties is chosen.
      shift = jnp.sum(matrix, axis=0, where=~own) / (num_classes - 1)
      return {"weights": matrix - shift[None, :], "bias": bias - jnp.mean(bias)}

    def objective(steps):
      nll = weighted_nll(base + directions.score_change(steps), labels, weights)
      new = parameters(steps)
      nll += mixed * (jnp.sum(of_weights * new["weights"]) + jnp.sum(of_bias * new["bias"]))
      return nll + off_diagonal / pairs * jnp.sum(new["weights"] ** 2, where=~own) + l2 * jnp.mean(new["bias"] ** 2)

    return objective, parameters, directions.zero()

  inverse = 1 / solve_nll(x, labels, weights, count)["temperature"]
  start = {"weights": jnp.where(own, inverse, 0), "bias": jnp.zeros(num_classes, x.dtype)}
  # The penalties leave directions of little curvature, along which a small gradient may still be far from the optimum.
  return _unless_separated(lambda mixed: minimize_in_rounds(
    functools.partial(round_from, mixed), start, tolerance=TOLERANCE / 10), start,
    functools.partial(_matrix_scores, x=x), weights, count)


class Directions(NamedTuple):
  """A preconditioner of softmax regression: directions of the weights in which the NLL's curvature is near 1."""

  # The features f are x and a constant; q = p (1 - p) is the curvature of the NLL in a score. The directions are the
  # eigenvectors u_1 … u_{K+1} of Σ q f fᵀ, summed over classes, in ascending order, because features are correlated;
  # r_j = u_j · f are the rotated features. Class k's step along u_j is in units of its own (Σ q_k r_j² +
  # penalty)^(-1/2). The last rotated feature is nearly constant, so that for one class it is correlated with the
  # others: a unit step along u_j takes back the share s_kj = Σ q_k r_j r_last / (Σ q_k r_last² + penalty) along u_last
  # (one step of Gram-Schmidt). The diagonal of W carries no penalty, and has steps of its own. With one unit a weight
  # instead, or without the shares, fits of 10 and of 100 classes did not converge within 2,000 iterations, in place of
  # 21 to 216.
  features: Array  # x, [N, K].
  rotated: Array  # [N, K + 1].
  axes: Array  # The eigenvectors u, in columns, [K + 1, K + 1].
  unit: Array  # The units of the steps along all axes but the last, [K, K].
  share: Array  # The shares s of those steps, [K, K].
  last_unit: Array  # The units of the steps along the last axis, [K, 1].
  scale_unit: Array  # The units of the steps of the diagonal of W, [K, 1].
  scale_share: Array  # The shares of those steps, [K, 1].

  def zero(self) -> dict[str, Array]:
    """No step at all: the solver's starting point."""
    return {"axes": jnp.zeros_like(self.unit), "last": jnp.zeros_like(self.last_unit),
            "scale": jnp.zeros_like(self.scale_unit)}

  def _along(self, steps: dict[str, Array]) -> tuple[Array, Array]:
    """The change of the diagonal ``[K]``, and the changes along the axes ``[K, K + 1]``."""
    slope, others = steps["scale"] * self.scale_unit, steps["axes"] * self.unit
    last = steps["last"] * self.last_unit
    last = last - jnp.sum(self.share * others, axis=1, keepdims=True) - self.scale_share * slope
    return slope[:, 0], jnp.concatenate([others, last], axis=1)

  def change(self, steps: dict[str, Array]) -> tuple[Array, Array]:
    """The change of W's diagonal ``[K]``, and of the weights of all features, the constant last, ``[K, K + 1]``."""
    slope, along = self._along(steps)
    return slope, jnp.dot(along, self.axes.T, precision="highest")

  def score_change(self, steps: dict[str, Array]) -> Array:
    """The change of the scores ``[N, K]``."""
    slope, along = self._along(steps)
    return slope[None, :] * self.features + jnp.dot(self.rotated, along.T, precision="highest")


def _directions(x: Array, constant: Array, scores: Array, weights: Array, penalty: float) -> Directions:
  """Measures the directions where the regression on ``x`` and ``constant`` predicts ``scores``."""
  curvature, mass = _curvatures(scores, weights)
  features = jnp.concatenate([x, jnp.full_like(x[:, :1], constant)], axis=1)
  moments = jnp.dot((jnp.sum(curvature, axis=1)[:, None] * features).T, features, precision="highest")
  axes = jnp.linalg.eigh(moments / jnp.sum(mass))[1]
  rotated = jnp.dot(features, axes, precision="highest")
  last = rotated[:, -1:]
  curvature = curvature + 1e-9 * jnp.mean(curvature)
  squares = jnp.dot(curvature.T, rotated**2, precision="highest") + penalty
  last_squares = squares[:, -1:]

  def unit_and_share(squares, products):
    share = products / last_squares
    # A feature that is 0 in every row has no curvature: any unit will do.
    own = jnp.where(squares > 0, jnp.maximum(squares - share * products, 1e-6 * squares), 1)
    return jax.lax.rsqrt(own), share

  unit, share = unit_and_share(squares[:, :-1], jnp.dot(curvature.T, rotated[:, :-1] * last, precision="highest"))
  scale_unit, scale_share = unit_and_share(jnp.sum(curvature * x**2, axis=0)[:, None],
                                           jnp.sum(curvature * x * last, axis=0)[:, None])
  return Directions(x, rotated, axes, unit, share, jax.lax.rsqrt(last_squares), scale_unit, scale_share)
