"""ImageNet, DenseNet-161: a network of Jung et al. 2023, who take its logits from others; trained as ResNet-50 here.

Run: python main.py --config=configs/imagenet2012_densenet161.py --workdir=runs/imagenet2012_densenet161
"""

from configs import recipes


def get_config():
  """The setting of ``recipes.imagenet`` with cross entropy; change config.loss for another."""
  return recipes.imagenet("densenet161")
