"""The proper part of the focal loss."""

import jax

from calib_jax import checks, focal_map
from calib_jax.losses.focal import _focal
from calib_jax.rows import pick

Array = jax.Array


def properized_focal(logits, labels, *, gamma: float = 2.0) -> Array:
  r"""The proper part of the focal loss, in nats.

  .. math:: \ell(z, y) = -(1 - q_y)^\gamma \log q_y, \qquad q = \hat p_\gamma^{-1}(\mathrm{softmax}(z))

  with :math:`\hat p_\gamma` the focal calibration map: minimised, in expectation, by the true probabilities, where the
  focal loss is not.

  Args: logits: ``[..., K]`` floats; labels: ``[...]`` integers in ``[0, K)``; gamma: at least 0.
  Returns: ``[...]`` values. O(NK) an iteration of the inverse map, about six; gradient by implicit differentiation.
  References: Komisarenko & Kull 2024, Propositions 2 and 4.

  >>> properized_focal(jnp.array([[0.0, 0.0]]), jnp.array([0])).round(4)
  Array([0.1733], dtype=float32)
  """
  checks.number("gamma", gamma, low=0)
  logits, labels = checks.scores_and_labels(logits, labels)
  odds = focal_map.inverse_log_odds(logits, gamma)
  return _focal(-pick(odds, labels), gamma)
