"""Confidence scores: how sure a prediction is, from its probabilities ``[..., K]`` to ``[...]``.

>>> probs = jnp.array([[0.7, 0.2, 0.1]])
>>> msp(probs), margin(probs), negative_entropy(probs).round(1)
(Array([0.7], dtype=float32), Array([0.5], dtype=float32), Array([-0.8], dtype=float32))
"""

from collections.abc import Callable
import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._checks.registry import find, register
from calib_jax._numerics.softmax import one_hot, predicted

Array = jax.Array

Score = str | Callable[[ArrayLike], Array]  # A confidence score, by name or as a function of probabilities.
SCORES: dict[str, Callable[[ArrayLike], Array]] = {}


@register(SCORES)
def msp(probs: ArrayLike) -> Array:
  """Maximum softmax probability, in [1/K, 1]; in a tie the lowest index has its gradient.

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1.

  Returns:
    ``[...]`` scores.

  Raises:
    TypeError: if ``probs`` are not floats.
  """
  probs = checks.floating(probs, "probs")
  return jnp.sum(probs, axis=-1, where=_top(probs))


@register(SCORES)
def margin(probs: ArrayLike) -> Array:
  """The top probability minus the second, in [0, 1].

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1.

  Returns:
    ``[...]`` scores.

  Raises:
    TypeError: if ``probs`` are not floats.
  """
  probs = checks.floating(probs, "probs")
  top = _top(probs)
  second = _top(jnp.where(top, -1, probs))
  return jnp.sum(probs, axis=-1, where=top) - jnp.sum(probs, axis=-1, where=second)


@register(SCORES)
def negative_entropy(probs: ArrayLike) -> Array:
  """Σ p log p in nats, in [-log K, 0]; a probability of 0 adds 0.

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1.

  Returns:
    ``[...]`` scores.

  Raises:
    TypeError: if ``probs`` are not floats.
  """
  probs = checks.floating(probs, "probs")
  positive = probs > 0
  return jnp.sum(probs * jnp.log(jnp.where(positive, probs, 1)), axis=-1)


def _top(probs: Array) -> Array:
  return one_hot(predicted(probs), probs)


def get(score: Score) -> Callable[[ArrayLike], Array]:
  """The confidence score of a name, or the function itself.

  Raises:
    ValueError: for an unknown name.
  """
  return find("confidence", score, SCORES)


def score_range(score: Score, num_classes: int) -> tuple[float, float]:
  """``(low, high)``, the values that one of the scores above can take.

  Args:
    score: the score, by name or as a function.
    num_classes: K, at least 2.

  Returns:
    The lowest and the highest value.

  Raises:
    ValueError: for an unknown name or a function that is none of the scores above.

  >>> score_range("msp", 4)
  (0.25, 1.0)
  """
  checks.options(num_classes=(num_classes, "integer [2, inf)"))
  ranges = {msp: (1 / num_classes, 1.0), margin: (0.0, 1.0), negative_entropy: (-math.log(num_classes), 0.0)}
  function = get(score)
  if function not in ranges:
    raise ValueError(f"the range of {score!r} is not known: give score_range=(low, high), or use one of the scores "
                     f"{', '.join(SCORES)}.")
  return ranges[function]
