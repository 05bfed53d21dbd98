"""Digits, focal loss + soft AvUC, beside plain cross entropy; five seeds.

Run: python main.py --config=configs/digits_savuc.py --workdir=runs/digits_savuc
Values: sgd, rate 0.1, 60 epochs, batch 128, no decay.

It takes about a minute on two CPU cores. The focal exponent, threshold, temperature and weight are ours, and a
starting point: `python -m experiments.tune --config=configs/digits_savuc.py` searches for better ones.
"""

from configs.recipes import beside_cross_entropy, primary, secondary


def get_config():
  """A small network on scikit-learn's embedded digits."""
  return beside_cross_entropy(primary("focal", gamma=2.0) | secondary("soft_avuc", 0.3, threshold=0.5, temperature=0.1))
