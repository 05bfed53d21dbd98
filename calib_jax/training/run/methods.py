"""What a run trains: its method, plain cross entropy beside it, and what the user should know of them.

The name of a method holds everything in which it differs from plain training: cross entropy, the linear head, the
schedule "joint", and images that are cropped and mirrored at most.
"""

from collections.abc import Iterator

import ml_collections

from calib_jax import losses, training
from calib_jax._checks.registry import options as registry_options

CROSS_ENTROPY = "cross_entropy"
PLAIN = ("none", "crop_flip")  # Augmentations of plain training.


def method_name(config: ml_collections.ConfigDict) -> str:
  """Returns what tables call a config, such as "focal + soft_avuc"; "cross_entropy" only for plain training."""
  primary, secondary = config.loss.primary, config.loss.secondary.name
  loss = primary.name
  if loss == CROSS_ENTROPY:
    plain = registry_options(losses.PER_EXAMPLE[loss])
    loss += "".join(f" ({option} {value})" for option, value in primary.items()
                    if option != "name" and value != plain.get(option))
  parts = [f"{loss} + {secondary}" if secondary else loss]
  parts += [f"{config.head.name} head"] if config.head.name != "linear" else []
  parts += [config.schedule.name] if config.schedule.name != "joint" else []
  parts += [config.augmentation.name] if config.augmentation.name not in PLAIN else []
  parts += [config.training.average.upper()] if config.training.average else []
  parts += ["SAM"] if config.optimizer.sharpness else []
  second = config.stage2.optimizer
  if second.sharpness and any(stage.optimizer is second for stage in training.plan(config)):
    parts += ["SAM in stage 2"]
  parts += [f"{config.stage2.loss.name} in stage 2"] if config.stage2.loss.name else []
  parts += [f"dropout {config.model.dropout:g}"] if config.model.dropout else []
  return ", ".join(parts) + samples_name(config)


def samples_name(config: ml_collections.ConfigDict) -> str:
  """Returns the end of the name of a method whose predictions are sampled, and else ""."""
  return f", {config.evaluation.samples} samples" if config.evaluation.samples else ""


def plain_cross_entropy(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Returns the config that trains plainly on the same data: cross entropy, the linear head and the schedule "joint".

  The model, its first weights, the optimizer, the epochs of the first stage, random crops and mirrored images stay as
  they are; averages of the weights, sharpness-aware steps, dropout and sampled predictions are methods.
  """
  baseline = config.copy_and_resolve_references().unlock()
  baseline.compare_with_cross_entropy = False
  baseline.loss.primary = ml_collections.ConfigDict({"name": CROSS_ENTROPY})
  baseline.loss.secondary = ml_collections.ConfigDict({"name": ""})
  baseline.head = ml_collections.ConfigDict({"name": "linear"})
  baseline.schedule = ml_collections.ConfigDict({"name": "joint"})
  baseline.training.average = ""
  baseline.optimizer.sharpness = 0.0
  baseline.model.dropout, baseline.evaluation.samples = 0.0, 0
  baseline.stage2.loss = ml_collections.ConfigDict({"name": ""})
  if (own := config.augmentation).name not in PLAIN:
    moves = own.padding or own.flip
    baseline.augmentation = ml_collections.ConfigDict(
      {"name": "crop_flip", "padding": own.padding, "flip": own.flip} if moves else {"name": "none"})
  return baseline.lock()


def remarks(config: ml_collections.ConfigDict) -> Iterator[str]:
  """Yields what a user should know about a config before its run."""
  if not training.EVENTS:
    yield training.NO_EVENTS
  if config.compare_with_cross_entropy and method_name(config) == CROSS_ENTROPY:
    yield "this run trains plain cross entropy itself, so compare_with_cross_entropy adds no second row of it."
  if config.training.select == "refined":
    yield "the model is selected by the NLL of the validation split after a temperature is fitted to it."
  elif config.training.select == "best" and training.validation_loss(config) == "objective":
    yield "the model is selected by the validation loss, which is the loss that training minimises."
  elif config.training.select == "best":
    yield ("the model is selected by the NLL of the validation split, not by the loss that training minimises; "
           "--config.training.validation_loss=objective selects by that loss.")
  yield from (method.caution for method in training.of_loss(config.loss, 1).values())
