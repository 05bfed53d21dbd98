"""The loop: from a config and data sets to trained states and their logits, one step after another."""

from collections.abc import Callable
import functools
import pathlib
import signal
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict
import numpy as np

from calib_jax import data, metrics, models
from calib_jax.errors import UserError
from calib_jax.training import objectives, optimizers, schedules, selection, steps
from calib_jax.training.checkpoints import Checkpoints
from calib_jax.training.metric_log import MetricLog
from calib_jax.training.progress import Progress
from calib_jax.training.stopping import Stopped, requests
from calib_jax.training.telemetry import Meter, Profile

_FOREVER = 2**31 - 1


class Program(NamedTuple):
  """What a config builds: the phases of an epoch, a step for each, and what starts, predicts and measures."""

  phases: list[schedules.Phase]
  train_steps: list[Callable]
  predict_step: Callable
  init: Callable
  validation_loss: Callable
  update_loss_state: Callable | None
  steps_per_epoch: int
  num_steps: int


def build(config: ConfigDict, splits: list[data.Splits], seeds: list[int], devices: list[jax.Device]) -> Program:
  """The program of a config for one model a seed, mapped over ``devices``."""
  first = splits[0]
  phases = schedules.SCHEDULES[config.training.schedule](config, [s.train for s in splits], seeds)
  per_epoch = sum(phase.num_steps for phase in phases)
  total = config.training.num_epochs * per_epoch if config.training.num_steps is None else config.training.num_steps
  opt = config.optimizer
  decays = decayed(opt.decay_norms_and_biases)
  rate = optimizers.schedule(opt.schedule, opt.learning_rate, total, boundaries=tuple(opt.boundaries), decay=opt.decay,
                             warmup_steps=opt.warmup_epochs * per_epoch)
  optimizer = optimizers.build(opt.name, rate, momentum=opt.momentum, nesterov=opt.nesterov, clip_norm=opt.clip_norm,
                               weight_decay=opt.weight_decay, decays=decays)
  model = models.get(num_classes=first.num_classes, axis_name=steps.AXIS, **config.model)
  normalize = functools.partial(data.normalize, mean=first.mean, std=first.std)
  augment = data.build_augmentation(num_classes=first.num_classes, **config.augmentation)
  train_steps = [steps.mapped(
    steps.train_step, devices, len(seeds), donate=True, model=model, optimizer=optimizer, l2=opt.l2, decays=decays,
    augment=augment, normalize=normalize, loss_axis=steps.AXIS if config.loss.scope == "global" else None,
    accumulation=config.training.accumulation_steps, loss_fn=phase.loss_fn, rate=phase.rate,
    freeze_batch_stats=phase.freeze_batch_stats) for phase in phases]
  predict_step = steps.mapped(steps.predict_step, devices, len(seeds), model=model, normalize=normalize)
  primary, objective = objectives.primary(config.loss.primary), objectives.objective(config.loss)

  def init(key):
    return steps.init_state(model, optimizer, data.image_shape(first.train), primary.init(), key)

  def validation_loss(loss_state, logits, labels):
    return objective(logits, labels, loss_state=loss_state)[0]

  update = primary.update and jax.jit(jax.vmap(primary.update))
  return Program(phases, train_steps, predict_step, jax.jit(jax.vmap(init)), jax.jit(jax.vmap(validation_loss)), update,
                 per_epoch, total)


def decayed(all_parameters: bool) -> Callable:
  """Which parameters L2 and weight decay shrink: all, or all but norms, biases and positions."""
  return (lambda params: jax.tree.map(lambda _: True, params)) if all_parameters else models.decay_mask


def predict(predict_step: Callable, variables: Any, parts: list, batch_size: int,
            layout: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
  """Logits ``[S, N, K]`` and labels ``[S, N]`` of every example of a split (one a seed), in order, in every process."""
  sources = [data.in_order(part, batch_size, **layout) for part in parts]
  found = [predict_step(variables, schedules.stacked(list(batches))) for batches in zip(*sources, strict=True)]
  logits, labels, mask = (np.concatenate([np.asarray(x) for x in column], 1) for column in zip(*found, strict=True))
  number = int(mask[0].sum())
  return logits[:, :number], labels[:, :number]


def train(config: ConfigDict, splits: list[data.Splits], *, seeds: list[int], devices: list[jax.Device] | None = None,
          folder: pathlib.Path | None = None, log: MetricLog | None = None,
          label: str = "train", predicted: tuple[str, ...] = ("validation", "test")
          ) -> tuple[steps.TrainState, list[dict[str, tuple[np.ndarray, np.ndarray]]]]:
  """Trains one model a seed, side by side in the same steps; returns their states and predictions.

  The global batch is spread evenly over ``devices`` (default: all, of every process). Everything random derives from
  the seed and the step, so the result depends neither on how many devices or processes there are nor on which seeds
  train together, but for rounding.

  Args:
    config: as ``config.load`` gives it.
    splits: one data set a seed, all of the same sizes.
    seeds: of the models, their examples' order and everything else that is random.
    folder: where checkpoints go; a run that finds one there goes on from it, to the same bits. None for none.
    log, label: where scalars go, and the name of the run on the progress line.
    predicted: the splits to predict at the end.
  Returns: the state, every array with a leading axis of seeds, and for each seed logits and labels of each split in
    ``predicted``.
  Raises: ``Stopped`` after a signal, UserError where the run cannot go on; both say what is on disk.
  """
  devices = devices or jax.devices()
  local = [device for device in devices if device.process_index == jax.process_index()]
  hosts = len(devices) // len(local)
  layout = {"num_devices": len(local), "host": (jax.process_index() if hosts > 1 else 0, hosts)}
  program = build(config, splits, seeds, devices)
  keys = jnp.stack([jax.random.key(seed) for seed in seeds])
  # Where a step leaves it: otherwise the second step would compile again.
  everywhere = NamedSharding(Mesh(np.array(local), (steps.AXIS,)), PartitionSpec())
  select = config.training.select == "best"
  state = program.init(keys)
  tree = {"state": state, **({"best": selection.start(state)} if select else {})}
  keeper = Checkpoints(folder, config.checkpoint.keep) if folder else None
  found = keeper.restore(tree) if keeper else None
  first_step, tree = found or (0, tree)
  tree = jax.device_put(tree, everywhere)
  if log:
    log.resume(seeds, first_step)
  run = _Run(config, program, splits, seeds, layout, keeper, log, label)
  try:
    with requests() as requested:
      tree = run.train(tree, keys, first_step, requested)
  finally:
    if keeper:
      keeper.close()  # However a run ends, what it began to write is written.
  variables = tree["best"].variables if select else selection.variables(tree["state"])
  size = config.training.batch_size
  found = {name: predict(program.predict_step, variables, [getattr(s, name) for s in splits], size, layout)
           for name in predicted}
  return tree["state"], [{name: (logits[i], labels[i]) for name, (logits, labels) in found.items()}
                         for i in range(len(seeds))]


class _Run(NamedTuple):
  """What stays the same while a run goes from step to step."""

  config: ConfigDict
  program: Program
  splits: list[data.Splits]
  seeds: list[int]
  layout: dict[str, Any]
  keeper: Checkpoints | None
  log: MetricLog | None
  label: str

  def train(self, tree: dict[str, Any], keys: jax.Array, first_step: int, requested: Callable) -> dict[str, Any]:
    """Takes every step from ``first_step`` on; returns the state at the end (and the best one)."""
    training, program, number = self.config.training, self.program, self.program.num_steps
    batches = schedules.batches(program.phases, first_step, self.seeds, batch_size=training.batch_size,
                                accumulation=training.accumulation_steps, **self.layout)
    profile = Profile(self.log and self.log.folder / "profile", self.config.profile)
    progress, meter, seen, saved = Progress(self.label, number), Meter(), 0, time.monotonic()
    speaks = jax.process_index() == 0
    pending, compiled, ended = [], set(), self._ended(tree)
    for done in range(first_step + 1, 0 if ended else number + 1):
      profile.step()
      asked = time.monotonic()
      phase, batch = next(batches)
      waited = (time.monotonic() - asked) * (not pending or pending[-1].measured["loss"].is_ready())
      tree["state"], measured = program.train_steps[phase](tree["state"], batch, keys)
      pending.append(_Measured(done, program.phases[phase].name, measured))
      # One step in the devices' queue is enough: each holds its batch.
      jax.block_until_ready(measured if phase not in compiled else pending[-2:][0].measured)
      examples = int(batch["mask"].sum()) * self.layout["host"][1]
      seen += examples
      if phase in compiled:
        meter.count(examples, waited)
      else:
        compiled.add(phase)
        meter.compiled(program.phases[phase].name, time.monotonic() - asked)
      if progress.due(done) and speaks:
        progress.update(done, seen, float(np.mean(measured["loss"])))
        seen = 0
      epoch, within = divmod(done, program.steps_per_epoch)
      evaluates = done == number or (within == 0 and epoch % training.evaluate_every_epochs == 0)
      stop, every = requested(done), self.config.checkpoint.every_steps
      saves = done == number or stop or (every and done % every == 0)
      if saves or evaluates or done % training.log_every_steps == 0:
        self._report(pending, tree["state"], meter)
        pending = []
        saves = saves or time.monotonic() - saved > 60 * self.config.checkpoint.every_minutes
      if evaluates or (within == 0 and program.update_loss_state):
        tree = self._evaluate(done, epoch, tree, log=evaluates)
        ended = self._ended(tree)
        meter.reset()
      if self.keeper and (saves or ended):
        self.keeper.save(done, tree)
        saved = time.monotonic()
      if stop and done < number:
        self._stop(done, stop)
      if ended:
        break
    profile.close()
    return tree

  def _ended(self, tree: dict[str, Any]) -> bool:
    """Whether every seed's patience is at its end."""
    return "best" in tree and selection.stopped(tree["best"], self.config.training.patience or _FOREVER)

  def _write(self, step: int, scalars: dict[str, Any], seed: int | None = None) -> None:
    if self.log:
      for s in self.seeds if seed is None else [seed]:
        self.log.write(step, scalars, seed=s)

  def _report(self, pending: list["_Measured"], state: steps.TrainState, meter: Meter) -> None:
    """Logs the means of what was measured since the last report; UserError where too many steps were not finite."""
    pending = jax.device_get(pending)
    for i, seed in enumerate(self.seeds):
      for name in dict.fromkeys(step.phase for step in pending):
        of_phase = [step.measured for step in pending if step.phase == name]
        means = {key: float(np.mean([m[key][i] for m in of_phase])) for key in of_phase[0]}
        self._write(pending[-1].step, {f"{name}/{key}": value for key, value in means.items()}, seed)
      skipped = int(state.skipped[i])
      if skipped > self.config.training.max_skipped_steps:
        raise UserError(self._broken(seed, skipped, [(m.step, {k: v[i] for k, v in m.measured.items()})
                                                     for m in pending]))
    self._write(pending[-1].step, {f"time/{key}": value for key, value in meter.read().items()})

  def _broken(self, seed: int, skipped: int, measured: list[tuple[int, dict[str, float]]]) -> str:
    """What to say of a run whose loss or gradients are not finite."""
    step, values = next((step, values) for step, values in measured if not all(map(np.isfinite, values.values())))
    causes = ("primary", "secondary", "l2", "gradient_norm")
    part = next(name for name in causes if not np.isfinite(values.get(name, 0.0)))
    what = "gradient" if part == "gradient_norm" else f"{part} part of the loss"
    kept = f"the last checkpoint is {self.keeper.newest()}" if self.keeper else "no checkpoints were asked for"
    again = f" ({skipped} steps so far, training.max_skipped_steps is {self.config.training.max_skipped_steps})"
    return (f"the {what} is {values[part]:g} at step {step:,} (seed {seed}){again if skipped > 1 else ''}: lower "
            f"optimizer.learning_rate (now {self.config.optimizer.learning_rate:g}) or loss.weight, or set "
            f"optimizer.clip_norm; {kept}.")

  def _evaluate(self, step: int, epoch: int, tree: dict[str, Any], *, log: bool) -> dict[str, Any]:
    """Scores the validation split, and lets the loss's state and the choice of the best model follow from it."""
    state, training = tree["state"], self.config.training
    logits, labels = predict(self.program.predict_step, selection.variables(state),
                             [s.validation for s in self.splits], training.batch_size, self.layout)
    if log:
      loss = self.program.validation_loss(state.loss_state, logits, labels)
      for i, seed in enumerate(self.seeds):
        found = {**scores(logits[i], labels[i]), "loss": float(loss[i])}
        self._write(step, {f"validation/{name}": value for name, value in found.items()}, seed)
      if self.log:
        self.log.reliability(step, logits[0], labels[0], seed=self.seeds[0])
      # A run shorter than the warm-up has its last model.
      if "best" in tree and (epoch > training.select_after_epochs or step == self.program.num_steps):
        tree["best"] = selection.update(tree["best"], state, loss, training.patience or _FOREVER)
    if self.program.update_loss_state and step % self.program.steps_per_epoch == 0:
      loss_state = self.program.update_loss_state(state.loss_state, logits, labels)
      tree["state"] = state._replace(loss_state=jax.device_put(loss_state, state.step.sharding))
    return tree

  def _stop(self, step: int, number: int) -> None:
    kept = "nothing of it is kept"
    if self.keeper:
      kept = f"its state is in {self.keeper.newest()}, and the same command goes on from there"
    raise Stopped(f"{signal.Signals(number).name}: {self.label} stopped after step {step:,} of "
                  f"{self.program.num_steps:,}; {kept}.", number)


class _Measured(NamedTuple):
  """What a step measured, still on the device."""

  step: int
  phase: str
  measured: dict[str, jax.Array]


def scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
  """Accuracy, NLL and ECE of logits, for the log."""
  probs = jax.nn.softmax(logits)
  return {"accuracy": float(metrics.accuracy(probs, labels)), "nll": float(metrics.nll(probs, labels)),
          "ece": float(metrics.expected_calibration_error(probs, labels))}
