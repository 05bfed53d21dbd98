"""Maps a step, which is written for one model on one device, over seeds and devices."""

from collections.abc import Callable, Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

AXIS = "batch"  # The name of the mapped axis of devices.


def is_sharded(parallel: str, devices: Sequence[jax.Device]) -> bool:
  """Whether steps are mapped by ``shard_map``: by name, or, with "auto", if the devices are of several processes.

  A call of a pmapped step takes the host of one of several processes 9 ms, of a sharded one 1.5 (450 arrays).
  """
  return parallel == "shard_map" or (parallel == "auto" and len({device.process_index for device in devices}) > 1)


def over_seeds(step: Callable[..., Any], num_seeds: int) -> Callable[..., Any]:
  """Maps ``step`` over the leading axis of seeds of all its arguments, so that one program steps all models."""
  if num_seeds > 1:
    return jax.vmap(step)

  # A single seed is not mapped, because convolutions mapped over weights are slow on some devices.
  def single(*arguments):
    return jax.tree.map(lambda x: x[None], step(*jax.tree.map(lambda x: x[0], arguments)))

  return single


def mapped(step: Callable[..., Any], devices: Sequence[jax.Device], num_seeds: int, *, parallel: str = "pmap",
           **options: Any) -> Callable[..., Any]:
  """Maps ``step(state, batch, **options)`` over seeds and ``devices`` of any process; states are the same on all."""
  return _on_devices(over_seeds(functools.partial(step, **options), num_seeds), 2, devices, parallel)


def mapped_steps(step: Callable[..., Any], devices: Sequence[jax.Device], num_seeds: int, *,
                 image_shape: Sequence[int], parallel: str = "pmap", **options: Any) -> Callable[..., Any]:
  """Maps ``step(state, batch, key, **options)``: ``(state, batches, keys, examples={}, count=1) -> (state, measured)``.

  ``batches`` has the axes of this process's devices, of steps (the first ``count`` are taken), and of seeds. If
  it holds ``index``, ``examples`` has ``image`` ``[S, N, D]``, flat because a TPU would copy all images of another
  shape in every step, and ``label`` ``[S, N]``. ``measured`` has the axes of steps and seeds. Any ``count`` runs the
  same program, so that the bits do not depend on how steps are divided into calls.
  """
  function = jax.jit(over_seeds(functools.partial(step, **options), num_seeds))  # Jitted, it is traced once in take.

  def take(state, batches, keys, examples, count):
    def batch_of(i):
      batch = {name: x[i] for name, x in batches.items()}
      if examples:
        index = batch.pop("index")
        batch |= {name: _rows(x, index) for name, x in examples.items()}
        batch["image"] = batch["image"].reshape(*index.shape, *image_shape)
      return batch

    def one(i, carry):
      state, measured = carry
      state, new = function(state, batch_of(i), keys)
      return state, jax.tree.map(lambda all_steps, x: all_steps.at[i].set(x), measured, new)

    length = batches["mask"].shape[0]
    if length == 1:
      state, measured = function(state, batch_of(0), keys)
      return state, jax.tree.map(lambda x: x[None], measured)
    _, shapes = jax.eval_shape(function, state, batch_of(0), keys)
    zeros = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), shapes)
    return jax.lax.fori_loop(0, count, one, (state, zeros))

  program = _on_devices(take, 5, devices, parallel, donate=True)
  return lambda state, batches, keys, examples={}, count=1: program(state, batches, keys, examples, np.int32(count))


def _rows(x: jax.Array, index: jax.Array) -> jax.Array:
  """Returns the rows ``[S, n, ...]`` of ``x [S, N, ...]`` at ``index [S, n]``, which lies within ``x``."""
  return x.at[jnp.arange(len(x))[:, None], index].get(mode="promise_in_bounds")


def _on_devices(function: Callable, arguments: int, devices: Sequence[jax.Device], parallel: str,
                donate: bool = False) -> Callable:
  """Maps a function over devices, which share its second argument; this is the only use of pmap and shard_map."""
  if len(devices) == 1:
    return _on_one(function, devices[0], donate)
  if is_sharded(parallel, devices):
    return _sharded(function, devices, donate)
  in_axes = (None, 0, *[None] * (arguments - 2))
  return jax.pmap(function, axis_name=AXIS, in_axes=in_axes, out_axes=None, donate_argnums=0 if donate else (),
                  devices=devices)


def _on_one(function: Callable, device: jax.Device, donate: bool) -> Callable:
  """``_on_devices`` for one device: an axis of size 1 that maps nothing, over which a sum is no operation.

  ``pmap`` and ``shard_map`` keep the sums over their one device, five or more a step, and XLA's CPU meets in each.
  Without them a step of an MLP or of a head on cached features takes 5 to 10% less time (a CPU of two cores).
  """
  everywhere = jax.vmap(function, in_axes=None, axis_size=1, axis_name=AXIS)

  @functools.partial(jax.jit, donate_argnums=0 if donate else (),
                     out_shardings=NamedSharding(Mesh(np.array([device]), (AXIS,)), PartitionSpec()))
  def step(state, batch, *others):
    return jax.tree.map(lambda x: x[0], everywhere(state, jax.tree.map(lambda x: x[0], batch), *others))

  return step


def _sharded(function: Callable, devices: Sequence[jax.Device], donate: bool) -> Callable:
  """``_on_devices`` by ``jax.shard_map``; the batch of every process becomes its part of global arrays."""
  mesh = Mesh(np.array(devices), (AXIS,))
  step, sharding = sharded(function, mesh, donate), NamedSharding(mesh, PartitionSpec(AXIS))

  def on_global_arrays(state, batch, *others):
    return step(state, jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), batch), *others)

  return on_global_arrays


def sharded(function: Callable, mesh: Mesh, donate: bool) -> Callable:
  """Returns the jitted function of global arrays that ``_on_devices`` calls with several processes."""
  split, same = PartitionSpec(AXIS), PartitionSpec()

  def on_device(state, batch, *others):
    return function(state, jax.tree.map(lambda x: x[0], batch), *others)

  # Without check_vma gradients are of one device's share, as under pmap; the step averages them itself.
  @functools.partial(jax.jit, donate_argnums=0 if donate else ())
  def step(state, batch, *others):
    specs = (same, split, *[same] * len(others))
    return jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=same, check_vma=False)(state, batch, *others)

  return step
