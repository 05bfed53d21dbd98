"""The training loop takes a config and data sets, trains step by step, and returns the states and their predictions."""

from collections.abc import Callable, Sequence
import pathlib
import signal
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict
import numpy as np

from calib_jax import data, metrics
from calib_jax._system import capacity
from calib_jax.training import best_model
from calib_jax.training.checkpoints import Checkpoints
from calib_jax.training.distributed.mapping import AXIS
from calib_jax.training.distributed.stopping import Stopped, requests
from calib_jax.training.engine import program as programs
from calib_jax.training.engine import stages, steps
from calib_jax.training.run_log.metric_log import MetricLog
from calib_jax.training.run_log.progress import Progress
from calib_jax.training.run_log.reporting import Measured, Reporter
from calib_jax.training.run_log.telemetry import Meter, Profile

FOREVER = 2**31 - 1  # The patience of runs that do not stop early.
Hook = Callable[[int, dict[str, jax.Array]], None]


def train(config: ConfigDict, splits: Sequence[data.Splits], *, seeds: Sequence[int],
          devices: Sequence[jax.Device] | None = None, folder: pathlib.Path | None = None,
          log: MetricLog | None = None, label: str = "train", predicted: Sequence[str] = ("validation", "test"),
          hooks: Sequence[Hook] = ()) -> tuple[steps.TrainState, list[dict[str, dict[str, np.ndarray]]]]:
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
  keys = layout.everywhere(jnp.stack([jax.random.key(seed) for seed in seeds]))
  select = config.training.select != "last"
  keeper = Checkpoints(folder, config.checkpoint.keep) if folder else None
  first_step, tree = (keeper and keeper.restore(lambda step: program.like(step, keys, select))) or (0, None)
  if log:
    log.resume(seeds, first_step)
  loop = Loop(config, program, splits, seeds, keys, layout, keeper, log, label, hooks)
  try:
    with requests() as requested:
      tree = loop.run(tree and layout.everywhere(tree), first_step, requested)
  finally:
    if keeper:
      keeper.close()  # A checkpoint that is being written is completed however the run ends.
  variables = tree["best"].variables if select else best_model.variables(tree["state"])
  if predicted and not jax.process_index():
    loop.progress.note(f"predicting {' and '.join(predicted)}")
  predictions = {name: predict(program.stages[-1].predict_step, variables, [s.part(name) for s in splits],
                               config.training.batch_size, layout) for name in predicted}
  loop.progress.clear()
  return tree["state"], [{name: {key: x[i] for key, x in arrays.items()} for name, arrays in predictions.items()}
                         for i in range(len(seeds))]


class Layout(NamedTuple):
  """A layout says how a global batch is spread over processes, and over the devices of this process."""

  local: Sequence[jax.Device]
  host: tuple[int, int]  # The index of this process, and the number of processes.
  mesh: Sequence[jax.Device]  # The devices that hold a state: those of this process under pmap, all under shard_map.

  @classmethod
  def of(cls, devices: Sequence[jax.Device], parallel: str = "pmap") -> "Layout":
    """Returns the layout over ``devices``, which may belong to several processes; ``parallel`` as in a config."""
    local = [device for device in devices if device.process_index == jax.process_index()]
    hosts = len(devices) // len(local)
    host = (jax.process_index() if hosts > 1 else 0, hosts)
    return cls(local, host, devices if parallel == "shard_map" else local)

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


def predict(predict_step: Callable, variables: Any, parts: Sequence, batch_size: int,
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
  outputs = [predict_step(variables, stages.stacked(batches)) for batches in zip(*sources, strict=True)]
  columns = {name: np.concatenate([np.asarray(batch[name]) for batch in outputs], 1) for name in outputs[0]}
  num_examples = int(columns.pop("mask")[0].sum())
  return {"labels" if name == "label" else name: x[:, :num_examples] for name, x in columns.items()}


class Loop:
  """Takes the steps of a run. Its attributes stay the same during a run; ``tree`` holds what a step changes."""

  def __init__(self, config: ConfigDict, program: programs.Program, splits: Sequence[data.Splits],
               seeds: Sequence[int], keys: jax.Array, layout: Layout, keeper: Checkpoints | None,
               log: MetricLog | None, label: str, hooks: Sequence[Hook]):
    """Takes the arguments of ``train`` and the objects that it made from them."""
    self.config, self.program, self.splits, self.seeds, self.keys = config, program, splits, seeds, keys
    self.layout, self.keeper, self.log, self.label, self.hooks = layout, keeper, log, label, hooks
    self.select, self.patience = config.training.select != "last", config.training.patience or FOREVER
    self.profile = Profile(log and log.folder / "profile", config.profile)
    self.meter, self.progress = Meter(), Progress(label, program.num_steps)
    self.reporter = Reporter(config, seeds, log, keeper, self.meter)
    self.saved = time.monotonic()

  def run(self, tree: dict[str, Any] | None, first_step: int, requested: Callable) -> dict[str, Any]:
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
    """Returns the tree that a stage begins with; it continues from the previous stage's best model if that is kept."""
    state = tree and tree["state"]
    if tree and self.select:
      state = state._replace(**tree["best"].variables)
    return self.layout.everywhere(programs.with_best(stage.start(state, self.keys), self.select))

  def _stage(self, stage: programs.StageProgram, tree: dict[str, Any], first_step: int,
             requested: Callable) -> dict[str, Any]:
    """Takes the steps of one stage after ``first_step``."""
    if first_step >= stage.last_step or self._ended(tree):
      return tree
    training, compiled, seen = self.config.training, set(), 0
    phases = self._on_features(stage, tree["state"]) if stage.stage.cache_features else stage.stage.phases
    source = stages.batches(phases, first_step - stage.first_step, self.seeds, salt=stage.number,
                            batch_size=training.batch_size, accumulation=training.accumulation_steps,
                            **self.layout.options())
    for step in range(first_step + 1, stage.last_step + 1):
      self.profile.step()
      asked = time.monotonic()
      phase, batch = next(source)
      # Time spent on a batch is lost only if the devices have meanwhile finished the step before.
      waited = (time.monotonic() - asked) * self.reporter.idle()
      if phase not in compiled and not jax.process_index():
        self.progress.note(f"compiling the step of {stage.stage.phases[phase].name}")
      tree["state"], measured = stage.train_steps[phase](tree["state"], batch, self.keys)
      name = stage.stage.phases[phase].name
      self.reporter.add(Measured(step, name, measured))
      # Only one step is queued on the devices at a time, because each queued step holds its batch in memory.
      jax.block_until_ready(measured if phase not in compiled else self.reporter.previous())
      examples = int(batch["mask"].sum()) * self.layout.host[1]
      seen += examples
      if phase in compiled:
        self.meter.count(examples, waited)
      else:
        compiled.add(phase)
        self.meter.compiled(name, time.monotonic() - asked)
      seen = self._show(step, seen, measured)
      for hook in self.hooks:
        hook(step, measured)
      tree = self._after(stage, step, tree, requested(step))
      if self._ended(tree):
        break
    return tree

  def _on_features(self, stage: programs.StageProgram, state: steps.TrainState) -> list[stages.Phase]:
    """Returns the phases of a stage with the features of their examples, ``[N, D]`` a seed, in place of images."""
    if not jax.process_index():
      self.progress.note("computing features")
    features = [predict(stage.feature_step, best_model.variables(state), phase.examples,
                        self.config.training.batch_size, self.layout) for phase in stage.stage.phases]
    return [phase._replace(examples=[data.Examples(*part) for part in zip(x["features"], x["labels"], strict=True)])
            for phase, x in zip(stage.stage.phases, features, strict=True)]

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
      self._stop(step, stop)
    return tree

  def _show(self, step: int, seen: int, measured: dict[str, jax.Array]) -> int:
    """Shows the progress line if it is due; returns how many examples it has not counted yet."""
    if jax.process_index() or not self.progress.due(step):
      return seen
    self.progress.update(step, seen, float(np.mean(measured["loss"])))
    return 0

  def _ended(self, tree: dict[str, Any]) -> bool:
    """Returns whether every seed has stopped early."""
    return "best" in tree and best_model.stopped(tree["best"], self.patience)

  def _evaluate(self, stage: programs.StageProgram, step: int, tree: dict[str, Any], *, log: bool) -> dict[str, Any]:
    """Scores the validation split, and updates the loss states and the best models."""
    state, training, epoch = tree["state"], self.config.training, stage.ends_epoch(step)
    wanted = sorted(({"validation"} if log else set()) | (stage.read_splits if epoch is not None else set()))
    predictions = {name: predict(stage.predict_step, best_model.variables(state), [s.part(name) for s in self.splits],
                                 training.batch_size, self.layout) for name in wanted}
    predictions = {name: (x["logits"], x["labels"]) for name, x in predictions.items()}
    if log:
      logits, labels = predictions["validation"]
      loss = self.program.validation_loss(state.loss_states, logits, labels)
      measured = {"loss": loss}
      if training.select == "refined":
        measured["refined_nll"] = best_model.refined_nll(logits, labels)
      self.reporter.validation(step, [
        {**scores(logits[i], labels[i]), **{name: float(value[i]) for name, value in measured.items()}}
        for i in range(len(self.seeds))])
      if self.log:
        self.log.reliability(step, logits[0], labels[0], seed=self.seeds[0])
      # The last step always counts, so that a stage of at most select_after_epochs has a best model too.
      if "best" in tree and (step == stage.last_step or epoch > training.select_after_epochs):
        tree["best"] = best_model.update(tree["best"], state, measured.get("refined_nll", loss), self.patience)
    if stage.update_states and epoch is not None:
      updated = self.layout.everywhere(stage.update_states(state.loss_states, epoch, predictions))
      tree["state"] = steps.with_states(state, *updated)
    return tree

  def _stop(self, step: int, number: int) -> None:
    saved = "its state was not saved"
    if self.keeper:
      saved = f"its state is in {self.keeper.newest()}, and the same command continues from there"
    raise Stopped(f"{signal.Signals(number).name}: {self.label} stopped after step {step:,} of "
                  f"{self.program.num_steps:,}; {saved}.", number)


def scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
  """Returns the accuracy, NLL and ECE of logits, for the log."""
  probs = jax.nn.softmax(logits)
  return {"accuracy": float(metrics.accuracy(probs, labels)), "nll": float(metrics.nll(probs, labels)),
          "ece": float(metrics.expected_calibration_error(probs, labels))}
