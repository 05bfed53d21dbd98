"""Confidence scores: how sure a prediction is, from its probabilities ``[..., K]`` to ``[...]``.

>>> probs = jnp.array([[0.7, 0.2, 0.1]])
>>> msp(probs), margin(probs), negative_entropy(probs).round(1)
(Array([0.7], dtype=float32), Array([0.5], dtype=float32), Array([-0.8], dtype=float32))
"""

from collections.abc import Callable
import math

import jax
import jax.numpy as jnp

from calib_jax import checks
from calib_jax.rows import one_hot, predicted

Array = jax.Array


def msp(probs) -> Array:
  """Maximum softmax probability, in [1/K, 1]; in a tie its gradient is that of the lowest index."""
  probs = checks.floating(probs, "probs")
  return jnp.sum(probs, axis=-1, where=_top(probs))


def margin(probs) -> Array:
  """The top probability minus the second, in [0, 1]."""
  probs = checks.floating(probs, "probs")
  top = _top(probs)
  rest = jnp.where(top, -1, probs)
  return jnp.sum(probs, axis=-1, where=top) - jnp.sum(probs, axis=-1, where=_top(rest))


def negative_entropy(probs) -> Array:
  """Σ p log p in nats, in [-log K, 0]; a probability of 0 counts 0."""
  probs = checks.floating(probs, "probs")
  positive = probs > 0
  return jnp.sum(probs * jnp.log(jnp.where(positive, probs, 1)), axis=-1)


def _top(probs: Array) -> Array:
  return one_hot(predicted(probs), probs)


SCORES: dict[str, Callable[..., Array]] = {f.__name__: f for f in (msp, margin, negative_entropy)}


def get(score: str | Callable) -> Callable[..., Array]:
  """The score of a name, or the function itself."""
  if callable(score):
    return score
  checks.choice("confidence", score, SCORES)
  return SCORES[score]


def score_range(score: str | Callable, num_classes: int) -> tuple[float, float]:
  """``(low, high)`` that ``score``, one of the above, can take for ``num_classes``.

  >>> score_range("msp", 4)
  (0.25, 1.0)
  """
  checks.number("num_classes", num_classes, low=2, integer=True)
  ranges = {msp: (1 / num_classes, 1.0), margin: (0.0, 1.0), negative_entropy: (-math.log(num_classes), 0.0)}
  function = get(score)
  if function not in ranges:
    raise ValueError(f"score must be one of {', '.join(SCORES)}: got {score!r}, whose range is for you to give.")
  return ranges[function]
