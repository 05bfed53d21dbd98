"""Time of each metric, as a ratio to one pass over its data in the same run, and the times of other libraries.

Run: python -m experiments.benchmarks.metrics [WORD ...]   (words choose rows by name; all by default)

The floor of metrics of ``[N, K]`` is one jitted pass that takes the maximum and the logsumexp of every row; that of
metrics that must sort is one jitted sort of the same numbers.
"""

import importlib.util
import time

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import metrics
from experiments.benchmarks.timing import pairs, seconds
from experiments.common import commands


@jax.jit
def read(x):
  """The floor: every row's maximum and logsumexp."""
  return jnp.max(x, axis=-1), jax.nn.logsumexp(x, axis=-1)


def ready(function, *arrays):
  """A function without arguments that calls ``function``, compiled, on ``arrays``."""
  compiled = jax.jit(function)
  jax.block_until_ready(compiled(*arrays))
  return lambda: jax.block_until_ready(compiled(*arrays))


def predictions(n: int, k: int):
  """Probabilities ``[n, k]`` and labels, made on the device."""
  logits = 3 * jax.random.normal(jax.random.key(0), (n, k))
  labels = jnp.argmax(logits + 3 * jax.random.gumbel(jax.random.key(1), (n, k)), axis=-1).astype(jnp.int32)
  return jax.nn.softmax(logits), labels


def rows():
  """``(name, function without arguments, floor)`` of each row, whose data are made when it is reached."""
  def top_label():
    probs, labels = predictions(1_000_000, 100)
    floor = ready(read, probs)
    yield "top-label ECE, equal width [1e6, 100]", ready(metrics.expected_calibration_error, probs, labels), floor
    yield "top-label ECE, equal mass [1e6, 100]", ready(metrics.adaptive_calibration_error, probs, labels), floor

  def classwise():
    probs, labels = predictions(50_000, 1000)
    for binning, floor in (("equal_width", ready(read, probs)), ("equal_mass", ready(lambda p: jnp.sort(p, 0), probs))):
      def error(p, y, binning=binning):
        return metrics.classwise_calibration_error(p, y, binning=binning)

      yield f"classwise ECE, {binning} [50,000, 1,000]", ready(error, probs, labels), floor

  def sorting():
    scores = jax.random.uniform(jax.random.key(0), (1_000_000,))
    flags = jax.random.uniform(jax.random.key(1), (1_000_000,)) < scores
    floor = ready(jnp.sort, scores)
    for name in ("auroc", "aurc", "ks_calibration_error", "smooth_calibration_error", "sweep_calibration_error"):
      yield f"{name} N = 1e6, to a sort", ready(getattr(metrics, name), scores, flags), floor

  for group in (top_label, classwise, sorting):
    yield from group()


def others():
  """``(name, function without arguments)`` of the same metrics in other libraries, and of what has no floor."""
  probs, labels = predictions(50_000, 10)
  confidence, correct = jax.block_until_ready(metrics.top_label(probs, labels))

  def interval():
    return jax.block_until_ready(metrics.bootstrap(metrics.calibration_error, confidence, correct,
                                                   key=jax.random.key(0), num_resamples=1000))

  def kernels():
    return jax.block_until_ready(metrics.kde_calibration_error(probs, labels, bandwidth=0.1))

  values, flags = np.asarray(confidence), np.asarray(correct)
  gap, bins = values - flags, np.minimum((15 * values).astype(np.int64), 14)

  def loop():
    rng = np.random.default_rng(0)
    for _ in range(1000):
      drawn = rng.integers(0, len(gap), len(gap))
      np.abs(np.bincount(bins[drawn], gap[drawn], 15)).sum()

  yield "bootstrap of ECE, 1,000 resamples, N = 50,000", interval
  yield "the same in a NumPy loop over bins that are assigned once", loop
  yield "KDE N = 50,000, bandwidth given", kernels

  probs, labels = predictions(1_000_000, 100)
  yield "floor: one pass over [1e6, 100]", ready(read, probs)
  scores = jax.random.uniform(jax.random.key(0), (1_000_000,))
  yield "floor: one sort of 1e6", ready(jnp.sort, scores)
  wide, truth = np.asarray(probs), np.asarray(labels)
  scores, flags = np.asarray(scores), np.asarray(jax.random.uniform(jax.random.key(1), (1_000_000,)) < scores)
  if importlib.util.find_spec("torchmetrics"):
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    tensors = torch.from_numpy(wide), torch.from_numpy(truth)
    yield "torchmetrics ECE [1e6, 100]", lambda: multiclass_calibration_error(*tensors, num_classes=100)
  if importlib.util.find_spec("netcal"):
    from netcal.metrics import ECE

    yield "netcal ECE [1e6, 100]", lambda: ECE(15).measure(wide, truth)
  if importlib.util.find_spec("sklearn"):
    from sklearn.metrics import roc_auc_score

    yield "scikit-learn roc_auc_score N = 1e6", lambda: roc_auc_score(flags, scores)


def main() -> None:
  """Prints the tables."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("words", nargs="*", help="only rows whose names hold one of these")
  words = parser.parse_args().words
  started = time.perf_counter()
  print(f"{jax.devices()[0].device_kind}, {len(jax.devices())} device(s), JAX {jax.__version__}\n")
  print("| metric | ratio to its floor |\n|---|---|")
  for name, function, floor in rows():
    if not words or any(word in name for word in words):
      print(f"| {name} | {pairs(function, floor, 4.0)[0]:.2f} |", flush=True)
  print("\n| | seconds |\n|---|---|")
  for name, function in others():
    if not words or any(word in name for word in words):
      function()  # Compiles.
      print(f"| {name} | {seconds(function):.3f} |", flush=True)
  print(f"\n{time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
  main()
