"""Checks a model on the shape of the data, which is known once they are read."""

from typing import Any

import jax
import ml_collections

from calib_jax._system import capacity
from calib_jax._system.errors import UserError
from calib_jax.training import data, models
from calib_jax.training.engine.stages import planned
from calib_jax.training.seed_groups import shape_of


def check_model(config: ml_collections.ConfigDict, splits: data.Splits) -> None:
  """Checks that the models of a config take its data, if these are not images or the data, model or head is one's own.

  The models of all stages are traced on the shape of the data, and nothing is computed.

  Raises:
    UserError: that says what a model lacks, or which option is for images only.
  """
  shape = shape_of(splits)
  if shape.dtype == "uint8" and not any(":" in section.name for section in (config.data, config.model, config.head)):
    return
  if shape.dtype != "uint8":
    _check_options(config, splits)
  num_models = config.num_seeds if config.training.seeds_together else 1
  for stage in planned(config, [splits.train], [config.seed]):
    head = stage.head or config.head
    try:
      model = models.get(num_classes=shape.num_classes, head=head, **config.model)
      logits, variables = jax.eval_shape(lambda key, model=model: model.init_with_output(key, shape.zeros()),
                                         jax.random.key(0))
    except Exception as error:  # The user's own model may raise any exception.
      reason = next(iter(str(error).splitlines()), "") or type(error).__name__
      raise UserError(f"config key model: {config.model.name} cannot take {shape.dtype} of shape "
                      f"[N, {', '.join(map(str, shape.image_shape))}]: {reason[:500]}") from error
    if getattr(logits, "shape", None) != (1, shape.num_classes):
      raise UserError(f"config key head: {head.name} must return logits of shape [N, {shape.num_classes}]: got "
                      f"{getattr(logits, 'shape', type(logits).__name__)} for one example.")
    capacity.check_model(variables, num_models)
  check_samples(config, model, variables, shape.zeros())  # The model of the last stage predicts.


def check_samples(config: ml_collections.ConfigDict, model: models.Classifier, variables: Any, images: Any) -> None:
  """Raises a UserError if predictions are sampled of a model that draws nothing, so that all samples are the same.

  ``variables`` and ``images``, what the model takes, may be shapes.
  """
  if config.evaluation.samples and not models.is_random(model, variables, images):
    raise UserError("config key evaluation.samples needs a model with a random layer, and all samples of this one "
                    "would be the same: --config.model.dropout=0.2 adds such a layer.")


def _check_options(config: ml_collections.ConfigDict, splits: data.Splits) -> None:
  """Raises a UserError for what only images can have, and for token ids that the model has no embedding of."""
  name = config.data.name
  for key, value, off in (("augmentation.name", config.augmentation.name, "none"),
                          ("evaluation.corruptions", config.evaluation.corruptions, ())):
    if value != off:
      raise UserError(f"config key {key} is for images, which {name} does not hold: set it to {off!r}.")
  num_tokens = config.model.get("num_tokens", 0)
  if num_tokens and splits.train.images.dtype == "int32":
    for part in splits[:3]:
      low, high = part.images.min(), part.images.max()
      if low < 0 or high >= num_tokens:
        raise UserError(f"config key model.num_tokens must be above every token id, which go from {low:,} to {high:,} "
                        f"in {name}: got {num_tokens:,}.")
