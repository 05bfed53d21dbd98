"""The data that a run reads: its own splits, and the additional sets that it is evaluated on."""

from collections.abc import Callable, Iterator
import functools
import math
import pathlib

import jax
import ml_collections
import numpy as np

from calib_jax import training
from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training import data
from calib_jax.training.last_layer import laplace


def load_splits(config: ml_collections.ConfigDict, seed: int) -> data.Splits:
  """Returns the config's data set, split by ``data.split_seed`` or else ``seed``. The last call's is cached."""
  return _load(_data_seed(config, seed), tuple(sorted(run_config.data_options(config).items())))


def _data_seed(config: ml_collections.ConfigDict, seed: int) -> int:
  """The seed of everything that is drawn in data: members of an ensemble see the same noise on corrupted images."""
  return seed if config.data.split_seed < 0 else config.data.split_seed


@functools.lru_cache(maxsize=1)
def _load(seed: int, options: tuple) -> data.Splits:
  return data.load(seed=seed, **dict(options))


def check_laplace(config: ml_collections.ConfigDict, splits: data.Splits) -> None:
  """Raises a UserError if a last-layer Laplace approximation cannot be fitted to a run's training split."""
  if config.head.name != "linear":
    raise UserError(f"a Laplace approximation is for the head 'linear', whose one layer it approximates: this run's is "
                    f"{config.head.name!r}.")
  if not isinstance(splits.train, data.Examples):
    raise UserError("a Laplace approximation needs the features of all training images, and those of "
                    f"{config.data.name!r} are read as a stream: use evaluation.samples, or leave it out.")
  model = training.classifier(config, config.head, splits.num_classes)
  params = jax.eval_shape(model.init, jax.random.key(0), training.shape_of(splits).zeros())["params"]
  try:  # Before the run trains.
    laplace.check_size(config.evaluation.laplace or "auto", math.prod(params["head"]["kernel"].shape)
                       + splits.num_classes)
  except ValueError as error:
    raise UserError(f"config key evaluation.laplace: {error}") from error


def additional_sets(config: ml_collections.ConfigDict, seed: int
                    ) -> Iterator[tuple[str, Callable[[], data.EvaluationSet]]]:
  """Yields the names of the sets that ``config.evaluation`` lists, and a function for each that loads it."""
  options = config.evaluation
  for corruption in options.corruptions:
    if not run_config.is_published(corruption):
      for severity in options.severities:
        yield f"{corruption}_{severity}", functools.partial(_corrupted, config, seed, corruption, severity)
  yield from sets_that_are_read(config, seed)
  if options.predict_train:
    yield "train", lambda: data.EvaluationSet(load_splits(config, seed).train)


def sets_that_are_read(config: ml_collections.ConfigDict, seed: int
                       ) -> Iterator[tuple[str, Callable[[], data.EvaluationSet]]]:
  """Yields the sets of ``additional_sets`` that other data are read for: published corruptions, and other data sets."""
  for path in filter(run_config.is_published, config.evaluation.corruptions):
    for name, file in data.published_files(path).items():
      for severity in config.evaluation.severities:
        yield f"{name}_{severity}", functools.partial(_published, config, seed, file, severity)
  for entry in config.evaluation.ood:
    yield run_config.ood_name(entry), functools.partial(_foreign, config, seed, entry)


def _corrupted(config: ml_collections.ConfigDict, seed: int, corruption: str, severity: int) -> data.EvaluationSet:
  test = load_splits(config, seed).test
  if not isinstance(test, data.Examples):  # A stream corrupts its images as it decodes them.
    return data.EvaluationSet(test._replace(corruption=corruption, severity=severity), "shifted")
  images = data.corrupt(test.images, corruption, severity, seed=_data_seed(config, seed))
  return data.EvaluationSet(test._replace(images=images), "shifted")


def _published(config: ml_collections.ConfigDict, seed: int, file: pathlib.Path, severity: int) -> data.EvaluationSet:
  examples, splits = data.published(file, severity), load_splits(config, seed)
  wanted = data.image_shape(splits.test)
  if examples.images.shape[1:] != wanted or examples.labels.max() >= splits.num_classes:
    raise UserError(f"{file} must hold images {wanted} of {splits.num_classes} classes, as the run's own data are: got "
                    f"images {examples.images.shape[1:]} and labels up to {examples.labels.max()}.")
  return data.EvaluationSet(examples, "shifted")


def _foreign(config: ml_collections.ConfigDict, seed: int, entry: str) -> data.EvaluationSet:
  of_files = "arrays" if config.data.name == "arrays" else "npz"
  name, path = (of_files, entry) if run_config.is_file(entry) else (entry, "")
  images = data.out_of_distribution(name, load_splits(config, seed), seed=_data_seed(config, seed),
                                    dir=config.data.dir, path=path)
  return data.EvaluationSet(data.Examples(images, np.zeros(len(images), np.int32)), "out_of_distribution")
