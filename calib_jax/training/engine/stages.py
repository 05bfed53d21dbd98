"""A run consists of stages, one after another; every epoch of a stage consists of phases."""

from collections.abc import Callable, Iterator, Sequence
import functools
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from calib_jax import _checks as checks
from calib_jax._system.errors import UserError
from calib_jax.training import data, models, pretrained
from calib_jax.training.engine.objectives import objective, per_example, second_loss
from calib_jax.training.loss_state import LOSS_STATES


class Phase(NamedTuple):
  """A phase is a part of every epoch of a stage, with its own examples, their order, and its objective.

  Attributes:
    name: the prefix of this phase's metrics in the log.
    examples: the examples to train on, one split a seed.
    loss_fn: the objective, as ``objectives.objective`` returns it.
    order: the name of the order of the examples in an epoch, one of ``data.ORDERS``.
    rate: the factor that multiplies the optimizer's updates.
    batch_stats: which running batch statistics the steps update: "all"; "trained", for the parts that are still
      trained, while all normalise by the batch; or "none", and the backbone normalises by its running statistics.
  """

  name: str
  examples: list[Any]
  loss_fn: Callable[..., Any]
  order: str = "shuffled"
  rate: float = 1.0
  batch_stats: str = "all"


class Stage(NamedTuple):
  """A stage is a part of a run with its own epochs, optimizer, head and trainable parameters.

  Attributes:
    name: the name of the stage in messages.
    phases: the phases of each epoch.
    optimizer: a section like ``config.optimizer``; its state and its learning-rate schedule begin with the stage.
    num_epochs: the number of epochs, used if ``num_steps`` is None.
    num_steps: the number of steps; None to count in epochs.
    head: a section like ``config.head``; None for ``config.head`` itself.
    augmentation: a section like ``config.augmentation``; None for ``config.augmentation`` itself.
    trained: a function from parameters to the fractions of the stage, by top-level name, for which these are trained; a
      part that it leaves out is trained to the end. What is not trained is frozen to the bit, with its momentum. Parts
      of the fraction 0 have no gradient, momentum, decay or L2 penalty; all other gradients are computed nonetheless.
    start: ``(variables, fresh, seeds) -> variables``, called at the start of the stage. ``variables`` are the model's
      ``params`` and ``batch_stats`` so far and ``fresh`` newly initialised ones of this stage's model, both with a
      leading axis of seeds. None to continue with the model as it is.
    sums: whether its phases sum their primary loss over the examples, as ``gradients.Objective`` says.
    batch_size: the number of examples of its global batches; 0 for ``training.batch_size``.
    loss: a section like ``config.loss`` that scores the validation split; None for ``config.loss`` itself.
    cache_features: whether the features of all examples are computed once, when the stage starts or goes on, and its
      steps then use the head alone. The backbone must be frozen, and images must not be augmented.
  """

  name: str
  phases: Sequence[Phase]
  optimizer: ml_collections.ConfigDict
  num_epochs: int
  num_steps: int | None = None
  head: ml_collections.ConfigDict | None = None
  augmentation: ml_collections.ConfigDict | None = None
  trained: Callable[[Any], dict[str, float]] = lambda params: {}
  start: Callable[[Any, Any, Sequence[int]], Any] | None = None
  sums: bool = False
  cache_features: bool = False
  batch_size: int = 0
  loss: ml_collections.ConfigDict | None = None

  def steps_per_epoch(self, batch_size: int) -> int:
    """Returns the number of steps of all phases in one epoch; ``batch_size`` is ``training.batch_size``."""
    return sum(phase_steps(phase, self.batch_size or batch_size) for phase in self.phases)

  def total_steps(self, batch_size: int) -> int:
    """Returns the number of steps of the whole stage; ``batch_size`` is ``training.batch_size``."""
    return self.num_epochs * self.steps_per_epoch(batch_size) if self.num_steps is None else self.num_steps


SCHEDULES: dict[str, Callable[..., list[Stage]]] = {}  # The modules of ``training.schedules`` fill it.


def planned(config: ml_collections.ConfigDict, examples: list[Any], seeds: Sequence[int]) -> list[Stage]:
  """Returns the stages of a run, by the schedule that a complete config names, for the training split of each seed."""
  options = {key: value for key, value in config.schedule.items() if key != "name"}
  return SCHEDULES[config.schedule.name](config, examples, list(seeds), **options)


def main_stage(config: ml_collections.ConfigDict, phases: Sequence[Phase], **fields: Any) -> Stage:
  """Returns the stage of ``optimizer`` and ``training``, from the file ``model.weights`` or another ``start``."""
  if config.model.weights:
    fields = {"start": functools.partial(pretrained.FirstStage("", config.model.weights).start, config)} | fields
  return Stage("train", phases, config.optimizer, config.training.num_epochs, config.training.num_steps,
               sums=config.loss.reduction == "sum", **fields)


def joint_phase(config: ml_collections.ConfigDict, examples: list[Any], **fields: Any) -> Phase:
  """Returns the phase that minimises primary + ``loss.weight`` · secondary on every batch."""
  return Phase("train", examples, objective(config.loss), **fields)


def head_stage(config: ml_collections.ConfigDict, examples: list[Any], stage2_epochs: int, stage2_batch_size: int,
               cache_features: bool, *, order: str = "shuffled", batch_stats: str = "none", **fields: Any) -> Stage:
  """Returns the stage that trains only the head, with ``stage2.optimizer`` and ``loss`` or ``stage2.loss``, a mean.

  ``stage2_batch_size`` is 0 for ``training.batch_size``; with ``cache_features`` the features of all examples are
  computed once. Features that cannot be kept, and a loss with a state, are a UserError.
  """
  checks.options(stage2_epochs=(stage2_epochs, "integer [1, inf)"),
                 stage2_batch_size=(stage2_batch_size, "integer [0, inf)"))
  if config.stage2.loss.name in LOSS_STATES:
    raise UserError(f"config key stage2.loss.name: {config.stage2.loss.name!r} learns from all steps of a run; it can "
                    "only be loss.primary, which trains both stages if stage2.loss.name is ''.")
  own = second_loss(config.stage2.loss) if config.stage2.loss.name else None
  phase = Phase("train", examples, per_example(own or config.loss, config.training.batch_size), order,
                batch_stats=batch_stats)
  stage = Stage("head", [phase], config.stage2.optimizer, stage2_epochs, trained=only_head,
                cache_features=cache_features, batch_size=stage2_batch_size, loss=own, **fields)
  if stage.cache_features:
    _check_cache(stage, config)
  return stage


def _check_cache(stage: Stage, config: ml_collections.ConfigDict) -> None:
  """Raises a UserError if the features of a stage's examples change, or are not all that its head reads."""
  head, augmentation = (stage.head or config.head).name, (stage.augmentation or config.augmentation).name
  reason = None
  if augmentation != "none":
    reason = f"augmentation.name {augmentation!r} gives an image other features in each step; it must be 'none'"
  elif getattr(models.HEADS.get(head), "reads_map", False):
    reason = f"the head {head!r} reads the map before pooling, which is not kept"
  elif any(isinstance(part, data.Stream) for phase in stage.phases for part in phase.examples):
    reason = "images that are read as a stream are cropped anew each time"
  elif stage.phases[0].batch_stats != "none":
    reason = ("batch statistics that go on (schedule.backbone_in_training_mode) give an image other features in each "
              "step")
  if reason:
    raise UserError(f"config key schedule.cache_features: {reason}. Set it to false.")


def only_head(params: Any) -> dict[str, float]:
  """Freezes everything but the head from the start, for ``Stage.trained``."""
  return dict.fromkeys(params.keys() - {"head"}, 0.0)


def reset_head(variables: Any, fresh: Any, seeds: Sequence[int]) -> Any:
  """Keeps the backbone and its batch statistics, and replaces the head by a new one, for ``Stage.start``."""
  del seeds
  return {kind: {**{name: part for name, part in tree.items() if name != "head"},
                 **{name: part for name, part in fresh[kind].items() if name == "head"}}
          for kind, tree in variables.items()}


def phase_steps(phase: Phase, batch_size: int) -> int:
  """Returns the number of steps of a phase in each epoch."""
  return data.steps_per_epoch(data.num_examples(phase.examples[0]), batch_size)


def place(phases: Sequence[Phase], step: int, batch_size: int) -> tuple[int, list[int]]:
  """Returns the index of the phase that step ``step`` of a stage belongs to, and each phase's steps before it."""
  sizes = [phase_steps(phase, batch_size) for phase in phases]
  epoch, within = divmod(step, sum(sizes))
  begins = [sum(sizes[:i]) for i in range(len(sizes))]
  taken = [min(max(within - begin, 0), size) for begin, size in zip(begins, sizes, strict=True)]
  current = next(i for i, size in enumerate(sizes) if taken[i] < size)
  return current, [epoch * size + steps for size, steps in zip(sizes, taken, strict=True)]


def batches(phases: Sequence[Phase], first_step: int, seeds: Sequence[int], *, batch_size: int, salt: int = 0,
            **options: Any) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields ``(index of the phase, batch [devices, seeds, examples, ...])`` for the steps from ``first_step`` on."""
  _, done = place(phases, first_step, batch_size)
  sources = [[data.training_batches(part, start, seed=seed, batch_size=batch_size, order=phase.order, salt=salt,
                                    **options)
              for part, seed in zip(phase.examples, seeds, strict=True)]
             for phase, start in zip(phases, done, strict=True)]
  step = first_step
  while True:
    phase, _ = place(phases, step, batch_size)
    yield phase, stacked([next(source) for source in sources[phase]])
    step += 1


def stacked(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """Stacks the batches of several seeds into one batch, with the seeds on the second axis."""
  if len(parts) == 1:
    return {name: x[:, None] for name, x in parts[0].items()}
  return {name: np.stack([part[name] for part in parts], axis=1) for name in parts[0]}
