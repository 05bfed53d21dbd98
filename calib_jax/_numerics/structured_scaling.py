"""Structured vector and matrix scaling themselves, for ``calibrators`` and ``metrics.decomposition``: fit and map."""

import jax
import jax.numpy as jnp

from calib_jax._numerics.lbfgs import minimize, shares, weighted_nll
from calib_jax._numerics.softmax import masked_as, unmasked
from calib_jax._numerics.temperature import temperature_and_bound

Array = jax.Array


def apply(params: dict, logits: Array) -> Array:
  x = _smoothed(logits, params["temperature"], params["uniform_share"])
  return jax.nn.log_softmax(_scores(params, x))


def _smoothed(logits: Array, temperature: Array, share: Array) -> Array:
  """The logarithm of (1 - share) softmax(z / T) + share / K, with K the number of classes that the row has."""
  size = jnp.sum(logits != -jnp.inf, axis=-1, keepdims=True, dtype=logits.dtype)
  p = jax.nn.softmax(masked_as(unmasked(logits) / temperature, logits))
  return masked_as(jnp.log((1 - share) * p + share / size), logits)


def _scores(params: dict, x: Array) -> Array:
  """``x + v ⊙ x + M x + b``; without ``weights`` M is 0. An x of -inf counts as 0 in the scores of other classes."""
  features = unmasked(x)
  if "weights" not in params:
    return x + params["scale"][None, :] * features + params["bias"][None, :]
  matrix = params["weights"] + jnp.diag(params["scale"])
  return x + jnp.dot(features, matrix.T, precision="highest") + params["bias"][None, :]


def _mirror(x: Array) -> Array:
  """The vector m ``[K]`` for which the reflection of ``x``, which is x - (x·m) m, lies on the first axis."""
  sign = jnp.where(x[0] < 0, -1, 1).astype(x.dtype)
  m = x.at[0].add(sign * jnp.linalg.norm(x))
  return m * jnp.sqrt(2 / jnp.maximum(jnp.dot(m, m, precision="highest"), jnp.finfo(x.dtype).tiny))


def _reflected(x: Array, mirror: Array) -> Array:
  """The rows of ``x`` ``[..., K]``, reflected; the reflection of a reflection is what it was."""
  return x - jnp.dot(x, mirror, precision="highest")[:, None] * mirror[None, :]


def solve(logits: Array, labels: Array, weights: Array, *, intercept: float, diagonal: float,
          off_diagonal: float | None = None) -> dict:
  """Minimises the penalised NLL by steps of the weights for which its curvature at temperature scaling is near 1."""
  # With q = p (1 - p) the curvature of the NLL in a score, the weight of feature j in the score of class k moves the
  # bias of that class by -Σ q_k x_j / (Σ q_k + 2 λ_b K/n), so that their curvature has no product. Log-probabilities
  # are correlated, above all because their mean is far from 0, so that the steps of M are along the axes of the
  # features reflected until Σ q x lies on the first; what they change on the diagonal goes to v. Eigenvectors would
  # take as many iterations, and 25 ms or more of LAPACK's waiting threads.
  num_classes = logits.shape[1]
  total, weights = jnp.sum(weights), shares(weights, logits.dtype)
  count = jnp.where(total > 0, total, 1).astype(logits.dtype)
  first, share = temperature_and_bound(logits, labels, weights), 1 / (count + 1)
  x = _smoothed(logits, first["temperature"], share)
  penalty = {"bias": intercept * num_classes / count, "scale": diagonal * num_classes / count}
  if off_diagonal is not None:
    penalty["weights"] = off_diagonal * num_classes * (num_classes - 1) / count
  p, features = jnp.exp(x), unmasked(x)
  curvature = weights[:, None] * p * (1 - p)
  mass = jnp.sum(curvature, axis=0) + 1e-3 / num_classes + 2 * penalty["bias"]
  own = jnp.eye(num_classes, dtype=bool)
  centre = {"scale": jnp.sum(curvature * features, axis=0) / mass}
  square = {"scale": jnp.sum(curvature * features**2, axis=0)}
  if off_diagonal is not None:
    mirror = _mirror(jnp.dot(jnp.sum(curvature, axis=1), features, precision="highest"))
    reflected = _reflected(features, mirror)
    centre["weights"] = jnp.dot(curvature.T, reflected, precision="highest") / mass[:, None]
    square["weights"] = jnp.dot(curvature.T, reflected**2, precision="highest")
  masses = {"scale": mass, "weights": mass[:, None]}
  unit = {name: jax.lax.rsqrt(jnp.maximum(square[name] - masses[name] * centre[name] ** 2, 1e-6 * square[name])
                              + 2 * penalty[name] + 1e-6) for name in square}
  unit["bias"] = jax.lax.rsqrt(mass)

  def parameters(steps):
    params = {name: step * unit[name] for name, step in steps.items()}
    params["bias"] -= params["scale"] * centre["scale"]
    if off_diagonal is not None:
      params["bias"] -= jnp.sum(params["weights"] * centre["weights"], axis=1)
      change = _reflected(params["weights"], mirror)
      params["weights"], params["scale"] = jnp.where(own, 0, change), params["scale"] + jnp.diagonal(change)
    return params

  def objective(steps):
    params = parameters(steps)
    nll = weighted_nll(_scores(params, x), labels, weights)
    return nll + sum(penalty[name] * jnp.sum(value**2) for name, value in params.items())

  steps, status = minimize(objective, jax.tree.map(jnp.zeros_like, unit))
  return parameters(steps) | first | {"uniform_share": share} | status
