"""Refuses what cannot be in memory, says how much it would take, and keeps less of what is freed."""

import ctypes
import gc
import math
import os
import pathlib
from typing import Any

import jax

from calib_jax._system.errors import FileError, UserError

# Training holds at least the parameters, their gradients and the new parameters, in float32.
COPIES, ITEM = 3, 4
_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h.
READABLE = 0.5  # The share of the memory that what is read from one file may take, decoded.


def memory() -> float:
  """Returns the bytes of memory of this machine, infinity where the system does not say."""
  try:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
  except (AttributeError, ValueError, OSError):
    return math.inf


def size(num_bytes: float) -> str:
  """Returns a number of bytes as a text, such as "3.2 GB"."""
  for unit in ("bytes", "KB", "MB", "GB", "TB"):
    if num_bytes < 1000:
      return f"{num_bytes:.3g} {unit}"
    num_bytes /= 1000
  return f"{num_bytes:.3g} PB"


def check_read(place: str, num_bytes: float) -> None:
  """Raises a FileError about ``place`` if what is read of a file takes more than ``READABLE`` of the memory."""
  if num_bytes > READABLE * memory():
    raise FileError(f"{place} would take {size(num_bytes)} of memory, and what is read from one file may take "
                    f"{size(READABLE * memory())}, {READABLE:.0%} of what this machine has.")


def check_model(variables: Any, num_models: int) -> None:
  """Raises a UserError if ``num_models`` models of these shapes cannot be trained together in memory."""
  number = sum(math.prod(x.shape) for x in jax.tree.leaves(variables))
  needed = number * COPIES * ITEM * num_models
  if needed > memory():
    models = f"{num_models} models of {number:,} numbers each" if num_models > 1 else f"a model of {number:,} numbers"
    raise UserError(f"config key model: training {models} takes at least {size(needed)}, and this machine has "
                    f"{size(memory())} of memory; choose a smaller model or fewer seeds together.")


def share_freed() -> None:
  """Makes threads share the memory that they free, where the C library is GNU's.

  Otherwise each of XLA's keeps its own: an evaluation of 25,000 x 1,000 logits then peaks at 600 MB in place of 550.
  """
  if os.name == "posix" and (set_option := getattr(ctypes.CDLL(None), "mallopt", None)):
    set_option(_ARENA_MAX, 1)


def forget_programs(share: float = 0.5) -> None:
  """Drops all compiled programs if their memory mappings are more than a ``share`` of what Linux allows a process.

  ``jax.pmap`` keeps every program that it compiled (JAX 0.10), and on a CPU each takes some hundred mappings: after a
  hundred trainings of a ResNet-8 in one process, compiling failed with "Cannot allocate memory" and ended it.
  """
  try:
    used = pathlib.Path("/proc/self/maps").read_bytes().count(b"\n")
    most = int(pathlib.Path("/proc/sys/vm/max_map_count").read_text())
  except (OSError, ValueError):  # Another system.
    return
  if used > share * most:
    jax.clear_caches()
    gc.collect()
