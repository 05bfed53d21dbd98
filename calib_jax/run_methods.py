"""What a run trains: its method, plain cross entropy beside it, and what the user should know of them."""

from collections.abc import Iterator

from ml_collections import ConfigDict

from calib_jax import training

CROSS_ENTROPY = "cross_entropy"


def method_name(config: ConfigDict) -> str:
  """Returns the name in tables of what a config trains, such as "focal + soft_avuc"."""
  secondary = f" + {config.loss.secondary.name}" if config.loss.secondary.name else ""
  return config.loss.primary.name + secondary


def followed(config: ConfigDict) -> str:
  """Returns the sentence that says which validation loss selects the model of a run."""
  if config.training.select == "refined":
    return "the model is selected by the NLL of the validation split after a temperature is fitted to it."
  if training.validation_loss(config) == "objective":
    return "the model is selected by the validation loss, which is the loss that training minimises."
  return ("the model is selected by the NLL of the validation split, not by the loss that training minimises; "
          "--config.training.validation_loss=objective selects by that loss.")


def plain_cross_entropy(config: ConfigDict) -> ConfigDict:
  """Returns the same config with cross entropy alone as its loss."""
  baseline = config.copy_and_resolve_references().unlock()
  baseline.compare_with_cross_entropy = False
  baseline.loss.primary = ConfigDict({"name": CROSS_ENTROPY})
  baseline.loss.secondary = ConfigDict({"name": ""})
  baseline.training.schedule = "joint"
  return baseline.lock()


def remarks(config: ConfigDict) -> Iterator[str]:
  """Yields what a user should know about a config before its run."""
  if not training.EVENTS:
    yield training.NO_EVENTS
  if config.training.select != "last":
    yield followed(config)
  yield from (method.caution for method in training.of_loss(config.loss).values())
