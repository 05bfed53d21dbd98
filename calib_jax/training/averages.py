"""Averages of a model's weights over its steps, which predict in its place: ``training.average``."""

from collections.abc import Callable, Iterable
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from calib_jax.training.state import TrainState

Array = jax.Array
# What ``training.average`` may say: the model itself, an exponential moving average of it over all steps, or its mean
# at the ends of the last epochs (stochastic weight averaging, Izmailov et al. 2018).
AVERAGES = ("", "ema", "swa")


class Average(NamedTuple):
  """The average of each seed's model in a stage."""

  count: Array  # ``[S]``, the number of models that it is of; the same for all seeds.
  variables: Any  # The mean ``params`` and ``batch_stats``.


def variables(state: TrainState) -> dict[str, Any]:
  """Returns the part of a state that predicts: ``params`` and ``batch_stats``."""
  return {"params": state.params, "batch_stats": state.batch_stats}


def start(state: TrainState) -> Average:
  """Returns the average of no model yet, with the shapes of ``state``."""
  return Average(jnp.zeros_like(state.step), jax.tree.map(jnp.copy, variables(state)))


def has_begun(tree: dict[str, Any]) -> bool:
  """Returns whether a run keeps an average, and it is of any model yet."""
  return "average" in tree and bool(np.asarray(tree["average"].count)[0])


def predicting(tree: dict[str, Any]) -> dict[str, Any]:
  """Returns the variables that predict: the average's if it has begun, and else the state's."""
  return tree["average"].variables if has_begun(tree) else variables(tree["state"])


def enters(training: ml_collections.ConfigDict, step: int, num_steps: int, steps_per_epoch: int) -> bool:
  """Returns whether the model after a ``step`` of a stage, counted from 1 of its ``num_steps``, enters the average."""
  if training.average == "swa":
    ends_epoch = step % steps_per_epoch == 0
    return step == num_steps or (ends_epoch and step > (1 - training.average_fraction) * num_steps)
  return training.average == "ema"


def update(average: Average, state: TrainState, decay: float) -> Average:
  r"""Adds the model of ``state`` to the average: ``a ← a + r (w - a)``.

  With the decay d the t-th model has :math:`r_t = (1 - d) / (1 - d^t)`. So a is the exponential moving average divided
  by the sum :math:`1 - d^t` of its weights, which corrects its bias towards the start. The limit d = 1 is the plain
  mean, :math:`r_t = 1/t`.
  """
  return _update(average, variables(state), math.log(decay))  # In float32, 1 - d would lose its digits.


@functools.partial(jax.jit, donate_argnums=0)
def _update(average: Average, new: dict[str, Any], log_decay: float) -> Average:
  count = average.count[0].astype(jnp.float32) + 1
  decays = log_decay < 0
  rate = jnp.where(decays, jnp.expm1(log_decay) / jnp.expm1(count * jnp.where(decays, log_decay, -1)), 1 / count)
  mean = jax.tree.map(lambda new, old: optax.incremental_update(new, old, rate) if _is_number(new) else new, new,
                      average.variables)
  return Average(average.count + 1, mean)


def _is_number(x: Array) -> bool:
  """Returns whether an array has a mean; a head's PRNG key, which is of integers, has none, and the newest stays."""
  return jnp.issubdtype(x.dtype, jnp.inexact)


def reestimated(step: Callable[..., Any], mean: dict[str, Any], batches: Iterable[dict[str, Array]]) -> dict[str, Any]:
  """Replaces the batch statistics of averaged weights by their own on the training images, as SWA needs.

  A layer's running statistic is ``m · old + (1 - m) · the batch's``. Its value from the old statistics 0, and
  that from 1, give m; so the layers need not say it. What training does not change so, such as a head's own numbers,
  stays as it is. The result has the mean statistics of all ``batches``, weighted by their numbers of examples, which
  ``step(variables, batch) -> (batch_stats, number of examples)`` returns.
  """
  def filled(value):
    stats = jax.tree.map(lambda x: jnp.full_like(x, value) if _is_number(x) else x, mean["batch_stats"])
    return {**mean, "batch_stats": stats}

  zero, one = filled(0), filled(1)
  total, examples, momentum = None, 0, None
  for batch in batches:
    jax.block_until_ready(total)  # One call at a time, as in ``layout.predict``.
    new, count = step(zero, batch)
    if momentum is None:
      jax.block_until_ready(new)
      momentum = jax.tree.map(jnp.subtract, step(one, batch)[0], new)
    weighted = jax.tree.map(lambda x, n=count: _times(n, x) if _is_number(x) else x, new)
    total = weighted if total is None else jax.tree.map(jnp.add, total, weighted)
    examples += count

  def statistic(old, total, momentum):
    if not _is_number(old):
      return old
    mean = _times(1 / examples, total)
    return jnp.where(momentum < 1 - 1e-6, mean / jnp.where(momentum < 1 - 1e-6, 1 - momentum, 1), old)

  return {**mean, "batch_stats": jax.tree.map(statistic, mean["batch_stats"], total, momentum)}


def _times(of_seeds: Array, x: Array) -> Array:
  """Multiplies the array ``[S, ...]`` of each seed by a number ``[S]`` of that seed."""
  return x * of_seeds.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
