"""CIFAR-100-LT, ResNet-110 with stochastic depth: as Jung et al. 2023 train.

Run: python main.py --config=configs/cifar100_lt_resnet110_stochastic_depth.py --workdir=runs/cifar100_lt_resnet110_sd
"""

from configs import recipes


def get_config():
  """The setting of ``recipes.long_tailed`` with cross entropy; change config.loss for another."""
  return recipes.long_tailed("cifar100_lt", "resnet110_stochastic_depth", learning_rate=0.05, weight_decay=1e-3)
