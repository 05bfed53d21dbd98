"""Pictures in folders of their classes, as torchvision's ``ImageFolder`` has them."""

import os
import pathlib

import numpy as np

from calib_jax._system.errors import UserError
from calib_jax._system.files import read_bytes
from calib_jax.training.data import jpeg
from calib_jax.training.data.splits import Examples, checked

SUFFIXES = (".jpeg", ".jpg", ".png")
LARGEST = 2**26  # Bytes of a picture.


def read(folder: str | os.PathLike[str]) -> tuple[list[Examples], tuple[str, ...]]:
  """Reads the pictures of a folder, in the order of classes and names, as one split, or as those for training and test.

  ``folder/CLASS/PICTURE`` is one split; with folders ``train`` and ``test`` (or ``val``) in its place, these are the
  two. Classes are in the order of their names, as text. JPEG and PNG are read, all of one size; a folder without any,
  or whose test split has other classes, is a UserError.
  """
  folder = pathlib.Path(folder)
  test = next((name for name in ("test", "val") if (folder / name).is_dir()), "")
  places = [folder / "train", folder / test] if test and (folder / "train").is_dir() else [folder]
  files = [_pictures(place) for place in places]
  classes = tuple(files[0])
  if any(tuple(of_split) != classes for of_split in files):
    raise UserError(f"{places[1]} must have the classes of {places[0]}: only one of them has "
                    f"{', '.join(sorted(set(files[0]) ^ set(files[1])))[:200]}.")
  parts = []
  for place, of_split in zip(places, files, strict=True):
    labels = np.repeat(np.arange(len(classes), dtype=np.int32), [len(paths) for paths in of_split.values()])
    records = [read_bytes(path, LARGEST) for paths in of_split.values() for path in paths]
    parts.append(checked(jpeg.decode(records, str(place)), labels, str(place)))
  return parts, classes


def _pictures(folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
  """Returns the paths of pictures by class."""
  by_class = {place.name: sorted(path for path in place.rglob("*") if path.suffix.lower() in SUFFIXES)
              for place in sorted(folder.iterdir()) if place.is_dir()}
  by_class = {name: paths for name, paths in by_class.items() if paths}
  if len(by_class) < 2:
    raise UserError(f"{folder} must hold a folder for each class, two or more, with pictures in JPEG or PNG: it has "
                    f"{', '.join(by_class)[:200] or 'none'}.")
  return by_class
