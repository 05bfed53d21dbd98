"""Tiny ImageNet, ViT-S: near to how Zhou et al. 2025 train.

Run: python main.py --config=configs/tiny_imagenet_vit_small.py --workdir=runs/tiny_imagenet_vit_small
"""

from configs import recipes


def get_config():
  """The setting of ``recipes.transformer`` with cross entropy; change config.loss for another."""
  return recipes.transformer("tiny_imagenet", "vit_small")
