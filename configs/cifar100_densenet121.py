"""CIFAR-100, DenseNet-121: as Komisarenko & Kull 2024 and Ni et al. train.

Run: python main.py --config=configs/cifar100_densenet121.py --workdir=runs/cifar100_densenet121
"""

from configs import recipes


def get_config():
  """The setting of ``recipes.focal`` with cross entropy; change config.loss for another."""
  return recipes.focal("cifar100", "densenet121")
