"""What every metric begins with: checked, flattened and masked inputs."""

import jax
import jax.numpy as jnp

from calib_jax import binning, checks

Array = jax.Array


def classified(probs, labels, where) -> tuple[Array, Array, Array]:
  """``(probs [N, K], labels [N], where [N])``, leading axes flattened; rows that do not count hold class 0 for sure."""
  probs, labels = checks.scores_and_labels(probs, labels, name="probs")
  where = checks.mask(where, labels.shape)
  probs, labels = probs.reshape(-1, probs.shape[-1]), labels.reshape(-1)
  if where is None:
    return probs, labels, jnp.ones(labels.shape, bool)
  where = where.reshape(-1)
  certain = jax.nn.one_hot(jnp.zeros((), jnp.int32), probs.shape[-1], dtype=probs.dtype)
  return jnp.where(where[:, None], probs, certain[None, :]), jnp.where(where, labels, 0), where


def paired(confidence, correct, where) -> tuple[Array, Array, Array]:
  """``(confidence [N], correct [N] floats, where [N])``, flattened; zeros where a row does not count."""
  confidence, correct = checks.floating(confidence, "confidence"), jnp.asarray(correct)
  if correct.shape != confidence.shape:
    raise ValueError(f"correct must have the shape of confidence: got confidence {confidence.shape} and correct "
                     f"{correct.shape}.")
  where = checks.mask(where, confidence.shape)
  correct = correct.astype(confidence.dtype)
  if where is None:
    return confidence.reshape(-1), correct.reshape(-1), jnp.ones(confidence.size, bool)
  masked = (jnp.where(where, x, 0).reshape(-1) for x in (confidence, correct))
  return (*masked, where.reshape(-1))


def mean(values: Array, where: Array) -> Array:
  """The mean of ``values`` ``[N]`` that count; 0 if none does."""
  count = jnp.maximum(jnp.sum(where, dtype=jnp.int32), 1).astype(values.dtype)
  return binning.pairwise_sum(jnp.where(where, values, 0)) / count
