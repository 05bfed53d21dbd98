"""Data whose posterior is known exactly, models that distort it, and the true values of metrics.

A model predicts ``softmax(a log p)`` where the posterior is p and the exponent a depends on the class that is most
likely: it is calibrated if all exponents are 1, overconfident if they are above 1, underconfident if they are below,
and miscalibrated by class if they differ. A shift of the first class's log-odds miscalibrates it too.
"""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.estimators import simulation

Array = jax.Array


def gaussian_mixture(key: Array, shape: tuple[int, ...]) -> Array:
  """Log-posteriors ``[..., 2]`` of x from N(-1, 1) or N(1, 1) with equal chance; the posterior is sigmoid(2x)."""
  draws = jax.random.split(key)
  x = jax.random.normal(draws[0], shape) + jnp.where(jax.random.bernoulli(draws[1], 0.5, shape), 1, -1)
  return jax.nn.log_sigmoid(jnp.stack([-2 * x, 2 * x], axis=-1))


def dirichlet(key: Array, shape: tuple[int, ...]) -> Array:
  """Log-posteriors ``[..., 3]`` from the Dirichlet distribution whose three parameters are 1/2."""
  # A squared normal variable has the gamma distribution of shape 1/2.
  return jax.nn.log_softmax(2 * jnp.log(jnp.abs(jax.random.normal(key, (*shape, 3)))))


def six_confidences(key: Array, shape: tuple[int, ...]) -> Array:
  """Log-posteriors ``[..., 2]`` of which only six differ, so that most examples are tied."""
  of_first = jax.random.choice(key, jnp.array([0.5, 0.6, 0.7, 0.8, 0.9, 0.97]), shape)
  return jnp.log(jnp.stack([of_first, 1 - of_first], axis=-1))


POSTERIORS: dict[str, Callable] = {"Gaussian mixture": gaussian_mixture, "Dirichlet": dirichlet,
                                   "six confidences": six_confidences}


def sample(key: Array, shape: tuple[int, ...], posterior: Callable, exponents: tuple[float, ...], shift: float = 0.0
           ) -> dict[str, Array]:
  """Confidence, correctness (0 or 1), NLL and Brier score of each example, ``shape`` each."""
  of_posterior, of_labels = jax.random.split(key)
  log_p = posterior(of_posterior, shape)
  log_q = model_log_probs(log_p, exponents, shift)
  is_label = jax.nn.one_hot(jax.random.categorical(of_labels, log_p), log_p.shape[-1])
  q = jnp.exp(log_q)
  is_top = jax.nn.one_hot(jnp.argmax(log_q, axis=-1), log_p.shape[-1])
  return {"confidence": jnp.max(q, axis=-1), "correct": jnp.sum(is_top * is_label, axis=-1),
          "nll": -jnp.sum(log_q * is_label, axis=-1), "brier": jnp.sum((q - is_label) ** 2, axis=-1)}


def model_log_probs(log_p: Array, exponents: tuple[float, ...], shift: float = 0.0) -> Array:
  """The model's log-probabilities ``[..., K]``."""
  scores = jnp.asarray(exponents)[jnp.argmax(log_p, axis=-1)][..., None] * log_p
  return jax.nn.log_softmax(scores.at[..., 0].add(shift))


@functools.cache
def truth(posterior: Callable, exponents: tuple[float, ...], shift: float = 0.0, num_points: int = 1_000_000
          ) -> dict[str, float]:
  """What metrics tend to as N grows, from means over ``num_points`` posteriors: see ``simulation.true_values``."""
  log_p = posterior(jax.random.key(1), (num_points,))
  log_q, p = (np.asarray(x, np.float64) for x in (model_log_probs(log_p, exponents, shift), jnp.exp(log_p)))
  return simulation.true_values(log_q, p, calibrated=set(exponents) == {1.0} and not shift)
