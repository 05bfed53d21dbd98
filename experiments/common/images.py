"""A data set for configs: a part of the images of an ``.npz`` file, drawn by the seed of the run.

``--config.data.name=experiments.common.images:few --config.data.path=IMAGES.npz``
"""

import functools

import numpy as np

from calib_jax._system.errors import UserError
from calib_jax.training import data


@functools.lru_cache(maxsize=1)
def _file(path: str) -> data.Pool:
  return data.SOURCES["npz"](path=path, seed=0)


def few(path: str, seed: int, *, num_examples: int = 6000, num_test: int = 10_000, shrink: int = 1) -> data.Pool:
  """Draws images of a file: ``seed`` those to train on, all for 0; ``shrink`` is the side of averaged squares."""
  pool = _file(path)
  num_examples = num_examples or len(pool.train.labels)
  if not 0 < num_examples <= len(pool.train.labels) or not 0 < num_test <= len(pool.test.labels):
    raise UserError(f"{path} has {len(pool.train.labels):,} images to train and {len(pool.test.labels):,} to test on: "
                    f"data.num_examples and data.num_test must be at most that, not {num_examples:,} and {num_test:,}.")
  chosen, test = np.arange(len(pool.train.labels)), pool.test
  if num_examples < len(chosen):
    _, chosen = data.stratified(pool.train.labels, num_examples / len(chosen), seed, salt=9)
  if num_test < len(test.labels):
    test = test.take(np.random.default_rng(0).permutation(len(test.labels))[:num_test])
  return data.Pool(_shrunk(pool.train.take(chosen), shrink), _shrunk(test, shrink), pool.num_classes)


def _shrunk(examples: data.Examples, side: int) -> data.Examples:
  if side == 1:
    return examples
  n, height, width, channels = examples.images.shape
  if height % side or width % side:
    raise UserError(f"data.shrink must divide {height} and {width}: got {side}.")
  blocks = examples.images.reshape(n, height // side, side, width // side, side, channels)
  return examples._replace(images=blocks.mean((2, 4)).round().astype(np.uint8))
