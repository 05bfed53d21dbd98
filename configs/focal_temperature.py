"""Komisarenko & Kull 2024, the focal family and focal temperature scaling: ResNet-50 on the data sets of Table 1.

Run: python main.py --config=configs/focal_temperature.py:cifar10.resnet50.focal_3 --workdir=runs/cell
Values:
  cifar100, cifar10: sgd, rate 0.1, 350 epochs, batch 128, coupled weight decay 0.0005
  tiny_imagenet: sgd, rate 0.1, 100 epochs, batch 64, coupled weight decay 0.0005

The text after the colon is DATA.NETWORK.LOSS; without a loss it trains cross entropy, and a wrong one lists what there
is.
"""

from calib_jax.training.config import cells
from configs.recipes import mukhoti, primary

NETWORKS = {"cifar100": ("resnet50",), "cifar10": ("resnet50",), "tiny_imagenet": ("resnet50",)}


def recipe(data: str, model: str):
  """The settings of Section 5.1, with the five seeds of Table 1."""
  return mukhoti(data, model, tiny_batch_size=64, num_seeds=5)


def losses(*_):
  """The losses of Section 5.1 and Table 1, the same for all networks."""
  return {
    "cross_entropy": {},
    **{f"focal_{gamma}": primary("focal", gamma=float(gamma)) for gamma in (1, 2, 3, 5, 7)},
    "sample_dependent_focal": primary("sample_dependent_focal", thresholds=(0.2,), gammas=(5.0, 3.0)),  # FLSD-53.
    # AdaFocal with its default parameters (Table 1). The released code makes its bins anew for each batch and so, once
    # an import is mended, trains the focal loss with γ = 1.
    "adaptive_focal": primary("adaptive_focal"),
  }


get_config = cells(NETWORKS, recipe, losses)
