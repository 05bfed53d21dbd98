"""Calibration of probabilities that may be exactly 0, as forests and rounded tables give them."""

from typing import Any

import jax
import jax.numpy as jnp

from calib_jax import _checks as checks
from calib_jax._numerics.softmax import without_absent
from calib_jax.calibrators.base import Calibrator, fit_batch, has_params, register, wrapped

Array = jax.Array
LOWEST = -87.33  # Just above the logarithm of the smallest normal float32, which stands for 0.


@register
@has_params(floor="(-inf, 0]")
def probability_floor(base: str | Calibrator = "temperature_scaling", **base_options: Any) -> Calibrator:
  r"""Calibration by a base, for which probabilities below a floor, such as 0, count as that floor.

  Use it where a model says 0 and is sometimes wrong, as language models do.

  The probability 0 of a forest of 100 trees says that no tree voted for the class, and not that it is impossible; its
  logarithm is of nothing. One wrong 0 therefore decides the fit of a temperature, of Platt scaling and of others.
  As a measurement below the limit of detection, it counts as half of what can be told from 0,

  .. math:: \tilde p = \max(p, p_0 / 2)

  before rows are divided by their sums, where :math:`p_0` is the smallest probability of the fit above the smallest
  normal float32. In tables of rounded probabilities this is half of the last decimal. A network whose probabilities are
  0 by the range of float32 alone has a :math:`p_0` so small that nothing changes. The order of the classes of a row
  stays, but classes below the floor become equal.

  Args:
    base: the base calibrator: a name, or one that its factory made.
    **base_options: options of a base chosen by name.

  Returns:
    A calibrator of log-probabilities whose params are the base's and ``floor``, the logarithm of the floor. It
    takes ``log(max(p, tiny))`` with the smallest normal float32, as files of probabilities are read.

  Raises:
    ValueError: for an unknown base; TypeError: for options beside a base that is a calibrator already.

  References:
    Hornung & Reed 1990, for half of the limit of detection. experiments/results/calarena_local.md has its gain.

  >>> probs = jnp.array([[0.9, 0.1], [1.0, 0.0], [0.2, 0.8], [1.0, 0.0]])
  >>> logits = jnp.log(jnp.maximum(probs, jnp.finfo(jnp.float32).tiny))
  >>> fitted = probability_floor("temperature_scaling").fitted(logits, jnp.array([0, 0, 1, 1]))
  >>> jnp.exp(fitted.params["floor"]).round(3)  # Half of 0.1.
  Array(0.05, dtype=float32)
  """
  base = wrapped(base, base_options)

  def fit(logits, labels, *, where=None, weights=None, **others):  # Others are of the base, such as groups of ``auto``.
    logits, labels, counts = fit_batch(logits, labels, where, weights)
    floor = _half_of_the_smallest(logits, counts)
    counted = {"where": counts} if counts.dtype == bool else {"weights": counts}
    return base.fit(_floored(logits, floor), labels, **counted, **others) | {"floor": floor}

  def apply(params, logits, *covariates):
    logits, own = checks.floating(logits, "logits"), {name: x for name, x in params.items() if name != "floor"}
    checks.warn_of_probs(logits)
    return base.apply(own, _floored(logits, params["floor"]), *covariates)

  return Calibrator(fit, apply, "probability_floor", {"base": base}, base.together)


@jax.jit
def _half_of_the_smallest(logits: Array, counts: Array) -> Array:
  log_probs = jax.nn.log_softmax(logits)
  is_positive = (log_probs > LOWEST) & counts.astype(bool)[:, None]
  return jnp.min(jnp.where(is_positive, log_probs, 0)) - jnp.log(2.0).astype(logits.dtype)


@jax.jit
def _floored(logits: Array, floor: Array) -> Array:
  log_probs = jax.nn.log_softmax(without_absent(logits))
  return jax.nn.log_softmax(jnp.where(jnp.isneginf(log_probs), -jnp.inf, jnp.maximum(log_probs, floor)))
