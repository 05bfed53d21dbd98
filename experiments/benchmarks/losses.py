"""Time of each loss's value and gradient, as a ratio to cross entropy's in the same run.

Run: python -m experiments.benchmarks.losses [NAME ...]

The loss and cross entropy are timed in turn, so that changes of the machine's speed affect both, and the median of
their ratios is printed. The last column is the ratio of the times for N = 1024 and N = 512. Losses whose cost is
quadratic in N or K are not timed at the largest sizes.
"""


import jax
import jax.numpy as jnp

from calib_jax import losses
from experiments.benchmarks.timing import pairs
from experiments.common import commands

BUDGET = 2.0  # Seconds of each comparison.
SIZES = ((512, 100), (1024, 1000), (8192, 1000))
OPTIONS = {
  "avuc": {"threshold": 0.5}, "adaptive_focal": losses.init_adaptive_focal()._asdict(),
}
VARIANTS = {
  **{name: (name, OPTIONS.get(name, {})) for name in (*losses.PER_EXAMPLE, *losses.PER_BATCH)},
  "mmce weighted": ("mmce", {"weighted": True}),
  "kde_ece canonical": ("kde_ece", {"form": "canonical"}),
  "kde_ece marginal": ("kde_ece", {"form": "marginal"}),
}
# Largest N * K for which a loss is timed.
LARGEST = {"pairwise_constraints": 512 * 100, "kde_ece marginal": 512 * 100, "kde_ece canonical": 1024 * 1000}


def compiled(name: str, options: dict, n: int, k: int):
  """A function without arguments that computes the loss's value and gradient on ``[n, k]`` random logits."""
  logits = 3 * jax.random.normal(jax.random.key(0), (n, k))
  labels = jnp.argmax(logits + 3 * jax.random.normal(jax.random.key(1), (n, k)), axis=-1)
  loss = losses.get(name, **options)
  step = jax.jit(jax.value_and_grad(lambda z: jnp.mean(loss(z, labels))))
  jax.block_until_ready(step(logits))
  return lambda: jax.block_until_ready(step(logits))


def main() -> None:
  """Prints the table."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("names", nargs="*", help="losses to time; all by default")
  names = parser.parse_args().names or list(VARIANTS)
  device = jax.devices()[0]
  print(f"{device.device_kind}, {len(jax.devices())} device(s), JAX {jax.__version__}\n")
  print("| loss | " + " | ".join(f"[{n}, {k}]" for n, k in SIZES) + " | N from 512 to 1024, K = 100 |")
  print("|---" * (len(SIZES) + 2) + "|")
  for variant in names:
    name, options = VARIANTS[variant]
    cells = []
    for n, k in SIZES:
      if n * k > LARGEST.get(variant, n * k):
        cells.append("")
        continue
      cells.append(f"{pairs(compiled(name, options, n, k), compiled('cross_entropy', {}, n, k), BUDGET)[0]:.2f}")
    growth, _ = pairs(compiled(name, options, 1024, 100), compiled(name, options, 512, 100), BUDGET)
    print(f"| {variant} | " + " | ".join(cells) + f" | {growth:.2f} |", flush=True)


if __name__ == "__main__":
  main()
