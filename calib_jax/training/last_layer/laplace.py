r"""Last-layer Laplace approximation: a Gaussian posterior of a linear head, from features and the trained weights.

The weights :math:`\theta` of the layer, with the bias as the weights of a feature that is 1, have the prior
:math:`N(0, \delta^{-1} I)`. The posterior is the Gaussian around the trained weights with the precision
:math:`H + \delta I`, where H is the generalised Gauss-Newton Hessian of the log loss of the training examples,

.. math:: H = \sum_n (\mathrm{diag}(p_n) - p_n p_n^T) \otimes x_n x_n^T

(Daxberger et al. 2021, Section 2). For a softmax of a linear layer it is the Hessian itself. Its Kronecker-factored
form replaces the sum of products by the product of the two sums, divided by N. The precision δ is where the marginal
likelihood is the largest. The logits of an example are then Gaussian around the logits of the trained weights, so that
examples unlike the training examples are predicted with less confidence (Kristiadi et al. 2020).

NumPy computes in float64: eigenvalues of H differ by more orders of magnitude than float32 has digits.

>>> rng = np.random.default_rng(0)
>>> features, labels = rng.normal(size=(50, 2)), np.arange(50) % 3
>>> posterior = fit(features, labels, kernel=rng.normal(size=(2, 3)), bias=np.zeros(3))
>>> np.exp(posterior.log_probs(features[:1])).sum().round(6)
np.float32(1.0)
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import optimize
from scipy.special import log_softmax, softmax

from calib_jax import _checks as checks

# The Hessians that a config may name; "auto" is the full one up to ``AUTO_FULL`` weights.
HESSIANS = ("auto", "full", "kronecker")
AUTO_FULL, LARGEST_FULL = 2048, 10_000  # Weights, whose full Hessian has the square of that number of entries.
ROWS = 2**14  # Examples that are computed at a time.
SMALLEST = 1e-12  # The lowest precision that is considered, in units of the highest.


class Full(NamedTuple):
  """The eigenvalues ``[P]`` and eigenvectors ``[K, D + 1, P]`` of the full Hessian of P = K (D + 1) weights."""

  values: np.ndarray
  vectors: np.ndarray

  @classmethod
  def of(cls, rows: Iterator[tuple[np.ndarray, np.ndarray]], inputs: int, classes: int) -> "Full":
    """Returns the Hessian of examples, from their inputs ``[n, D + 1]`` and probabilities ``[n, K]``."""
    hessian = np.zeros((classes, inputs, classes, inputs))
    for x, p in rows:
      for k in range(classes):
        for other in range(k + 1):
          hessian[k, :, other] += (x * (p[:, k] * ((k == other) - p[:, other]))[:, None]).T @ x
    # Of a symmetric matrix eigh reads the lower triangle, which the blocks of other <= k hold.
    values, vectors = np.linalg.eigh(hessian.reshape(classes * inputs, -1))
    return cls(np.maximum(values, 0), vectors.reshape(classes, inputs, -1))

  def variances(self, x: np.ndarray, precision: float) -> np.ndarray:
    """Returns the variances ``[n, K]`` of the logits of inputs ``[n, D + 1]``."""
    blocks = ((vectors / (self.values + precision)) @ vectors.T for vectors in self.vectors)
    return np.stack([np.sum((x @ block) * x, axis=1) for block in blocks], axis=1)


class Kronecker(NamedTuple):
  """The eigenvalues and eigenvectors of the two factors of a Hessian, of inputs ``[D + 1]`` and of logits ``[K]``."""

  of_inputs: tuple[np.ndarray, np.ndarray]
  of_logits: tuple[np.ndarray, np.ndarray]

  @classmethod
  def of(cls, rows: Iterator[tuple[np.ndarray, np.ndarray]], inputs: int, classes: int) -> "Kronecker":
    """Returns the Hessian of examples, from their inputs ``[n, D + 1]`` and probabilities ``[n, K]``."""
    outer, curvature, number = np.zeros((inputs, inputs)), np.zeros((classes, classes)), 0
    for x, p in rows:
      outer += x.T @ x
      curvature += np.diag(p.sum(0)) - p.T @ p
      number += len(x)
    factors = (np.linalg.eigh(outer), np.linalg.eigh(curvature / number))
    return cls(*((np.maximum(values, 0), vectors) for values, vectors in factors))

  @property
  def values(self) -> np.ndarray:
    """The eigenvalues ``[K (D + 1)]`` of the Hessian."""
    return np.outer(self.of_logits[0], self.of_inputs[0]).ravel()

  def variances(self, x: np.ndarray, precision: float) -> np.ndarray:
    """Returns the variances ``[n, K]`` of the logits of inputs ``[n, D + 1]``."""
    squares = (x @ self.of_inputs[1]) ** 2
    along = squares @ (1 / (np.outer(self.of_inputs[0], self.of_logits[0]) + precision))  # The logits' eigenvectors.
    return along @ (self.of_logits[1] ** 2).T


class Laplace(NamedTuple):
  """A Gaussian posterior of the weights of a linear head.

  Attributes:
    weights: ``[D + 1, K]``, the trained weights; the last row is the bias.
    hessian: the Hessian of the log loss of the training examples.
    prior_precision: δ.
    log_evidence: the logarithm of the marginal likelihood at δ, in nats.
  """

  weights: np.ndarray
  hessian: Full | Kronecker
  prior_precision: float
  log_evidence: float

  def log_probs(self, features: np.ndarray) -> np.ndarray:
    r"""Predicts by integrating over the posterior, with the logits z and their variances v of an example.

    .. math:: \mathrm{softmax}\!\left(z / \sqrt{1 + \pi v / 8}\right)

    This is the multi-class probit approximation (Daxberger et al. 2021), which ignores the covariances. The variances
    have the variance of a shift of all logits, which changes no probability, but here makes them less certain.

    Args:
      features: ``[N, D]``.

    Returns:
      float32 log-probabilities ``[N, K]``.

    Raises:
      ValueError: if the features have another shape or are not finite.
    """
    if np.ndim(features) != 2 or np.shape(features)[1] != len(self.weights) - 1 or not np.isfinite(features).all():
      raise ValueError(f"features must be finite numbers [N, {len(self.weights) - 1}]: got shape {np.shape(features)}.")
    parts = ((x @ self.weights, self.hessian.variances(x, self.prior_precision)) for x in _inputs(features))
    log_probs = [log_softmax(z / np.sqrt(1 + np.pi / 8 * variances), axis=1) for z, variances in parts]
    return np.concatenate(log_probs).astype(np.float32)


def fit(features: np.ndarray, labels: np.ndarray, *, kernel: np.ndarray, bias: np.ndarray, hessian: str = "auto",
        prior_precision: float | None = None) -> Laplace:
  """Fits the posterior to the training examples.

  Args:
    features: ``[N, D]`` floats, what the layer gets for the training images, not augmented.
    labels: ``[N]`` integers in ``[0, K)``; only the evidence depends on them.
    kernel: ``[D, K]``, the layer's trained weights.
    bias: ``[K]``.
    hessian: one of ``HESSIANS``.
    prior_precision: δ; None for the one of the largest marginal likelihood.

  Returns:
    The posterior.

  Raises:
    ValueError: for an unknown Hessian, shapes that do not fit together, values that are not finite, labels or a
      precision out of range, or a full Hessian of more than ``LARGEST_FULL`` weights.
  """
  checks.choice("hessian", hessian, HESSIANS)
  weights = np.concatenate([kernel, np.reshape(bias, (1, -1))]).astype(np.float64)
  inputs, classes = weights.shape
  if np.shape(features) != (len(labels), inputs - 1) or not len(labels):
    raise ValueError(f"features must be [N, D] of at least one example with its label and a kernel [D, K]: got "
                     f"{np.shape(features)}, {len(labels)} labels and {np.shape(kernel)}.")
  if not (np.isfinite(features).all() and np.isfinite(weights).all()):
    raise ValueError("features, kernel and bias must be finite.")
  checks.label_values(labels, classes)
  if prior_precision is not None:
    checks.options(prior_precision=(prior_precision, "(0, inf)"))
  check_size(hessian, weights.size)
  form = Full if hessian == "full" or (hessian == "auto" and weights.size <= AUTO_FULL) else Kronecker
  curvature = form.of(((x, softmax(x @ weights, axis=1)) for x in _inputs(features)), inputs, classes)
  log_probs = np.concatenate([log_softmax(x @ weights, axis=1) for x in _inputs(features)])
  squared_norm = float(np.sum(weights**2))
  precision = _best_precision(curvature.values, squared_norm) if prior_precision is None else prior_precision
  log_likelihood = float(np.sum(log_probs[np.arange(len(labels)), labels]))
  return Laplace(weights, curvature, precision,
                 _log_evidence(log_likelihood, curvature.values, squared_norm, precision))


def check_size(hessian: str, num_weights: int) -> None:
  """Raises a ValueError for a full Hessian of more than ``LARGEST_FULL`` weights."""
  if hessian == "full" and num_weights > LARGEST_FULL:
    raise ValueError(f"hessian 'full' is for at most {LARGEST_FULL:,} weights: got {num_weights:,}; use 'kronecker'.")


def _log_evidence(log_likelihood: float, eigenvalues: np.ndarray, squared_norm: float, precision: float) -> float:
  """The evidence log p(D | θ) - δ ‖θ‖² / 2 + P log(δ) / 2 - Σ log(λ + δ) / 2, with the P eigenvalues λ of H."""
  shrinkage = np.sum(np.log1p(eigenvalues / precision))  # log(λ + δ) - log δ.
  return float(log_likelihood - precision / 2 * squared_norm - shrinkage / 2)


def _best_precision(eigenvalues: np.ndarray, squared_norm: float) -> float:
  """The δ of the largest evidence, whose derivative by log δ is half of Σ λ / (λ + δ) - δ ‖θ‖²."""
  # This falls as δ grows, so that there is one root. The sum is at most P, so that the root is at most P / ‖θ‖². Where
  # the Hessian is 0 there is none, and the result is ``SMALLEST`` of that.
  def slope(log_precision):
    precision = np.exp(log_precision)
    return np.sum(eigenvalues / (eigenvalues + precision)) - precision * squared_norm

  high = np.log(len(eigenvalues) / max(squared_norm, 1e-30))
  low = high + np.log(SMALLEST)
  if slope(low) <= 0 or slope(high) >= 0:
    return float(np.exp(low if slope(low) <= 0 else high))
  return float(np.exp(optimize.brentq(slope, low, high, xtol=1e-12)))


def _inputs(features: np.ndarray) -> Iterator[np.ndarray]:
  """Yields features in float64 with a 1 for the bias, ``ROWS`` examples at a time."""
  for start in range(0, max(len(features), 1), ROWS):
    rows = np.asarray(features[start:start + ROWS], np.float64)
    yield np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
