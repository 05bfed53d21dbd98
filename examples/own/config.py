"""A run whose data, model, head, loss and calibrator are those of mine.py, which stands beside this file.

Run: python main.py --config=examples/own/config.py --workdir=runs/own

It takes less than half a minute. Leave out a line, and that part is the one of configs/common.py. The command line
changes options too, such as --config.model.width=128 --config.evaluation.calibrators.Mine.strength=0.5.
"""

from configs import common


def get_config():
  """Our own parts, beside temperature scaling."""
  config = common.get_config()
  config.data = dict(name="mine:rings", noise=0.3, validation_fraction=0.2)
  config.model = dict(name="mine:Network", width=32)
  config.head = dict(name="mine:Cosine")
  config.loss.primary = dict(name="mine:bounded", power=0.7)
  config.evaluation.calibrators.Mine = dict(name="mine:centred")
  config.training.num_epochs = 20
  return config
