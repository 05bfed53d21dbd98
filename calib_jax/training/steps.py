"""What one device does in one step, written once for one model, and mapped over seeds and devices in one place."""

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
  """All that a step changes; ``skipped`` counts the steps that were not finite and changed nothing else."""

  step: Array
  params: Any
  batch_stats: Any
  opt_state: Any
  loss_state: Any
  skipped: Array


def init_state(model: nn.Module, optimizer: optax.GradientTransformation, image_shape: tuple[int, ...],
               loss_state: Any, key: Array) -> TrainState:
  """The state before the first step, from ``key`` alone."""
  variables = model.init(key, jnp.zeros((1, *image_shape)))
  zero, params = jnp.zeros((), jnp.int32), variables["params"]
  return TrainState(zero, params, variables.get("batch_stats", {}), optimizer.init(params), loss_state, zero)


def train_step(state: TrainState, batch: dict[str, Array], key: Array, *, model: nn.Module, loss_fn: Callable,
               loss_axis: str | None, optimizer: optax.GradientTransformation, l2: float, decays: Callable,
               augment: Callable, normalize: Callable, accumulation: int = 1, rate: float = 1.0,
               freeze_batch_stats: bool = False) -> tuple[TrainState, dict[str, Array]]:
  """One step of minimising ``loss_fn + l2 * ||params||^2`` on the global batch, and what it measured.

  Args:
    state: before the step. A step whose loss or gradients are not finite changes nothing but the counts.
    batch: one device's share: ``image`` uint8, ``label``, and ``mask``, False for padding.
    key: of the run; the key ``dropout`` of a step is one for all devices.
    loss_axis: the mapped axis for a loss of the global batch, or None for the mean over devices of each one's own loss.
    l2, decays: the norm is over the parameters where ``decays(params)`` is true.
    accumulation: the batch is taken in so many parts one after another, each with a loss and batch statistics of its
      own, and their gradients averaged: memory for a part, time for the whole.
    rate: multiplies the update.
    freeze_batch_stats: the model runs as in prediction, with running statistics that stay as they are.
  """
  step_key = jax.random.fold_in(key, state.step)

  def gradients(batch_stats, part, part_key):
    images, labels, mask, unmix = augment(part["image"], part["label"], part["mask"], part_key, AXIS)
    images = normalize(images)

    def objective(params):
      logits, updated = model.apply({"params": params, "batch_stats": batch_stats}, images,
                                    train=not freeze_batch_stats, mask=mask, mutable=["batch_stats"],
                                    rngs={"dropout": part_key})
      logits = unmix(logits)
      loss, parts = loss_fn(logits, labels, loss_state=state.loss_state, where=mask, axis_name=loss_axis)
      decayed = zip(jax.tree.leaves(params), jax.tree.leaves(decays(params)), strict=True)
      penalty = l2 * sum(jnp.sum(x**2) for x, decay in decayed if decay)
      return loss + penalty, (logits, updated.get("batch_stats", {}), {"loss": loss, "l2": penalty, **parts})

    grads, (logits, updated, measured) = jax.grad(objective, has_aux=True)(state.params)
    labels = jnp.argmax(labels, -1) if labels.ndim > 1 else labels  # Of mixed ones, the larger part.
    measured["accuracy"] = jnp.sum((jnp.argmax(logits, -1) == labels) & mask)
    return grads, measured, updated, jnp.sum(mask)

  if accumulation == 1:
    grads, measured, batch_stats, count = gradients(state.batch_stats, batch, step_key)
  else:
    grads, measured, batch_stats, count = _accumulated(gradients, state.batch_stats, batch, step_key, accumulation)
  correct, count = jax.lax.psum((measured["accuracy"], count), AXIS)
  # The global loss transposes its psum to a psum: pmean leaves exactly the gradient of the whole batch.
  grads, measured = jax.lax.pmean((grads, measured), AXIS)
  measured |= {"accuracy": correct / count, "gradient_norm": optax.tree.norm(grads)}
  with jax.numpy_dtype_promotion("standard"):  # Optax mixes integer counts with floats.
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
  if rate != 1.0:
    updates = jax.tree.map(lambda u: rate * u, updates)
  finite = jnp.isfinite(measured["loss"]) & jnp.isfinite(measured["gradient_norm"])
  kept = (state.params, state.batch_stats, state.opt_state)
  moved = (optax.apply_updates(state.params, updates), batch_stats, opt_state)
  params, batch_stats, opt_state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, kept)
  skipped = state.skipped + (~finite).astype(jnp.int32)
  return TrainState(state.step + 1, params, batch_stats, opt_state, state.loss_state, skipped), measured


def _accumulated(gradients: Callable, batch_stats: Any, batch: dict[str, Array], key: Array, number: int):
  """``gradients`` over ``number`` parts of the batch, averaged by how many examples of all devices each holds."""
  parts = {name: x.reshape(number, -1, *x.shape[1:]) for name, x in batch.items()}
  counts = jax.lax.psum(jnp.sum(parts["mask"], 1), AXIS).astype(jnp.float32)
  shares = counts / jnp.sum(counts)

  def add(carry, part):
    batch_stats, total, correct, count = carry
    index, share, examples = part
    grads, measured, updated, seen = gradients(batch_stats, examples, jax.random.fold_in(key, index))
    # A part of padding alone has no statistics.
    batch_stats = jax.tree.map(lambda new, old: jnp.where(share > 0, new, old), updated, batch_stats)
    correct += measured.pop("accuracy")
    total = jax.tree.map(lambda sum_, x: sum_ + share * x, total, (grads, measured))
    return (batch_stats, total, correct, count + seen), None

  first = {name: x[0] for name, x in parts.items()}
  shapes = jax.eval_shape(lambda: gradients(batch_stats, first, key))
  measured = {name: x for name, x in shapes[1].items() if name != "accuracy"}
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (shapes[0], measured))
  none = jnp.zeros((), jnp.int32)
  carry = (batch_stats, zeros, none, none)
  (batch_stats, (grads, measured), correct, count), _ = jax.lax.scan(
    add, carry, (jnp.arange(number, dtype=jnp.uint32), shares, parts))
  return grads, {**measured, "accuracy": correct}, batch_stats, count


def predict_step(variables: dict[str, Any], batch: dict[str, Array], *, model: nn.Module,
                 normalize: Callable) -> tuple[Array, Array, Array]:
  """Logits ``[n, K]``, labels and mask of all devices' shares, with running statistics and no augmentation."""
  logits = model.apply(variables, normalize(batch["image"]))
  return jax.lax.all_gather((logits, batch["label"], batch["mask"]), AXIS, tiled=True)


def over_seeds(step: Callable, num_seeds: int) -> Callable:
  """``step`` of arguments that all have a leading axis of seeds: each model takes its own step, all in one program."""
  if num_seeds > 1:
    return jax.vmap(step)

  # Of a single seed the axis only comes and goes: convolutions mapped over weights are slow on some devices.
  def single(*arguments):
    return jax.tree.map(lambda x: x[None], step(*jax.tree.map(lambda x: x[0], arguments)))

  return single


def mapped(step: Callable, devices: list[jax.Device], num_seeds: int, *, donate: bool = False, **options) -> Callable:
  """``step(state, batch, ...)`` over seeds and ``devices`` (of every process): where steps meet ``jax.pmap``.

  The batch has a leading axis of this process's devices, then one of seeds; all else is the same on all devices.
  """
  function = over_seeds(functools.partial(step, **options), num_seeds)
  if donate:
    return jax.pmap(lambda state, batch, keys: function(state, batch, keys), axis_name=AXIS, in_axes=(None, 0, None),
                    out_axes=None, donate_argnums=0, devices=devices)
  return jax.pmap(lambda state, batch: function(state, batch), axis_name=AXIS, in_axes=(None, 0), out_axes=None,
                  devices=devices)
