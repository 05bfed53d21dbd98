"""What an epoch consists of: phases, each with its own examples, loss and learning rate, one after another."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ml_collections import ConfigDict
import numpy as np

from calib_jax import data
from calib_jax.training.objectives import objective


class Phase(NamedTuple):
  """A part of every epoch: ``num_steps`` steps on ``examples``, one split a seed; ``name`` opens its metrics' names.

  ``loss_fn``, ``rate`` and ``freeze_batch_stats`` are those of ``steps.train_step``.
  """

  name: str
  examples: list
  num_steps: int
  loss_fn: Callable
  rate: float = 1.0
  freeze_batch_stats: bool = False


def joint(config: ConfigDict, examples: list, seeds: list[int]) -> list[Phase]:
  """Every step minimises the primary plus ``loss.weight`` times the secondary loss (Karandikar et al. 2021, 5.1)."""
  del seeds
  return [Phase("train", examples, _num_steps(examples, config), objective(config.loss))]


def interleaved(config: ConfigDict, examples: list, seeds: list[int]) -> list[Phase]:
  """Primary steps on most of the training split, then secondary ones on the rest of it (its Appendix B).

  The rest is ``data.held_out_fraction`` of the training split, drawn by seed and stratified. The second phase minimises
  ``loss.weight`` times the secondary loss, and its updates are multiplied by ``training.secondary_rate``.
  """
  pairs = [data.held_out(part, config.data.held_out_fraction, seed) for part, seed in zip(examples, seeds, strict=True)]
  majority, held_out = ([pair[i] for pair in pairs] for i in (0, 1))
  return [Phase("train", majority, _num_steps(majority, config), objective(config.loss, ("primary",))),
          Phase("held_out", held_out, _num_steps(held_out, config), objective(config.loss, ("secondary",)),
                config.training.secondary_rate, config.training.freeze_batch_stats_in_secondary)]


SCHEDULES: Mapping[str, Callable[..., list[Phase]]] = {"joint": joint, "interleaved": interleaved}


def _num_steps(parts: list, config: ConfigDict) -> int:
  return data.steps_per_epoch(data.num_examples(parts[0]), config.training.batch_size)


def place(phases: list[Phase], step: int) -> tuple[int, list[int]]:
  """Which phase step ``step`` of the run belongs to, and how many steps of each phase come before it."""
  epoch, within = divmod(step, sum(phase.num_steps for phase in phases))
  done, current = [], len(phases) - 1
  for i, phase in enumerate(phases):
    taken = min(max(within, 0), phase.num_steps)
    done.append(epoch * phase.num_steps + taken)
    if taken < phase.num_steps:
      current = min(current, i)
    within -= phase.num_steps
  return current, done


def batches(phases: list[Phase], first_step: int, seeds: list[int], **options) -> Iterator[tuple[int, dict]]:
  """``(phase, batch)`` of steps ``first_step``, ``first_step + 1``, … of the run, without end.

  The arrays of a batch are ``[devices, seeds, examples, ...]``. Which examples are in it follows from the seed and the
  step, wherever a run starts.
  """
  _, done = place(phases, first_step)
  sources = [[data.training_batches(part, start, seed=seed, **options)
              for part, seed in zip(phase.examples, seeds, strict=True)]
             for phase, start in zip(phases, done, strict=True)]
  step = first_step
  while True:
    phase, _ = place(phases, step)
    yield phase, stacked([next(source) for source in sources[phase]])
    step += 1


def stacked(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """Batches of several seeds as one, the seeds on the second axis."""
  if len(parts) == 1:
    return {name: x[:, None] for name, x in parts[0].items()}
  return {name: np.stack([part[name] for part in parts], axis=1) for name in parts[0]}
