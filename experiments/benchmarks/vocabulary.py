"""Losses of a vocabulary from features: time and memory beside dense cross entropy.

Run: python -m experiments.benchmarks.vocabulary [--budget SECONDS]

Features [2048, 512] and a last layer of 100,000 classes, in float32; values and gradients in both. Each row is timed in
turn with optax's cross entropy of dense logits, so that changes of the machine's speed affect both, and the table has
the median ratio. The memory is what XLA's compiled program takes beside its inputs and its results, at its peak.
"""

from collections.abc import Callable
import time

import jax
import jax.numpy as jnp
import optax

from calib_jax import losses
from experiments.benchmarks.timing import pairs
from experiments.common import commands

ROWS, FEATURES, CLASSES = 2048, 512, 100_000


def _dense(loss: Callable) -> Callable:
  return lambda features, kernel, labels: jnp.mean(loss(features @ kernel, labels))


def _in_chunks(loss: str | tuple[str, ...], **options) -> Callable:
  def value(features, kernel, labels):
    return sum(map(jnp.mean, jax.tree.leaves(losses.from_features(loss, features, kernel, labels, **options))))

  return value


VARIANTS = {
  "optax's cross entropy, dense": _dense(optax.softmax_cross_entropy_with_integer_labels),
  "`cross_entropy`": _in_chunks("cross_entropy"),
  "`cross_entropy`, `chunk=1024`": _in_chunks("cross_entropy", chunk=1024),
  "`focal`": _in_chunks("focal"),
  "`brier`": _in_chunks("brier"),
  "`soft_binned_ece`": _in_chunks("soft_binned_ece"),
  "`soft_avuc`": _in_chunks("soft_avuc"),
  "`(\"cross_entropy\", \"soft_avuc\")`": _in_chunks(("cross_entropy", "soft_avuc")),
  "`dual_focal`, for 83 rows at a time": _in_chunks("dual_focal"),
}


def compiled(variant: str) -> tuple[Callable[[], object], float]:
  """Returns a function without arguments that computes the value and both gradients, and its memory in GB."""
  keys = jax.random.split(jax.random.key(0), 3)
  features = jax.random.normal(keys[0], (ROWS, FEATURES))
  kernel = jax.random.normal(keys[1], (FEATURES, CLASSES)) / FEATURES**0.5
  labels = jax.random.randint(keys[2], (ROWS,), 0, CLASSES)
  step = jax.jit(jax.value_and_grad(VARIANTS[variant], argnums=(0, 1))).lower(features, kernel, labels).compile()
  memory = step.memory_analysis().temp_size_in_bytes / 1e9
  return lambda: jax.block_until_ready(step(features, kernel, labels)), memory


def main() -> None:
  """Prints the table."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("--budget", type=float, default=60.0, help="seconds for each row")
  options = parser.parse_args()
  print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}, features [{ROWS}, {FEATURES}], {CLASSES} classes, "
        f"{time.strftime('%B %Y')}\n\n| loss | memory, GB | time |\n|---|---|---|")
  dense, *others = VARIANTS
  floor, memory = compiled(dense)
  print(f"| {dense} | {memory:.2f} | 1 |", flush=True)
  for variant in others:
    step, memory = compiled(variant)
    print(f"| {variant} | {memory:.2f} | {pairs(step, floor, options.budget)[0]:.2f} |", flush=True)


if __name__ == "__main__":
  main()
