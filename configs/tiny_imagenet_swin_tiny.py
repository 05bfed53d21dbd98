"""Tiny ImageNet, Swin-T: near to how Zhou et al. 2025 train.

Run: python main.py --config=configs/tiny_imagenet_swin_tiny.py --workdir=runs/tiny_imagenet_swin_tiny
"""

from configs import recipes


def get_config():
  """The setting of ``recipes.transformer`` with cross entropy; change config.loss for another."""
  return recipes.transformer("tiny_imagenet", "swin_tiny")
