"""What a calibrator is, and the one that changes nothing."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from calib_jax import checks

Array = jax.Array


class Calibrator(NamedTuple):
  """A pair of pure functions.

  ``fit(logits, labels, *, where=None)`` learns from held-out ``logits`` ``[N, K]`` and ``labels`` ``[N]`` and returns
  params, a pytree of arrays; ``apply(params, logits)`` returns log-probabilities ``[N, K]``.
  """

  fit: Callable[..., Any]
  apply: Callable[[Any, Array], Array]


def identity() -> Calibrator:
  """No calibration: ``log softmax(z)``; nothing to fit.

  >>> calibrator = identity()
  >>> params = calibrator.fit(jnp.array([[1.0, 0.0]]), jnp.array([0]))
  >>> jnp.exp(calibrator.apply(params, jnp.array([[0.0, 0.0]])))
  Array([[0.5, 0.5]], dtype=float32)
  """
  def fit(logits, labels, *, where=None):
    logits, labels = checks.scores_and_labels(logits, labels)
    checks.mask(where, labels.shape)
    return {}

  def apply(params, logits):
    del params
    return jax.nn.log_softmax(checks.floating(logits, "logits"))

  return Calibrator(fit, apply)
