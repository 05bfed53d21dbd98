"""A streamed source of a few tiny pictures, as imagenet2012 is one."""

import io

import numpy as np
from PIL import Image

from calib_jax.training.data import record_streams


def images(seed: int, *, image_size: int = 8) -> record_streams.StreamPool:
  rng = np.random.default_rng(0)

  def record(i):
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8)).save(file, "PNG")
    return {"image": file.getvalue(), "label": i % 3}

  stream = record_streams.Stream([record(i) for i in range(48)], np.arange(48), image_size, 0, "tiny")
  return record_streams.StreamPool(stream, stream.take(np.arange(16)), 3)
