"""CIFAR-10, DenseNet-121: as Komisarenko & Kull 2024 and Ni et al. train.

Run: python main.py --config=configs/cifar10_densenet121.py --workdir=runs/cifar10_densenet121
"""

from configs import recipes


def get_config():
  """The setting of ``recipes.focal`` with cross entropy; change config.loss for another."""
  return recipes.focal("cifar10", "densenet121")
