"""CIFAR-100, WRN-28-10, focal loss + soft AvUC, at the scale of Karandikar et al. 2021 (Section 5.1, Appendix G).

Run: python main.py --config=configs/cifar100_savuc.py --workdir=runs/cifar100_savuc

SGD with momentum 0.9 and learning rate 0.1 for 200 epochs, global batch 512 (64 on each of 8 devices). The paper keeps
one learning-rate schedule per data set without printing it; this is the one of the library it builds on: a warm-up
of one epoch, then a fifth of the rate from 30%, 60% and 80% of the run on. It tunes the threshold, temperature,
weight and L2 coefficient without printing them either: the values here are starting points for that search.
The paper reports accuracy 78.1% and ECE (15 equal-mass bins, norm 2) 1.57% for this pair, ten runs.
"""

from configs import common


def get_config():
  """The published setting, for one CPU, one GPU or every device of a TPU host."""
  config = common.get_config()
  config.data = dict(name="cifar100", dir="~/tensorflow_datasets", path="", validation_fraction=0.1)
  config.augmentation = dict(name="crop_flip", padding=4, flip=True)
  config.model = dict(name="wide_resnet", depth=28, width=10, dtype="float32")
  config.loss.primary = dict(name="focal", gamma=1.0)
  config.loss.secondary = dict(name="soft_avuc", threshold=0.5, temperature=1.0)
  config.loss.weight = 1.0
  config.optimizer.l2 = 2e-4
  config.optimizer.decay_norms_and_biases = True
  config.optimizer.schedule = "piecewise"
  config.optimizer.warmup_epochs = 1
  config.training.batch_size = 512
  config.training.num_epochs = 200
  config.training.seeds_together = False
  return config
