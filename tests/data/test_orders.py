"""The orders of an epoch."""

import numpy as np
import pytest

from calib_jax import data
from calib_jax._system.errors import UserError


def _epoch(order, step=0, salt=0, seed=0, n=103):
  labels = (np.arange(n) % 10 == 0).astype(np.int32) + 2 * (np.arange(n) < 3)
  examples = data.Examples(np.arange(n, dtype=np.uint8).reshape(-1, 1, 1, 1), labels)
  batches = data.training_batches(examples, step, batch_size=16, num_devices=2, seed=seed, order=order, salt=salt)
  taken = [next(batches) for _ in range(7)]
  pick = [(b["image"][b["mask"]].ravel(), b["label"][b["mask"]]) for b in taken]
  return labels, *(np.concatenate(x) for x in zip(*pick, strict=True))


def test_shuffled_takes_every_example_once():
  _, images, _ = _epoch("shuffled")
  np.testing.assert_array_equal(np.sort(images), np.arange(103))


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


def test_a_stream_can_only_be_shuffled():
  stream = data.Stream(None, np.arange(4), 8, 0, "x")
  with pytest.raises(UserError, match="can only be shuffled: the order 'class_balanced'"):
    next(data.training_batches(stream, 0, batch_size=2, num_devices=1, seed=0, order="class_balanced"))
