"""CIFAR-10, WRN-32: a network of Jung et al. 2023, who take its logits from others;
trained as those of Komisarenko & Kull 2024.

Run: python main.py --config=configs/cifar10_wide_resnet32.py --workdir=runs/cifar10_wide_resnet32
"""

from configs import recipes


def get_config():
  """The setting of ``recipes.focal`` with cross entropy; change config.loss for another."""
  return recipes.focal("cifar10", "wide_resnet32")
