"""Loads data sets by name: digits, ``.npz`` files, TensorFlow Datasets, folders, mixtures, and long-tailed versions.

A new data set is one new file or function with ``@register(SOURCES)``: every module of this package is imported.
"""

from collections.abc import Callable
import inspect
from typing import Any

import numpy as np

from calib_jax._checks.registry import import_modules, options
from calib_jax._system.errors import UserError
from calib_jax.training.data import record_streams
from calib_jax.training.data.batches import image_shape
from calib_jax.training.data.corruptions import corrupt
from calib_jax.training.data.splits import Examples, Pool, Splits, long_tailed, with_validation

# Data sets by name. Their positional parameters are among REQUEST; the keyword-only ones are options in a config.
# A source that takes the corruption applies it itself; the test images of the others are corrupted by ``load``.
SOURCES: dict[str, Callable[..., "Pool | record_streams.StreamPool"]] = {}
REQUEST = ("seed", "dir", "path", "corruption", "severity")
LONG_TAIL = "_lt"  # The suffix of long-tailed versions, which have the option ``imbalance_ratio``.


def source_options(name: str) -> dict[str, object]:
  """Returns the defaults of the options of a data set, one of ``SOURCES``, by their names."""
  return options(SOURCES[name]) | ({"imbalance_ratio": 0.1} if name.endswith(LONG_TAIL) else {})


def positional(source: Callable[..., Any]) -> list[str]:
  """Returns the arguments of a source that are not options."""
  return [p.name for p in inspect.signature(source).parameters.values() if p.kind != p.KEYWORD_ONLY]


def _pool(name: str, request: dict[str, object], *, imbalance_ratio: float | None = None, **chosen):
  """Loads a data set; for a long-tailed version it drops training examples (see ``long_tailed``)."""
  pool = SOURCES[name](**{key: request[key] for key in positional(SOURCES[name])}, **chosen)
  if not isinstance(pool, Pool | record_streams.StreamPool):  # A source of one's own may return anything.
    raise UserError(f"config key data.name: {name} must return a calib_jax.training.data.Pool, not "
                    f"{type(pool).__name__}.")
  if not name.endswith(LONG_TAIL):
    return pool
  labels = record_streams.labels(pool.train) if isinstance(pool, record_streams.StreamPool) else pool.train.labels
  ratio = source_options(name)["imbalance_ratio"] if imbalance_ratio is None else imbalance_ratio
  return pool._replace(train=pool.train.take(long_tailed(labels, pool.num_classes, ratio, request["seed"])))


def load(name: str, *, seed: int, validation_fraction: float, dir: str = "~/tensorflow_datasets", path: str = "",
         corruption: str = "", severity: int = 1, **options: Any) -> Splits:
  """Loads a data set and splits it; the splits depend only on the arguments.

  Args:
    name: one of ``SOURCES``.
    seed: the seed of the splits.
    validation_fraction: the fraction of the examples not for test that are for validation, stratified by class.
    dir: the directory of TensorFlow Datasets, or of a data set's folder.
    path: the file of the data set ``npz``.
    corruption: the corruption of the test split, one of ``CORRUPTIONS``; empty for none.
    severity: the severity of the corruption, from 1 to 5.
    **options: the data set's own options, such as ``imbalance_ratio`` of ``cifar10_lt``.

  Returns:
    The splits.

  Raises:
    UserError: if the data set is unknown, cannot be read or cannot be split so.

  >>> splits = load("digits", seed=0, validation_fraction=0.25)
  >>> [len(part.labels) for part in (splits.train, splits.validation, splits.test)]
  [1078, 360, 359]
  """
  if name not in SOURCES:
    raise UserError(f"data.name must be one of {', '.join(SOURCES)}: got {name!r}.")
  request = {"seed": seed, "dir": dir, "path": path, "corruption": corruption, "severity": severity}
  pool = _pool(name, request, **options)
  if isinstance(pool, record_streams.StreamPool):
    train, validation = record_streams.split(pool.train, validation_fraction, seed)
    return Splits(train, validation, pool.test, pool.num_classes, record_streams.MEAN, record_streams.STD)
  if corruption and "corruption" not in positional(SOURCES[name]):
    if pool.test.images.dtype != np.uint8:
      raise UserError(f"config key data.corruption: {name} holds no images, which alone can be corrupted: leave it "
                      "empty.")
    test = pool.test._replace(images=corrupt(pool.test.images, corruption, severity, seed=seed))
    pool = pool._replace(test=test)
  return with_validation(pool, validation_fraction, seed)


def out_of_distribution(name: str, like: Splits, *, seed: int = 0, dir: str = "~/tensorflow_datasets", path: str = "",
                        **options: Any) -> np.ndarray:
  """Loads test images of another data set, on which a model should be unsure: SVHN for a model of CIFAR, for example.

  Args:
    name: one of ``SOURCES``.
    like: the model's own data, whose image shape the images must have; grey images become RGB if ``like`` is RGB.
    seed: the seed of the data set's splits.
    dir: the directory of TensorFlow Datasets, or of a data set's folder.
    path: the file of the data set ``npz``.
    **options: the data set's own options.

  Returns:
    Images uint8 ``[N, H, W, C]``.

  Raises:
    UserError: if the images have another shape or are the images of ``like``, or the data set is streamed.
  """
  if name not in SOURCES:
    raise UserError(f"an out-of-distribution set must be one of {', '.join(SOURCES)}: got {name!r}.")
  pool = _pool(name, {"seed": seed, "dir": dir, "path": path, "corruption": "", "severity": 1}, **options)
  wanted = image_shape(like.test)
  if isinstance(pool, record_streams.StreamPool):
    raise UserError(f"{name} cannot be an out-of-distribution set, because it does not fit in memory.")
  images = pool.test.images
  kind = like.test.images.dtype if isinstance(like.test, Examples) else images.dtype
  if images.dtype == np.uint8 and images.shape[-1] == 1 and wanted[-1:] == (3,):
    images = images.repeat(3, axis=-1)
  if images.shape[1:] != wanted or images.dtype != kind:
    raise UserError(f"images of {path or name} have the shape {images.shape[1:]}, those of the model's own data "
                    f"{wanted}" + (f", and are {images.dtype}, those {kind}." if images.dtype != kind else "."))
  if isinstance(like.test, Examples) and np.array_equal(images, like.test.images):
    raise UserError(f"the images of {path or name} are the model's own test images, which are not out of "
                    "distribution: name another data set or file.")
  return images


import_modules(__name__)
SOURCES |= {f"{_name}{LONG_TAIL}": _source for _name, _source in SOURCES.items()}
