"""SMART: a temperature for every example from the gap between its two largest logits."""

import math

import jax
import jax.numpy as jnp

from calib_jax import _checks as checks
from calib_jax._numerics.lbfgs import minimize
from calib_jax._numerics.softmax import label_odds, predicted, tempered
from calib_jax._numerics.temperature import temperature_and_bound
from calib_jax.calibrators.base import Calibrator, by_row, fit_by, has_params, keep_top, register
from calib_jax.calibrators.flexible import NETWORK, output, standard, start_layers
from calib_jax.losses.soft_binned import soft_bins

Array = jax.Array
# The sizes of the layers, the seed of their first weights, and the least temperature, as a share of temperature
# scaling's.
LAYERS, SEED, LEAST = (1, 16, 16), 0, 0.1
NUM_BINS, WIDTH, DELTA = 15, 0.05, 1e-3  # M, σ and δ of the error.
# With a smaller tolerance the objective fell further, but the calibration error of other examples did not.
TOLERANCE = 1e-3


@register
@has_params(temperature="(0, inf)", centre="1 (-inf, inf)", unit="1 (0, inf)", **NETWORK)
def smart() -> Calibrator:
  r"""SMART: :math:`\mathrm{softmax}(z / T(g))`, g the gap between the two largest logits, by a soft-binned error.

  Use it where the right temperature depends on how close the two best classes are.

  A network of the standardised gap, with two hidden layers of 16 units, gives
  :math:`T = T_0 (0.1 + \mathrm{softplus}(\text{output}))`, where T₀ is temperature scaling's T, with which the fit
  begins. T is positive, and so accuracy is unchanged. With memberships
  :math:`u_j(c) \propto \exp(-(c - \xi_j)^2 / 2 \sigma^2)`, σ = 0.05, of a confidence c in the one of 15 bins of equal
  width with the centre ξ_j, and S_j, A_j and C_j as in ``losses.soft_binned_ece``, the fit minimises the
  Charbonnier-SoftECE

  .. math:: J = \sum_j \frac{S_j}{N} \sqrt{(A_j - C_j)^2 + \delta^2}, \qquad \delta = 10^{-3}.

  This error ignores how well confidences rank, and its fit may raise the NLL (docs/calibrators.md). With
  few examples it has many optima, and rounding may decide in which one the fit ends.

  The layer sizes, 0.1, the softplus, the bins, σ and δ are the released code's. Unlike it, T is in units of T₀,
  so that the scale of the logits does not matter; units are tanh, not ReLU; and L-BFGS minimises the error until a
  thousandth is left to gain, where the released code takes up to 2,000 steps of Adam and stops early. The problem is
  not convex: ``converged`` says that the fit ended so.

  Returns:
    A calibrator whose params are ``temperature`` T₀, ``centre`` and ``unit`` of the gap, ``layer_0`` … with ``kernel``
    and ``bias``, ``converged``, ``iterations``, ``gradient_norm`` and ``at_bound``, of T₀.

  References:
    Guo et al. 2026.

  >>> calibrator = smart()
  >>> logits = jnp.array([[4.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 4.0]])
  >>> params = calibrator.fit(logits, jnp.array([0, 1, 1, 1]))
  >>> log_probs = calibrator.apply(params, logits)
  >>> bool((log_probs.argmax(-1) == logits.argmax(-1)).all())
  True
  """
  return Calibrator(fit_by(_solve), by_row(_apply), "smart")


def _apply(params: dict, logits: Array) -> Array:
  return keep_top(jax.nn.log_softmax(tempered(logits, _temperatures(params, _gap(logits))[:, None])), logits)


def _gap(logits: Array) -> Array:
  largest = jax.lax.top_k(checks.gathered(logits, -1), 2)[0]
  return largest[:, :1] - largest[:, 1:]


def _temperatures(params: dict, gap: Array) -> Array:
  """T ``[N]``, which is T₀ where the network's output is 0."""
  softplus = jax.nn.softplus(output(params, gap) + math.log(math.expm1(1 - LEAST)))
  return params["temperature"] * (LEAST + softplus)


def _solve(logits: Array, labels: Array, weights: Array) -> dict:
  gap, top = _gap(logits), predicted(logits)
  correct = (top == labels).astype(logits.dtype)
  fixed = standard(gap, weights) | temperature_and_bound(logits, labels, weights)

  def error(trained):
    odds = label_odds(tempered(logits, _temperatures(fixed | trained, gap)[:, None]), top)
    return charbonnier_error(jax.nn.sigmoid(-odds), correct, weights)

  trained, status = minimize(error, start_layers(LAYERS, SEED, logits.dtype), tolerance=TOLERANCE)
  return fixed | trained | status


def charbonnier_error(confidence: Array, correct: Array, weights: Array) -> Array:
  """The Charbonnier-SoftECE of confidences ``[N]`` and correctness ``[N]``, with weights whose sum is 1."""
  _, size, mean = soft_bins(confidence, weights, None, num_bins=NUM_BINS, temperature=2 * WIDTH**2)
  return jnp.sum(size * jnp.sqrt((mean(correct) - mean(confidence)) ** 2 + DELTA**2))
