"""How near a program comes to what its device allows: operations and bytes, as XLA counts them, and their ceilings."""

from collections.abc import Mapping
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.benchmarks import timing


class Ceilings(NamedTuple):
  """What a device reaches: operations a second of a large matrix product, and bytes a second of a large copy."""

  operations: float
  bytes: float


def ceilings(dtype, side: int = 0, repeats: int = 10) -> Ceilings:
  """Measures both ceilings of the first device.

  Args:
    dtype: the dtype of the matrices.
    side: their side; 0 for one that suits the device. The array that is copied has as many bytes as 4 of them.
    repeats: the fastest of so many calls counts.
  """
  n = side or (8192 if jax.default_backend() != "cpu" else 2048)
  a, x = jnp.ones((n, n), dtype), jnp.ones((n, n), jnp.float32)
  product, copy = jax.jit(lambda a: a @ a), jax.jit(lambda x: x + 1)
  jax.block_until_ready((product(a), copy(x)))
  fastest = [min(timing.seconds(lambda f=f, y=y: f(y).block_until_ready()) for _ in range(repeats))
             for f, y in ((product, a), (copy, x))]
  return Ceilings(2 * n**3 / fastest[0], 2 * x.nbytes / fastest[1])


def beside(seconds: float, counted: Mapping[str, float], most: Ceilings) -> dict[str, float | str]:
  """Returns a time beside the least that the ceilings allow.

  Args:
    seconds: the time of a program.
    counted: what XLA counts in the program (``counting.counted``); what it does not count is nan, or leaves the other
      bound.
    most: the ceilings.

  >>> values = beside(0.004, {"flops": 2e9, "bytes accessed": 3e9}, Ceilings(1e12, 1e12))
  >>> values["bound"], values["share_of_roofline"]
  ('bytes', 0.75)
  """
  operations, moved = counted.get("flops", math.nan), counted.get("bytes accessed", math.nan)
  least = {"operations": operations / most.operations, "bytes": moved / most.bytes}
  bound = max(least, key=lambda name: -1.0 if math.isnan(least[name]) else least[name])
  return {"tera_operations_per_second": operations / seconds / 1e12, "giga_bytes_per_second": moved / seconds / 1e9,
          "share_of_matrix_products": least["operations"] / seconds, "share_of_copies": least["bytes"] / seconds,
          "share_of_roofline": least[bound] / seconds, "bound": bound}
