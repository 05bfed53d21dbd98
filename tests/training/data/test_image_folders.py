"""Folders of pictures: by class as torchvision has them, and CIFAR as it is unpacked."""

import pickle

import numpy as np
from PIL import Image
import pytest

from calib_jax._system.errors import UserError
from calib_jax.training import data

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (30, 6, 5, 3), dtype=np.uint8)
NAMES = ("10", "9", "cat")  # In the order of texts.


def _write(folder, images=IMAGES, names=NAMES):
  for i, image in enumerate(images):
    place = folder / names[i % len(names)]
    place.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(place / f"{i:02}.png")


def _load(path, name="npz"):
  return data.load(name, seed=0, validation_fraction=0.25, path=str(path))


def test_each_folder_is_a_class(tmp_path):
  _write(tmp_path / "mine")
  (tmp_path / "mine" / "notes").mkdir()
  splits = _load(tmp_path / "mine")
  assert splits.classes == NAMES and splits.num_classes == 3
  number = {image.tobytes(): i % 3 for i, image in enumerate(IMAGES)}
  parts = (splits.train, splits.validation, splits.test)
  assert sum(len(part.labels) for part in parts) == 30
  for part in parts:
    assert [number[image.tobytes()] for image in part.images] == part.labels.tolist()


@pytest.mark.parametrize("test", ["test", "val"])
def test_folders_of_splits_are_the_splits(test, tmp_path):
  _write(tmp_path / "train", IMAGES[:24])
  _write(tmp_path / test, IMAGES[24:])
  splits = _load(tmp_path)
  assert {image.tobytes() for image in splits.test.images} == {image.tobytes() for image in IMAGES[24:]}
  _write(tmp_path / test, IMAGES[:2], ("cat", "fox"))
  with pytest.raises(UserError, match="must have the classes of .*train: only one of them has fox"):
    _load(tmp_path)


def test_what_is_no_folder_of_classes_is_said(tmp_path):
  (tmp_path / "x").mkdir()
  with pytest.raises(UserError, match="must hold a folder for each class, two or more, .* it has none"):
    _load(tmp_path)
  _write(tmp_path / "mine", IMAGES[:2])
  with pytest.raises(UserError, match="is a directory, and arrays are read from an .npz: .* --config.data.name=npz"):
    _load(tmp_path / "mine", "arrays")
  Image.fromarray(IMAGES[0][:3]).save(tmp_path / "mine" / "9" / "zz.png")
  with pytest.raises(UserError, match="all pictures must have one size"):
    _load(tmp_path / "mine")


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_an_unpacked_cifar_is_read_without_running_code(name, tmp_path):
  folder = tmp_path / {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[name]
  folder.mkdir()
  rows, labels = RNG.integers(0, 256, (6, 20, 3072), dtype=np.uint8), np.arange(20) % 4
  files = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"] if name == "cifar10" else ["train", "test"]
  key = {"cifar10": b"labels", "cifar100": b"fine_labels"}[name]
  for file, images in zip(files, rows, strict=False):
    (folder / file).write_bytes(pickle.dumps({b"data": images, key: labels.tolist()}))
  for dir in (tmp_path, folder):
    splits = data.load(name, seed=0, validation_fraction=0.25, dir=str(dir))
    assert len(splits.train.labels) + len(splits.validation.labels) == 20 * (len(files) - 1)
    np.testing.assert_array_equal(splits.test.images, rows[len(files) - 1].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    assert splits.num_classes == 4 and splits.classes is None
  meta, names = {"cifar10": ("batches.meta", b"label_names"), "cifar100": ("meta", b"fine_label_names")}[name]
  (folder / meta).write_bytes(pickle.dumps({names: [b"a", b"b", b"c", b"d"]}))
  assert data.load(name, seed=0, validation_fraction=0.25, dir=str(tmp_path)).classes == ("a", "b", "c", "d")
  (folder / files[0]).write_bytes(pickle.dumps({b"data": print}))
  with pytest.raises(UserError, match="names 'builtins.print', which is not read because it could run code"):
    data.load(name, seed=0, validation_fraction=0.25, dir=str(tmp_path))
