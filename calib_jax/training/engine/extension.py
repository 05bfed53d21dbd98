"""Whether a run that has ended, or was stopped, can go on to a larger number of steps."""

from typing import NamedTuple

import jax
from ml_collections import ConfigDict

from calib_jax import data
from calib_jax.training import averages, head_state
from calib_jax.training.engine import optimizers, stages
from calib_jax.training.engine.program import classifier
from calib_jax.training.loss_state import of_loss
from calib_jax.training.seed_groups import shape_of


class Extension(NamedTuple):
  """A run that goes on to a larger number of steps.

  Attributes:
    steps_before: the number of steps that it had.
    steps_now: the number of steps that it will have.
    obstacles: why its result is not, bit for bit, that of a run that had begun with ``steps_now``; empty if it is.
  """

  steps_before: int
  steps_now: int
  obstacles: tuple[str, ...]


def extension(before: ConfigDict, now: ConfigDict, splits: data.Splits) -> Extension | None:
  """Returns how a run of the config ``before`` goes on as one of ``now``, if these differ in their lengths only.

  Only the last stage can become longer, because a checkpoint of it is what the run has kept.

  Args:
    before: the complete config of the run.
    now: the complete config of the longer one.
    splits: the data of one of its seeds.

  Returns:
    The extension, whose two numbers of steps are equal if this change does not concern the run; None if it cannot go on
    because it would be shorter, or an earlier stage would have another length.
  """
  plans = [stages.planned(config, [splits.train], [config.seed]) for config in (before, now)]
  size = now.training.batch_size
  totals = [[stage.total_steps(size) for stage in plan] for plan in plans]
  if totals[0] == totals[1]:
    return Extension(sum(totals[0]), sum(totals[1]), ())
  if totals[0][:-1] != totals[1][:-1] or totals[0][-1] > totals[1][-1]:
    return None
  stage, longer = plans[0][-1], plans[1][-1]
  return Extension(sum(totals[0]), sum(totals[1]), tuple(_obstacles(now, stage, longer, splits)))


def _obstacles(config: ConfigDict, stage: stages.Stage, longer: stages.Stage, splits: data.Splits):
  """Yields what of the steps so far depends on the length of their stage."""
  training, section = config.training, stage.optimizer
  per_epoch, total = stage.steps_per_epoch(training.batch_size), stage.total_steps(training.batch_size)
  if section.schedule != "constant":
    old, new = (optimizers.rate(section, part.total_steps(training.batch_size), per_epoch) for part in (stage, longer))
    yield (f"the learning rate of the schedule {section.schedule!r} depends on the number of steps (it was "
           f"{float(old(total - 1)):.3g} in the last step so far, and is {float(new(total)):.3g} in the next one)")
  shape = shape_of(splits)
  model = classifier(config, stage.head or config.head, shape.num_classes)
  params = jax.eval_shape(model.init, jax.random.key(0), shape.zeros())["params"]
  if any(0 < fraction < 1 for fraction in stage.trained(params).values()):
    yield f"the schedule {config.schedule.name!r} freezes layers at fractions of the run, and some of them go on"
  head = (stage.head or config.head).name
  of_head = head_state.of_head(head, model.head, total / per_epoch)
  if training.average == "swa":
    reads = any(update.reads for update in (*of_head.values(), *of_loss(config.loss, shape.num_classes).values()))
    longer_steps, own_steps = ([step for step in range(1, total + 1) if averages.enters(
      training, step, part.total_steps(training.batch_size), per_epoch)] for part in (longer, stage))
    if longer_steps and (others := [f"{step / per_epoch:g}" for step in own_steps if step not in longer_steps]):
      yield (f"training.average 'swa' keeps in its mean {len(others)} of the shorter run's models, of epoch "
             f"{' to '.join(dict.fromkeys((others[0], others[-1])))}, which a run that began so does not average")
    elif not longer_steps and (reads or training.select != "last"):
      yield ("training.average 'swa' has scored the validation split by means of what was the last part of the run, on "
             "which the selected model or the state of the loss or head depends")
  if any(update.follows_length for update in of_head.values()):
    yield f"the head {head!r} changes by the share of the epochs that are over"
  epoch, within = divmod(total, per_epoch)
  regular = not within and epoch % training.evaluate_every_epochs == 0 and epoch > training.select_after_epochs
  if training.select != "last" and not regular:
    yield (f"training.select {training.select!r} has compared the model after the last step, which a longer run does "
           "not evaluate")
