"""CIFAR-100, WRN-28-10, focal loss + soft AvUC, at the scale of Karandikar et al. 2021 (Section 5.1, Appendix G).

Run: python main.py --config=configs/cifar100_savuc.py --workdir=runs/cifar100_savuc
Values: sgd, rate 0.4, 200 epochs, batch 512, l2 0.0002.

SGD with momentum 0.9 for 200 epochs, global batch 512 (64 on each of 8 devices), at the rate 0.4: the printed base
rate 0.1 times 512/128, as the library that the paper builds on scales it. For 0.1 itself, the other reading of the
paper, set --config.optimizer.learning_rate=0.1. The paper keeps one schedule per data set without printing it; this
is the one of that library: a warm-up of one epoch, then a fifth of the rate from 30%, 60% and 80% of the run on. It
tunes the threshold, temperature, weight and L2 coefficient without printing them either: the values here are starting
points for that search. The paper reports accuracy 78.1% and ECE (15 equal-mass bins, norm 2) 1.57% for this pair, ten
runs; this config trains one, and --config.num_seeds=10 the rest.
"""

from configs import soft_calibration


def get_config():
  """The cell cifar100.wide_resnet28_10.focal+soft_avuc of configs/soft_calibration.py, with one seed."""
  config = soft_calibration.get_config("cifar100.wide_resnet28_10.focal+soft_avuc")
  config.model = dict(name="wide_resnet", depth=28, width=10, dtype="float32", norm_statistics="device")
  config.num_seeds = 1
  return config
