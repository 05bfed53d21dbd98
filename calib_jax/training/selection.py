"""Which of a run's states is kept: the last, or the best on the validation split."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.training.steps import TrainState

Array = jax.Array


class Best(NamedTuple):
  """Of each seed ``[S]``: the lowest validation loss so far, its step, evaluations since then, and the model there."""

  loss: Array
  step: Array
  since: Array
  variables: Any


def variables(state: TrainState) -> dict[str, Any]:
  """What a prediction needs of a state."""
  return {"params": state.params, "batch_stats": state.batch_stats}


def start(state: TrainState) -> Best:
  """Before the first evaluation, whose model is better than none."""
  zero = jnp.zeros_like(state.step)
  return Best(jnp.full(zero.shape, jnp.inf), zero, zero, jax.tree.map(jnp.copy, variables(state)))


@jax.jit
def update(best: Best, state: TrainState, loss: Array, patience: Array) -> Best:
  """After an evaluation with validation losses ``loss`` ``[S]``.

  A seed that went ``patience`` evaluations without a lower loss has stopped: it keeps the best it had, as it would
  alone.
  """
  running = best.since < patience
  better = running & (loss < best.loss)

  def chosen(new, old):
    return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

  return Best(chosen(loss, best.loss), chosen(state.step, best.step),
              jnp.where(better, 0, best.since + running.astype(jnp.int32)),
              jax.tree.map(chosen, variables(state), best.variables))


def stopped(best: Best, patience: int) -> bool:
  """Whether no seed has anything to gain."""
  return bool(np.all(np.asarray(best.since) >= patience))
