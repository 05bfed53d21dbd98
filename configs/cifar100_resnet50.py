"""CIFAR-100, ResNet-50: as Komisarenko & Kull 2024 and Ni et al. train.

Run: python main.py --config=configs/cifar100_resnet50.py --workdir=runs/cifar100_resnet50
"""

from configs import recipes


def get_config():
  """The setting of ``recipes.focal`` with cross entropy; change config.loss for another."""
  return recipes.focal("cifar100", "resnet50")
