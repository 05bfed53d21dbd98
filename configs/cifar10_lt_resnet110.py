"""CIFAR-10-LT, ResNet-110: as Jung et al. 2023 train.

Run: python main.py --config=configs/cifar10_lt_resnet110.py --workdir=runs/cifar10_lt_resnet110
"""

from configs import recipes


def get_config():
  """The setting of ``recipes.long_tailed`` with cross entropy; change config.loss for another."""
  return recipes.long_tailed("cifar10_lt", "resnet110", learning_rate=0.1, weight_decay=1e-4)
