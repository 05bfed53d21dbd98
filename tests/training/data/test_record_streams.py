"""Streams: the same examples at step k wherever a run starts, whoever decodes; the standard recipe's crops."""

import numpy as np
from PIL import Image
import pytest

from calib_jax._system.errors import UserError
from calib_jax.training import data
from calib_jax.training.data import record_streams
from tests.training.data.archive_files import jpeg


def grey_pictures(n=23, size=8, **options):
  """Pictures of one grey level each, wide and tall ones in turn; the label is the record's number."""
  shapes = ((30, 20, 3), (20, 40, 3))
  records = [{"image": jpeg(np.full(shapes[i % 2], 10 * i % 256, np.uint8)), "label": i} for i in range(n)]
  return record_streams.Stream(records, np.arange(n), size, options.pop("num_workers", 0), "here", **options)


def _steps(stream, first, number, **options):
  batches = data.training_batches(stream, first, **{"batch_size": 8, "num_devices": 2, "seed": 5, **options})
  return [next(batches) for _ in range(number)]


def test_batches_hold_every_example_once_an_epoch_in_orders_of_their_own():
  stream = grey_pictures(24)
  labels = np.concatenate([batch["label"].ravel() for batch in _steps(stream, 0, 6)])
  epochs = labels.reshape(2, 24)
  assert (np.sort(epochs) == np.arange(24)).all() and (epochs[0] != epochs[1]).any()
  other = np.concatenate([batch["label"].ravel() for batch in _steps(stream, 0, 3, seed=6)])
  assert (other != epochs[0]).any()
  for batch in _steps(stream, 0, 2):
    assert batch["image"].shape == (2, 4, 8, 8, 3) and batch["image"].dtype == np.uint8 and batch["mask"].all()
    levels = batch["image"].reshape(8, -1).mean(1)
    np.testing.assert_allclose(levels, 10 * batch["label"].ravel(), atol=2)


def test_step_k_is_the_same_wherever_the_run_starts_and_however_many_devices_share_it():
  pictures = np.random.default_rng(0).integers(0, 256, (23, 30, 20, 3), np.uint8)
  stream = grey_pictures()._replace(records=[{"image": jpeg(x), "label": i} for i, x in enumerate(pictures)])
  whole = _steps(stream, 0, 9)
  for first in (1, 5, 8):
    for key in ("image", "label"):
      np.testing.assert_array_equal(_steps(stream, first, 1)[0][key], whole[first][key])
  one = _steps(stream, 5, 1, num_devices=1)[0]
  np.testing.assert_array_equal(one["image"].reshape(8, 8, 8, 3), whole[5]["image"].reshape(8, 8, 8, 3))


def test_evaluation_takes_every_example_in_order_and_pads_the_last_batch():
  stream = grey_pictures(21)._replace(index=np.arange(0, 21, 2))
  batches = list(data.in_order(stream, 4, 2))
  labels, masks = (np.concatenate([batch[key].ravel() for batch in batches]) for key in ("label", "mask"))
  np.testing.assert_array_equal(labels[masks], np.arange(0, 21, 2))
  np.testing.assert_array_equal(masks, np.arange(12) < 11)
  assert data.num_examples(stream) == 11 and data.image_shape(stream) == (8, 8, 3)


def test_splits_are_a_partition_by_seed():
  stream = grey_pictures()
  rest, part = record_streams.split(stream, 0.3, seed=1)
  assert sorted([*rest.index, *part.index]) == list(range(23)) and len(part.index) == 7
  np.testing.assert_array_equal(record_streams.split(stream, 0.3, seed=1)[1].index, part.index)
  assert (record_streams.split(stream, 0.3, seed=2)[1].index != part.index).any()
  with pytest.raises(UserError, match="leaves an empty split"):
    record_streams.split(stream, 0.001, seed=1)


def test_labels_are_of_the_split_and_streams_can_have_long_tails(capsys):
  stream = grey_pictures(20)._replace(index=np.arange(19, -1, -1))
  for record in stream.records:
    record["label"] = record["label"] % 2
  np.testing.assert_array_equal(record_streams.labels(stream), np.arange(19, -1, -1) % 2)
  assert "reading 20 records of here" in capsys.readouterr().err
  kept = stream.take(data.long_tailed(record_streams.labels(stream), 2, 0.5, seed=0))
  assert np.bincount(kept.index % 2).tolist() == [10, 5]


def test_the_centre_crop_is_the_middle_224_of_256():
  # A picture whose value is its column: what remains is the middle 7/8 of the shorter side.
  columns = np.tile(np.arange(256, dtype=np.uint8)[None, :, None], (128, 1, 3))
  result = record_streams.centre_crop(Image.fromarray(columns), 112).astype(float)
  np.testing.assert_allclose(result[50, :, 0], 128 - 56 + np.arange(112), atol=1)
  tall = record_streams.centre_crop(Image.fromarray(columns.transpose(1, 0, 2)), 112).astype(float)
  np.testing.assert_allclose(tall[:, 50, 0], 128 - 56 + np.arange(112), atol=1)


def test_random_crops_have_the_published_areas_and_shapes():
  rows, columns = np.meshgrid(np.arange(200), np.arange(200), indexing="ij")
  picture = Image.fromarray(np.stack([rows, columns, 0 * rows], axis=-1).astype(np.uint8))
  areas, shapes, mirrored = [], [], []
  for seed in range(600):
    crop = record_streams.random_crop(picture, np.random.default_rng(seed), 32).astype(float)
    height, width = (crop[-1, :, 0] - crop[0, :, 0]).mean() * 32 / 31, (crop[:, -1, 1] - crop[:, 0, 1]).mean() * 32 / 31
    mirrored.append(width < 0)
    areas.append(height * abs(width) / 200**2)
    shapes.append(abs(width) / height)
  assert 0.06 < min(areas) < 0.12 and max(areas) < 1.02 and 0.7 < min(shapes) < 0.78 and 1.28 < max(shapes) < 1.4
  assert abs(np.mean(mirrored) - 0.5) < 0.07 and 0.4 < np.mean(areas) < 0.56
  narrow = Image.fromarray(np.zeros((10, 400, 3), np.uint8))  # No crop fits: the middle square.
  assert record_streams.random_crop(narrow, np.random.default_rng(0), 16).shape == (16, 16, 3)


def test_corruptions_are_of_what_is_evaluated():
  plain, bright = (next(data.in_order(grey_pictures(corruption=name, severity=4), 8, 1)) for name in ("", "brightness"))
  assert bright["image"].astype(int).mean() > plain["image"].astype(int).mean() + 30


def test_a_damaged_picture_is_named():
  stream = grey_pictures()
  stream.records[3]["image"] = stream.records[3]["image"][:200]
  with pytest.raises(UserError, match="here: record 3 is not a whole picture"):
    list(data.in_order(stream, 4, 1))
