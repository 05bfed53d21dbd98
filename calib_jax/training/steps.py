"""The training and prediction steps.

A step is written for one model on one device; ``mapped`` maps it over seeds and devices.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np
import optax

from calib_jax import losses
from calib_jax.training import drawing

Array = jax.Array
AXIS = "batch"
# A number to fold into the run's key for what a head draws; no step has it.
_DRAWS = 2**32 - 3


class TrainState(NamedTuple):
  """Everything that a step changes.

  ``skipped`` counts the steps whose loss or gradients were not finite; they change only ``step`` and ``skipped``.
  """

  step: Array
  params: Any
  batch_stats: Any
  opt_state: Any
  method_state: Any
  skipped: Array


def init_state(model: nn.Module, optimizer: optax.GradientTransformation, image_shape: tuple[int, ...],
               method_state: Any, key: Array) -> TrainState:
  """Returns the state before the first step; its parameters are drawn from ``key``."""
  variables = init_variables(model, image_shape, key)
  zero = jnp.zeros((), jnp.int32)
  return TrainState(zero, variables["params"], variables["batch_stats"], optimizer.init(variables["params"]),
                    method_state, zero)


def with_methods(state: TrainState, method_state: Any, head_stats: dict[str, Array]) -> TrainState:
  """Returns a state with other method states, and with some batch statistics of the head replaced, by name."""
  stats = state.batch_stats
  if head_stats:
    stats = {**stats, "head": {**stats["head"], **head_stats}}
  return state._replace(method_state=method_state, batch_stats=stats)


def init_variables(model: nn.Module, image_shape: tuple[int, ...], key: Array) -> dict[str, Any]:
  """Returns newly initialised ``params`` and ``batch_stats``."""
  return {"batch_stats": {}, **model.init(key, jnp.zeros((1, *image_shape)))}


def train_step(state: TrainState, batch: dict[str, Array], key: Array, *, model: nn.Module, loss_fn: Callable,
               loss_axis: str | None, optimizer: optax.GradientTransformation, l2: float, decays: Callable,
               augment: Callable, normalize: Callable, update_methods: Callable | None = None,
               report_methods: Callable | None = None, trainable: Callable | None = None, accumulation: int = 1,
               sums: bool = False, rate: float = 1.0, freeze_batch_stats: bool = False,
               frozen_from: Callable | None = None, freeze_stats_too: bool = False, first_step: int = 0,
               num_steps: int = 1) -> tuple[TrainState, dict[str, Array]]:
  """Takes one step of minimising ``loss_fn + l2 * ||params||^2`` on the global batch.

  Args:
    state: the state before the step. A step whose loss or gradients are not finite changes only the two counts.
    batch: this device's share: ``image`` uint8, ``label``, and ``mask``, which is False for padding.
    key: the run's key. The ``dropout`` key of a step is the same on all devices.
    model: the model of the stage.
    loss_fn: the objective, as ``objectives.objective`` returns it.
    loss_axis: the mapped axis, to compute the loss of the global batch; None for the mean of the devices' own losses.
    optimizer: the optimizer of the stage.
    l2: the coefficient of the squared norm.
    decays: a function from parameters to a tree of bools; the norm is over those for which it is true.
    augment: the augmentation of stored images, as ``data.build_augmentation`` returns it.
    normalize: maps augmented images to the model's input.
    update_methods: ``(method_state, logits, labels, *, output, where, axis_name) -> method_state``, called after the
      loss with the head's output too; or None.
    report_methods: a function from method states to scalars that the step measures; or None.
    trainable: a function from parameters to a tree of bools; those for which it is false stay the same. None to train
      all parameters.
    accumulation: the number of equal parts that the batch is divided into. Each part has its own loss and batch
      statistics, and the gradients are averaged. The step needs the memory of one part and the time of all.
    sums: whether ``loss_fn`` sums its primary over the examples. The step then minimises the sum over the global batch,
      however the batch is divided over parts and devices.
    rate: the factor that multiplies the update.
    freeze_batch_stats: whether the backbone normalises by its running statistics and leaves them unchanged.
    frozen_from: a function from parameters to the fractions of the stage, by top-level name, after which these neither
      move nor decay, nor does their momentum change; None to freeze none.
    freeze_stats_too: whether their running statistics stay the same too; the step normalises by those of the batch.
    first_step: the number of steps before the stage.
    num_steps: the number of steps of the stage.
  Returns: the state after the step, and what it measured: the loss, its parts, the accuracy and the gradient norm.
  """
  step_key = jax.random.fold_in(key, state.step)
  # All devices and all parts of a batch use the same weights.
  draw = model.head.draw(state.params.get("head", {}), jax.random.fold_in(key, _DRAWS), state.step,
                         state.method_state.get("head"))

  def gradients(carried, part, part_key, share=1.0):
    batch_stats, method_state = carried
    images, labels, mask, unmix = augment(part["image"], part["label"], part["mask"], part_key, AXIS)
    images = normalize(images)
    # Averages over parts, weighted by their shares, and over devices follow: this factor turns them into sums.
    devices = 1 if loss_axis else jax.lax.axis_size(AXIS)
    scale = {"scale": devices / jnp.where(share > 0, share, 1)} if sums else {}

    def objective(params):
      if trainable is not None:
        params = jax.tree.map(lambda x, train: x if train else jax.lax.stop_gradient(x), params, trainable(params))
      output, updated = model.apply({"params": drawing.used(params, draw), "batch_stats": batch_stats}, images,
                                    train=True, freeze_batch_stats=freeze_batch_stats, mask=mask,
                                    mutable=["batch_stats", "losses"], rngs={"dropout": part_key})
      output, head_state, loss, parts = unmix(output), method_state.get("head"), 0.0, {}
      logits = model.head.combined(output, head_state)
      for weight, z in model.head.objectives(output, labels, head_state, where=mask, axis_name=AXIS):
        value, of_z = loss_fn(z, labels, method_state=method_state, where=mask, axis_name=loss_axis, **scale)
        loss, parts = loss + weight * value, {name: parts.get(name, 0.0) + weight * x for name, x in of_z.items()}
      for path, values in flax.traverse_util.flatten_dict(updated.get("losses", {})).items():
        reduced = losses.composite(lambda *_, values=values: values, reduction="sum" if sums else "mean")
        parts[path[-1]] = scale.get("scale", 1.0) * reduced(logits, labels, where=mask, axis_name=loss_axis)[0]
        loss += parts[path[-1]]
      trained = jax.tree.map(lambda _: True, params) if trainable is None else trainable(params)
      penalised = jax.tree.map(lambda x, decay, train: jnp.sum(x**2) if decay and train else 0.0, params,
                               decays(params), trained)
      penalty = l2 * sum(jax.tree.leaves(penalised))
      measured = {"loss": loss, "l2": penalty, **parts}
      return loss + penalty, (output, logits, updated.get("batch_stats", {}), measured)

    grads, (output, logits, updated, measured) = jax.grad(objective, has_aux=True)(state.params)
    if update_methods is not None:
      method_state = update_methods(method_state, logits, labels, output=output, where=mask, axis_name=AXIS)
    labels = jnp.argmax(labels, -1) if labels.ndim > 1 else labels  # The accuracy counts the larger part of a mix.
    measured["accuracy"] = jnp.sum((jnp.argmax(logits, -1) == labels) & mask)
    return grads, measured, (updated, method_state), jnp.sum(mask)

  carried = (state.batch_stats, state.method_state)
  if accumulation == 1:
    grads, measured, carried, count = gradients(carried, batch, step_key)
  else:
    grads, measured, carried, count = _accumulated(gradients, carried, batch, step_key, accumulation)
  correct, count = jax.lax.psum((measured["accuracy"], count), AXIS)
  # The psum inside the global loss transposes to a psum, so pmean gives exactly the gradient of the whole batch.
  grads, measured = jax.lax.pmean((grads, measured), AXIS)
  progress, fractions = (state.step - first_step) / num_steps, frozen_from(state.params) if frozen_from else {}
  holds = (drawing.held(draw), drawing.frozen(state.params, fractions, progress))
  grads = drawing.kept(grads, jax.tree.map(jnp.zeros_like, grads), *holds)
  measured |= {"accuracy": correct / count, "gradient_norm": optax.tree.norm(grads)}
  if report_methods is not None:
    measured |= report_methods(state.method_state)
  with jax.numpy_dtype_promotion("standard"):  # Optax mixes integer counts with floats.
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
  if rate != 1.0:
    updates = jax.tree.map(lambda u: rate * u, updates)
  finite = jnp.isfinite(measured["loss"]) & jnp.isfinite(measured["gradient_norm"])
  moved = optax.apply_updates(state.params, updates)
  if trainable is not None:
    moved = jax.tree.map(lambda new, old, train: new if train else old, moved, state.params, trainable(state.params))
  moved, opt_state = drawing.kept((moved, opt_state), (state.params, state.opt_state), *holds)
  if freeze_stats_too:
    held_stats = drawing.frozen(state.batch_stats, fractions, progress)
    carried = (drawing.kept(carried[0], state.batch_stats, held_stats), carried[1])
  before = (state.params, state.batch_stats, state.opt_state, state.method_state)
  after = (moved, carried[0], opt_state, carried[1])
  params, batch_stats, opt_state, method_state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after,
                                                              before)
  skipped = state.skipped + (~finite).astype(jnp.int32)
  return TrainState(state.step + 1, params, batch_stats, opt_state, method_state, skipped), measured


def _accumulated(gradients: Callable, carried: Any, batch: dict[str, Array], key: Array, number: int):
  """Averages ``gradients`` over ``number`` parts of the batch, weighted by each part's number of examples."""
  parts = {name: x.reshape(number, -1, *x.shape[1:]) for name, x in batch.items()}
  counts = jax.lax.psum(jnp.sum(parts["mask"], 1), AXIS).astype(jnp.float32)
  shares = counts / jnp.sum(counts)

  def add(carry, part):
    carried, total, correct, count = carry
    index, share, examples = part
    grads, measured, updated, seen = gradients(carried, examples, jax.random.fold_in(key, index), share)
    # A part that holds only padding on all devices has no statistics, so the old ones are kept.
    carried = jax.tree.map(lambda new, old: jnp.where(share > 0, new, old), updated, carried)
    correct += measured.pop("accuracy")
    total = jax.tree.map(lambda sum_, x: sum_ + share * x, total, (grads, measured))
    return (carried, total, correct, count + seen), None

  first_part = {name: x[0] for name, x in parts.items()}
  shapes = jax.eval_shape(lambda: gradients(carried, first_part, key))
  measured = {name: x for name, x in shapes[1].items() if name != "accuracy"}
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (shapes[0], measured))
  zero_count = jnp.zeros((), jnp.int32)
  carry = (carried, zeros, zero_count, zero_count)
  (carried, (grads, measured), correct, count), _ = jax.lax.scan(
    add, carry, (jnp.arange(number, dtype=jnp.uint32), shares, parts))
  return grads, {**measured, "accuracy": correct}, carried, count


def predict_step(variables: dict[str, Any], batch: dict[str, Array], *, model: nn.Module, normalize: Callable,
                 features: bool = False) -> dict[str, Array]:
  """Predicts a batch, with the model's running statistics and without augmentation.

  Args:
    variables: the model's ``params`` and ``batch_stats``.
    batch: this device's share: ``image`` uint8, ``label`` and ``mask``.
    model: the model.
    normalize: maps stored images to the model's input.
    features: whether to return the features before the head too.
  Returns: ``logits`` ``[n, K]``, ``label``, ``mask`` and, if asked for, ``features`` ``[n, D]`` of all devices' shares.
  """
  predictions = model.apply(variables, normalize(batch["image"]), return_features=features)
  outputs = dict(zip(("logits", "features"), predictions, strict=True)) if features else {"logits": predictions}
  return jax.lax.all_gather({**outputs, "label": batch["label"], "mask": batch["mask"]}, AXIS, tiled=True)


def over_seeds(step: Callable, num_seeds: int) -> Callable:
  """Maps ``step`` over the leading axis of seeds of all its arguments, so that one program steps all models."""
  if num_seeds > 1:
    return jax.vmap(step)

  # A single seed is not mapped, because convolutions mapped over weights are slow on some devices.
  def single(*arguments):
    return jax.tree.map(lambda x: x[None], step(*jax.tree.map(lambda x: x[0], arguments)))

  return single


def mapped(step: Callable, devices: Sequence[jax.Device], num_seeds: int, *, parallel: str = "pmap",
           donate: bool = False, **options) -> Callable:
  """Maps ``step(state, batch, ...)`` over seeds and over ``devices``, which may belong to several processes.

  This is the only use of ``jax.pmap`` and of ``jax.shard_map``. Both run the same step with the same collectives.

  Args:
    step: the step of one model on one device.
    devices: the devices of all processes.
    num_seeds: the number of models in the leading axis of all arguments.
    parallel: ``"pmap"``, or ``"shard_map"`` for ``jax.jit(jax.shard_map(...))`` on global arrays over a mesh.
    donate: whether the memory of the state is reused.
    **options: keyword arguments of the step.
  Returns: a function ``(state, batch, keys...)``. The batch has a leading axis of this process's devices and then one
    of seeds; all other arguments and all results are the same on all devices.
  """
  function = over_seeds(functools.partial(step, **options), num_seeds)
  if parallel == "shard_map":
    return _sharded(function, devices, donate)
  if donate:
    return jax.pmap(lambda state, batch, keys: function(state, batch, keys), axis_name=AXIS, in_axes=(None, 0, None),
                    out_axes=None, donate_argnums=0, devices=devices)
  return jax.pmap(lambda state, batch: function(state, batch), axis_name=AXIS, in_axes=(None, 0), out_axes=None,
                  devices=devices)


def _sharded(function: Callable, devices: Sequence[jax.Device], donate: bool) -> Callable:
  """``mapped`` by ``jax.shard_map``; the batch of every process becomes its part of global arrays."""
  mesh = Mesh(np.array(devices), (AXIS,))
  split, same = PartitionSpec(AXIS), PartitionSpec()

  def on_device(state, batch, *others):
    return function(state, jax.tree.map(lambda x: x[0], batch), *others)

  # Without check_vma gradients are those of one device's share, as under pmap; the step averages them itself.
  @functools.partial(jax.jit, donate_argnums=0 if donate else ())
  def step(state, batch, *others):
    specs = (same, split, *[same] * len(others))
    return jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=same, check_vma=False)(state, batch, *others)

  def on_global_arrays(state, batch, *others):
    sharding = NamedSharding(mesh, split)
    return step(state, jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), batch), *others)

  return on_global_arrays
