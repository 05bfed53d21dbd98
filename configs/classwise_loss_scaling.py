"""Jung et al. 2023, class-wise loss scaling: the networks whose logits it calibrates.

Run: python main.py --config=configs/classwise_loss_scaling.py:cifar10_lt.densenet40 --workdir=runs/cell
Values:
  cifar10_lt.densenet40, cifar100_lt.densenet40: sgd, rate 0.01, 200 epochs, batch 128, coupled weight decay 0.0001
  cifar10_lt.resnet110, cifar100_lt.resnet110: sgd, rate 0.1, 200 epochs, batch 128, coupled weight decay 0.0001
  cifar10_lt.resnet110_stochastic_depth: sgd, rate 0.04, 200 epochs, batch 128, coupled weight decay 0.0001
  cifar10_lt.wide_resnet28_10: sgd, rate 0.1, 200 epochs, batch 128, coupled weight decay 0.0005
  cifar100_lt.wide_resnet28_10: sgd, rate 0.1, 200 epochs, batch 128, coupled weight decay 0.0005
  cifar100_lt.resnet110_stochastic_depth: sgd, rate 0.05, 200 epochs, batch 128, coupled weight decay 0.001
  cifar10, cifar100: sgd, rate 0.1, 350 epochs, batch 128, coupled weight decay 0.0005
  imagenet2012: sgd, rate 0.1, 90 epochs, batch 256, coupled weight decay 0.0001

The text after the colon is DATA.NETWORK, because the method is a calibrator; a wrong one lists what there is. The paper
trains the networks on long-tailed data itself. It takes the logits of the others from elsewhere and does not print how
they were trained: here those on CIFAR are trained as Komisarenko & Kull 2024 train, with their losses too
(DATA.NETWORK.LOSS), and those on ImageNet in the usual way.
"""

from calib_jax.training.config import cells
from configs import focal_temperature
from configs.recipes import imagenet, sgd

_FROM_OTHERS = ("densenet40", "resnet110_stochastic_depth", "wide_resnet32")
NETWORKS = {
  # The learning rate and the weight decay (Table 4).
  "cifar10_lt": {"densenet40": (0.01, 1e-4), "resnet110": (0.1, 1e-4), "resnet110_stochastic_depth": (0.04, 1e-4),
                 "wide_resnet28_10": (0.1, 5e-4)},
  "cifar100_lt": {"densenet40": (0.01, 1e-4), "resnet110": (0.1, 1e-4), "resnet110_stochastic_depth": (0.05, 1e-3),
                  "wide_resnet28_10": (0.1, 5e-4)},
  "cifar10": _FROM_OTHERS,
  "cifar100": _FROM_OTHERS,
  "imagenet2012": ("densenet161", "resnet152"),
}


def recipe(data: str, model: str):
  """On long-tailed data the settings of Appendix C and Table 4: 200 epochs of SGD with batches of 128.

  The paper does not print its schedule. The rate is divided by 10 at 50% and 75% of the run, as is usual for these
  networks. The ratio of the long tail is 0.1, which gives the 20,431 and 19,573 images of Appendix C.
  """
  if data in focal_temperature.NETWORKS:
    return focal_temperature.recipe(data, model)
  if data == "imagenet2012":
    config = imagenet(data, model, 256, 1e-4)
    config.optimizer.decay_norms_and_biases = False
    return config
  rate, weight_decay = NETWORKS[data][model]
  # 10,215 images to train and 10,216 to validate on (Section 5).
  return sgd(data, model, 200, 128, weight_decay, steps=(100, 150), learning_rate=rate, validation_fraction=0.5)


def losses(data: str, model: str):
  """Cross entropy; networks that are trained as Komisarenko & Kull 2024 train have their losses too."""
  return focal_temperature.losses(data, model) if data in focal_temperature.NETWORKS else {"cross_entropy": {}}


get_config = cells(NETWORKS, recipe, losses)
