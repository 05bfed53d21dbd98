"""The demo: 4,000 images of Fashion-MNIST, focal loss + soft AvUC, beside plain cross entropy; five seeds.

Run: python main.py --config=configs/fashion_mnist_small_savuc.py --workdir=runs/fashion_mnist_small_savuc
Values: sgd, rate 0.1, 40 epochs, batch 128, l2 0.0005.

docs/demo.md shows the table to expect. The focal exponent, the settings of the secondary loss and the L2 term were
chosen on the validation splits by `python -m experiments.tune --config=configs/fashion_mnist_small_savuc.py`
(experiments/results/tune_fashion_mnist_small_savuc.md). Cross entropy has the same L2 term. Cross-validation on the
validation splits (``calibrators.select``) prefers temperature scaling for two of the five networks of cross entropy and
structured matrix scaling for three, and for the tuned ones no calibrator for three, and one of these for each of the
others. The demo has temperature scaling alone, because its one number also says how overconfident a network is.
"""

from configs.recipes import beside_cross_entropy, primary, secondary


def get_config():
  """A network of two layers that learns its 3,000 training images nearly by heart, and is overconfident on others."""
  config = beside_cross_entropy(
    primary("focal", gamma=3.0) | secondary("soft_avuc", 1.0, threshold=0.9, temperature=0.3))
  config.data.name = "fashion_mnist_small"
  config.model.hidden = (256, 256)
  config.optimizer.l2 = 5e-4
  config.training.num_epochs = 40
  config.evaluation.num_resamples = 200
  config.evaluation.recommended = False
  return config
