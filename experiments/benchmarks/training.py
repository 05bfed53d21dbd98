"""What a training step costs: the engine's against a hand-written one, and what each secondary loss adds.

Run: python -m experiments.benchmarks.training [--budget SECONDS] [NAME ...]

It trains WRN-16-4 at batch 128 on a CPU, and WRN-28-10 at batch 512 in bfloat16 on an accelerator, with 32x32 images on
one device. Steps are timed in pairs, in turn; the median ratio is printed. The hand-written step is the least code that
trains the same model: it has no mask, takes no measurements and does not check for losses that are not finite.
The share of matrix products is the number of operations a second (as the compiler counts those of the hand-written
step), divided by that of a large matrix product on this device; that of copies is the same for bytes, and that of the
roofline is the larger of both. The last line is of a run of the whole engine, and says how long the
device waited for input. With PyTorch and a CUDA device it also times WRN-28-10 in PyTorch (channels last, bfloat16,
compiled).
"""

from collections.abc import Callable, Mapping
import json
import pathlib
import statistics
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax

from calib_jax import config as run_config
from calib_jax import data, losses, models, training
from experiments.benchmarks import roofline, timing
from experiments.common import commands, counting
from experiments.common.train_step import engine

OPTIONS = {"avuc": {"threshold": 0.5}}


def images(number: int) -> data.Splits:
  """Random 32x32 images of 100 classes."""
  rng = np.random.default_rng(0)
  labels = np.arange(number, dtype=np.int32) % 100
  part = data.Examples(rng.integers(0, 256, (number, 32, 32, 3), dtype=np.uint8), labels)
  few = part.take(np.arange(128))
  return data.Splits(part, few, few, 100, np.full(3, 0.5, np.float32), np.full(3, 0.25, np.float32))


def configured(model: dict, batch_size: int, secondary: str = "", *overrides: str):
  """The config of a plain SGD run."""
  options = {"data.name": "cifar100", "model.name": "wide_resnet", **model, "training.batch_size": batch_size,
             "loss.primary.name": "cross_entropy", "loss.secondary.name": secondary, "augmentation.name": "none",
             "optimizer.l2": 0.0, **{f"loss.secondary.{k}": v for k, v in OPTIONS.get(secondary, {}).items()}}
  return run_config.load("configs/cifar100_savuc.py", [f"--config.{k}={v}" for k, v in options.items()] + [*overrides])


def by_hand(config, splits):
  """The same for the least code that trains the model; and its operations and bytes, by the compiler's count."""
  size = config.training.batch_size
  model = models.get(num_classes=100, **config.model)
  optimizer = optax.sgd(0.1, momentum=0.9)
  variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 32, 32, 3)))

  def step(params, stats, opt_state, images, labels):
    x = data.normalize(images, splits.mean, splits.std)

    def loss(params):
      logits, new = model.apply({"params": params, "batch_stats": stats}, x, train=True, mutable=["batch_stats"])
      return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels)), new["batch_stats"]

    (value, stats_), grads = jax.value_and_grad(loss, has_aux=True)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), stats_, opt_state, value

  state = [variables["params"], variables["batch_stats"], optimizer.init(variables["params"])]
  batch = splits.train.images[:size], splits.train.labels[:size]
  compiled = jax.jit(step, donate_argnums=(0, 1, 2)).lower(*state, *batch).compile()

  def run():
    *state[:], value = compiled(*state, *batch)
    jax.block_until_ready((state, value))

  run()
  return run, counting.counted(compiled.cost_analysis())


def plain(config, splits, budget: float, matrix: int = 0) -> tuple[dict[str, float], Callable[[], None]]:
  """Measures the step of cross entropy beside a hand-written one, PyTorch's and a matrix product; also returns it.

  Args:
    config: the config of the step.
    splits: the data.
    budget: the seconds of the comparison.
    matrix: the side of the matrices; 0 for the largest that fits.
  """
  step, size = engine(config, splits), config.training.batch_size
  hand, counted = by_hand(config, splits)
  ratio, taken = timing.pairs(step, hand, budget)
  values = {"seconds": taken, "examples_per_second": size / taken, "relative_to_hand_written": ratio,
            **roofline.beside(taken, counted, roofline.ceilings(jnp.dtype(config.model.dtype), matrix))}
  theirs = pytorch(size) if jax.default_backend() != "cpu" else None
  return values | ({"relative_to_pytorch": taken / theirs} if theirs else {}), step


def line(values: Mapping[str, object]) -> str:
  """Returns measurements as text."""
  return ", ".join(f"{key.replace('_', ' ')} {value:.4g}" if isinstance(value, float) else
                   f"{key.replace('_', ' ')} {value}" for key, value in values.items() if not isinstance(value, dict))


def waits(config, splits) -> str:
  """Trains by the whole engine for a few steps; how long a step takes, and waits for input."""
  with tempfile.TemporaryDirectory() as folder:
    log = training.MetricLog(pathlib.Path(folder))
    training.train(config, [splits], seeds=[0], devices=jax.devices()[:1], log=log, label="engine")
    log.close()
    logged = [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]
  last = [line for line in logged if "time/step_seconds" in line][-1]
  return (f"{last['time/step_seconds']:.3f} s a step, {last['time/examples_per_second']:,.0f} examples/s, of which "
          f"{last['time/input_seconds'] / last['time/step_seconds']:.2%} waiting for input; "
          f"{last['time/memory_gib']:.2f} GiB at most")


def pytorch(size: int) -> float:
  """Seconds of a step of WRN-28-10 in PyTorch on CUDA; None where PyTorch or CUDA is missing."""
  try:
    import torch
  except ImportError:
    return None
  if not torch.cuda.is_available():
    return None
  nn = torch.nn

  class Block(nn.Module):
    def __init__(self, ins, outs, stride):
      super().__init__()
      self.n1, self.c1 = nn.BatchNorm2d(ins), nn.Conv2d(ins, outs, 3, stride, 1, bias=False)
      self.n2, self.c2 = nn.BatchNorm2d(outs), nn.Conv2d(outs, outs, 3, 1, 1, bias=False)
      self.short = nn.Conv2d(ins, outs, 1, stride, bias=False) if ins != outs or stride > 1 else None

    def forward(self, x):
      y = self.n1(x).relu()
      x = x if self.short is None else self.short(y)
      return x + self.c2(self.n2(self.c1(y)).relu())

  widths = [16, 160, 320, 640]
  blocks = [Block(widths[g] if b == 0 else widths[g + 1], widths[g + 1], 2 if g and b == 0 else 1)
            for g in range(3) for b in range(4)]
  model = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), *blocks, nn.BatchNorm2d(640), nn.ReLU(),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(640, 100))
  model = torch.compile(model.cuda().to(memory_format=torch.channels_last))
  optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
  x = torch.randn(size, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
  y = torch.randint(0, 100, (size,), device="cuda")

  def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16):
      loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()

  for _ in range(10):
    step()
  return statistics.median(timing.seconds(step) for _ in range(30))


def main() -> None:
  """Prints the tables."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("names", nargs="*", help="secondary losses to time; all by default")
  parser.add_argument("--budget", type=float, default=30.0, help="seconds for each comparison")
  options = parser.parse_args()
  accelerated = jax.default_backend() != "cpu"
  model = {"model.depth": 28 if accelerated else 16, "model.width": 10 if accelerated else 4,
           "model.dtype": "bfloat16" if accelerated else "float32"}
  size = 512 if accelerated else 128
  splits, config = images(8 * size), configured(model, size)
  device = jax.devices()[0]
  print(f"{device.device_kind}, JAX {jax.__version__}; WRN-{model['model.depth']}-{model['model.width']}, "
        f"batch {size}, {model['model.dtype']}", flush=True)
  measurements, step = plain(config, splits, options.budget)
  print(line(measurements))
  print("\n| secondary loss | step, relative to cross entropy alone |\n|---|---|")
  for name in options.names or losses.PER_BATCH:
    ratio, _ = timing.pairs(engine(configured(model, size, name), splits), step, options.budget)
    print(f"| {name} | {ratio:.3f} |", flush=True)
  more = ("--config.training.num_steps=24", "--config.training.log_every_steps=8",
          "--config.training.evaluate_every_epochs=100", "--config.augmentation.name=crop_flip")
  print("\nwhole engine: " + waits(configured(model, size, "soft_avuc", *more), splits))


if __name__ == "__main__":
  main()
