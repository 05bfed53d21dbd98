"""Data sets of TensorFlow Datasets: those that fit in memory, and ImageNet, which is streamed."""

import functools
import os
import socket
import urllib.parse

import jax
from jax.experimental import multihost_utils
import numpy as np

from calib_jax._checks.registry import register
from calib_jax._system.errors import UserError
from calib_jax.training.data import record_streams
from calib_jax.training.data.archives import ARCHIVES
from calib_jax.training.data.sources import SOURCES
from calib_jax.training.data.splits import Examples, Pool, checked

# Sets of TensorFlow Datasets that fit in memory as one uint8 array; all images of a set have the same size. CIFAR has
# archives, too (``downloads``).
NAMES = ("fashion_mnist", "kmnist", "mnist", "svhn_cropped")


def tfds(name: str, dir: str) -> Pool:
  """Loads a data set of TensorFlow Datasets, and downloads and prepares it under ``dir`` if it is not there yet."""
  (train, test), num_classes = read(name, dir, ["train", "test"])
  return Pool(train, test, num_classes)


def _tfds_builder(name: str, folder: str, **options):
  """Returns the module ``tensorflow_datasets`` and its builder of a data set; a UserError if there is none."""
  try:
    import tensorflow_datasets
  except ImportError as error:
    raise UserError(f"data set {name!r} needs TensorFlow Datasets, which is not installed: {_archive(name, folder)}"
                    "pip install 'calib-jax[data]'.") from error
  try:
    return tensorflow_datasets, tensorflow_datasets.builder(name, data_dir=folder, try_gcs=False, **options)
  except ValueError as error:
    raise UserError(f"TensorFlow Datasets has no {name!r}.") from error


def _archive(name: str, folder: str) -> str:
  """Returns what to do with the archive of a data set that has one, for a message that goes on with what else helps."""
  return (f"put {ARCHIVES[name].file} (https://www.cs.toronto.edu/~kriz/{ARCHIVES[name].file}) into {folder}, or name "
          "the folder that holds it by --config.data.dir=DIR; or ") if name in ARCHIVES else ""


def _meet(name: str) -> None:
  """Waits until every process of the run has come here."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(f"prepared {name}")


def read(name: str, dir: str, splits: list[str]) -> tuple[list[Examples], int]:
  """Returns splits and number of classes of a data set, prepared if it is not there; a UserError if that fails."""
  folder = os.path.expanduser(dir)
  if jax.process_index():  # Processes may share the folder, so that the first one prepares alone.
    _meet(name)
  tensorflow_datasets, builder = _tfds_builder(name, folder)
  if not builder.is_prepared():
    try:
      # Without a network the download would retry for minutes, so the host is looked up first.
      socket.getaddrinfo(urllib.parse.urlparse(builder.info.homepage).hostname, 443)
      builder.download_and_prepare()
    except Exception as error:  # Whatever stops a download, the user can do the same about it.
      raise UserError(
        f"data set {name!r} is not prepared in {builder.data_dir} and could not be downloaded there "
        f"({type(error).__name__}): {_archive(name, folder)}run `tfds build {name} --data_dir=DIR` on a machine with a "
        "network, and name the copy of DIR by --config.data.dir=DIR.") from error
  if not jax.process_index():
    _meet(name)
  try:
    arrays = tensorflow_datasets.as_numpy(builder.as_dataset(split=splits, batch_size=-1))
  except Exception as error:
    raise UserError(f"data set {name!r} in {builder.data_dir} cannot be read ({type(error).__name__}: "
                    f"{str(error).splitlines()[0]}): delete that folder and prepare it again.") from error
  return ([checked(part["image"], part["label"], builder.data_dir) for part in arrays],
          builder.info.features["label"].num_classes)


@register(SOURCES)
def imagenet2012(dir: str, corruption: str, severity: int, *, image_size: int = 224,
                 num_workers: int = 0) -> record_streams.StreamPool:
  """Opens ImageNet as TensorFlow Datasets prepares it in array_record files; its validation split is the test split.

  Training images are random resized crops, mirrored half of the time. Test and validation images are centre crops of
  7/8 of the shorter side. Images have ``image_size`` pixels a side, and ``num_workers`` processes decode them, or
  threads if it is 0. A data set that is not prepared or cannot be read is a UserError.
  """
  folder = os.path.expanduser(dir)
  tensorflow_datasets, builder = _tfds_builder("imagenet2012", folder, file_format="array_record")
  advice = (f"download ILSVRC2012 from image-net.org into {folder}/downloads/manual, then `tfds build imagenet2012 "
            f"--file_format=array_record --data_dir={folder}`, or point --config.data.dir at a folder that has it.")
  if not builder.is_prepared():
    raise UserError(f"data set 'imagenet2012' is not prepared in {builder.data_dir}: {advice}")
  try:
    decoders = {"image": tensorflow_datasets.decode.SkipDecoding()}
    train, test = builder.as_data_source(["train", "validation"], decoders=decoders)
  except Exception as error:  # The same advice helps with another file format and with damaged files.
    raise UserError(f"data set 'imagenet2012' in {builder.data_dir} cannot be read at random ({type(error).__name__}): "
                    f"{advice}") from error
  common = {"image_size": image_size, "num_workers": num_workers, "source": str(builder.data_dir)}
  train, test = (record_streams.Stream(part, np.arange(len(part)), **common) for part in (train, test))
  return record_streams.StreamPool(train, test._replace(corruption=corruption, severity=severity), 1000)


for _name in NAMES:
  register(SOURCES, _name)(functools.partial(tfds, _name))
