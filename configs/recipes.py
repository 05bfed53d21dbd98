"""Settings that several papers train with, and the fields of a loss.

The config of a paper holds its networks, its training settings and its losses, with the place in the paper for every
value; README.md has a table of them, and says which values are ours. In comments, "not printed" says that
the paper does not print a value, and what follows says where the value comes from.
"""

from ml_collections import ConfigDict

from configs import common


def primary(name: str, **options) -> dict[str, object]:
  """Returns the fields of a primary loss with its options."""
  return {"loss.primary": dict(name=name, **options)}


def secondary(name: str, weight: float, **options) -> dict[str, object]:
  """Returns the fields of a secondary loss with its weight and options."""
  return {"loss.secondary": dict(name=name, **options), "loss.weight": weight}


def beside_cross_entropy(fields: dict[str, object]) -> ConfigDict:
  """A method on the embedded digits, by the fields of its losses, beside plain cross entropy; five seeds of both."""
  config = common.get_config()
  config.update(num_seeds=5, compare_with_cross_entropy=True)
  config.update_from_flattened_dict(fields)
  return config


def sgd(data: str, model: str, num_epochs: int, batch_size: int, weight_decay: float, steps: tuple[int, ...] = (),
        decay: float = 0.1, *, learning_rate: float = 0.1, validation_fraction: float = 0.1) -> ConfigDict:
  """SGD with momentum 0.9, crops and flips, and PyTorch's weight decay of all parameters.

  The rate is multiplied by ``decay`` at each epoch of ``steps``; without any it falls as a cosine.
  """
  config = common.get_config()
  config.data = dict(name=data, dir="~/tensorflow_datasets", path="", validation_fraction=validation_fraction)
  config.augmentation = dict(name="crop_flip", padding=4, flip=True)
  config.model = dict(name=model, dtype="float32")
  config.optimizer.update(learning_rate=learning_rate, coupled_weight_decay=weight_decay, decay_norms_and_biases=True)
  if steps:
    boundaries = tuple(epoch / num_epochs for epoch in steps)
    config.optimizer.update(schedule="piecewise", boundaries=boundaries, decay=decay)
  config.training.update(batch_size=batch_size, num_epochs=num_epochs, seeds_together=False)
  return config


def imagenet(data: str, model: str, batch_size: int, weight_decay: float, learning_rate: float = 0.1) -> ConfigDict:
  """The usual 90 epochs on ImageNet, a tenth of the rate at 30, 60 and 80; the papers do not print them."""
  config = sgd(data, model, 90, batch_size, weight_decay, steps=(30, 60, 80), learning_rate=learning_rate,
               validation_fraction=0.02)
  config.augmentation = dict(name="none")  # The stream of ImageNet already makes random resized crops.
  config.model.stem = "imagenet"
  config.optimizer.warmup_epochs = 5
  return config


def mukhoti(data: str, model: str, tiny_batch_size: int, **fields: int) -> ConfigDict:
  """The settings of Mukhoti et al. 2020, which Komisarenko & Kull 2024 (5.1) and Ni et al. (5.1) follow.

  The loss is summed over the batch and the gradient's norm is clipped at 2, before weight decay is added. Epochs, steps
  and weight decay are printed (both papers, 5.1). Not printed, but in the code of Mukhoti et al.: the sum, the
  clipping, and what is special about networks here. The ``fields`` are those of the config itself, such as its seed.
  """
  if data == "tiny_imagenet":
    config = sgd(data, model, 100, tiny_batch_size, 5e-4, steps=(40, 60))
    config.model.pool_side = 2
  else:
    config = sgd(data, model, 350, 128, 5e-4, steps=(150, 250))
  if model == "resnet110":
    config.model.name = "resnet110_bottleneck"
  if model == "wide_resnet26_10":
    config.model.post_activation = True
  config.loss.reduction = "sum"
  config.optimizer.clip_norm = 2.0
  config.update(**fields)
  return config
