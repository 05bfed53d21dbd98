"""Batches of images: chosen on the host, augmented on the device, and decoded from JPEGs."""

import argparse
from collections.abc import Mapping
import functools
import io
import time

import jax
import numpy as np
from PIL import Image

from calib_jax.training import data
from calib_jax.training.data import record_streams
from experiments.benchmarks.arrays import Rows
from experiments.common import timing
from experiments.common.train_step import images


def augmented(name: str, number: int, batch_size: int, budget: float) -> Mapping[str, object]:
  """Times a batch of random images that are augmented on the device beside the same on the host alone."""
  splits, augment = images(number, num_classes=10), data.build_augmentation(name, num_classes=10)

  def host() -> Mapping[str, np.ndarray]:
    return data.training_batch(splits.train, 0, batch_size=batch_size, num_devices=1, seed=0)

  @jax.jit
  def prepare(image, label, mask):
    batch = augment(image, label, mask, jax.random.key(0), None)
    return data.normalize(batch.images, splits.mean, splits.std), batch.labels

  def device() -> None:
    jax.block_until_ready(prepare(*(host()[key][0] for key in ("image", "label", "mask"))))

  device()  # Compiles.
  values = timing.compare(device, host, budget)
  return values | {"a second": batch_size / values["seconds"]}


def streamed(number: int, budget: float) -> Mapping[str, object]:
  """Returns the pictures a second of Grain's threads, and in a second of the time of one core.

  Random JPEGs of 500x375, ImageNet's usual size, are decoded, cropped, resized to 224x224 and mirrored. The second
  number is that of an idle machine divided by its cores, also where other programs keep this one waiting.
  """
  rng, records = np.random.default_rng(0), []
  for i in range(number):
    coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((500, 375))
    picture, file = np.asarray(coarse) + rng.integers(0, 20, (375, 500, 3)), io.BytesIO()
    Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    records.append({"image": file.getvalue(), "label": i})
  stream = record_streams.Stream(records, np.arange(number), 224, 0, "made for the purpose")
  batches, pictures = data.training_batches(stream, 0, batch_size=number, num_devices=1, seed=0), 0
  next(batches)

  def decode() -> None:
    nonlocal pictures
    started = time.perf_counter()
    while pictures == 0 or time.perf_counter() - started < budget:
      pictures += len(next(batches)["label"][0])

  taken = timing.taken(decode)
  batches.close()
  return {"a second": pictures / taken.seconds, "a second of one core": pictures / taken.processor}


def rows(options: argparse.Namespace) -> Rows:
  """Times batches of 512 out of 50,000 images of 32x32x3 with each augmentation beside those of the host; JPEGs."""
  number, batch_size, jpegs = (64, 16, 4) if options.scale == "tiny" else (50_000, 512, 64)
  return {"JPEGs to 224x224": functools.partial(streamed, jpegs, options.budget),
          **{f"host and device, {name}": functools.partial(augmented, name, number, batch_size, options.budget)
             for name in data.AUGMENTATIONS}}
