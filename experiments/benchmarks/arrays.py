"""Losses and metrics, on random arrays of the device."""

import argparse
from collections.abc import Callable, Mapping
import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import losses, metrics
from experiments.common import timing

Rows = dict[str, Callable[[], Mapping[str, object]]]  # What is measured by the name of its row.
OPTIONS = {"avuc": {"threshold": 0.5}, "adaptive_focal": losses.init_adaptive_focal()._asdict()}
VARIANTS = {
  **{name: (name, OPTIONS.get(name, {})) for name in (*losses.PER_EXAMPLE, *losses.PER_BATCH)},
  "mmce weighted": ("mmce", {"weighted": True}),
  "kde_ece canonical": ("kde_ece", {"form": "canonical"}),
  "kde_ece marginal": ("kde_ece", {"form": "marginal"}),
}
# Largest N * K for which a loss, whose cost is quadratic in N or K, is timed.
LARGEST = {"pairwise_constraints": 512 * 100, "kde_ece marginal": 512 * 100, "kde_ece canonical": 1024 * 1000}


def ready(function: Callable, *arrays: jax.Array) -> Callable[[], object]:
  """Returns a function without arguments that calls ``function``, compiled, on ``arrays`` and waits for it."""
  compiled = jax.jit(function)
  jax.block_until_ready(compiled(*arrays))
  return lambda: jax.block_until_ready(compiled(*arrays))


def gradient(variant: str, n: int, k: int) -> Callable[[], object]:
  """Returns what computes the value and the gradient of a loss for ``[n, k]`` random logits."""
  name, options = VARIANTS[variant]
  logits = 3 * jax.random.normal(jax.random.key(0), (n, k))
  labels = jnp.argmax(logits + 3 * jax.random.normal(jax.random.key(1), (n, k)), axis=-1)
  loss = losses.get(name, **options)
  return ready(jax.value_and_grad(lambda z: jnp.mean(loss(z, labels))), logits)


def loss_rows(options: argparse.Namespace) -> Rows:
  """Times the value and gradient of each loss beside those of cross entropy; and twice the rows beside once."""
  sizes = ((64, 10),) if options.scale == "tiny" else ((512, 100), (1024, 1000), (8192, 1000))
  n, k = sizes[0]

  def beside(variant: str, size: tuple[int, int], other: str, other_size: tuple[int, int]) -> Mapping[str, object]:
    return timing.compare(gradient(variant, *size), gradient(other, *other_size), options.budget)

  rows = {}
  for variant in VARIANTS:
    rows |= {f"{variant} [{size[0]}, {size[1]}]": functools.partial(beside, variant, size, "cross_entropy", size)
             for size in sizes if size[0] * size[1] <= LARGEST.get(variant, size[0] * size[1])}
    rows[f"{variant}, N from {n} to {2 * n}, K = {k}"] = functools.partial(beside, variant, (2 * n, k), variant, (n, k))
  return rows


@functools.lru_cache(maxsize=1)
def predictions(n: int, k: int) -> tuple[jax.Array, jax.Array]:
  """Returns probabilities ``[n, k]`` and labels, made on the device."""
  logits = 3 * jax.random.normal(jax.random.key(0), (n, k))
  labels = jnp.argmax(logits + 3 * jax.random.gumbel(jax.random.key(1), (n, k)), axis=-1).astype(jnp.int32)
  return jax.nn.softmax(logits), labels


def _scores(n: int) -> tuple[jax.Array, jax.Array]:
  scores = jax.random.uniform(jax.random.key(0), (n,))
  return scores, jax.random.uniform(jax.random.key(1), (n,)) < scores


def _pass(probs: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The floor of metrics that read all probabilities: every row's maximum and logsumexp."""
  return jnp.max(probs, axis=-1), jax.nn.logsumexp(probs, axis=-1)


def metric_rows(options: argparse.Namespace) -> Rows:
  """Times each metric beside a pass over its data or a sort of them; and the same in other libraries, in seconds."""
  most, many, some = (2000, 500, 10) if options.scale == "tiny" else (1_000_000, 50_000, 1000)
  large, wide = (most, some // 10 or 1) if some > 10 else (most, some), (many, some)

  def beside(metric: Callable, floor: Callable, size: tuple[int, int]) -> Mapping[str, object]:
    probs, labels = predictions(*size)
    return timing.compare(ready(metric, probs, labels), ready(floor, probs), options.budget)

  def sorted_scores(name: str) -> Mapping[str, object]:
    scores, flags = _scores(most)
    return timing.compare(ready(getattr(metrics, name), scores, flags), ready(jnp.sort, scores), options.budget)

  def alone(make: Callable[[], Callable[[], object]]) -> Mapping[str, object]:
    function = make()
    function()  # Compiles.
    return timing.compare(function, None, options.budget)

  rows = {f"top-label ECE, {kind} {list(large)}, to a pass": functools.partial(beside, metric, _pass, large)
          for kind, metric in (("equal width", metrics.expected_calibration_error),
                               ("equal mass", metrics.adaptive_calibration_error))}
  for binning, floor in (("equal_width", _pass), ("equal_mass", functools.partial(jnp.sort, axis=0))):
    error = functools.partial(metrics.classwise_calibration_error, binning=binning)
    unit = "a pass" if floor is _pass else "a sort"
    rows[f"classwise ECE, {binning} {list(wide)}, to {unit}"] = functools.partial(beside, error, floor, wide)
  rows |= {f"{name} N = {most}, to a sort": functools.partial(sorted_scores, name) for name in (
    "auroc", "aurc", "ks_calibration_error", "smooth_calibration_error", "sweep_calibration_error")}
  return rows | {name: functools.partial(alone, make) for name, make in _alone(most, many, large).items()}


def _alone(most: int, many: int, large: tuple[int, int]) -> dict[str, Callable[[], Callable[[], object]]]:
  """Returns what makes the functions that have no floor, by name."""
  def interval():
    confidence, correct = metrics.top_label(*predictions(many, 10))
    return lambda: jax.block_until_ready(metrics.bootstrap(metrics.calibration_error, confidence, correct,
                                                           key=jax.random.key(0), num_resamples=1000))

  def loop():
    values, flags = map(np.asarray, metrics.top_label(*predictions(many, 10)))
    gap, bins = values - flags, np.minimum((15 * values).astype(np.int64), 14)

    def resample():
      rng = np.random.default_rng(0)
      for _ in range(1000):
        drawn = rng.integers(0, len(gap), len(gap))
        np.abs(np.bincount(bins[drawn], gap[drawn], 15)).sum()

    return resample

  def kernels():
    probs, labels = predictions(many, 10)
    return lambda: jax.block_until_ready(metrics.kde_calibration_error(probs, labels, bandwidth=0.1))

  def torchmetrics():
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    tensors = [torch.from_numpy(np.array(x)) for x in predictions(*large)]
    return lambda: multiclass_calibration_error(*tensors, num_classes=large[1])

  def netcal():
    from netcal.metrics import ECE

    probs, labels = map(np.asarray, predictions(*large))
    return lambda: ECE(15).measure(probs, labels)

  def sklearn():
    from sklearn.metrics import roc_auc_score

    scores, flags = map(np.asarray, _scores(most))
    return lambda: roc_auc_score(flags, scores)

  functions = {f"bootstrap of ECE, 1,000 resamples, N = {many}": interval,
               "the same in a NumPy loop over bins that are assigned once": loop,
               f"KDE N = {many}, bandwidth given": kernels,
               f"floor: one pass over {list(large)}": lambda: ready(_pass, predictions(*large)[0]),
               f"floor: one sort of {most}": lambda: ready(jnp.sort, _scores(most)[0])}
  others = {"torchmetrics": (f"torchmetrics ECE {list(large)}", torchmetrics),
            "netcal": (f"netcal ECE {list(large)}", netcal),
            "sklearn": (f"scikit-learn roc_auc_score N = {most}", sklearn)}
  return functions | dict(row for package, row in others.items() if importlib.util.find_spec(package))
