"""What the steps of a stage train on: examples that stay on the devices, or one batch from the host after another."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from calib_jax._system import capacity
from calib_jax.training import data
from calib_jax.training.data.batches import divided, epoch_part
from calib_jax.training.distributed import processes
from calib_jax.training.engine import stages
from calib_jax.training.engine.layout import Layout, predict

RESIDENT = 0.25  # The share of a device's memory that the examples of a stage may take there.


class Chunk(NamedTuple):
  """What one call of ``mapping.mapped_steps`` trains on."""

  phase: int  # The index of the phase of its steps.
  count: int  # The number of its steps.
  # Its batches, or where their examples are, ``[devices, steps, seeds, examples, ...]``.
  batches: dict[str, np.ndarray]
  examples: dict[str, jax.Array]  # The examples that ``batches`` points to; empty if it holds them itself.

  def num_examples(self) -> int:
    """Returns the number of examples of this process in its batches."""
    return int(self.batches["mask"][:, :self.count].sum())


class Feed:
  """Gives the steps of a stage their examples: indices of those that stay on the devices, or batches one by one."""

  def __init__(self, phases: Sequence[stages.Phase], first_step: int, seeds: Sequence[int], layout: Layout, *,
               batch_size: int, accumulation: int, salt: int, most: int, share: float = RESIDENT):
    """Takes a stage's phases, number ``salt``, steps of a chunk ``most``, and memory ``share`` of resident examples."""
    self.phases, self.seeds, self.batch_size, self.salt = phases, seeds, batch_size, salt
    self.options = {"accumulation": accumulation, **layout.options()}
    self.resident = _resident(phases, layout, share)
    self.most = min(most, max(stages.phase_steps(phase, batch_size) for phase in phases)) if self.resident else 1
    self.source = None if self.resident else stages.batches(phases, first_step, seeds, salt=salt,
                                                            batch_size=batch_size, **self.options)

  def phase(self, step: int) -> int:
    """Returns the index of the phase that the step after ``step`` steps of the stage belongs to."""
    return stages.place(self.phases, step, self.batch_size)[0]

  def take(self, step: int, most: int) -> Chunk:
    """Returns the chunk after ``step`` steps of the stage: at most ``most`` steps, of one phase of one epoch."""
    number, done = stages.place(self.phases, step, self.batch_size)
    phase, done = self.phases[number], done[number]
    if not self.resident:
      return Chunk(number, 1, {name: x[:, None] for name, x in next(self.source)[1].items()}, {})
    size = stages.phase_steps(phase, self.batch_size)
    count = min(most, self.most, size - done % size)
    of_seeds = [divided(epoch_part(part.labels, done, count, batch_size=self.batch_size, seed=seed, order=phase.order,
                                   salt=self.salt), self.batch_size, **self.options)
                for part, seed in zip(phase.examples, self.seeds, strict=True)]
    batches = {name: np.stack([x[name] for x in of_seeds], axis=2) for name in of_seeds[0]}
    if count < self.most:  # The program's length is fixed; steps beyond ``count`` are not taken.
      rest = [(0, 0), (0, self.most - count), (0, 0), (0, 0)]
      batches = {name: np.pad(x, rest) for name, x in batches.items()}
    return Chunk(number, count, batches, self.resident[number])


def may_loop(init: Callable[..., Any], keys: jax.Array, devices: Sequence[jax.Device]) -> bool:
  """Returns whether steps of the network that the jitted ``init(keys)`` makes may be taken in a loop of the program.

  On a CPU they may not if it has convolutions: XLA's CPU (JAX 0.10 to 0.12) arranges the gradients of convolutions for
  its fast library at the top of a program alone, and in a loop they take 15 times as long.
  """
  return devices[0].platform != "cpu" or "conv_general_dilated" not in str(init.trace(keys).jaxpr)


def on_features(phases: Sequence[stages.Phase], feature_step: Callable[..., Any], variables: Any,
                batch_size: int, layout: Layout) -> list[stages.Phase]:
  """Returns the phases of a stage with the features of their examples, ``[N, D]`` a seed, in place of images."""
  features = [predict(feature_step, variables, phase.examples, batch_size, layout) for phase in phases]
  return [phase._replace(examples=[data.Examples(*part) for part in zip(x["features"], x["labels"], strict=True)])
          for phase, x in zip(phases, features, strict=True)]


def _resident(phases: Sequence[stages.Phase], layout: Layout, share: float) -> list[dict[str, Any]]:
  """Returns the examples of each phase on the devices, flat images ``[S, N, D]``; empty if they stay on the host."""
  parts = [part for phase in phases for part in phase.examples]
  if not all(isinstance(part, data.Examples) for part in parts):
    return []
  stats = layout.local[0].memory_stats() or {}
  limit = stats.get("bytes_limit") or capacity.memory() / len(layout.local)  # The devices of a CPU share its memory.
  is_large = sum(part.images.nbytes + part.labels.nbytes for part in parts) > share * limit
  if processes.largest(is_large):  # All processes run the same program.
    return []
  return [layout.everywhere({"image": np.stack([part.images.reshape(len(part.images), -1) for part in phase.examples]),
                             "label": np.stack([part.labels for part in phase.examples])}) for phase in phases]
