r"""Feature clipping: the last linear layer reads features of at most a threshold (Tao et al. 2025).

With the features x before the layer, its weights W and bias b, the logits are :math:`\min(x, c) W + b`. The threshold
c has the lowest log loss, or ECE, on held-out examples. Features with large values make overconfident logits, so a
threshold lowers the confidence of examples that have them; it may change accuracy.

>>> features, labels = np.array([[9.0, 0.0], [9.0, 1.0], [0.0, 1.0]]), np.array([0, 1, 1])
>>> clipped = fit(features, labels, kernel=np.eye(2), bias=np.zeros(2))
>>> round(clipped.threshold, 2), clipped.logits(features).argmax(1).tolist()
(0.99, [0, 0, 1])
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import _checks as checks
from calib_jax import losses, metrics

Array = jax.Array
OBJECTIVES = ("nll", "ece")
NUM_THRESHOLDS = 200


class FeatureClipping(NamedTuple):
  """The threshold c, and the layer's ``kernel`` ``[D, K]`` and ``bias`` ``[K]``."""

  threshold: float
  kernel: np.ndarray
  bias: np.ndarray

  def logits(self, features: np.ndarray) -> np.ndarray:
    """Returns the logits of features ``[N, D]``, float32 ``[N, K]``."""
    return np.asarray(_logits(jnp.asarray(features, jnp.float32), self.threshold, self.kernel, self.bias))


def fit(features: np.ndarray, labels: np.ndarray, *, kernel: np.ndarray, bias: np.ndarray, objective: str = "nll"
        ) -> FeatureClipping:
  """Chooses the threshold of a linear layer.

  The released code tries 0, 0.01, …, 19.99 and takes the lowest ECE. What features of a network may be depends on the
  network, so we try ``NUM_THRESHOLDS`` in equal steps up to the largest feature, which clips nothing; of equal ones the
  lowest is chosen, as there. The log loss is the default because the ECE does not see what is lost in accuracy.

  Args:
    features: ``[N, D]``, of held-out examples.
    labels: ``[N]`` integers.
    kernel: ``[D, K]``, the layer's weights.
    bias: ``[K]``.
    objective: "nll" or "ece", that of the top label with 15 bins of equal width.

  Returns:
    The layer with its threshold.

  Raises:
    ValueError: if no feature is above 0, a feature is not finite, or the objective is unknown.
  """
  checks.choice("objective", objective, OBJECTIVES)
  features = np.asarray(features, np.float32)
  if not np.isfinite(features).all() or not (features > 0).any():
    raise ValueError("features must be finite, and some above 0, so that a threshold can clip them.")
  thresholds = features.max() * np.arange(1, NUM_THRESHOLDS + 1, dtype=np.float32) / NUM_THRESHOLDS
  values = _objectives(objective, features, np.asarray(labels), thresholds, kernel, bias)
  return FeatureClipping(float(thresholds[int(jnp.argmin(values))]), np.asarray(kernel), np.asarray(bias))


@jax.jit
def _logits(features: Array, threshold: Array, kernel: Array, bias: Array) -> Array:
  return jnp.dot(jnp.minimum(features, threshold), kernel, precision="highest") + bias[None, :]


@functools.partial(jax.jit, static_argnums=0)
def _objectives(objective: str, features: Array, labels: Array, thresholds: Array, kernel: Array, bias: Array) -> Array:
  """The objective of each threshold, one after another."""
  def value(threshold):
    logits = _logits(features, threshold, kernel, bias)
    if objective == "nll":
      return jnp.mean(losses.cross_entropy(logits, labels))
    return metrics.expected_calibration_error(jax.nn.softmax(logits), labels)

  return jax.lax.map(value, thresholds)
