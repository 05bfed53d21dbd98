"""How arrays and batches are spread over devices and processes, and the predictions of a split over them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from calib_jax.training import data
from calib_jax.training.distributed.mapping import AXIS, is_sharded
from calib_jax.training.engine import stages


class Layout(NamedTuple):
  """A layout says how a global batch is spread over processes, and over the devices of this process."""

  local: Sequence[jax.Device]
  host: tuple[int, int]  # The index of this process, and the number of processes.
  mesh: Sequence[jax.Device]  # The devices that hold a state: this process's under pmap, all under shard_map.

  @classmethod
  def of(cls, devices: Sequence[jax.Device], parallel: str = "pmap") -> "Layout":
    """Returns the layout over ``devices``, which may belong to several processes; ``parallel`` as in a config."""
    local = [device for device in devices if device.process_index == jax.process_index()]
    hosts = len(devices) // len(local)
    host = (jax.process_index() if hosts > 1 else 0, hosts)
    return cls(local, host, devices if is_sharded(parallel, devices) else local)

  def options(self) -> dict[str, Any]:
    """Returns the keyword arguments that describe the layout to functions of ``data`` that make batches."""
    return {"num_devices": len(self.local), "host": self.host}

  def everywhere(self, tree: Any) -> Any:
    """Copies ``tree`` to all devices that hold a state.

    A training step leaves its state there too; with any other placement the second step would compile again.
    """
    sharding = NamedSharding(Mesh(np.array(self.mesh), (AXIS,)), PartitionSpec())
    if sharding.is_fully_addressable:
      return jax.device_put(tree, sharding)

    def copied(x):
      if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(copied(jax.random.key_data(x)))
      return jax.make_array_from_callback(x.shape, sharding, lambda index: np.asarray(x)[index])

    return jax.tree.map(copied, tree)

  def keys(self, seeds: Sequence[int]) -> jax.Array:
    """Returns the seeds' random keys ``[S]``, on all devices that hold a state."""
    return self.everywhere(jnp.stack([jax.random.key(seed) for seed in seeds]))


def predict(predict_step: Callable[..., Any], variables: Any, parts: Sequence[Any], batch_size: int,
            layout: Layout) -> dict[str, np.ndarray]:
  """Predicts every example of a split, in order, and returns the predictions in every process.

  Args:
    predict_step: a compiled step, as ``program.predictor`` returns it.
    variables: the models' ``params`` and ``batch_stats``, with a leading axis of seeds.
    parts: the split's examples, one element a seed.
    batch_size: the number of examples in a global batch.
    layout: the processes and devices that a batch is spread over.

  Returns:
    ``logits`` ``[S, N, K]``, ``labels`` ``[S, N]`` and, if the step returns them, ``features`` ``[S, N, D]``.
  """
  sources = [data.in_order(part, batch_size, **layout.options()) for part in parts]
  outputs = []
  for batches in map(stages.stacked, zip(*sources, strict=True)):
    # One call at a time: nothing orders calls that are queued, and several devices of a CPU, which share its threads,
    # may then wait for each other without end.
    jax.block_until_ready(outputs[-1:])
    outputs.append(predict_step(variables, batches))
  columns = {name: np.concatenate([np.asarray(batch[name]) for batch in outputs], 1) for name in outputs[0]}
  num_examples = int(columns.pop("mask")[0].sum())
  return {"labels" if name == "label" else name: x[:, :num_examples] for name, x in columns.items()}
