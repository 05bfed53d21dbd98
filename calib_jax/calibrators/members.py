"""Calibration of an ensemble by the predictions of its members, of which the others know the mean alone."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics.lbfgs import minimize, shares
from calib_jax._numerics.softmax import pick
from calib_jax.calibrators.base import Calibrator, fit_batch

Array = jax.Array
MOST = 5.0  # The largest |log c1|.


def joint_ensemble_scaling() -> Calibrator:
  r"""Two constants for an ensemble: of confidence and of disagreement (JUCAL, Heiss et al. 2026).

  .. math:: q = \frac1M \sum_m \mathrm{softmax}\Big(\frac{\bar z + c_2 (z_m - \bar z)}{c_1}\Big)

  where :math:`z_m` are the log-probabilities of member m and :math:`\bar z` is their mean. With :math:`c_2 = 1` the
  members have one temperature and are then averaged; with :math:`c_2 = 0` it is a temperature of the mean logits. The
  formula is that of the released code's "pure logits", which gives the same NLL for the same constants; it takes the
  lowest of a grid, and this the minimum, with :math:`c_2 \ge 0`. JUCAL's other readings are not here.

  ``fit(logits, labels, *, where=None, weights=None)`` takes logits ``[M, ..., K]`` of M members, and labels ``[...]``;
  ``apply(params, logits)`` gives the log-probabilities ``[..., K]`` of the ensemble. A logit of -inf in every member is
  that of a class that the row does not have; in some of them it counts as the member's lowest of the row less log 2.

  Returns:
    A calibrator, which is not among ``CALIBRATORS``, because it takes members. Its params are ``confidence`` (c1, whose
    logarithm is within ±5), ``disagreement`` (c2), ``converged`` and ``iterations``.

  >>> members = jnp.log(jnp.array([[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [[0.7, 0.3], [0.4, 0.6], [0.2, 0.8]]]))
  >>> params = joint_ensemble_scaling().fit(members, jnp.array([0, 1, 0]))
  >>> joint_ensemble_scaling().apply(params, members).shape
  (3, 2)
  """
  return Calibrator(_fit, _apply)


def _fit(logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None, weights: ArrayLike | None = None
         ) -> dict[str, Any]:
  logits = checks.floating(logits, "logits")
  if logits.ndim < 3:
    raise ValueError(f"logits of members must be [M, ..., K]: got shape {logits.shape}.")
  _, flat, counts = fit_batch(jnp.mean(_filled(logits), axis=0), labels, where, weights)
  return _solve(logits.reshape(len(logits), -1, logits.shape[-1]), flat, counts)


@jax.jit
def _solve(logits: Array, labels: Array, counts: Array) -> dict[str, Any]:
  weights = shares(counts, logits.dtype)
  log_probs = jax.nn.log_softmax(_filled(jnp.where((weights > 0)[None, :, None], logits, 0)))

  def nll(x):
    of_label = pick(_scaled(log_probs, x["log_confidence"], jnp.abs(x["disagreement"])), labels)
    return -jnp.sum(weights * jnp.where(weights > 0, of_label, 0))

  def solved(disagreement):
    x, status = minimize(nll, {"log_confidence": jnp.zeros((), logits.dtype), "disagreement": disagreement})
    return nll(x), x, status

  # The slope in c2 is 0 at 0, since disagreements sum to 0: the NLL is smooth in |c2|, and a fit from 0 stays there. A
  # fit from 1 may end above it, in a local optimum.
  values, *fits = jax.lax.map(solved, jnp.array([1, 0], logits.dtype))
  x, status = jax.tree.map(lambda leaves: leaves[jnp.argmin(values)], fits)
  return {"confidence": jnp.exp(jnp.clip(x["log_confidence"], -MOST, MOST)),
          "disagreement": jnp.abs(x["disagreement"]), "converged": status["converged"],
          "iterations": status["iterations"]}


def _apply(params: dict[str, Any], logits: ArrayLike) -> Array:
  log_probs = jax.nn.log_softmax(_filled(checks.floating(logits, "logits")))
  return _scaled(log_probs, jnp.log(params["confidence"]), params["disagreement"])


def _filled(logits: Array) -> Array:
  """The logits of members ``[M, ..., K]``, -inf only where no member has the class."""
  is_absent = jnp.isneginf(logits)
  lowest = jnp.min(logits, axis=-1, keepdims=True, where=~is_absent, initial=jnp.inf) - math.log(2)
  return jnp.where(is_absent & ~jnp.all(is_absent, axis=0, keepdims=True), lowest, logits)


def _scaled(log_probs: Array, log_confidence: Array, disagreement: Array) -> Array:
  """The log-probabilities ``[..., K]`` of the ensemble."""
  mean = jnp.mean(log_probs, axis=0, keepdims=True)
  is_absent = jnp.isneginf(mean)  # Such classes are 0 wherever a gradient flows, because that of -inf is NaN.
  mean, log_probs = (jnp.where(is_absent, 0, x) for x in (mean, log_probs))
  scores = (mean + disagreement * (log_probs - mean)) * jnp.exp(-jnp.clip(log_confidence, -MOST, MOST))
  of_members = jnp.where(is_absent, 0, jax.nn.log_softmax(jnp.where(is_absent, -jnp.inf, scores)))
  return jnp.where(is_absent[0], -jnp.inf, jax.nn.logsumexp(of_members, axis=0) - math.log(len(log_probs)))
