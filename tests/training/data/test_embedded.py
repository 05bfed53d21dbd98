"""The images that are part of the package: what their file holds, their splits, and the names of their classes."""

import hashlib
import pathlib

import numpy as np

from calib_jax import evaluation
from calib_jax._system.files import read_npz
from calib_jax.training import data

FOLDER = pathlib.Path(data.__file__).parent / "embedded"
CLASSES = ("t-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def test_the_file_is_the_draw_that_its_readme_describes():
  arrays = read_npz(FOLDER / "fashion_mnist_small.npz")
  assert tuple(arrays["class_names"]) == CLASSES and "MIT License" in (FOLDER / "LICENSE").read_text(encoding="utf-8")
  for split, total in (("train", 60_000), ("test", 10_000)):
    images, labels, index = (arrays[f"{split}_{name}"] for name in ("images", "labels", "index"))
    assert images.shape == (4000, 28, 28, 1) and images.dtype == np.uint8
    np.testing.assert_array_equal(np.bincount(labels), np.full(10, 400))
    assert (np.diff(index) > 0).all() and index[0] >= 0 and index[-1] < total
  # Of the pixels of the original images at these places.
  digests = {split: hashlib.sha256(arrays[f"{split}_images"].tobytes()).hexdigest()[:16] for split in ("train", "test")}
  assert digests == {"train": "a79ac6693aefec16", "test": "1c1b2bf6c25b1b8d"}


def test_it_is_split_by_seed_and_the_test_images_stay():
  splits, others = (data.load("fashion_mnist_small", seed=seed, validation_fraction=0.25, dir="/nowhere")
                    for seed in (0, 1))
  for part, count in zip(splits[:3], (300, 100, 400), strict=True):
    assert part.images.shape == (10 * count, 28, 28, 1) and part.labels.dtype == np.int32
    np.testing.assert_array_equal(np.bincount(part.labels), np.full(10, count))
  rows = np.concatenate([part.images.reshape(len(part.labels), -1) for part in splits[:2]])
  arrays = read_npz(FOLDER / "fashion_mnist_small.npz")
  assert sorted(map(bytes, rows)) == sorted(map(bytes, arrays["train_images"].reshape(4000, -1)))
  np.testing.assert_array_equal(splits.test.images, others.test.images)
  assert (splits.validation.images != others.validation.images).any()


def test_names_of_classes_go_with_the_splits_and_with_saved_predictions(tmp_path):
  assert data.load("fashion_mnist_small", seed=0, validation_fraction=0.25).classes == CLASSES
  assert data.load("digits", seed=0, validation_fraction=0.25).classes is None
  evaluation.save(tmp_path / "named.npz", np.zeros((2, 3), np.float32), np.array([0, 2]), classes=("a", "b", "c"))
  evaluation.save(tmp_path / "plain.npz", np.zeros((2, 3), np.float32), np.array([0, 2]))
  assert evaluation.load(tmp_path / "named.npz").classes == ("a", "b", "c")
  assert evaluation.load(tmp_path / "plain.npz").classes is None
