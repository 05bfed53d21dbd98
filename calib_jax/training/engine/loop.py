"""The training loop takes a config and data sets, trains step by step, and returns the states and their predictions."""

from collections.abc import Callable, Sequence
import math
import pathlib
import signal
import time
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from calib_jax import metrics
from calib_jax._system import capacity
from calib_jax.training import averages, best_model, data
from calib_jax.training.checkpoints import Checkpoints
from calib_jax.training.distributed import processes
from calib_jax.training.distributed.stopping import Stopped, requests
from calib_jax.training.engine import program as programs
from calib_jax.training.engine import stages
from calib_jax.training.engine.feeding import Chunk, Feed, on_features
from calib_jax.training.engine.layout import Layout, predict
from calib_jax.training.run_log.metric_log import MetricLog
from calib_jax.training.run_log.progress import Progress
from calib_jax.training.run_log.reporting import Measured, Reporter
from calib_jax.training.run_log.telemetry import Meter, Profile
from calib_jax.training.state import TrainState

FOREVER = 2**31 - 1  # The patience of runs that do not stop early.
CALL_SECONDS = 0.5  # About how long a call of several steps takes at most, because a run stops and reports after it.
Hook = Callable[[int, dict[str, jax.Array]], None]


def train(config: ml_collections.ConfigDict, splits: Sequence[data.Splits], *, seeds: Sequence[int],
          devices: Sequence[jax.Device] | None = None, folder: pathlib.Path | None = None,
          log: MetricLog | None = None, label: str = "train", predicted: Sequence[str] = ("validation", "test"),
          hooks: Sequence[Hook] = ()) -> tuple[TrainState, list[dict[str, dict[str, np.ndarray]]]]:
  """Trains one model a seed, all in the same steps, and returns their states and predictions.

  The global batch is spread evenly over ``devices``. Everything random derives from the seed and the step, so up to
  rounding the result does not depend on the number of devices or processes, nor on which seeds train together.

  Args:
    config: a complete config, as ``config.load`` returns it.
    splits: one data set a seed, all of the same sizes.
    seeds: the models' seeds; everything random about a model follows from its seed.
    devices: the devices of all processes; None for every device that JAX sees.
    folder: the folder of checkpoints; a run continues from the newest one in it, to the same bits. None to save none.
    log: the log that scalars are written to; None to write none.
    label: the name of the run on the progress line.
    predicted: names of the splits to predict at the end (see ``data.Splits.part``).
    hooks: functions called as ``hook(step, measured)`` after every step, with the arrays that the step measured.

  Returns:
    The state, every array with a leading axis of seeds; and for each seed and each split in ``predicted`` a dict of
    ``logits`` ``[N, K]`` and ``labels`` ``[N]``.

  Raises:
    Stopped: after a signal.
    UserError: if the run cannot continue. Both messages name the last checkpoint.
  """
  capacity.forget_programs()
  devices = list(devices or jax.devices())
  layout = Layout.of(devices, config.training.parallel)
  program = programs.build(config, splits, seeds, devices)
  keys = layout.keys(seeds)
  keeper = Checkpoints(folder, config.checkpoint.keep) if folder else None
  first_step, tree = (keeper and keeper.restore(lambda step: program.like(step, keys))) or (0, None)
  if log:
    log.resume(seeds, first_step)
  loop = Loop(config, program, splits, seeds, keys, layout, keeper, log, label, hooks)
  if log and first_step < program.num_steps:
    log.open_events(seeds, loop.progress.note)
  if first_step and not jax.process_index():
    loop.progress.say(f"continued from step {first_step:,}")
  try:
    with requests() as requested:
      tree = loop.run(tree and layout.everywhere(tree), first_step, requested)
  finally:
    if keeper:
      keeper.close()  # A checkpoint that is being written is completed however the run ends.
  variables = tree["best"].variables if "best" in tree else averages.predicting(tree)
  if predicted and not jax.process_index():
    loop.progress.note(f"predicting {' and '.join(predicted)}")
  predictions = {name: predict(program.predict_step, variables, [s.part(name) for s in splits],
                               config.training.batch_size, layout) for name in predicted}
  loop.progress.clear()
  return tree["state"], [{name: {key: x[i] for key, x in arrays.items()} for name, arrays in predictions.items()}
                         for i in range(len(seeds))]


class Call(NamedTuple):
  """One call of a compiled program, which took the steps of ``chunk``."""

  phase: int
  name: str  # The phase's name.
  chunk: Chunk
  num_examples: int
  measured: dict[str, jax.Array]
  asked: float  # When its batches were asked for.
  waited: float  # Seconds for which the devices waited for them.


class Loop:
  """Takes the steps of a run. Its attributes stay the same during a run; ``tree`` holds what a step changes."""

  def __init__(self, config: ml_collections.ConfigDict, program: programs.Program, splits: Sequence[data.Splits],  # noqa: PLR0917
               seeds: Sequence[int], keys: jax.Array, layout: Layout, keeper: Checkpoints | None,
               log: MetricLog | None, label: str, hooks: Sequence[Hook]):
    """Takes the arguments of ``train`` and the objects that it made from them."""
    self.config, self.program, self.splits, self.seeds, self.keys = config, program, splits, seeds, keys
    self.layout, self.keeper, self.log, self.label, self.hooks = layout, keeper, log, label, hooks
    self.patience = config.training.patience or FOREVER
    self.profile = Profile(log and log.folder / "profile", config.profile)
    self.meter, self.progress = Meter(), Progress(label, program.num_steps)
    self.reporter = Reporter(config, seeds, log, keeper, self.meter)
    self.saved = time.monotonic()

  def run(self, tree: dict[str, Any] | None, first_step: int, requested: Callable[[], int]) -> dict[str, Any]:
    """Takes every step after ``first_step``; returns the state at the end, and the best one if it is kept."""
    for stage in self.program.stages:
      if stage.last_step <= first_step < self.program.num_steps:
        continue  # The restored checkpoint is from after this stage.
      if first_step <= stage.first_step:
        tree = self._started(stage, tree)
      tree = self._stage(stage, tree, max(first_step, stage.first_step), requested)
    self.profile.close()
    return tree

  def _started(self, stage: programs.StageProgram, tree: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the tree that a stage begins with; it continues from what predicts after the previous stage."""
    state = tree and tree["state"]._replace(**(tree["best"].variables if "best" in tree else averages.predicting(tree)))
    return self.layout.everywhere(self.program.tree(stage.start(state, self.keys)))

  def _stage(self, stage: programs.StageProgram, tree: dict[str, Any], first_step: int,
             requested: Callable[[], int]) -> dict[str, Any]:
    """Takes the steps of one stage after ``first_step``."""
    if first_step >= stage.last_step or self._ended(tree):
      return tree
    feed = self._feed(stage, tree, first_step)
    self.progress.stage(stage.last_step)
    seconds: dict[int, float | None] = {}  # Of a step of each phase that has compiled; None until one is timed.
    step, kinds = first_step, set()
    while step < stage.last_step:
      call = self._take(stage, feed, tree, step, seconds)
      step += call.chunk.count
      self._report(call, step, seconds)
      tree = self._after(stage, step, tree, requested())
      # The first step that reports, evaluates or ends an epoch also compiles, or imports TensorBoard, for what it does.
      training, epoch = self.config.training, stage.ends_epoch(step)
      kind = call.phase, step % training.log_every_steps == 0, epoch and epoch % training.evaluate_every_epochs == 0
      if kind in kinds:
        self.progress.count(call.chunk.count, call.num_examples, time.monotonic() - call.asked)
      kinds.add(kind)
      if self._ended(tree):
        break
    return tree

  def _feed(self, stage: programs.StageProgram, tree: dict[str, Any], first_step: int) -> Feed:
    """Returns the batches of a stage after ``first_step``; of its features, which it computes, if it keeps them."""
    training, phases = self.config.training, stage.plan.phases
    if stage.plan.cache_features:
      if not jax.process_index():
        self.progress.note("computing features")
      phases = on_features(phases, stage.feature_step, averages.variables(tree["state"]), training.batch_size,
                           self.layout)
    return Feed(phases, first_step - stage.first_step, self.seeds, self.layout, salt=stage.number,
                batch_size=stage.plan.batch_size or training.batch_size, accumulation=training.accumulation_steps,
                most=training.log_every_steps if stage.loops else 1)

  def _take(self, stage: programs.StageProgram, feed: Feed, tree: dict[str, Any], step: int,
            seconds: dict[int, float | None]) -> Call:
    """Takes the steps of one call after ``step``, and writes the new state, and its average, to ``tree``."""
    self.profile.step()
    asked, training = time.monotonic(), self.config.training
    phase = feed.phase(step - stage.first_step)
    chunk = feed.take(step - stage.first_step, self._most(stage, step, seconds.get(phase)))
    # Time spent on batches is lost only if the devices have meanwhile finished the steps before.
    waited = (time.monotonic() - asked) * self.reporter.idle()
    name = stage.plan.phases[phase].name
    if phase not in seconds and not jax.process_index():
      self.progress.note(f"compiling the step of {name}")
    tree["state"], measured = stage.train_steps[phase](tree["state"], chunk.batches, self.keys, chunk.examples,
                                                       chunk.count)
    step += chunk.count
    if averages.enters(training, step - stage.first_step, stage.num_steps, stage.steps_per_epoch):
      decay = training.average_decay if training.average == "ema" else 1.0
      tree["average"] = averages.update(tree["average"], tree["state"], decay)
    return Call(phase, name, chunk, chunk.num_examples() * self.layout.host[1], measured, asked, waited)

  def _report(self, call: Call, step: int, seconds: dict[int, float | None]) -> None:
    """Hands what a call measured to the log, the meter, the progress line and the hooks, and writes its seconds."""
    self.reporter.add(Measured(step, call.chunk.count, call.name, call.measured))
    # Only one call is queued on the devices at a time, because each queued call holds its batches in memory.
    jax.block_until_ready(call.measured if seconds.get(call.phase) is None else self.reporter.previous())
    if call.phase in seconds:
      self.meter.count(call.chunk.count, call.num_examples, call.waited)
      if seconds[call.phase] is None:  # Several processes take as many steps a call, by the slowest.
        seconds[call.phase] = processes.largest(math.inf if self.hooks else time.monotonic() - call.asked)
    else:
      seconds[call.phase] = None
      self.meter.compiled(call.name, time.monotonic() - call.asked)
    if not jax.process_index() and self.progress.due(step):
      self.progress.update(step, float(np.mean(np.asarray(call.measured["loss"])[call.chunk.count - 1])))
    for hook in self.hooks:
      hook(step, {key: value[0] for key, value in call.measured.items()})

  def _most(self, stage: programs.StageProgram, step: int, seconds: float | None) -> int:
    """Returns the largest number of steps in one call after ``step``: it ends where something is due."""
    training, every = self.config.training, self.config.checkpoint.every_steps
    if seconds is None or training.average == "ema" or self.config.profile:  # Timed, averaged or traced step by step.
      return 1
    due = [period - step % period for period in (training.log_every_steps, every) if period]
    return max(1, min(*due, stage.last_step - step, int(CALL_SECONDS / seconds)))

  def _after(self, stage: programs.StageProgram, step: int, tree: dict[str, Any], stop: int) -> dict[str, Any]:
    """Reports, evaluates, saves and stops after a step, each if it is due."""
    training, every, last = self.config.training, self.config.checkpoint.every_steps, step == stage.last_step
    epoch = stage.ends_epoch(step)
    evaluates = last or (epoch is not None and epoch % training.evaluate_every_epochs == 0)
    saves = last or stop or (every and step % every == 0)
    if saves or evaluates or step % training.log_every_steps == 0:
      self.reporter.report(tree["state"])
      saves = saves or time.monotonic() - self.saved > 60 * self.config.checkpoint.every_minutes
    if evaluates or (epoch is not None and stage.update_states):
      tree = self._evaluate(stage, step, tree, log=evaluates)
      self.meter.reset()
    if self.keeper and (saves or self._ended(tree)):
      self.keeper.save(step, tree)
      self.saved = time.monotonic()
    if stop and step < self.program.num_steps:
      saved = f"its state is in {self.keeper.newest()}, and the same command continues from there" if self.keeper else (
        "its state was not saved")
      raise Stopped(f"{signal.Signals(stop).name}: {self.label} stopped after step {step:,} of "
                    f"{self.program.num_steps:,}; {saved}.", stop)
    return tree

  def _ended(self, tree: dict[str, Any]) -> bool:
    """Returns whether every seed has stopped early."""
    return "best" in tree and best_model.stopped(tree["best"], self.patience)

  def _evaluate(self, stage: programs.StageProgram, step: int, tree: dict[str, Any], *, log: bool) -> dict[str, Any]:
    """Scores the validation split, and updates the loss states and the best models."""
    state, training, epoch = tree["state"], self.config.training, stage.ends_epoch(step)
    wanted = sorted(({"validation"} if log else set()) | (stage.read_splits if epoch is not None else set()))
    variables = self._predicting(stage, tree)
    predictions = {name: predict(stage.predict_step, variables, [s.part(name) for s in self.splits],
                                 training.batch_size, self.layout) for name in wanted}
    predictions = {name: (x["logits"], x["labels"]) for name, x in predictions.items()}
    if log:
      logits, labels = predictions["validation"]
      loss = self.program.validation_losses[stage.number](state.loss_states, logits, labels)
      measured = {"loss": loss}
      if training.select == "refined":
        measured["refined_nll"] = best_model.refined_nll(logits, labels)
      all_scores = [{**scores(logits[i], labels[i]), **{name: float(value[i]) for name, value in measured.items()}}
                    for i in range(len(self.seeds))]
      self.reporter.validation(step, all_scores)
      if self.log:
        self.log.reliability(step, logits[0], labels[0], seed=self.seeds[0])
      # The last step always counts, so that a stage of at most select_after_epochs has a best model too.
      if "best" in tree and (step == stage.last_step or epoch > training.select_after_epochs):
        tree["best"] = best_model.update(tree["best"], state.step, variables, measured.get("refined_nll", loss),
                                         self.patience)
      if not jax.process_index():
        self._say_scores(stage, step, tree, all_scores)
    if stage.update_states and epoch is not None:
      loss_states, head_stats = self.layout.everywhere(stage.update_states(state.loss_states, epoch, predictions))
      stats = state.batch_stats
      stats = {**stats, "head": {**stats["head"], **head_stats}} if head_stats else stats
      tree["state"] = state._replace(loss_states=loss_states, batch_stats=stats)
    return tree

  def _say_scores(self, stage: programs.StageProgram, step: int, tree: dict[str, Any],
                  all_scores: Sequence[dict[str, float]]) -> None:
    """Writes a line with the validation scores of an epoch, and whether its model is the best so far."""
    mean = {name: float(np.mean([x[name] for x in all_scores])) for name in all_scores[0]}
    by = {"best": "loss", "refined": "refined_nll"}.get(self.config.training.select, "nll")
    chosen = f", {by.replace('_nll', ' NLL')} {mean[by]:.4f}" if abs(mean[by] - mean["nll"]) > 5e-5 else ""
    number, of_best = len(self.seeds), ""
    if "best" in tree and (best := int(np.sum(np.asarray(tree["best"].step) == step))):
      of_best = ", best so far" + (f" of {best} of {number} seeds" if number > 1 else "")
    self.progress.say(f"epoch {(step - stage.first_step) / stage.steps_per_epoch:.4g}: validation NLL {mean['nll']:.4f}"
                      f", accuracy {100 * mean['accuracy']:.2f}%{chosen}{' (means)' * (number > 1)}{of_best}",
                      now=step == stage.last_step)

  def _predicting(self, stage: programs.StageProgram, tree: dict[str, Any]) -> dict[str, Any]:
    """Returns the variables that predict; the mean of SWA gets batch statistics of its own, which ``tree`` keeps."""
    variables = averages.predicting(tree)
    if stage.statistics_step and averages.has_begun(tree) and variables["batch_stats"]:
      batches = zip(*(data.in_order(s.train, self.config.training.batch_size, **self.layout.options())
                      for s in self.splits), strict=True)
      variables = averages.reestimated(stage.statistics_step, variables, map(stages.stacked, batches))
      tree["average"] = tree["average"]._replace(variables=variables)
    return variables


def scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
  """Returns the accuracy, NLL and ECE of logits, for the log."""
  probs = jax.nn.softmax(logits)
  return {"accuracy": float(metrics.accuracy(probs, labels)), "nll": float(metrics.nll(probs, labels)),
          "ece": float(metrics.expected_calibration_error(probs, labels))}
