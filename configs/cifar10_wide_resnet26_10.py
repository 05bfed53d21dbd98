"""CIFAR-10, WRN-26-10: as Komisarenko & Kull 2024 and Ni et al. train.

Run: python main.py --config=configs/cifar10_wide_resnet26_10.py --workdir=runs/cifar10_wide_resnet26_10
"""

from configs import recipes


def get_config():
  """The setting of ``recipes.focal`` with cross entropy; change config.loss for another."""
  return recipes.focal("cifar10", "wide_resnet26_10")
