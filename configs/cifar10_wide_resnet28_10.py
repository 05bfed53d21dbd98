"""CIFAR-10, WRN-28-10: as Zhou et al. 2025 train.

Run: python main.py --config=configs/cifar10_wide_resnet28_10.py --workdir=runs/cifar10_wide_resnet28_10
"""

from configs import recipes


def get_config():
  """The setting of ``recipes.reweighted_risk`` with cross entropy; change config.loss for another."""
  return recipes.reweighted_risk("cifar10", "wide_resnet28_10")
