"""The loop: from a config and a data set to a trained state and its logits."""

from collections.abc import Callable
import functools

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict
import numpy as np

from calib_jax import data, losses, metrics, models
from calib_jax.errors import UserError
from calib_jax.training import optimizers, steps
from calib_jax.training.metric_log import MetricLog
from calib_jax.training.progress import Progress


def num_steps(config: ConfigDict, num_examples: int) -> int:
  """How many steps the whole run takes."""
  if config.training.num_steps is not None:
    return config.training.num_steps
  return config.training.num_epochs * data.steps_per_epoch(num_examples, config.training.batch_size)


def options(section: ConfigDict) -> dict:
  """A config section's options: all but its ``name``."""
  return {key: value for key, value in section.items() if key != "name"}


def build(config: ConfigDict, splits: data.Splits, devices: list[jax.Device]):
  """``(model, optimizer, train_step, predict_step)`` as the config says, the steps mapped over ``devices``."""
  size = data.num_examples(splits.train)
  total = num_steps(config, size)
  opt = config.optimizer
  rate = optimizers.schedule(
    opt.schedule, opt.learning_rate, total, boundaries=tuple(opt.boundaries), decay=opt.decay,
    warmup_steps=opt.warmup_epochs * data.steps_per_epoch(size, config.training.batch_size))
  decays = decayed(opt.decay_norms_and_biases)
  optimizer = optimizers.build(opt.name, rate, momentum=opt.momentum, weight_decay=opt.weight_decay, decays=decays)
  model = models.get(config.model.name, num_classes=splits.num_classes, axis_name=steps.AXIS, **options(config.model))
  augment = data.build_augmentation(num_classes=splits.num_classes, **config.augmentation)
  train_step, predict_step = steps.mapped(
    devices, model=model, optimizer=optimizer, l2=opt.l2, decays=decays, augment=augment,
    loss_fn=objective(config.loss), loss_axis=steps.AXIS if config.loss.scope == "global" else None,
    normalize=functools.partial(data.normalize, mean=splits.mean, std=splits.std))
  return model, optimizer, train_step, predict_step


def decayed(all_parameters: bool) -> Callable:
  """Which parameters L2 and weight decay shrink: all, or all but norms, biases and positions."""
  return (lambda params: jax.tree.map(lambda _: True, params)) if all_parameters else models.decay_mask


def objective(loss: ConfigDict) -> Callable:
  """The composite loss of a config's ``loss`` section."""
  primary = losses.get(loss.primary.name, **options(loss.primary))
  secondary = losses.get(loss.secondary.name, **options(loss.secondary)) if loss.secondary.name else None
  return losses.composite(primary, secondary, loss.weight)


def predict(predict_step: Callable, state: steps.TrainState, part, batch_size: int,
            num_devices: int) -> tuple[np.ndarray, np.ndarray]:
  """Logits ``[N, K]`` and labels ``[N]`` of every example of a split, in order, padding cut off."""
  found = [(predict_step(state, {"image": batch["image"]}), batch["label"])
           for batch in data.in_order(part, batch_size, num_devices)]
  logits, labels = ([np.asarray(x) for x in column] for column in zip(*found, strict=True))
  number = data.num_examples(part)
  return (np.concatenate([x.reshape(-1, x.shape[-1]) for x in logits])[:number],
          np.concatenate([x.reshape(-1) for x in labels])[:number])


def train(config: ConfigDict, splits: data.Splits, *, seed: int, devices: list[jax.Device] | None = None,
          log: MetricLog | None = None,
          label: str = "train") -> tuple[steps.TrainState, dict[str, tuple[np.ndarray, np.ndarray]]]:
  """Trains one model from ``seed``; returns its state, and logits and labels of the validation and test splits.

  The global batch is spread evenly over ``devices`` (default: all local ones). Everything random derives from ``seed``
  and the step, so the result does not depend on how many devices there are, but for rounding.
  """
  devices = devices or jax.local_devices()
  size, number = config.training.batch_size, data.num_examples(splits.train)
  total = num_steps(config, number)
  model, optimizer, train_step, predict_step = build(config, splits, devices)
  state = steps.init_state(model, optimizer, data.image_shape(splits.train), seed)
  # Where the first step leaves it: otherwise the second step would compile again.
  state = jax.device_put(state, NamedSharding(Mesh(np.array(devices), (steps.AXIS,)), PartitionSpec()))
  key = jax.random.key(seed)
  per_epoch = data.steps_per_epoch(number, size)
  progress, seen = Progress(label, total), 0
  batches = data.training_batches(splits.train, 0, batch_size=size, num_devices=len(devices), seed=seed)
  for step, batch in zip(range(total), batches, strict=False):
    state, measured = train_step(state, batch, key)
    seen += int(batch["mask"].sum())
    done = step + 1
    if log and (done % config.training.log_every_steps == 0 or done == total):
      scalars = {f"train/{name}": float(value) for name, value in measured.items()}
      log.write(done, scalars, seed=seed)
      if not np.isfinite(scalars["train/loss"]):
        raise UserError(f"the training loss is {scalars['train/loss']} after step {done:,} (seed {seed}): lower "
                        f"optimizer.learning_rate (now {config.optimizer.learning_rate:g}) or loss.weight.")
    if log and (done % (config.training.evaluate_every_epochs * per_epoch) == 0 or done == total):
      found = scores(*predict(predict_step, state, splits.validation, size, len(devices)))
      log.write(done, {f"validation/{name}": value for name, value in found.items()}, seed=seed)
    if progress.due(done):
      progress.update(done, seen, float(measured["loss"]))
      seen = 0
  parts = {"validation": splits.validation, "test": splits.test}
  return state, {name: predict(predict_step, state, part, size, len(devices)) for name, part in parts.items()}


def scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
  """Accuracy, NLL and ECE of logits, for the log."""
  probs = jax.nn.softmax(logits)
  return {"accuracy": float(metrics.accuracy(probs, labels)), "nll": float(metrics.nll(probs, labels)),
          "ece": float(metrics.expected_calibration_error(probs, labels))}
