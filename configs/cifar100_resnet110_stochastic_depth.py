"""CIFAR-100, ResNet-110 with stochastic depth: a network of Jung et al. 2023, who take its logits from others;
trained as those of Komisarenko & Kull 2024.

Run: python main.py --config=configs/cifar100_resnet110_stochastic_depth.py --workdir=runs/cifar100_resnet110_sd
"""

from configs import recipes


def get_config():
  """The setting of ``recipes.focal`` with cross entropy; change config.loss for another."""
  return recipes.focal("cifar100", "resnet110_stochastic_depth")
