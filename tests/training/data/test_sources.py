"""A user's own arrays, TensorFlow Datasets on disk, and one sentence where either is wrong."""

import io
import warnings
import zlib

import numpy as np
from PIL import Image, ImageFile
import pytest

from calib_jax._system import capacity
from calib_jax._system.errors import UserError
from calib_jax.training import data
from tests.training.data.archive_files import jpeg

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 6, 5, 3), dtype=np.uint8)
LABELS = np.arange(60) % 3


def _jpegs(images):
  """Pictures as one stream of JPEG bytes, where each begins, and what they are decoded to."""
  records = [jpeg(image) for image in images]
  return (np.frombuffer(b"".join(records), np.uint8), np.cumsum([0, *map(len, records)]),
          np.stack([np.asarray(Image.open(io.BytesIO(record)).convert("RGB")) for record in records]))


STREAM, OFFSETS, DECODED = _jpegs(IMAGES)


def _npz(tmp_path, **arrays):
  np.savez(tmp_path / "d.npz", **arrays)
  return data.load("npz", seed=0, validation_fraction=0.25, path=str(tmp_path / "d.npz"))


@pytest.mark.parametrize(("arrays", "message"), [
  ({"images": IMAGES}, "must hold images and labels, or .* it holds images"),
  ({"images": IMAGES, "labels": LABELS, "images_train": IMAGES, "labels_train": LABELS, "images_test": IMAGES,
    "labels_test": LABELS}, "images_test, labels_test, and not both"),
  ({"images": IMAGES.astype(np.float32), "labels": LABELS},
   r"images must be uint8 .* not float32 .* They are floats from 0 to 255: save numpy.rint\(images\).astype"),
  ({"images": IMAGES / 255, "labels": LABELS}, r"floats in \[0, 1\]: save numpy.rint\(255 \* images\).astype"),
  ({"images": IMAGES / 128 - 1, "labels": LABELS}, "floats from -1 to 0.992: save the pixels before they are normal"),
  ({"images": IMAGES.transpose(0, 3, 1, 2), "labels": LABELS},
   r"channels first, as PyTorch has them, and must be \[N, H, W, C\]: save images.transpose\(0, 2, 3, 1\)"),
  ({"images": IMAGES[0], "labels": LABELS[:6, None]}, r"labels must be integers of shape \[6\]"),
  ({"images": IMAGES, "labels": LABELS.astype(float)}, "labels must be integers .* not float64"),
  ({"images": IMAGES, "labels": LABELS - 1}, "labels must be class numbers from 0 to"),
  ({"images": IMAGES, "labels": LABELS * 0}, "every label is 0"),
  ({"images_train": IMAGES, "labels_train": np.append(LABELS[:-1], 3), "images_test": IMAGES, "labels_test": LABELS},
   "class 3 has 1 example to train and validate on: too few"),
  ({"images": IMAGES, "labels": LABELS * 10**8}, "labels go up to 200,000,000, but there is no example of class 1 to"),
  ({"images_train": IMAGES, "labels_train": LABELS, "images_test": IMAGES, "labels_test": LABELS + 2},
   "labels go up to 4, but there is no example of class 3 to train on"),
  ({"images": STREAM, "labels": LABELS}, "images must be uint8 of shape"),
  ({"images": STREAM.astype(int), "labels": LABELS, "offsets": OFFSETS}, "a stream of JPEG bytes must be uint8"),
  ({"images": STREAM, "labels": LABELS, "offsets": OFFSETS[::-1].astype(np.uint64)}, "offsets must rise"),
  ({"images": STREAM, "labels": LABELS, "offsets": OFFSETS + 1}, "offsets must rise .* at most the"),
  ({"images": np.where(np.arange(len(STREAM)) // 20 == OFFSETS[7] // 20 + 1, 0, STREAM).astype(np.uint8),
    "labels": LABELS, "offsets": OFFSETS}, "record 7 is not a whole picture"),
  ({"images": STREAM, "labels": LABELS, "offsets": np.append(OFFSETS[:-1], OFFSETS[-1] - 30)},
   "record 59 is not a whole picture"),
])
def test_what_is_wrong_with_an_npz_is_said(tmp_path, arrays, message):
  with pytest.raises(UserError, match=message):
    _npz(tmp_path, **arrays)


def test_an_unknown_name_lists_the_known():
  with pytest.raises(UserError, match="data.name must be one of digits, fashion_mnist_small, .*cifar100_corrupted"):
    data.load("cifar", seed=0, validation_fraction=0.2)


def test_streams_of_jpegs_are_their_pictures_and_grey_ones_become_rgb(tmp_path):
  grey, offsets, decoded = _jpegs(IMAGES[..., 0])
  splits = _npz(tmp_path, train_images=STREAM, train_offsets=OFFSETS, train_labels=LABELS.astype(np.uint8),
                test_images=grey, test_offsets=offsets, test_labels=LABELS)
  np.testing.assert_array_equal(splits.test.images, decoded)
  rows = np.concatenate([splits.train.images, splits.validation.images])
  assert sorted(map(bytes, rows)) == sorted(map(bytes, DECODED))
  np.testing.assert_allclose(splits.mean, splits.train.images.mean((0, 1, 2)) / 255, rtol=1e-5)


def _stream(*records):
  return {"images": np.frombuffer(b"".join(records), np.uint8), "offsets": np.cumsum([0, *map(len, records)]),
          "labels": np.arange(len(records)) % 2}


def _png(image):
  file = io.BytesIO()
  Image.fromarray(image).save(file, "PNG")
  return file.getvalue()


def _claims(width, height):
  """The beginning of a PNG of so many pixels, which a decoder would have to make room for."""
  header = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
  return b"\x89PNG\r\n\x1a\n\0\0\0\r" + header + zlib.crc32(header).to_bytes(4, "big") + b"\0\0\0\0IDAT\0\0\0\0"


def test_pictures_may_be_png_of_8_bits_a_channel(tmp_path):
  png = [_png(image) for image in IMAGES[:10]]
  splits = _npz(tmp_path, **_stream(*png))
  assert {*map(bytes, np.concatenate([part.images for part in splits[:3]]))} == {*map(bytes, IMAGES[:10])}
  with pytest.raises(UserError, match="record 0 has 5 x 6 pixels of mode I.*8 bits a channel"):
    _npz(tmp_path, **_stream(*[_png(IMAGES[0, ..., 0].astype(np.uint16))] * 10))


@pytest.mark.parametrize(("records", "message"), [
  ([_claims(12_000, 12_000)] * 2, "record 0 has 12,000 x 12,000 pixels"),
  ([_claims(60_000, 60_000)] * 2, "record 0 is not a whole picture"),
  ([_claims(10_000, 10_000)] * 99, r"99 pictures of 10000x10000 would take 29.7 GB of memory"),
  ([_png(IMAGES[0]), _claims(11_000, 11_000)], "record 1 is 11000x11000 where the first is 6x5"),
], ids=["12,000", "60,000", "many", "second"])
def test_the_size_of_pictures_is_checked_before_they_are_decoded(records, message, tmp_path, monkeypatch):
  monkeypatch.setattr(capacity, "memory", lambda: 2 * 10**10)
  load = ImageFile.ImageFile.load
  monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: load(image) if image.size == (5, 6) else pytest.fail(
    "a picture was decoded"))
  with pytest.raises(UserError, match=message), warnings.catch_warnings(action="error"):
    _npz(tmp_path, **_stream(*records))


@pytest.mark.parametrize(("num_classes", "each", "expected"), [(10, 5000, 20_431), (100, 500, 19_573)])
def test_long_tails_have_the_published_sizes(num_classes, each, expected):
  labels = np.repeat(np.arange(num_classes, dtype=np.int32), each)
  kept = data.long_tailed(labels, num_classes, 0.1, seed=0)
  counts = np.bincount(labels[kept])
  assert len(np.unique(kept)) == len(kept) == expected  # 10,215 + 10,216 and 9,786 + 9,787 in the paper.
  assert counts[0] == each and counts[-1] == each // 10 and (np.diff(counts) <= 0).all()


def test_long_tailed_versions_thin_out_training_and_validation_but_not_test():
  plain, tailed = (data.load(name, seed=3, validation_fraction=0.25) for name in ("digits", "digits_lt"))
  np.testing.assert_array_equal(plain.test.images, tailed.test.images)
  counts = np.bincount(np.concatenate([tailed.train.labels, tailed.validation.labels]))
  first = np.bincount(np.concatenate([plain.train.labels, plain.validation.labels]))[0]
  np.testing.assert_array_equal(counts, np.floor(first * 0.1 ** (np.arange(10) / 9) + 1e-9))
  steeper = data.load("digits_lt", seed=3, validation_fraction=0.25, imbalance_ratio=0.05)
  assert len(steeper.train.labels) < len(tailed.train.labels)
  with pytest.raises(UserError, match="imbalance_ratio 0.001 would take 0 of the .* examples of class 7"):
    data.load("digits_lt", seed=3, validation_fraction=0.25, imbalance_ratio=0.001)
  with pytest.raises(UserError, match=r"imbalance_ratio must be in \[1e-06, 1\]: got 2"):
    data.load("digits_lt", seed=3, validation_fraction=0.25, imbalance_ratio=2.0)


def test_the_held_out_part_is_a_stratified_part_of_training():
  train = data.load("digits", seed=3, validation_fraction=0.25).train
  majority, part = data.held_out(train, 0.1, seed=3)
  rows = np.concatenate([majority.images, part.images])
  assert sorted(map(bytes, rows)) == sorted(map(bytes, train.images)) and len(part.labels) == 108
  assert np.abs(np.bincount(part.labels) - 0.1 * np.bincount(train.labels)).max() < 1


def test_a_corruption_is_of_the_test_split_alone():
  plain = data.load("digits", seed=3, validation_fraction=0.25)
  foggy = data.load("digits", seed=3, validation_fraction=0.25, corruption="fog", severity=4)
  np.testing.assert_array_equal(foggy.test.images, data.corrupt(plain.test.images, "fog", 4, seed=3))
  for part in ("train", "validation"):
    np.testing.assert_array_equal(getattr(foggy, part).images, getattr(plain, part).images)


def test_other_data_serve_as_out_of_distribution_where_shapes_agree(tmp_path):
  digits = data.load("digits", seed=0, validation_fraction=0.25)
  np.savez(tmp_path / "grey.npz", images=IMAGES[:, :5, :5, 0], labels=LABELS)
  np.savez(tmp_path / "rgb.npz", images=IMAGES[:, :5, :5], labels=LABELS)
  rgb = data.load("npz", seed=0, validation_fraction=0.25, path=str(tmp_path / "rgb.npz"))
  result = data.out_of_distribution("npz", rgb, path=str(tmp_path / "grey.npz"))
  assert result.shape == (12, 5, 5, 3) and (result[..., 0] == result[..., 2]).all()
  own = {bytes(image) for image in IMAGES[:, :5, :5, 0]}
  assert all(bytes(np.ascontiguousarray(image[..., 0])) in own for image in result)
  with pytest.raises(UserError, match=r"images of .*grey.npz have the shape \(5, 5, 1\), those of .* \(8, 8, 1\)"):
    data.out_of_distribution("npz", digits, path=str(tmp_path / "grey.npz"))
  with pytest.raises(UserError, match="the images of digits_lt are the model's own test images"):
    data.out_of_distribution("digits_lt", digits)
  with pytest.raises(UserError, match="must be one of digits, .*got 'svhn'"):
    data.out_of_distribution("svhn", digits)
