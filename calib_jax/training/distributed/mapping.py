"""Maps a step, which is written for one model on one device, over seeds and devices."""

from collections.abc import Callable, Sequence
import functools

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

AXIS = "batch"  # The name of the mapped axis of devices.


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
  """Maps ``step(state, batch, ..., **options)`` over seeds and over ``devices``, which may belong to several processes.

  This is the only use of ``jax.pmap`` and of ``jax.shard_map``, which is jitted, on global arrays over a mesh. Both run
  the same step with the same collectives. With ``donate`` the memory of the state is reused.

  Returns:
    A function ``(state, batch, keys...)``. The batch has a leading axis of this process's devices and then one of
    seeds; all other arguments and all results are the same on all devices, with a leading axis of seeds.
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
