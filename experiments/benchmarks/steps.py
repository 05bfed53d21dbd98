"""A training step of the engine, beside the least code that trains the same model, PyTorch, and what a device allows.

The hand-written step has no mask, takes no measurements and does not check for losses that are not finite. The share of
matrix products is the number of operations a second divided by that of a large matrix product on this device; they are
counted before the program is compiled (``counting.step_operations``).
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import functools
import importlib.util
import json
import pathlib
import tempfile
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from calib_jax import losses, training
from calib_jax.training import config as run_config
from calib_jax.training import data, models
from experiments.benchmarks.arrays import OPTIONS, Rows
from experiments.common import counting, timing
from experiments.common.train_step import engine, images


class Size(NamedTuple):
  """A network and what is measured of it."""

  network: Mapping[str, object]  # Its fields.
  batch_size: int
  matrix: int  # The side of the matrices whose product is the ceiling.
  secondary: Sequence[str] = tuple(losses.PER_BATCH)  # Losses that are measured in a step.


SIZES = {
  "tiny": Size({"model.name": "simple_cnn", "model.channels": "(4,)"}, 16, 128, ("soft_avuc",)),
  "cpu": Size({"model.name": "wide_resnet", "model.depth": 16, "model.width": 4}, 128, 2048),
  "accelerator": Size({"model.name": "wide_resnet28_10", "model.dtype": "bfloat16"}, 512, 8192)}


def by_hand(config, splits: data.Splits, scan: int = 0) -> Callable[[], None]:
  """Returns the same step as ``engine`` by the least code that trains the model; or so many in a ``scan``."""
  size = config.training.batch_size
  model = models.get(num_classes=splits.num_classes, **config.model)
  optimizer = optax.sgd(0.1, momentum=0.9)
  variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, *splits.train.images.shape[1:])))

  def step(state, batch):
    (params, stats, opt_state), (images, labels) = state, batch
    x = data.normalize(images, splits.mean, splits.std)

    def loss(params):
      logits, new = model.apply({"params": params, "batch_stats": stats}, x, train=True, mutable=["batch_stats"])
      value = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))
      return value, new.get("batch_stats", {})

    (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), stats, opt_state), value

  def steps(state, index, images, labels):
    return jax.lax.scan(lambda state, i: step(state, (images[i], labels[i])), state, index)

  state = [(variables["params"], variables.get("batch_stats", {}), optimizer.init(variables["params"]))]
  if scan:
    rest = np.arange(scan * size, dtype=np.int32).reshape(scan, size), *jax.device_put(tuple(splits.train[:2]))
  else:
    rest = ((splits.train.images[:size], splits.train.labels[:size]),)
  compiled = jax.jit(steps if scan else step, donate_argnums=0)

  def run():
    state[0], value = compiled(state[0], *rest)
    jax.block_until_ready((state, value))

  run()
  return run


def matrix_products(dtype: str, side: int, repeats: int = 10) -> float:
  """Returns the operations a second of a product of large matrices, of the fastest of some calls."""
  a, product = jnp.ones((side, side), dtype), jax.jit(lambda a: a @ a)
  jax.block_until_ready(product(a))
  return 2 * side**3 / min(timing.taken(lambda: product(a).block_until_ready()).seconds for _ in range(repeats))


def pytorch_step(depth: int, width: int, size: int, channels_last: bool = True) -> Callable[[], None]:
  """Returns a step of a WRN in PyTorch: on a GPU compiled, in bfloat16; on a CPU eager, in float32."""
  import torch
  nn, device = torch.nn, "cuda" if torch.cuda.is_available() else "cpu"
  memory = torch.channels_last if channels_last else torch.contiguous_format

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

  widths = [16, 16 * width, 32 * width, 64 * width]
  blocks = [Block(widths[g] if b == 0 else widths[g + 1], widths[g + 1], 2 if g and b == 0 else 1)
            for g in range(3) for b in range((depth - 4) // 6)]
  model = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), *blocks, nn.BatchNorm2d(widths[3]), nn.ReLU(),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[3], 100))
  model = model.to(device).to(memory_format=memory)
  run = torch.compile(model) if device == "cuda" else model
  optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
  x = torch.randn(size, 3, 32, 32, device=device).to(memory_format=memory)
  y = torch.randint(0, 100, (size,), device=device)

  def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
      loss = nn.functional.cross_entropy(run(x), y)
    loss.backward()
    optimizer.step()
    if device == "cuda":
      torch.cuda.synchronize()

  for _ in range(10 if device == "cuda" else 1):
    step()
  return step


class Steps:
  """Measurements of one size; what several of them need is made once."""

  def __init__(self, options: argparse.Namespace):
    """Takes the options of the command."""
    self.scale = options.scale or ("cpu" if jax.default_backend() == "cpu" else "accelerator")
    self.size = SIZES[self.scale]
    self.budget, self.splits = options.budget, images(8 * self.size.batch_size)
    self.plain = functools.cache(lambda: engine(self._config(), self.splits))
    devices = jax.local_devices()  # As many as share a batch evenly.
    self.devices = devices[:next(n for n in range(len(devices), 0, -1) if self.size.batch_size % n == 0)]

  def _config(self, secondary: str = "", **fields):
    """Returns the config of a plain SGD run."""
    options = {"data.name": "cifar100", **self.size.network, "training.batch_size": self.size.batch_size,
               "optimizer.l2": 0.0, "loss.primary.name": "cross_entropy", "loss.secondary.name": secondary,
               "augmentation.name": "none",
               **{f"loss.secondary.{key}": value for key, value in OPTIONS.get(secondary, {}).items()}, **fields}
    return run_config.load("configs/cifar100_savuc.py", [f"--config.{key}={value}" for key, value in options.items()])

  def step(self) -> Mapping[str, object]:
    """Times the step of cross entropy beside a hand-written one and a matrix product."""
    config, size = self._config(), self.size.batch_size
    values = timing.compare(self.plain(), by_hand(config, self.splits), self.budget)
    counted = counting.step_operations(config.model, (32, 32, 3), 100, size) / values["seconds"]
    return values | {"images a second": size / values["seconds"], "tera operations a second": counted / 1e12,
                     "of matrix products": counted / matrix_products(config.model.dtype, self.size.matrix)}

  def beside_pytorch(self, depth: int, width: int, channels_last: bool) -> Mapping[str, object]:
    """Times the step of a WRN beside PyTorch's."""
    config = self._config(**{"model.name": "wide_resnet", "model.depth": depth, "model.width": width})
    return timing.compare(engine(config, self.splits),
                          pytorch_step(depth, width, self.size.batch_size, channels_last), self.budget)

  def beside_plain(self, secondary: str = "", devices: Sequence[jax.Device] | None = None, **fields
                   ) -> Mapping[str, object]:
    """Times a step with other settings beside that of cross entropy on one device."""
    return timing.compare(engine(self._config(secondary, **fields), self.splits, devices=devices), self.plain(),
                          self.budget)

  def repeated(self) -> Mapping[str, object]:
    """Trains twice for a few steps, and compares the parameters bit by bit."""
    config = self._config(**{"training.num_steps": 5, "training.evaluate_every_epochs": 1000})
    states = [training.train(config, [self.splits], seeds=[0], devices=self.devices, predicted=(),
                             label="repeat")[0].params for _ in range(2)]
    pairs = list(zip(*map(jax.tree.leaves, states), strict=True))
    return {"equal bits": all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs),
            "largest difference": max(float(jnp.max(jnp.abs(a - b))) for a, b in pairs)}

  def whole_engine(self) -> Mapping[str, object]:
    """Trains by the whole engine for a few steps: how long a step takes, and waits for input."""
    fields = {"training.num_steps": 24, "training.log_every_steps": 8, "training.evaluate_every_epochs": 100,
              "augmentation.name": "crop_flip"}
    with tempfile.TemporaryDirectory() as folder:
      log = training.MetricLog(pathlib.Path(folder))
      training.train(self._config("soft_avuc", **fields), [self.splits], seeds=[0], devices=jax.devices()[:1], log=log,
                     label="engine")
      log.close()
      logged = [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in logged if "time/step_seconds" in line][-1]
    return {"seconds": last["time/step_seconds"], "images a second": last["time/examples_per_second"],
            "waiting for input": last["time/input_seconds"] / last["time/step_seconds"],
            "memory, GiB": last["time/memory_gib"]}


def training_rows(options: argparse.Namespace) -> Rows:
  """Times steps of `SIZES`; what only a GPU or a TPU can show comes first."""
  steps = Steps(options)
  on_all = {f"{len(steps.devices)} devices": functools.partial(steps.beside_plain, devices=steps.devices)}
  networks = {"tiny": [(10, 1)], "cpu": [(10, 1), (16, 4)], "accelerator": [(28, 10)]}[steps.scale]
  beside = {f"WRN-{depth}-{width} beside PyTorch, {'channels last' if last else 'contiguous'}": functools.partial(
    steps.beside_pytorch, depth, width, last) for depth, width in networks for last in (True, False)
    if importlib.util.find_spec("torch") and (last or steps.scale != "accelerator")}
  return {"step": steps.step, **beside, **(on_all if len(steps.devices) > 1 else {}), "repeated": steps.repeated,
          "shard_map": functools.partial(steps.beside_plain, **{"training.parallel": "shard_map"}),
          **{f"secondary {name}": functools.partial(steps.beside_plain, name) for name in steps.size.secondary},
          "whole engine": steps.whole_engine}
