"""The demo: 4,000 images of Fashion-MNIST, focal loss + soft AvUC, beside plain cross entropy; five seeds.

Run: python main.py --config=configs/fashion_mnist_small_savuc.py --workdir=runs/fashion_mnist_small_savuc

The README shows the table to expect. The strengths of the losses are those of configs/digits_savuc.py: they were not
tuned on these images.
"""

from configs import common


def get_config():
  """A network of two layers that learns its 3,000 training images nearly by heart, and is overconfident on others."""
  config = common.get_config()
  config.num_seeds = 5
  config.compare_with_cross_entropy = True
  config.data.name = "fashion_mnist_small"
  config.model.hidden = (256, 256)
  config.loss.primary = dict(name="focal", gamma=2.0)
  config.loss.secondary = dict(name="soft_avuc", threshold=0.5, temperature=0.1)
  config.loss.weight = 0.3
  config.training.num_epochs = 40
  config.evaluation.num_resamples = 300
  config.evaluation.calibrators = {"TS": dict(name="temperature_scaling", objective="nll")}
  return config
