"""The demo: 4,000 images of Fashion-MNIST, focal loss + soft AvUC, beside plain cross entropy; five seeds.

Run: python main.py --config=configs/fashion_mnist_small_savuc.py --workdir=runs/fashion_mnist_small_savuc

TIME. The settings were chosen on validation splits by `python -m experiments.tune_fashion_mnist`, whose docstring has
what it tried; the README shows the table to expect.
"""

from configs import common


def get_config():
  """The demo: a network of two layers that knows its 3,000 training images by heart, and is overconfident."""
  config = common.get_config()
  config.num_seeds = 5
  config.compare_with_cross_entropy = True
  config.data.name = "fashion_mnist_small"
  config.model.hidden = (256, 256)
  config.loss.primary = dict(name="focal", gamma=2.0)
  config.loss.secondary = dict(name="soft_avuc", threshold=0.5, temperature=0.1)
  config.loss.weight = 0.3
  return config
