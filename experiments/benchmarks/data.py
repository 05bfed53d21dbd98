"""Examples a second of the in-memory data path, and of a step of WRN-28-10 on the same device.

Run: python -m experiments.benchmarks.data

The data path makes batches of 512 out of 50,000 random uint8 images of 32x32x3, as CIFAR has them: first on the host
alone (choosing the examples and copying them), then also with transfer, normalisation and augmentation on the device.
The step computes the gradient of cross entropy in the given dtype, without an optimizer, on batches of --step-batch.
The streaming path decodes, crops, resizes and mirrors random JPEGs of 500x375, ImageNet's usual size, on all cores.
"""

import io
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from calib_jax import data, losses, models
from calib_jax.data import record_streams
from experiments.common import commands

BATCH = 512
MEAN, STD = np.full(3, 0.5, np.float32), np.full(3, 0.25, np.float32)


def rate(function, examples: int, *, budget: float = 5.0) -> float:
  """Examples a second of calls of ``function(number of the call)``, after one that is not counted."""
  jax.block_until_ready(function(0))
  start, calls, last = time.perf_counter(), 0, None
  while calls < 3 or time.perf_counter() - start < budget:
    calls += 1
    last = function(calls)
  jax.block_until_ready(last)
  return calls * examples / (time.perf_counter() - start)


def feeds() -> dict:
  """The ways to make a batch, by name: functions of the number of the step."""
  rng = np.random.default_rng(0)
  examples = data.Examples(rng.integers(0, 256, (50_000, 32, 32, 3), dtype=np.uint8),
                           rng.integers(0, 10, 50_000).astype(np.int32))

  def host(step):
    return data.training_batch(examples, step, batch_size=BATCH, num_devices=1, seed=0)

  def augmented(name):
    augment = data.build_augmentation(name, num_classes=10)

    @jax.jit
    def prepare(image, label, mask, step):
      batch = augment(image, label, mask, jax.random.fold_in(jax.random.key(0), step), None)
      return data.normalize(batch.images, MEAN, STD), batch.labels

    return lambda step: prepare(*(host(step)[key][0] for key in ("image", "label", "mask")), step)

  return {"host": host, **{f"host, device, {name}": augmented(name) for name in data.AUGMENTATIONS}}


def step_rate(batch_size: int, dtype: str) -> float:
  """Examples a second of the gradient of cross entropy of WRN-28-10."""
  model = models.get("wide_resnet28_10", num_classes=10, dtype=dtype)
  images, labels = jnp.zeros((batch_size, 32, 32, 3)), jnp.zeros(batch_size, jnp.int32)
  variables = jax.jit(model.init)(jax.random.key(0), images)

  @jax.jit
  def gradient(params):
    def loss(params):
      logits, _ = model.apply({**variables, "params": params}, images, train=True, mutable=["batch_stats"])
      return jnp.mean(losses.cross_entropy(logits, labels))

    return jax.grad(loss)(params)

  return rate(lambda _: gradient(variables["params"]), batch_size)


def streamed(budget: float = 5.0) -> tuple[float, float]:
  """Examples a second of the streaming path, in threads, and examples in a second of the time of one core.

  The second number is that of an idle machine divided by its cores, also where other programs keep this one waiting.
  """
  rng = np.random.default_rng(0)
  records = []
  for i in range(64):
    coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((500, 375))
    picture = np.asarray(coarse) + rng.integers(0, 20, (375, 500, 3))
    file = io.BytesIO()
    Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    records.append({"image": file.getvalue(), "label": i})
  stream = record_streams.Stream(records, np.arange(64), 224, 0, "made for the purpose")
  batches = data.training_batches(stream, 0, batch_size=64, num_devices=1, seed=0)
  next(batches)
  started, used, number = time.perf_counter(), time.process_time(), 0
  while time.perf_counter() - started < budget:
    number += len(next(batches)["label"][0])
  speeds = number / (time.perf_counter() - started), number / (time.process_time() - used)
  batches.close()
  return speeds


def in_memory(batch_size: int, dtype: str) -> None:
  """Prints the rates of the data path in memory, and that of a step."""
  step = step_rate(batch_size, dtype)
  print(f"\nWRN-28-10 step, batch {batch_size}, {dtype}: {step:,.1f} examples/s\n")
  print("| path | examples/s | of a step's |")
  print("|---|---|---|")
  for name, feed in feeds().items():
    speed = rate(feed, BATCH)
    print(f"| {name} | {speed:,.0f} | {speed / step:,.0f}x |", flush=True)


def main() -> None:
  """Prints the table."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("--step-batch", type=int, default=16)
  parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
  parser.add_argument("--streamed", action="store_true", help="only the streaming path")
  args = parser.parse_args()
  print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}")
  if not args.streamed:
    in_memory(args.step_batch, args.dtype)
  speed, of_core = streamed()
  print(f"\nJPEGs of 500x375 to 224x224: {speed:,.0f} examples/s on {len(os.sched_getaffinity(0))} cores, "
        f"{of_core:,.0f} in a second of the time of one core")


if __name__ == "__main__":
  main()
