"""Splits and batches: disjoint, stratified, whole, and functions of their arguments alone."""

import numpy as np
import pytest

from calib_jax._system.errors import UserError
from calib_jax.training import data
from calib_jax.training.data import splits
from tests.training.data.test_record_streams import grey_pictures


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5, 0.9])
def test_stratified_is_a_partition_with_each_class_its_share(fraction):
  labels = np.repeat(np.arange(7), [3, 10, 11, 50, 100, 101, 7])
  np.random.default_rng(0).shuffle(labels)
  rest, part = data.stratified(labels, fraction, seed=3)
  assert np.array_equal(np.sort(np.concatenate([rest, part])), np.arange(len(labels)))
  assert len(part) == round(fraction * len(labels))
  for c in range(7):
    share = fraction * np.sum(labels == c)
    assert abs(np.sum(labels[part] == c) - share) < 1


def test_an_empty_split_is_refused():
  with pytest.raises(UserError, match="leaves an empty split"):
    data.stratified(np.zeros(4, int), 0.01, seed=0)


def test_digits_are_split_60_20_20_with_all_examples_once():
  splits = data.load("digits", seed=5, validation_fraction=0.25)
  assert [len(p.labels) for p in (splits.train, splits.validation, splits.test)] == [1078, 360, 359]
  rows = np.concatenate([p.images.reshape(len(p.labels), -1) for p in splits[:3]])
  from sklearn.datasets import load_digits

  original = np.round(load_digits().images.reshape(1797, -1) * 255 / 16).astype(np.uint8)
  assert sorted(map(bytes, rows)) == sorted(map(bytes, original))
  pixels = splits.train.images.astype(np.float64) / 255
  np.testing.assert_allclose(splits.mean, [pixels.mean()], rtol=1e-5)
  np.testing.assert_allclose(splits.std, [pixels.std()], rtol=1e-5)


def _examples(n):
  return data.Examples(np.arange(n, dtype=np.uint8).reshape(n, 1, 1, 1), np.arange(n, dtype=np.int32))


@pytest.mark.parametrize("num_devices", [1, 2, 8])
def test_an_epoch_holds_every_example_once_whatever_the_devices(num_devices):
  examples = _examples(45)
  for epoch in (0, 3):
    seen, orders = [], []
    for step in range(3 * epoch, 3 * epoch + 3):
      batch = data.training_batch(examples, step, batch_size=16, num_devices=num_devices, seed=9)
      assert batch["image"].shape == (num_devices, 16 // num_devices, 1, 1, 1)
      flat = batch["label"].reshape(-1)[batch["mask"].reshape(-1)]
      np.testing.assert_array_equal(batch["image"].reshape(-1)[: len(flat)], flat)
      one = data.training_batch(examples, step, batch_size=16, num_devices=1, seed=9)
      np.testing.assert_array_equal(batch["label"].reshape(-1), one["label"].reshape(-1))
      seen.extend(flat)
      orders.append(flat)
    assert sorted(seen) == list(range(45))
    assert [len(o) for o in orders] == [16, 16, 13]


def _epoch(order, step=0, salt=0, seed=0, n=103):
  """The labels of all examples, and the examples and labels of an epoch."""
  labels = (np.arange(n) % 10 == 0).astype(np.int32) + 2 * (np.arange(n) < 3)
  examples = data.Examples(np.arange(n, dtype=np.uint8).reshape(-1, 1, 1, 1), labels)
  batches = data.training_batches(examples, step, batch_size=16, num_devices=2, seed=seed, order=order, salt=salt)
  taken = [next(batches) for _ in range(7)]
  pick = [(b["image"][b["mask"]].ravel(), b["label"][b["mask"]]) for b in taken]
  return labels, *(np.concatenate(x) for x in zip(*pick, strict=True))


def test_class_balanced_takes_every_class_equally_often_and_every_example_of_a_class_in_turn():
  labels, images, result = _epoch("class_balanced")
  classes, counts = np.unique(result, return_counts=True)
  np.testing.assert_array_equal(classes, np.unique(labels))
  assert counts.sum() == 103 and counts.max() - counts.min() <= 1
  for c in classes:
    times = np.bincount(images[result == c], minlength=103)[labels == c]
    assert times.max() - times.min() <= 1


@pytest.mark.parametrize("order", data.ORDERS)
def test_orders_follow_from_seed_salt_and_epoch(order):
  first = _epoch(order)[1]
  np.testing.assert_array_equal(first, _epoch(order)[1])
  for other in (_epoch(order, step=7), _epoch(order, salt=1), _epoch(order, seed=1)):
    assert not np.array_equal(first, other[1])


def _batch(part, **options):
  """The third batch of 16: of 45 examples it holds 13."""
  return next(data.training_batches(part, 2, batch_size=16, seed=9, **options))


@pytest.mark.parametrize("part", [_examples(45), grey_pictures(45)], ids=("arrays", "stream"))
def test_the_shares_of_hosts_make_the_batch(part):
  for hosts in (2, 4):
    whole = _batch(part, num_devices=8)
    shares = [_batch(part, num_devices=8 // hosts, host=(h, hosts)) for h in range(hosts)]
    for key, x in whole.items():
      np.testing.assert_array_equal(np.concatenate([share[key] for share in shares]), x)
    shares = [list(data.in_order(part, 16, 8 // hosts, (h, hosts))) for h in range(hosts)]
    for i, batch in enumerate(data.in_order(part, 16, 8)):
      for key, x in batch.items():
        np.testing.assert_array_equal(np.concatenate([share[i][key] for share in shares]), x)


@pytest.mark.parametrize("part", [_examples(45), grey_pictures(45)], ids=("arrays", "stream"))
def test_parts_of_an_accumulated_batch_are_its_pieces_in_order_however_it_is_shared(part):
  flat = _batch(part, num_devices=1)
  for hosts, devices, parts in ((1, 1, 4), (1, 4, 2), (2, 2, 2), (2, 1, 4)):
    shares = [_batch(part, num_devices=devices, host=(h, hosts), accumulation=parts) for h in range(hosts)]
    for key, x in flat.items():
      pieces = np.concatenate([s[key].reshape(devices, parts, -1, *s[key].shape[2:]) for s in shares])
      np.testing.assert_array_equal(pieces.swapaxes(0, 1).reshape(x.shape), x)


def test_moments_of_pixels_that_are_counted_some_at_a_time_are_those_of_all(monkeypatch):
  images = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), np.uint8)
  monkeypatch.setattr(splits, "COUNTED", 7)  # Of 60 pixels.
  mean, std = splits._moments(images, False)
  pixels = images.reshape(-1, 3) / 255
  np.testing.assert_allclose((mean, std), (pixels.mean(0), pixels.std(0)), rtol=1e-12)
