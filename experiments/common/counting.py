"""Operations of programs, as XLA counts them."""

from collections.abc import Callable, Mapping
import functools

import jax
import jax.numpy as jnp

from calib_jax._system.errors import UserError
from calib_jax.training import models
from experiments.common import costs


def operations(function: Callable, *arguments: object) -> float:
  """Returns the operations of a function of such arguments, or of their shapes, counted before it is compiled.

  Only the CPU counts those of a program that is not compiled: plugins, which devices of Nvidia and TPUs are, return
  None. Where ``JAX_PLATFORMS`` leaves the CPU out, the program is compiled for the device and counted then.
  """
  try:
    device = jax.local_devices(backend="cpu")[0]
  except RuntimeError:
    device = None
  with jax.default_device(device):
    lowered = jax.jit(function).lower(*arguments)
  counts = lowered.cost_analysis() or lowered.compile().cost_analysis() or {}
  if not counts.get("flops", 0) > 0:
    raise UserError(f"{jax.default_backend()} does not count the operations of a program: unset JAX_PLATFORMS, so that "
                    "the CPU does.")
  return counts["flops"]


def step_operations(network: Mapping[str, object], image: tuple[int, ...], num_classes: int, batch_size: int) -> float:
  """Returns the operations of a training step of a network; a forward pass takes a third of them.

  A compiled program does not count what a library of the device computes, such as the convolutions on a GPU.
  """
  options = tuple(sorted((key, value) for key, value in network.items() if key != "dtype"))
  return batch_size * _forward_operations(options, image, num_classes) / costs.FORWARD


@functools.lru_cache(maxsize=64)
def _forward_operations(options: tuple, image: tuple[int, ...], num_classes: int) -> float:
  model = models.get(num_classes=num_classes, **dict(options))
  x = jax.ShapeDtypeStruct((1, *image), jnp.float32)
  variables = jax.eval_shape(lambda key, x: model.init(key, x, train=False), jax.random.key(0), x)
  return operations(lambda v, x: model.apply(v, x, train=False), variables, x)
