"""A user's own arrays, TensorFlow Datasets on disk, and one sentence where either is wrong."""

import numpy as np
import pytest

from calib_jax import data
from calib_jax.errors import UserError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 6, 5, 3), dtype=np.uint8)
LABELS = np.arange(60) % 3


def _npz(tmp_path, **arrays):
  np.savez(tmp_path / "d.npz", **arrays)
  return data.load("npz", seed=0, validation_fraction=0.25, path=str(tmp_path / "d.npz"))


def test_npz_is_split_by_seed(tmp_path):
  splits = _npz(tmp_path, images=IMAGES, labels=LABELS)
  assert [len(p.labels) for p in splits[:3]] == [36, 12, 12]
  assert splits.num_classes == 3 and splits.mean.shape == (3,)
  rows = np.concatenate([p.images for p in splits[:3]])
  assert sorted(map(bytes, rows)) == sorted(map(bytes, IMAGES))


def test_npz_keeps_a_given_test_split_and_adds_a_channel(tmp_path):
  splits = _npz(tmp_path, images_train=IMAGES[:40, ..., 0], labels_train=LABELS[:40], images_test=IMAGES[40:, ..., 0],
                labels_test=LABELS[40:])
  np.testing.assert_array_equal(splits.test.images, IMAGES[40:, ..., :1])
  np.testing.assert_array_equal(splits.test.labels, LABELS[40:])


@pytest.mark.parametrize(("arrays", "message"), [
  ({"images": IMAGES}, "must hold images and labels, or .* it holds images"),
  ({"images": IMAGES.astype(np.float32), "labels": LABELS}, "images must be uint8 .* not float32"),
  ({"images": IMAGES[0], "labels": LABELS[:6, None]}, r"labels must be integers of shape \[6\]"),
  ({"images": IMAGES, "labels": LABELS.astype(float)}, "labels must be integers .* not float64"),
  ({"images": IMAGES, "labels": LABELS - 1}, "labels must be 0 or more"),
  ({"images": IMAGES, "labels": LABELS * 0}, "every label is 0"),
  ({"images": np.array([{}], dtype=object), "labels": LABELS}, "cannot be read as an .npz of plain arrays"),
])
def test_what_is_wrong_with_an_npz_is_said(tmp_path, arrays, message):
  with pytest.raises(UserError, match=message):
    _npz(tmp_path, **arrays)


def test_an_absent_or_damaged_file_is_said(tmp_path):
  with pytest.raises(UserError, match=r"there is no file .*absent\.npz"):
    data.load("npz", seed=0, validation_fraction=0.2, path=str(tmp_path / "absent.npz"))
  (tmp_path / "bad.npz").write_bytes(b"not a zip")
  with pytest.raises(UserError, match="cannot be read"):
    data.load("npz", seed=0, validation_fraction=0.2, path=str(tmp_path / "bad.npz"))


def test_an_unknown_name_lists_the_known():
  with pytest.raises(UserError, match="data.name must be one of digits, npz, cifar10"):
    data.load("cifar", seed=0, validation_fraction=0.2)
