"""How configs/fashion_mnist_small_savuc.py got its numbers: a search on validation splits of other seeds.

Run: python -m experiments.tune_fashion_mnist

1. The network is the MLP of two equal layers whose cross entropy has the highest validation accuracy.
2. The strengths of focal + soft AvUC are those of the lowest validation ECE (15 equal-width bins) among the settings of
   the grid that give up less than one point of validation accuracy to the most accurate one.
3. The calibrator is what ``calibrators.select`` chooses by cross-validation within the validation splits.

All numbers are means over the seeds 10 to 12. The demo has the seeds 0 to 4. Test images are not looked at.
"""

import functools
import itertools

import jax
from ml_collections import ConfigDict
import numpy as np

from calib_jax import calibrators, data, metrics, run, training
from calib_jax import config as run_config

CONFIG = "configs/fashion_mnist_small_savuc.py"
SEEDS = (10, 11, 12)
WIDTHS = (128, 256, 512)
GRID = {"loss.primary.gamma": (1.0, 2.0, 3.0, 5.0), "loss.weight": (0.3, 1.0, 3.0),
        "loss.secondary.threshold": (0.5, 0.9), "loss.secondary.temperature": (0.1, 1.0)}


@functools.lru_cache
def splits(seed: int) -> data.Splits:
  """The data set of one seed, without its test images."""
  found = data.load("fashion_mnist_small", seed=seed, validation_fraction=0.25)
  return found._replace(test=found.validation)


@jax.jit
def scores(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Accuracy and ECE of a validation split."""
  probs = jax.nn.softmax(logits)
  return metrics.accuracy(probs, labels), metrics.expected_calibration_error(probs, labels)


def validation(config: ConfigDict) -> tuple[list[dict[str, np.ndarray]], np.ndarray]:
  """Returns the validation predictions of each seed, and their mean accuracy and ECE in percent."""
  _, predictions = training.train(config, [splits(seed) for seed in SEEDS], seeds=SEEDS, predicted=("validation",))
  found = [by_split["validation"] for by_split in predictions]
  return found, 100 * np.mean([scores(part["logits"], part["labels"]) for part in found], axis=0)


def main() -> None:
  """Searches, and prints everything that was tried."""
  def load(settings: dict[str, object]) -> ConfigDict:
    return run_config.load(CONFIG, [f"--config.{key}={value}" for key, value in settings.items()])

  plain = {}
  for width in WIDTHS:
    plain[width], (accuracy, ece) = validation(run.plain_cross_entropy(load({"model.hidden": (width, width)})))
    print(f"cross entropy, ({width}, {width}): accuracy {accuracy:.2f}%, ECE {ece:.2f}%", flush=True)
  tried = {}
  for values in itertools.product(*GRID.values()):
    settings = dict(zip(GRID, values, strict=True))
    found, (accuracy, ece) = validation(load(settings))
    tried[values] = accuracy, ece, found
    print(f"{settings}: accuracy {accuracy:.2f}%, ECE {ece:.2f}%", flush=True)
  most_accurate = max(accuracy for accuracy, _, _ in tried.values())
  allowed = [values for values, (accuracy, _, _) in tried.items() if accuracy > most_accurate - 1]
  best = min(allowed, key=lambda values: tried[values][1])
  print(f"best: {dict(zip(GRID, best, strict=True))}")
  for name, found in (("cross entropy", plain[256]), ("focal + soft AvUC", tried[best][2])):
    for seed, part in zip(SEEDS, found, strict=True):
      print(f"{name}, seed {seed}:\n{calibrators.select(part['logits'], part['labels'])}", flush=True)


if __name__ == "__main__":
  main()
