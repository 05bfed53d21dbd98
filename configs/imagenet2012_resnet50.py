"""ImageNet, ResNet-50, as Karandikar et al. 2021 train (Section 5.1): 90 epochs, SGD with momentum 0.9.

Run: python main.py --config=configs/imagenet2012_resnet50.py --workdir=runs/imagenet2012_resnet50

The paper does not print its batch size and schedule: these are the usual ones, batches of 256 at 0.1, warm-up over five
epochs, a tenth of the rate from epochs 30, 60 and 80 on, weight decay 1e-4.
"""

from configs import recipes


def get_config():
  """The setting of ``recipes.imagenet`` with cross entropy; change config.loss for another."""
  return recipes.imagenet("resnet50")
