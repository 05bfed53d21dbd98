"""Tiny ImageNet, ResNet-50: as Komisarenko & Kull 2024 and Ni et al. train.

Run: python main.py --config=configs/tiny_imagenet_resnet50.py --workdir=runs/tiny_imagenet_resnet50
"""

from configs import recipes


def get_config():
  """The setting of ``recipes.focal`` with cross entropy; change config.loss for another."""
  return recipes.focal("tiny_imagenet", "resnet50")
