"""CIFAR-100, DenseNet-40: a network of Jung et al. 2023, who take its logits from others;
trained as those of Komisarenko & Kull 2024.

Run: python main.py --config=configs/cifar100_densenet40.py --workdir=runs/cifar100_densenet40
"""

from configs import recipes


def get_config():
  """The setting of ``recipes.focal`` with cross entropy; change config.loss for another."""
  return recipes.focal("cifar100", "densenet40")
