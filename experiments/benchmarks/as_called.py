"""What a user types: metrics of NumPy arrays outside of ``jax.jit``, a fit in a fresh process, batches of any size."""

import argparse
from collections.abc import Callable, Mapping
import functools
import importlib.util
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators, metrics
from experiments.benchmarks.arrays import Rows
from experiments.common import timing

METRICS = ("expected_calibration_error", "nll", "brier_score", "accuracy")
FITS = ("temperature_scaling", "platt", "beta_calibration", "isotonic", "histogram_binning",
        "structured_vector_scaling")
ONE_FIT = """
import numpy as np
from calib_jax import calibrators
rng = np.random.default_rng(0)
logits = 3 * rng.normal(size=(2000, 2)).astype(np.float32)
labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(1)
np.asarray(list(calibrators.{}().fit(logits, labels).values())[0])
"""


@functools.lru_cache(maxsize=1)
def predictions(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns probabilities ``[n, k]`` and labels."""
  rng = np.random.default_rng(0)
  probs = rng.random((n, k), np.float32)
  probs /= probs.sum(1, keepdims=True)
  return probs, rng.integers(0, k, n)


def _torchmetrics(probs: np.ndarray, labels: np.ndarray) -> float:
  import torch
  from torchmetrics.functional.classification import multiclass_calibration_error

  arrays = torch.from_numpy(probs), torch.from_numpy(labels)
  return float(multiclass_calibration_error(*arrays, num_classes=probs.shape[1]))


def _netcal(probs: np.ndarray, labels: np.ndarray) -> float:
  from netcal.metrics import ECE

  return ECE(15).measure(probs, labels)


def rows(options: argparse.Namespace) -> Rows:
  """Times metrics in reads of their array, fits of a fresh process, and what a fit does with 256 sizes of batches."""
  tiny = options.scale == "tiny"
  sizes = ((2000, 10),) if tiny else ((1_000_000, 10), (1_000_000, 100), (100_000, 1000))

  def reads(name: str, size: tuple[int, int], of: Callable) -> Mapping[str, object]:
    arrays = [of(x) for x in predictions(*size)]
    return timing.compare(lambda: jax.block_until_ready(getattr(metrics, name)(*arrays)), predictions(*size)[0].max,
                          options.budget)

  def other(ece: Callable, size: tuple[int, int]) -> Mapping[str, object]:
    return timing.compare(functools.partial(ece, *predictions(*size)), predictions(*size)[0].max, options.budget)

  def process(code: str) -> Mapping[str, object]:
    return timing.compare(lambda: subprocess.run([sys.executable, "-c", code], check=True, capture_output=True),
                          fewest=1 if tiny else 3)

  def batches(name: str) -> Mapping[str, object]:
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(2000, 10)).astype(np.float32)
    fitted = calibrators.get(name).fitted(logits, (logits + rng.gumbel(size=logits.shape)).argmax(1))

    def serve():
      for size in range(1, 20 if tiny else 257):
        jax.block_until_ready(fitted(logits[:size]))

    return timing.compare(serve, fewest=1)  # The first time alone has sizes that are new.

  found = {f"{name} {list(size)}, {kind}, in reads": functools.partial(reads, name, size, of)
           for size in sizes
           for name in METRICS for kind, of in (("NumPy", np.asarray), ("JAX", jnp.asarray))}
  for package, ece in (("torchmetrics", _torchmetrics), ("netcal", _netcal)):
    if importlib.util.find_spec(package):
      found |= {f"{package}'s ECE {list(size)}, NumPy, in reads": functools.partial(other, ece, size) for size in sizes}
  found |= {f"{name}, 2,000 x 2, from import to params in a fresh process": functools.partial(
    process, ONE_FIT.format(name)) for name in (FITS[:1] if tiny else FITS)}
  return found | {f"{name}, batches of 1 to 256 rows, each size for the first time": functools.partial(batches, name)
                  for name in ("temperature_scaling", "isotonic")}
