"""Digits, focal loss + soft AvUC, beside plain cross entropy; five seeds.

Run: python main.py --config=configs/digits_savuc.py --workdir=runs/digits_savuc

It takes about a minute on two CPU cores. The focal exponent, threshold, temperature and weight are ours, and a
starting point: `python -m experiments.tune --config=configs/digits_savuc.py` searches for better ones.
"""

from configs import common


def get_config():
  """A small network on scikit-learn's embedded digits."""
  config = common.get_config()
  config.num_seeds = 5
  config.compare_with_cross_entropy = True
  config.loss.primary = dict(name="focal", gamma=2.0)
  config.loss.secondary = dict(name="soft_avuc", threshold=0.5, temperature=0.1)
  config.loss.weight = 0.3
  return config
