"""The temperature of the code released with Zhou et al. 2025: 50 steps of L-BFGS at a rate of 0.01, from T = 1.5.

They minimise the NLL; the argument by which the ECE is passed is never read. Steps of 1% leave T between 1.5 and the
minimum. Until August 2025 there were 2,000. The steps are those of PyTorch's ``LBFGS`` without a line search. With one
parameter its inverse Hessian is that of the last pair, the change of T over that of the gradient.
"""

import jax.numpy as jnp
import numpy as np
from scipy import special

from calib_jax import calibrators
from calib_jax.calibrators import meta
from calib_jax.calibrators.base import fit_batch

START, RATE = 1.5, 0.01
LEAST_GRADIENT, LEAST_CHANGE, LEAST_CURVATURE = 1e-7, 1e-9, 1e-10  # At which PyTorch's L-BFGS ends, or keeps a pair.


def temperature(logits: np.ndarray, labels: np.ndarray, num_steps: int = 50) -> float:
  """Returns T after so many steps for logits ``[N, K]`` and labels ``[N]``; 1.5 if there are none.

  >>> round(temperature(np.array([[3.0, 0.0], [0.0, 3.0], [3.0, 0.0]]), np.array([0, 1, 1])), 3)
  1.758
  """
  logits, rows = np.asarray(logits, np.float64), np.arange(len(labels))
  if not len(rows):
    return START

  def loss_and_gradient(t: float) -> tuple[np.float32, float]:
    log_probs = special.log_softmax(logits / t, axis=1)
    excess = logits[rows, labels] - np.sum(np.exp(log_probs) * logits, axis=1)  # Over the expected logit.
    # Small changes of the loss end the steps, and so its rounding to 32 bits matters.
    return np.float32(-np.mean(log_probs[rows, labels])), float(np.mean(excess)) / t**2

  t, inverse, (loss, gradient) = START, 1.0, loss_and_gradient(START)
  for i in range(num_steps if abs(gradient) > LEAST_GRADIENT else 0):
    if inverse * gradient**2 < LEAST_CHANGE:
      break
    step = -RATE * inverse * gradient * (min(1.0, 1 / abs(gradient)) if i == 0 else 1)
    t, loss_before, gradient_before = t + step, loss, gradient
    loss, gradient = loss_and_gradient(t)
    if min(abs(gradient) - LEAST_GRADIENT, abs(step) - LEAST_CHANGE, abs(loss - loss_before) - LEAST_CHANGE) <= 0:
      break
    if (gradient - gradient_before) * step > LEAST_CURVATURE:
      inverse = step / (gradient - gradient_before)
  return t


def temperature_scaling() -> calibrators.Calibrator:
  """Returns temperature scaling by ``temperature``."""
  def fit(logits, labels):
    return {"temperature": jnp.float32(temperature(np.asarray(logits), np.asarray(labels)))}

  return calibrators.Calibrator(fit, calibrators.temperature_scaling().apply)


def meta_calibration(*, constraint: str, target: float) -> calibrators.Calibrator:
  """Returns ``calibrators.meta_calibration``, but with ``temperature`` in place of the minimum of the NLL."""
  def fit(logits, labels):
    logits, labels, counts = fit_batch(logits, labels, None, None)
    threshold, kept = meta.divide(logits, labels, np.array(counts), constraint, target, seed=0)
    return {"threshold": jnp.float32(threshold),
            "temperature": jnp.float32(temperature(np.asarray(logits)[kept], np.asarray(labels)[kept]))}

  return calibrators.Calibrator(fit, calibrators.meta_calibration(constraint, target=target).apply)
