"""Fits of calibrators, beside a pass over their logits and beside the same ones of probmetrics, netcal and PyTorch.

One half of each file of predictions (`labels` and `logits` or `probs`) fits, and the other half tests. NxK in place of
a file makes N logits of K classes to fit, and 10,000 to test, whose labels are drawn at a temperature of 1.70. The fit
alone is timed, without compilation. A pass is one log-softmax, by JAX, of the logits that are fitted to: it is the
floor of our fits, and ours is the floor of others'. Packages that are not installed are left out.
"""

import argparse
from collections.abc import Callable, Mapping
import functools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators, metrics
from calib_jax.evaluation.predictions.loading import load
from experiments.benchmarks.arrays import Rows, ready
from experiments.common import timing
from experiments.common.calibrator_peers import PEERS, prepared, versions

TRUE_TEMPERATURE = 1.70
TEST_SIZE = 10_000
Halves = tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]  # Logits and labels to fit, and to test.


@functools.lru_cache(maxsize=1)
def halves(source: str) -> Halves:
  """Returns the logits and labels of a file, or random ones of a size such as 50000x1000."""
  if size := re.fullmatch(r"(\d+)x(\d+)", source):
    num_fit, k = map(int, size.groups())
    z = 3 * jax.random.normal(jax.random.key(0), (num_fit + TEST_SIZE, k))
    logits, labels = np.asarray(z), np.asarray(jax.random.categorical(jax.random.key(1), z / TRUE_TEMPERATURE))
  else:
    logits, labels = load(pathlib.Path(source))[:2]
    order, num_fit = np.random.default_rng(0).permutation(len(labels)), len(labels) // 2
    logits, labels = logits[order], labels[order]
  return (logits[:num_fit], labels[:num_fit]), (logits[num_fit:], labels[num_fit:])


def _ours(name: str, fit: tuple[np.ndarray, np.ndarray]) -> Callable[[], Mapping[str, jax.Array]]:
  calibrator, (z, y) = calibrators.get(name), map(jnp.asarray, fit)
  return lambda: jax.block_until_ready(calibrator.fit(z, y))


def ours(name: str, source: str, budget: float) -> Mapping[str, object]:
  """Times the fit of a calibrator in passes over its logits."""
  fit, (test, labels) = halves(source)
  function = _ours(name, fit)
  params = function()  # Compiles.
  values = {"NLL": float(metrics.nll(np.exp(calibrators.get(name).apply(params, test)), labels))}
  if not params.get("converged", True):
    values["note"] = "not converged"
  return timing.compare(function, ready(jax.nn.log_softmax, jnp.asarray(fit[0])), budget) | values


def theirs(name: str, package: str, source: str, budget: float) -> Mapping[str, object]:
  """Times the fit of a package beside ours."""
  fit, (test, labels) = halves(source)
  function, inputs, our_fit = PEERS[name][package], prepared(package, fit[0]), _ours(name, fit)
  our_fit()  # Compiles.
  try:
    apply = function(inputs, fit[1])
    loss = float(metrics.nll(apply(prepared(package, test)), labels))
  except (ImportError, ValueError, RuntimeError, MemoryError) as error:
    return {"note": f"failed: {type(error).__name__}"}
  return timing.compare(lambda: function(inputs, fit[1]), our_fit, budget) | {"NLL": loss}


def rows(options: argparse.Namespace) -> Rows:
  """Times our fits and those of the packages that are installed, of all calibrators that have peers."""
  all_rows = {}
  for source in options.data or (["100x3"] if options.scale == "tiny" else ["5000x10"]):
    for name in (name for name in PEERS if name in calibrators.CALIBRATORS):
      row = f"{pathlib.Path(source).stem}, {name}"
      all_rows[row] = functools.partial(ours, name, source, options.budget)
      all_rows |= {f"{row}, {package}": functools.partial(theirs, name, package, source, options.budget)
                   for package in PEERS[name] if package in versions()}
  return all_rows
