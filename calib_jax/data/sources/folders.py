"""Data sets that are unpacked folders of pictures."""

import pathlib

import numpy as np

from calib_jax._checks.registry import register
from calib_jax._system.errors import UserError
from calib_jax._system.files import read_bytes, read_text
from calib_jax.data import jpeg
from calib_jax.data.sources import SOURCES
from calib_jax.data.splits import Pool, checked


@register(SOURCES)
def tiny_imagenet(dir: str) -> Pool:
  """Loads Tiny ImageNet from ``dir`` or ``dir/tiny-imagenet-200``; its validation images are the test split.

  Classes are in the order of ``wnids.txt``. Images are 64x64 RGB; grey ones become RGB.
  """
  folder = pathlib.Path(dir).expanduser()
  if not (folder / "wnids.txt").is_file():
    folder = folder / "tiny-imagenet-200"
  try:
    wnids = read_text(folder / "wnids.txt").split()
    classes = {wnid: i for i, wnid in enumerate(wnids)}
    if len(classes) < len(wnids):
      raise ValueError("wnids.txt has a class twice")
    train = [(path, i) for wnid, i in classes.items()
             for path in sorted((folder / "train" / wnid / "images").glob("*.JPEG"))]
    lines = read_text(folder / "val" / "val_annotations.txt").splitlines()
    test = [(folder / "val" / "images" / name, classes[wnid]) for name, wnid in (line.split()[:2] for line in lines)]
    if not train or not test:
      raise ValueError("it has no pictures")
  except (UserError, OSError, KeyError, ValueError, IndexError) as error:
    raise UserError(f"tiny_imagenet needs the unpacked tiny-imagenet-200 (wnids.txt, train, val), which {folder} is "
                    f"not ({type(error).__name__}: {error}): unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip "
                    "and point --config.data.dir at it.") from error
  parts = [checked(jpeg.decode([read_bytes(path) for path, _ in part], str(folder)), np.array([i for _, i in part]),
                   str(folder)) for part in (train, test)]
  return Pool(*parts, len(classes))
