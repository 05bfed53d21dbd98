"""Data sets that are unpacked folders of pictures."""

import pathlib

import numpy as np

from calib_jax._system.errors import UserError
from calib_jax._system.files import read_bytes, read_text
from calib_jax.data import jpeg
from calib_jax.data.archives import tiny_imagenet_files
from calib_jax.data.splits import Pool, checked


def tiny_imagenet_folder(dir: str) -> Pool:
  """Loads the unpacked Tiny ImageNet from ``dir`` or ``dir/tiny-imagenet-200``, as its archive is read.

  Raises:
    UserError: if the folder is not there or lacks something.
  """
  folder = pathlib.Path(dir).expanduser()
  if not (folder / "wnids.txt").is_file():
    folder = folder / "tiny-imagenet-200"
  try:
    wnids = read_text(folder / "wnids.txt").split()
    lines = read_text(folder / "val" / "val_annotations.txt").splitlines()
    names = [path.relative_to(folder).as_posix() for path in (folder / "train").glob("*/images/*.JPEG")]
    train, test = tiny_imagenet_files(wnids, lines, names)
  except (UserError, OSError, KeyError, ValueError, IndexError) as error:
    raise UserError(f"tiny_imagenet needs the unpacked tiny-imagenet-200 (wnids.txt, train, val) or its archive, and "
                    f"{folder} is neither ({type(error).__name__}: {error}): unpack "
                    "http://cs231n.stanford.edu/tiny-imagenet-200.zip, or put it into a folder as it is, and point "
                    "--config.data.dir at that.") from error
  parts = [checked(jpeg.decode([read_bytes(folder / name) for name, _ in part], str(folder)),
                   np.array([label for _, label in part]), str(folder)) for part in (train, test)]
  return Pool(*parts, len(wnids), tuple(wnids))
