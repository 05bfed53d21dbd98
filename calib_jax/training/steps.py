"""What one device does in one step, written once and mapped over devices by one ``jax.pmap``."""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

Array = jax.Array
AXIS = "batch"


class TrainState(NamedTuple):
  """All that a step changes."""

  step: Array
  params: Any
  batch_stats: Any
  opt_state: Any


def init_state(model: nn.Module, optimizer: optax.GradientTransformation, image_shape: tuple[int, ...],
               seed: int) -> TrainState:
  """The state before the first step, from ``seed`` alone."""
  variables = jax.jit(model.init)(jax.random.key(seed), jnp.zeros((1, *image_shape)))
  params = variables["params"]
  return TrainState(jnp.zeros((), jnp.int32), params, variables.get("batch_stats", {}), optimizer.init(params))


def train_step(state: TrainState, batch: dict[str, Array], key: Array, *, model: nn.Module, loss_fn: Callable,
               loss_axis: str | None, optimizer: optax.GradientTransformation, l2: float, decays: Callable,
               augment: Callable, normalize: Callable) -> tuple[TrainState, dict[str, Array]]:
  """One step of minimising ``loss_fn + l2 * ||params||^2`` on the global batch, and what it measured.

  The norm is over the parameters where ``decays(params)`` is true; the key ``dropout`` is one for all devices.
  ``batch`` is one device's share: ``image`` uint8, ``label``, and ``mask``, False for padding. ``loss_axis`` is the
  mapped axis for a loss of the global batch, or None for the mean over devices of each device's own loss.
  """
  key = jax.random.fold_in(key, state.step)
  images, labels, mask, unmix = augment(batch["image"], batch["label"], batch["mask"], key, AXIS)
  images = normalize(images)

  def objective(params):
    logits, updated = model.apply({"params": params, "batch_stats": state.batch_stats}, images, train=True,
                                  mask=mask, mutable=["batch_stats"], rngs={"dropout": key})
    logits = unmix(logits)
    loss, parts = loss_fn(logits, labels, where=mask, axis_name=loss_axis)
    decayed = zip(jax.tree.leaves(params), jax.tree.leaves(decays(params)), strict=True)
    penalty = l2 * sum(jnp.sum(x**2) for x, decay in decayed if decay)
    return loss + penalty, (logits, updated, {"loss": loss, "l2": penalty, **parts})

  gradients, (logits, updated, measured) = jax.grad(objective, has_aux=True)(state.params)
  # The global loss transposes its psum to a psum: pmean leaves exactly the gradient of the whole batch.
  gradients, measured = jax.lax.pmean((gradients, measured), AXIS)
  labels = jnp.argmax(labels, -1) if labels.ndim > 1 else labels  # Of mixed ones, the larger part.
  correct, count = jax.lax.psum((jnp.sum((jnp.argmax(logits, -1) == labels) & mask), jnp.sum(mask)), AXIS)
  with jax.numpy_dtype_promotion("standard"):  # Optax mixes integer counts with floats.
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
  state = TrainState(state.step + 1, optax.apply_updates(state.params, updates), updated.get("batch_stats", {}),
                     opt_state)
  return state, {**measured, "accuracy": correct / count}


def predict_step(state: TrainState, batch: dict[str, Array], *, model: nn.Module, normalize: Callable) -> Array:
  """One device's logits ``[n, K]``, with running batch statistics and no augmentation."""
  return model.apply({"params": state.params, "batch_stats": state.batch_stats}, normalize(batch["image"]))


def mapped(devices: list[jax.Device], *, normalize: Callable, model: nn.Module, **options) -> tuple[Callable, Callable]:
  """``(train_step, predict_step)`` over ``devices``: the one place where steps meet ``jax.pmap``."""
  train = jax.pmap(functools.partial(train_step, model=model, normalize=normalize, **options), axis_name=AXIS,
                   in_axes=(None, 0, None), out_axes=None, donate_argnums=0, devices=devices)
  predict = jax.pmap(functools.partial(predict_step, model=model, normalize=normalize), axis_name=AXIS,
                     in_axes=(None, 0), devices=devices)
  return train, predict
