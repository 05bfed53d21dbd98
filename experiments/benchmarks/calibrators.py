"""Seconds, passes and held-out NLL of calibrators, beside the same ones of probmetrics, netcal and PyTorch.

Run: python -m experiments.benchmarks.calibrators PREDICTIONS.npz … --synthetic 50000x1000

One half of each file (`labels` and `logits` or `probs`) fits, and the other half tests. `--synthetic NxK` makes N
logits of K classes to fit, and 10,000 to test, whose labels are drawn at a temperature of 1.70. The fit alone is timed:
the shortest of three calls or more, as many as take 0.3 s, without compilation, or the only call of a fit that takes
more than a minute. Processor seconds are those of all threads, which other work on the machine changes less than
seconds; ratios and passes are computed from them. A pass is one log-softmax, by JAX, of the logits that are fitted to.
Packages that are not installed are left out.
"""

import pathlib
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators
from calib_jax.evaluation.predictions import load
from experiments.common import commands
from experiments.common.calibrator_peers import PEERS, prepared, versions

TRUE_TEMPERATURE = 1.70
TEST_SIZE = 10_000
LONG = 60.0  # Processor seconds from which on a call is not repeated.
SHORT = 0.3  # Processor seconds for which calls are repeated: on a busy machine most calls of a few ms are disturbed.
REPEATS = 10  # Passes that are timed together.


class Task(NamedTuple):
  """Logits and labels to fit and to test, and the processor seconds of a pass over the logits to fit."""

  name: str
  fit: tuple[np.ndarray, np.ndarray]
  test: tuple[np.ndarray, np.ndarray]
  floor: float


def synthetic(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
  """Random logits, and labels drawn at the true temperature."""
  logits = 3 * jax.random.normal(jax.random.key(0), (n, k))
  return np.asarray(logits), np.asarray(jax.random.categorical(jax.random.key(1), logits / TRUE_TEMPERATURE))


def task(name: str, logits: np.ndarray, labels: np.ndarray, num_fit: int) -> Task:
  """Divides examples, which must be in random order, and measures a pass."""
  z = jnp.asarray(logits[:num_fit])
  log_softmax = jax.jit(jax.nn.log_softmax)
  _, floor, _ = seconds(lambda: jax.block_until_ready([log_softmax(z) for _ in range(REPEATS)]))
  return Task(f"{name} [{num_fit:,} x {logits.shape[1]:,}]", (logits[:num_fit], labels[:num_fit]),
              (logits[num_fit:], labels[num_fit:]), floor / REPEATS)


def seconds(function, calls: int = 3, enough: float = SHORT) -> tuple[float, float, object]:
  """Returns the least seconds and processor seconds of several calls, or of one long call, and the last result.

  There are at least so many ``calls``, and so many that they take ``enough`` processor seconds.
  """
  wall, processor, total = [], [], 0.0
  while (len(wall) < calls or total < enough) and total < LONG:
    start, used = time.perf_counter(), time.process_time()
    result = function()
    wall.append(time.perf_counter() - start)
    processor.append(time.process_time() - used)
    total += max(processor[-1], 1e-4)  # A call that takes no time is repeated, too, but not for ever.
  return min(wall), min(processor), result


def nll(probs: np.ndarray, labels: np.ndarray) -> float:
  """The mean NLL in nats; probabilities below the smallest float32 count as that."""
  p = np.asarray(probs, np.float64)[np.arange(len(labels)), labels]
  return float(-np.mean(np.log(np.maximum(p, np.finfo(np.float32).tiny))))


def compare(name: str, data: Task, packages: dict[str, str]) -> None:
  """Prints the lines of one calibrator: ours, and those of the peers that are installed."""
  calibrator = calibrators.get(name)
  z, y = (jnp.asarray(part) for part in data.fit)

  def fit():
    return jax.block_until_ready(calibrator.fit(z, y))

  first = wall, ours, params = seconds(fit, 1, enough=0)
  if first[1] < LONG:
    wall, ours, params = seconds(fit)
  loss = nll(np.exp(calibrator.apply(params, data.test[0])), data.test[1])
  ended = "" if params.get("converged", True) else ", not converged"
  _line(data, name, "calib_jax", (wall, ours), 1, loss, f"compiling {first[1] - ours:.1f}{ended}")
  for package, peer in PEERS.get(name, {}).items():
    if package not in packages:
      continue
    inputs, test = prepared(package, data.fit[0]), prepared(package, data.test[0])
    try:
      wall, theirs, apply = seconds(lambda peer=peer, inputs=inputs: peer(inputs, data.fit[1]))
      other = nll(apply(test), data.test[1])
    except (ImportError, ValueError, RuntimeError, MemoryError) as error:
      print(f"| {data.name} | {name} | {package} | failed: {type(error).__name__} | | | | | |", flush=True)
      continue
    _line(data, name, package, (wall, theirs), theirs / ours, other, f"NLL {other - loss:+.4f}")


def _line(data: Task, name: str, package: str, durations: tuple[float, float], ratio: float, loss: float,
          note: str) -> None:
  wall, processor = durations
  cells = (data.name, name, package, f"{wall:.3g}", f"{processor:.3g}", f"{ratio:.1f}",
           f"{processor / data.floor:,.0f}", f"{loss:.4f}", note)
  print(f"| {' | '.join(cells)} |", flush=True)


def main(arguments=None) -> None:
  """Prints the table."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("predictions", nargs="*", type=pathlib.Path)
  parser.add_argument("--synthetic", nargs="+", default=[], metavar="NxK", help="such as 50000x1000")
  parser.add_argument("--calibrators", nargs="+", choices=list(calibrators.CALIBRATORS), metavar="NAME",
                      default=[name for name in PEERS if name in calibrators.CALIBRATORS],
                      help="by default those that other packages have too")
  options = parser.parse_args(arguments)
  packages = versions()
  print(f"{jax.devices()[0].device_kind}, {len(jax.devices())} device(s), JAX {jax.__version__}, "
        + ", ".join(f"{name} {version}" for name, version in packages.items()) + "\n")
  print("| data | calibrator | by | seconds | processor seconds | times ours | passes | NLL | note |",
        "|---" * 9 + "|", sep="\n")
  tasks = [(path.stem, path) for path in options.predictions] + [(size, size) for size in options.synthetic]
  for name, source in tasks:
    if isinstance(source, str):
      n, k = map(int, source.split("x"))
      measured_task = task("synthetic", *synthetic(n + TEST_SIZE, k), n)
    else:
      logits, labels = load(source)[:2]
      order = np.random.default_rng(0).permutation(len(labels))
      measured_task = task(name, logits[order], labels[order], len(labels) // 2)
    for chosen in options.calibrators:
      compare(chosen, measured_task, packages)


if __name__ == "__main__":
  main()
