"""CIFAR-10, CIFAR-100 and Tiny ImageNet from a directory that holds their archives, or what is prepared of them."""

import pathlib

from calib_jax._checks.registry import register
from calib_jax._system.files import read_npz
from calib_jax.training.data import archives
from calib_jax.training.data.sources import SOURCES, tfds
from calib_jax.training.data.sources.arrays import npz
from calib_jax.training.data.splits import Pool


def archived(name: str, dir: str) -> Pool | None:
  """Reads ``NAME.npz`` of ``prepare``, or else the published archive of ``dir``, which may be unpacked.

  None without any of them.
  """
  folder = pathlib.Path(dir).expanduser()
  if (prepared := folder / f"{name}.npz").exists():
    classes = read_npz(prepared, ("class_names",)).get("class_names")
    return npz(str(prepared), 0)._replace(classes=None if classes is None else tuple(map(str, classes)))
  archive = folder / archives.ARCHIVES[name].file
  if archive.exists():
    return archives.read(name, archive)
  return archives.unpacked_cifar(name, folder) if name in archives.FOLDERS else None


@register(SOURCES)
def cifar10(dir: str) -> Pool:
  """Loads CIFAR-10 from ``dir``: cifar10.npz, cifar-10-python.tar.gz, its folder, or else TensorFlow Datasets."""
  return archived("cifar10", dir) or tfds.tfds("cifar10", dir)


@register(SOURCES)
def cifar100(dir: str) -> Pool:
  """Loads CIFAR-100 with its 100 fine labels from ``dir``: cifar100.npz, its archive, its folder, or else TFDS."""
  return archived("cifar100", dir) or tfds.tfds("cifar100", dir)


@register(SOURCES)
def tiny_imagenet(dir: str) -> Pool:
  """Loads Tiny ImageNet from ``dir``: tiny_imagenet.npz, tiny-imagenet-200.zip, or the folder that this unpacks to.

  Its validation images are the test split. Classes are in the order of ``wnids.txt``. Images are 64x64 RGB; grey ones
  become RGB.
  """
  return archived("tiny_imagenet", dir) or archives.unpacked_tiny_imagenet(pathlib.Path(dir).expanduser())
