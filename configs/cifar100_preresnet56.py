"""CIFAR-100, PreResNet-56: as Zhou et al. 2025 train.

Run: python main.py --config=configs/cifar100_preresnet56.py --workdir=runs/cifar100_preresnet56
"""

from configs import recipes


def get_config():
  """The setting of ``recipes.reweighted_risk`` with cross entropy; change config.loss for another."""
  return recipes.reweighted_risk("cifar100", "preresnet56")
