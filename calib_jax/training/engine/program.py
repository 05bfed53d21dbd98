"""Builds the program of a config: the compiled steps of each stage, and the functions that make its first state."""

from collections.abc import Callable, Sequence
import functools
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from calib_jax import losses
from calib_jax._system import compilation
from calib_jax._system.errors import UserError
from calib_jax.training import averages, best_model, data, head_state, loss_state, models
from calib_jax.training.distributed.mapping import AXIS, mapped, mapped_steps
from calib_jax.training.engine import drawing, gradients, objectives, optimizers, stages, steps
from calib_jax.training.engine.feeding import may_loop
from calib_jax.training.engine.layout import Layout
from calib_jax.training.seed_groups import Shape, shape_of
from calib_jax.training.state import TrainState

FUSION = "--xla_cpu_experimental_ynn_fusion_type="  # Without a type; XLA's CPU then fuses as in JAX 0.10.


class StageProgram(NamedTuple):
  """The program of one stage, which takes the steps ``first_step + 1`` to ``last_step`` of a run."""

  plan: stages.Stage  # What the schedule says of it.
  number: int
  first_step: int
  last_step: int
  steps_per_epoch: int
  train_steps: Sequence[Callable[..., Any]]  # As ``mapped_steps`` returns them, one a phase.
  loops: bool  # Whether a call may take several steps; see ``feeding.may_loop``.
  predict_step: Callable[..., Any]
  feature_step: Callable[..., Any] | None  # As ``predict_step``, with features; None unless the stage keeps them.
  statistics_step: Callable[..., Any] | None  # For ``averages.reestimated``; None if nothing is reestimated.
  init: Callable[[jax.Array], TrainState]  # Maps the seeds' keys to a new state.
  start: Callable[[TrainState | None, jax.Array], TrainState]  # Maps the state so far and the seeds' keys.
  # ``(loss_states, epoch, {split: (logits, labels)}) -> (loss_states, batch statistics of the head that change)``
  # after each epoch; None if not needed.
  update_states: Callable[..., Any] | None
  read_splits: frozenset[str]  # The splits that ``update_states`` reads.

  @property
  def num_steps(self) -> int:
    """The number of steps of the stage."""
    return self.last_step - self.first_step

  def ends_epoch(self, step: int) -> int | None:
    """Returns the number, from 1, of the epoch that ``step`` ends, or None if it ends none."""
    epoch, within = divmod(step - self.first_step, self.steps_per_epoch)
    return None if within else epoch


class Program(NamedTuple):
  """The program of a whole run, which trains one model a seed."""

  stages: Sequence[StageProgram]
  predict_step: Callable[..., Any]  # Of the trained model, with the samples of ``evaluation.samples``.
  validation_losses: Sequence[Callable[..., Any]]  # One element a stage.
  keeps_best: bool
  averages: bool

  @property
  def num_steps(self) -> int:
    """The number of steps of all stages."""
    return self.stages[-1].last_step

  def stage_of(self, step: int) -> StageProgram:
    """Returns the stage that takes ``step``, counted from 1."""
    return next(stage for stage in self.stages if step <= stage.last_step)

  def tree(self, state: TrainState) -> dict[str, Any]:
    """Returns what a stage carries from step to step and saves: the state, and the best and average model if wanted."""
    return {"state": state, **({"best": best_model.start(state)} if self.keeps_best else {}),
            **({"average": averages.start(state)} if self.averages else {})}

  def like(self, step: int, keys: jax.Array) -> dict[str, Any]:
    """Returns the structure, shapes and dtypes of a checkpoint after ``step``."""
    return jax.eval_shape(self.tree, jax.eval_shape(self.stage_of(step).init, keys))


def build(config: ml_collections.ConfigDict, splits: Sequence[data.Splits], seeds: Sequence[int],
          devices: Sequence[jax.Device]) -> Program:
  """Builds the program of a config for one model a seed, mapped over ``devices``."""
  planned = stages.planned(config, [s.train for s in splits], seeds)
  shape, built, first_step = shape_of(splits[0]), [], 0
  states = loss_state.of_loss(config.loss, shape.num_classes)
  for number, stage in enumerate(planned):
    program = _build_stage(config, stage, shape, number=number, first_step=first_step, states=states, seeds=seeds,
                           devices=devices)
    first_step = program.last_step
    built.append(program)
  samples, predict_step = config.evaluation.samples, built[-1].predict_step
  if samples:
    model = classifier(config, built[-1].plan.head or config.head, shape.num_classes)
    predict_step = predictor(model, shape, len(seeds), devices, parallel=config.training.parallel, samples=samples,
                             seeds=seeds)
  validation_loss = _validation_loss(config, config.loss)
  of_stages = [validation_loss if stage.loss is None else _validation_loss(config, stage.loss) for stage in planned]
  return Program(built, predict_step, of_stages, config.training.select != "last", bool(config.training.average))


def _validation_loss(config: ml_collections.ConfigDict, loss: ml_collections.ConfigDict) -> Callable:
  """Returns a function ``(loss_states, logits, labels) -> loss`` that scores the validation split of every seed."""
  scored_by_nll = objectives.validation_loss(config) == "nll"
  objective = objectives.per_example(loss, config.training.batch_size)

  def validation_loss(loss_states, logits, labels):
    if scored_by_nll:
      return jnp.mean(losses.cross_entropy(logits, labels))
    return objective(logits, labels, loss_states=loss_states)[0]

  return jax.jit(jax.vmap(validation_loss))


def plan(config: ml_collections.ConfigDict) -> list[stages.Stage]:
  """Returns the stages of a config without reading its data: the schedule gets dummy training examples.

  Raises:
    UserError: if the schedule refuses the config, or has no use for ``stage2.loss``.
  """
  examples = data.Examples(np.zeros((2000, 1, 1, 1), np.uint8), np.arange(2000, dtype=np.int32) % 2)
  planned = stages.planned(config, [examples], [config.seed])
  if config.stage2.loss.name and not any(stage.loss for stage in planned):
    raise UserError(f"config key stage2.loss: the schedule {config.schedule.name!r} has no second stage that trains "
                    "only the head. Set stage2.loss.name to ''.")
  return planned


def check_phases(config: ml_collections.ConfigDict, splits: data.Splits) -> None:
  """Checks that every phase of every stage fills a batch, and is reached, which ``training.num_steps`` may prevent.

  Raises:
    UserError: that names the phase, and its number of examples or the number of steps that reaches it.
  """
  for stage in stages.planned(config, [splits.train], [config.seed]):
    key = "schedule.stage2_batch_size" if stage.batch_size else "training.batch_size"
    size = stage.batch_size or config.training.batch_size
    steps_before, total = 0, stage.total_steps(size)
    for phase in stage.phases:
      if (number := data.num_examples(phase.examples[0])) < size:
        raise UserError(f"config key {key}: a batch of {size:,} is larger than the {number:,} examples of the phase "
                        f"{phase.name!r} of the schedule {config.schedule.name!r}, which would take one step in each "
                        f"epoch: set it to {number:,} or less"
                        + (", or raise data.held_out_fraction." if phase.name == "held_out" else "."))
      if config.training.num_steps is not None and steps_before >= total:
        raise UserError(f"config key training.num_steps: {total:,} steps never reach the phase {phase.name!r} of "
                        f"the schedule {config.schedule.name!r}, which begins after {steps_before:,} steps "
                        f"of an epoch: set it to {stage.steps_per_epoch(size):,} or more, or leave it to "
                        "training.num_epochs.")
      steps_before += stages.phase_steps(phase, size)


def _build_stage(config: ml_collections.ConfigDict, stage: stages.Stage, shape: Shape, *, number: int, first_step: int,
                 states: dict[str, loss_state.StateUpdate], seeds: Sequence[int], devices: Sequence[jax.Device]
                 ) -> StageProgram:
  size = config.training.batch_size
  per_epoch, total = stage.steps_per_epoch(size), stage.total_steps(size)
  # The optimizer keeps no state for parameters that are not trained. Their updates are their gradients, which are 0.
  optimizer = optax.masked(
    optimizers.build(stage.optimizer, total, per_epoch, decayed(stage.optimizer.decay_norms_and_biases)),
    lambda params: drawing.trainable(params, stage.trained))
  model = classifier(config, stage.head or config.head, shape.num_classes)
  states = states | head_state.of_head((stage.head or config.head).name, model.head, total / per_epoch)

  def initial(key):
    loss_states = {name: update.init() for name, update in states.items()}
    return steps.init_state(model, optimizer, shape.zeros(), loss_states, key)

  init = jax.jit(jax.vmap(initial), compiler_options=compilation.fewer_passes())
  keys = Layout.of(devices, config.training.parallel).keys(seeds)
  objective = _objective(config, stage, model, shape, loss_state.after_step(states))
  train_steps = [mapped_steps(
    steps.train_step, devices, len(seeds), parallel=config.training.parallel, optimizer=optimizer,
    image_shape=(-1,) if stage.cache_features else shape.image_shape,
    objective=objective._replace(loss_fn=phase.loss_fn, batch_stats=phase.batch_stats), rate=phase.rate,
    accumulation=config.training.accumulation_steps, stage_steps=(first_step, total),
    sharpness=stage.optimizer.sharpness, report_states=loss_state.report(states)) for phase in stage.phases]
  reestimates = config.training.average == "swa" and any(phase.batch_stats != "none" for phase in stage.phases)
  predicts = functools.partial(predictor, model, shape, len(seeds), devices, parallel=config.training.parallel)
  after_epoch = loss_state.after_epoch(states)
  return StageProgram(
    stage, number, first_step, first_step + total, per_epoch, train_steps,
    loops=stage.cache_features or may_loop(init, keys, devices), predict_step=predicts(),
    feature_step=predicts(features=True) if stage.cache_features else None,
    statistics_step=mapped(steps.statistics_step, devices, len(seeds), parallel=config.training.parallel, model=model,
                           normalize=normalizer(shape)) if reestimates else None,
    init=init, start=_starter(stage, number, init, optimizer, seeds),
    update_states=after_epoch and jax.jit(jax.vmap(after_epoch, in_axes=(0, None, 0))),
    read_splits=frozenset(update.reads for update in states.values() if update.on_epoch and update.reads))


def _objective(config: ml_collections.ConfigDict, stage: stages.Stage, model: models.Classifier, shape: Shape,
               after_step: Callable | None) -> gradients.Objective:
  """What the steps of a stage differentiate, but for what its phases add."""
  augmentation = dict((stage.augmentation or config.augmentation).items())
  return gradients.Objective(
    model.clone(from_features=stage.cache_features), loss_fn=None,
    loss_axis=AXIS if config.loss.scope == "global" else None,
    augment=data.build_augmentation(num_classes=shape.num_classes, **augmentation),
    normalize=(lambda features: features) if stage.cache_features else normalizer(shape),
    l2=stage.optimizer.l2, decays=decayed(stage.optimizer.decay_norms_and_biases), sums=stage.sums,
    trained=stage.trained, update_states=after_step)


def _starter(stage: stages.Stage, number: int, init: Callable, optimizer: optax.GradientTransformation,
             seeds: Sequence[int]) -> Callable:
  """Returns a function from the state so far (None before the first stage) and the seeds' keys to the first state."""
  def start(state, keys):
    fresh = init(keys if number == 0 else jax.vmap(jax.random.fold_in, (0, None))(keys, number))
    state = fresh if state is None else state
    variables = averages.variables(state)
    if stage.start is not None:
      variables = stage.start(variables, averages.variables(fresh), seeds)
    elif number == 0:
      return state
    # The states of losses continue, but a head's state begins with the stage, as the optimizer's does.
    loss_states = fresh.loss_states | {name: x for name, x in state.loss_states.items() if name != "head"}
    return state._replace(**variables, opt_state=jax.jit(jax.vmap(optimizer.init))(variables["params"]),
                          loss_states=loss_states)

  return start


def classifier(config: ml_collections.ConfigDict, head: ml_collections.ConfigDict, num_classes: int
               ) -> models.Classifier:
  """Returns the model of a config, with a head by a section like ``config.head``.

  Its batch statistics are shared over the axis of the devices.

  Raises:
    UserError: for bfloat16 on a CPU where that may give NaN. XLA's CPU of JAX 0.11.2 and 0.12.0 fuses a whole network
      into one program, and about half of these are wrong in bfloat16: the same ResNet-50 gave finite logits in some
      processes and NaN in others. Without that fusion none did.
  """
  if config.model.dtype == "bfloat16" and jax.default_backend() == "cpu" and (
      jax.__version__.startswith(("0.11.", "0.12.")) and FUSION not in os.environ.get("XLA_FLAGS", "")):
    raise UserError(f"config key model.dtype: bfloat16 on a CPU can give NaN with JAX {jax.__version__}: set "
                    f"XLA_FLAGS={FUSION} in the environment, or model.dtype to 'float32'.")
  return models.get(num_classes=num_classes, head=head, axis_name=AXIS, **config.model)


def normalizer(shape: Shape) -> Callable[..., Any]:
  """Returns a function that normalises stored images by the mean and deviation of each channel, or rows by columns."""
  if shape.dtype == "int32":
    return lambda ids: ids
  if shape.dtype == "float32":
    mean, std = (jnp.reshape(x, (1,) * len(shape.image_shape) + (-1,)) for x in (shape.mean, shape.std))
    return lambda rows: (rows - mean) / std
  return functools.partial(data.normalize, mean=jnp.asarray(shape.mean), std=jnp.asarray(shape.std))


def predictor(model: models.Classifier, shape: Shape, num_seeds: int, devices: Sequence[jax.Device],  # noqa: PLR0917
              features: bool = False, parallel: str = "pmap", samples: int = 0, seeds: Sequence[int] = ()
              ) -> Callable[..., Any]:
  """Returns ``steps.predict_step`` of a model, mapped over seeds and devices.

  Args:
    model: the model.
    shape: the shape of its data, which holds the means and deviations to normalise by.
    num_seeds: the number of models that predict together.
    devices: the devices to spread a batch over.
    features: whether the step also returns the features before the head.
    parallel: how the step is mapped over devices, as in a config.
    samples: the number of stochastic forward passes that are averaged, as ``evaluation.samples``. A prediction then
      takes so many times the time of the model from its first random layer on: with dropout, the head's alone.
    seeds: the models' seeds, which the samples are drawn by.

  Returns:
    The function ``(variables, batch) -> predictions`` that ``predict`` takes.
  """
  step = mapped(steps.predict_step, devices, num_seeds, parallel=parallel, model=model,
                normalize=normalizer(shape), features=features, samples=samples)
  if not samples:
    return step
  keys = Layout.of(devices, parallel).keys(seeds)
  return lambda variables, batch: step({**variables, "key": keys}, batch)


def decayed(all_parameters: bool) -> Callable[..., Any]:
  """Returns a function from parameters to a tree of bools, which says which of them L2 and weight decay shrink.

  These are ``all_parameters``, or all but norms, biases and positions.
  """
  return (lambda params: jax.tree.map(lambda _: True, params)) if all_parameters else models.decay_mask
