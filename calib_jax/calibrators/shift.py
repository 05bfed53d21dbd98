"""Correction for label shift: classes that are more or less frequent where predictions are made than in the fit."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from calib_jax import _checks as checks
from calib_jax._numerics.lbfgs import shares
from calib_jax.calibrators.base import Calibrator, has_params, register, wrapped

Array = jax.Array
TOLERANCE, MAX_ITERATIONS = 1e-6, 2000


@register
@has_params(prior="K [0, 1] shares", base="below")
def label_shift(base: str | Calibrator = "vector_scaling", **base_options: Any) -> Calibrator:
  r"""Calibration by a base, whose probabilities follow the class frequencies of the rows that ``apply`` is given.

  Use it where classes are more or less frequent than when the calibrator was fitted.

  If classes are as frequent as :math:`\pi` there and were as frequent as :math:`\pi^0` in the fit, and examples of a
  class look alike in both, the probabilities are

  .. math:: q_{ik} = \frac{p_{ik} \pi_k / \pi^0_k}{\sum_j p_{ij} \pi_j / \pi^0_j}

  of the base's p. The frequencies maximise the likelihood :math:`\sum_i \log \sum_k p_{ik} \pi_k / \pi^0_k`, which is
  concave, by EM: :math:`\pi_k` becomes the mean of :math:`q_{ik}` over all rows, until no frequencies have a mean
  log-likelihood that is higher by 1e-6, or 2,000 times. It needs probabilities that are calibrated by class, as those
  of a base with a bias for each class are, and may change accuracy.

  Unlike in other calibrators, ``apply`` is a function of all rows together: give it the whole unlabelled sample,
  not a batch, and no row of its own.

  Args:
    base: the base calibrator: a name, or one that its factory made.
    **base_options: options of a base chosen by name.

  Returns:
    A calibrator whose params are ``base``, the base's params, and ``prior`` :math:`\pi^0` ``[K]``, the share of each
    class of the fit. A class that is absent there has probability 0.

  Raises:
    ValueError: for an unknown base; TypeError: for options beside a base that is a calibrator already.

  References:
    Saerens et al. 2002; Alexandari et al. 2020.

  >>> calibrator = label_shift("identity")
  >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.1, 0.9]]))
  >>> params = calibrator.fit(logits, jnp.array([0, 1]))
  >>> shifted = jnp.repeat(logits, jnp.array([30, 10]), axis=0)  # Class 0 is the more frequent one here.
  >>> [round(float(p), 2) for p in jnp.exp(calibrator.apply(params, shifted))[0]]
  [0.97, 0.03]
  """
  base = wrapped(base, base_options)

  def fit(logits, labels, *, where=None, weights=None):
    params = base.fit(logits, labels, where=where, weights=weights)
    logits, labels = checks.outputs_and_labels(logits, labels)
    weights, where = checks.weights_and_where(weights, where, labels)
    where = jnp.ones(labels.size, bool) if where is None else checks.gathered(jnp.asarray(where)).reshape(-1)
    share = shares(checks.counts(weights, where, logits.dtype), logits.dtype)
    labels = jnp.where(where, checks.gathered(labels).reshape(-1), 0)
    return {"base": params, "prior": jnp.zeros(logits.shape[-1], logits.dtype).at[labels].add(share)}

  return Calibrator(fit, functools.partial(_apply, base), "label_shift", {"base": base}, together=True)


def _apply(base: Calibrator, params: dict, logits: Array) -> Array:
  log_probs = base.apply(params["base"], logits)
  rows = log_probs.reshape(-1, log_probs.shape[-1])
  ratios = log_ratios(rows, params["prior"].astype(rows.dtype))
  return jax.nn.log_softmax(rows + ratios[None, :]).reshape(log_probs.shape)


def log_ratios(log_probs: Array, prior: Array) -> Array:
  """The log class frequencies of the rows ``[N, K]`` relative to ``prior`` ``[K]``; -1e4 where it is 0."""
  # EM's next ratios are the last times the gains g, the slopes of the mean log-likelihood, which is concave in the
  # ratios: it can rise by at most log max g.
  seen = prior > 0

  def gains(log_ratio):
    posterior = jax.nn.softmax(log_probs + log_ratio[None, :])
    log_mean = jnp.log(jnp.mean(posterior, axis=0)) - log_ratio
    return jnp.where(seen, log_mean - jnp.log(jnp.where(seen, prior, 1)), -jnp.inf)

  def unfinished(carry):
    _, log_gains, iterations = carry
    return (jnp.max(log_gains) > TOLERANCE) & (iterations < MAX_ITERATIONS)

  def step(carry):
    log_ratio, log_gains, iterations = carry
    log_ratio = jnp.maximum(log_ratio + log_gains, -1e4)
    return log_ratio, gains(log_ratio), iterations + 1

  start = jnp.where(seen, 0, -1e4).astype(log_probs.dtype)
  return jax.lax.while_loop(unfinished, step, (start, gains(start), jnp.zeros((), jnp.int32)))[0]
