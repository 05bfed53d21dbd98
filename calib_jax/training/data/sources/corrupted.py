"""Published corrupted images, such as CIFAR-10-C, and the data sets that are tested on them.

A folder, as its authors publish it, holds for each corruption a file ``CORRUPTION.npy`` of uint8 images
``[5 N, H, W, C]``, the first N with severity 1 and the last N with severity 5, and their ``labels.npy`` ``[5 N]``.
"""

import os
import pathlib

from calib_jax._checks.registry import register
from calib_jax._system.errors import UserError
from calib_jax._system.files import read_npy
from calib_jax.training.data.corruptions import CORRUPTIONS
from calib_jax.training.data.sources import SOURCES, tfds
from calib_jax.training.data.sources.downloads import cifar10, cifar100
from calib_jax.training.data.splits import Examples, Pool, checked

SEVERITIES = 5


def published_files(path: str | os.PathLike[str]) -> dict[str, pathlib.Path]:
  """Returns the files of published images, which need not be there, by their names in tables.

  Args:
    path: a folder, which has a file for each of ``CORRUPTIONS``, or one file.

  >>> len(published_files("data/CIFAR-10-C"))
  19
  >>> [(name, str(file)) for name, file in published_files("data/CIFAR-10-C/fog.npy").items()]
  [('CIFAR-10-C_fog', 'data/CIFAR-10-C/fog.npy')]
  """
  path = pathlib.Path(path).expanduser()
  files = [path] if path.suffix == ".npy" else [path / f"{corruption}.npy" for corruption in CORRUPTIONS]
  return {f"{file.absolute().parent.name}_{file.stem}": file for file in files}


def published(file: str | os.PathLike[str], severity: int) -> Examples:
  """Reads the published images of one corruption and severity.

  Args:
    file: the file of images, such as ``CIFAR-10-C/fog.npy``, beside which is ``labels.npy``.
    severity: a whole number from 1 to 5.

  Returns:
    The examples, whose images are a part of the file that is mapped into memory, read-only.

  Raises:
    UserError: if a file is missing or damaged, holds Python objects, or has another shape.
  """
  file = pathlib.Path(file)
  images, labels = read_npy(file), read_npy(file.with_name("labels.npy"))
  if images.ndim != 4 or len(images) % SEVERITIES or labels.shape != images.shape[:1]:
    raise UserError(f"{file} and labels.npy must hold images [{SEVERITIES} N, H, W, C] and as many labels, of "
                    f"{SEVERITIES} severities in order: got {images.shape} and {labels.shape}.")
  size = len(images) // SEVERITIES
  part = slice((severity - 1) * size, severity * size)
  return checked(images[part], labels[part], str(file))


@register(SOURCES)
def cifar10_corrupted(dir: str, corruption: str, severity: int) -> Pool:
  """Loads CIFAR-10 with the published images of ``dir/CIFAR-10-C``, or of TensorFlow Datasets, as its test split."""
  _check_corruption("cifar10_corrupted", corruption)
  pool, folder = cifar10(dir), pathlib.Path(dir).expanduser() / "CIFAR-10-C"
  if folder.is_dir():
    return pool._replace(test=published(folder / f"{corruption}.npy", severity))
  # TensorFlow Datasets has other names for two corruptions.
  name = {"glass_blur": "frosted_glass_blur", "elastic_transform": "elastic"}.get(corruption, corruption)
  (test,), _ = tfds.read(f"cifar10_corrupted/{name}_{severity}", dir, ["test"])
  return pool._replace(test=test)


@register(SOURCES)
def cifar100_corrupted(dir: str, corruption: str, severity: int) -> Pool:
  """Loads CIFAR-100 with the published images of ``dir/CIFAR-100-C``, which must be there, as its test split."""
  _check_corruption("cifar100_corrupted", corruption)
  folder = pathlib.Path(dir).expanduser() / "CIFAR-100-C"
  if not folder.is_dir():
    raise UserError(f"cifar100_corrupted needs the folder CIFAR-100-C in {folder.parent}, which has none: unpack "
                    "CIFAR-100-C.tar of zenodo.org/records/3555552 there, or point --config.data.dir at its parent.")
  return cifar100(dir)._replace(test=published(folder / f"{corruption}.npy", severity))


def _check_corruption(name: str, corruption: str) -> None:
  if corruption not in CORRUPTIONS:
    raise UserError(f"config key data.corruption must name the corruption of {name}, such as brightness.")
