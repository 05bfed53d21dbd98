"""Selection keeps the model of each seed that has the lowest validation loss, before or after a temperature."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import losses
from calib_jax._numerics.temperature import solve_nll
from calib_jax.training.averages import variables
from calib_jax.training.state import TrainState

Array = jax.Array


# What ``training.select`` may say: the model of the last step, of the lowest validation loss, or of the lowest NLL
# after a temperature is fitted.
SELECTIONS = ("last", "best", "refined")


class Best(NamedTuple):
  """The best model of each seed so far."""

  loss: Array  # ``[S]``, the lowest validation loss, or refined NLL.
  step: Array  # ``[S]``, the step of that evaluation.
  since: Array  # ``[S]``, the number of evaluations since then.
  variables: Any  # The model's ``params`` and ``batch_stats`` at that step.


def start(state: TrainState) -> Best:
  """Returns the value before the first evaluation. Its loss is infinite, so the first finite loss is the best."""
  zero = jnp.zeros_like(state.step)
  return Best(jnp.full(zero.shape, jnp.inf), zero, zero, jax.tree.map(jnp.copy, variables(state)))


@jax.jit
def update(best: Best, step: Array, variables: Any, loss: Array, patience: Array) -> Best:
  """Updates the best models after an evaluation at ``step`` of ``variables``, with validation losses ``loss`` ``[S]``.

  A seed that went ``patience`` evaluations without a lower loss has stopped. It keeps its best model even if other
  seeds train on, so that it gets the result that it would get alone.
  """
  running = best.since < patience
  better = running & (loss < best.loss)

  def chosen(new, old):
    return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

  return Best(chosen(loss, best.loss), chosen(step, best.step),
              jnp.where(better, 0, best.since + running.astype(jnp.int32)),
              jax.tree.map(chosen, variables, best.variables))


@jax.jit
@jax.vmap
def refined_nll(logits: Array, labels: Array) -> Array:
  """Returns the mean NLL ``[S]`` that is left after the best temperature of each seed (Berta et al. 2025).

  A network may separate classes better while its confidence drifts away, which a calibrator can undo.
  """
  weights = jnp.full(labels.shape, 1 / labels.shape[0], logits.dtype)
  temperature = solve_nll(logits, labels, weights)["temperature"]
  return jnp.mean(losses.cross_entropy(logits / temperature, labels))


def stopped(best: Best, patience: int) -> bool:
  """Returns whether every seed has stopped."""
  return bool(np.all(np.asarray(best.since) >= patience))
