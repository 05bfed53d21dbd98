"""The training settings of each paper, which the configs of its data sets and models share.

``config`` chooses the paper and the loss by the text after the colon of ``--config=configs/FILE.py:VARIANT``: a loss
(``selective_risk``), a paper (``mac_cal``) or both (``mac_cal.dual_focal``). docs/data_and_models.md has a table that
names the page of the paper for every value, and says which values are ours. In comments, "not printed" says that the
paper does not print a value, and what follows says where the value comes from.
"""

from ml_collections import ConfigDict

from calib_jax import models
from calib_jax.errors import UserError
from configs import common, variants


def config(data: str, model: str, variant: str, *papers: str) -> ConfigDict:
  """Returns the config of a table cell.

  Args:
    data: the name of the data set.
    model: the name of the network.
    variant: ``LOSS``, ``PAPER`` or ``PAPER.LOSS``; empty for cross entropy as the first paper trains it. A loss alone
      is that of the first paper that has it.
    *papers: the papers that train this network on this data set, by their names in ``PAPERS``.
  Returns: the config.
  Raises: UserError for a variant that none of the papers has; the message lists those that they have.
  """
  known = {paper: {"cross_entropy": {}, **variants.PAPERS.get(paper, lambda data, model: {})(data, model)}
           for paper in papers}
  paper, _, loss = variant.rpartition(".")
  if variant in known:
    paper, loss = variant, ""
  loss = loss or "cross_entropy"
  paper = paper or next((name for name, losses in known.items() if loss in losses), "")
  if loss not in known.get(paper, ()):
    listed = "; ".join(f"{name}: {', '.join(losses)}" for name, losses in known.items())
    raise UserError(f"there is no variant {variant!r}; known are {listed}. Write one as LOSS, PAPER or PAPER.LOSS.")
  chosen = PAPERS[paper](data, model)
  variants.apply(chosen, known[paper][loss])
  return chosen


def _sgd(data: str, model: str, num_epochs: int, batch_size: int, weight_decay: float) -> ConfigDict:
  """SGD with momentum 0.9 and rate 0.1, crops and flips, PyTorch's decay of all parameters; a tenth is for validation.
  """
  config = common.get_config()
  config.data = dict(name=data, dir="~/tensorflow_datasets", path="", validation_fraction=0.1)
  config.augmentation = dict(name="crop_flip", padding=4, flip=True)
  config.model = dict(name=model, dtype="float32")
  config.optimizer.coupled_weight_decay = weight_decay
  config.optimizer.decay_norms_and_biases = True
  config.optimizer.schedule = "piecewise"
  config.training.batch_size = batch_size
  config.training.num_epochs = num_epochs
  config.training.seeds_together = False
  return config


def _steps(config: ConfigDict, epochs: tuple[int, ...], decay: float) -> None:
  """Multiplies the rate by ``decay`` at each of ``epochs``."""
  config.optimizer.boundaries = tuple(epoch / config.training.num_epochs for epoch in epochs)
  config.optimizer.decay = decay


def _best(config: ConfigDict, warmup_epochs: int) -> None:
  """Predicts with the model of the lowest validation loss after ``warmup_epochs``."""
  config.training.select = "best"
  config.training.select_after_epochs = warmup_epochs
  config.training.evaluate_every_epochs = 1


def _mukhoti(data: str, model: str, tiny_batch_size: int) -> ConfigDict:
  """The settings of Mukhoti et al. 2020, which Komisarenko & Kull 2024 (5.1) and Ni et al. (5.1) follow.

  The loss is summed over the batch and the gradient's norm is clipped at 2, before weight decay is added.
  """
  tiny = data == "tiny_imagenet"
  # 350 or 100 epochs, a tenth of the rate at 150 and 250 or at 40 and 60, decay 5e-4: both papers, 5.1.
  config = _sgd(data, model, 100 if tiny else 350, tiny_batch_size if tiny else 128, 5e-4)
  _steps(config, (40, 60) if tiny else (150, 250), 0.1)
  config.loss.reduction = "sum"  # Not printed: the code of Mukhoti et al., as is the clipping.
  config.optimizer.clip_norm = 2.0
  if tiny:
    config.model.pool_side = 2  # Not printed: the code of Mukhoti et al., as are the next two networks.
  elif model == "resnet110":
    config.model.name = "resnet110_bottleneck"
  elif model == "wide_resnet26_10":
    config.model.post_activation = True
  return config


def focal_temperature(data: str, model: str) -> ConfigDict:
  """The settings of Komisarenko & Kull 2024, Section 5.1."""
  config = _mukhoti(data, model, tiny_batch_size=64)
  config.num_seeds = 5  # Table 1.
  return config


def mac_cal(data: str, model: str) -> ConfigDict:
  """The settings of Ni et al., Section 5.1, for methods of one stage."""
  config = _mukhoti(data, model, tiny_batch_size=128)
  config.seed = 1  # Section 5.1; one seed.
  return config


def reweighted_risk(data: str, model: str) -> ConfigDict:
  """The settings of Zhou et al. 2025, Appendix D.1; SGD trains all networks."""
  if data == "tiny_imagenet":
    return _fine_tuned(data, model)
  num_epochs = 250 if data == "cifar100" else 200
  config = _sgd(data, model, num_epochs, 128, 5e-4)
  config.num_seeds = 3
  _steps(config, (60, 120, 160), 0.2)
  _best(config, 40)
  if model == "resnet110":
    config.model.name = "resnet110_bottleneck"  # Not printed: ours, because their other ResNets are of this kind.
  return config


def _fine_tuned(data: str, model: str) -> ConfigDict:
  """Zhou et al. 2025, Appendix D.1, for transformers: 90 epochs of batches of 256, from weights of timm."""
  config = _sgd(data, model, 90, 256, 5e-4)
  config.num_seeds = 3
  config.data.validation_fraction = 0.05  # 5,000 images of 100,000 (Appendix E.1).
  config.augmentation = dict(name="none")  # Not printed: the released code.
  config.model = dict(name=model, dtype="float32", image_size=224, weights=f"{models.FROM_TORCH[model]}.safetensors")
  config.optimizer.learning_rate = 1e-4
  config.optimizer.schedule = "cosine"
  _best(config, 20)
  return config


def soft_calibration(data: str, model: str) -> ConfigDict:
  """The settings of Karandikar et al. 2021, Section 5.1 and Appendix G: batches of 512, 64 on each of 8 cores.

  Their base learning rate is 0.1. The code that they build on, uncertainty-baselines, multiplies it by the batch size
  over 128 (CIFAR) or 256 (ImageNet), and so do these configs: 0.4 and 0.2. For the other reading of the paper set
  ``--config.optimizer.learning_rate=0.1``. Schedules, warm-up and l2 are those of that code, because the paper tunes l2
  and does not print them.
  """
  imagenet = data == "imagenet2012"
  config = _sgd(data, model, 90 if imagenet else 200, 512, 0.0)
  config.num_seeds = 10  # Table 2.
  config.optimizer.learning_rate = 0.1 * config.training.batch_size / (256 if imagenet else 128)
  config.optimizer.l2 = 1e-4 if imagenet else 2e-4
  config.optimizer.warmup_epochs = 5 if imagenet else 1
  if imagenet:
    _imagenet_data(config)
    _steps(config, (30, 60, 80), 0.1)
  else:
    _steps(config, (60, 120, 160), 0.2)
  return config


def classwise_loss_scaling(data: str, model: str) -> ConfigDict:
  """The settings of Jung et al. 2023, Appendix C and Table 4: 200 epochs of SGD with batches of 128.

  The paper does not print its schedule. The rate is divided by 10 at 50% and 75% of the run, as is usual for these
  networks. The ratio of the long tail is 0.1, which gives the 20,431 and 19,573 images of Appendix C.
  """
  rate, decay = {  # Table 4.
    "densenet40": (0.01, 1e-4), "wide_resnet28_10": (0.1, 5e-4), "resnet110": (0.1, 1e-4),
    "resnet110_stochastic_depth": (0.04, 1e-4) if data == "cifar10_lt" else (0.05, 1e-3)}[model]
  config = _sgd(data, model, 200, 128, decay)
  config.data.validation_fraction = 0.5  # 10,215 to train and 10,216 to validate on (Section 5).
  config.optimizer.learning_rate = rate
  _steps(config, (100, 150), 0.1)
  return config


def imagenet(data: str, model: str) -> ConfigDict:
  """The usual ImageNet settings, for networks whose logits Jung et al. 2023 take from others: not printed, ours."""
  config = _sgd(data, model, 90, 256, 1e-4)
  _imagenet_data(config)
  config.optimizer.warmup_epochs = 5
  config.optimizer.decay_norms_and_biases = False
  _steps(config, (30, 60, 80), 0.1)
  return config


def _imagenet_data(config: ConfigDict) -> None:
  config.data.validation_fraction = 0.02
  config.augmentation = dict(name="none")  # The stream of ImageNet already makes random resized crops.
  config.model.stem = "imagenet"


PAPERS = {"soft_calibration": soft_calibration, "reweighted_risk": reweighted_risk,
          "focal_temperature": focal_temperature, "mac_cal": mac_cal,
          "classwise_loss_scaling": classwise_loss_scaling, "imagenet": imagenet}
