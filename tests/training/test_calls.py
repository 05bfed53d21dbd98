"""Several steps in one call have the bits of steps one by one, and a call ends where something is due."""

import signal

import numpy as np
import pytest

from calib_jax import training
from calib_jax.training.engine import feeding, loop
from tests.training.small import PLAIN, assert_same, built, logged, short, train

LONG = ("training.log_every_steps=5", "training.num_epochs=4")


@pytest.fixture
def calls(monkeypatch):
  """The ``(steps before, steps)`` of the calls of a stage; none is cut because it takes long."""
  taken, take = [], feeding.Feed.take

  def noted(feed, step, most):
    chunk = take(feed, step, most)
    taken.append((step, chunk.count))
    return chunk

  monkeypatch.setattr(feeding.Feed, "take", noted)
  monkeypatch.setattr(loop, "CALL_SECONDS", 1e9)
  return taken


@pytest.mark.parametrize(("options", "seeds"), [
  pytest.param(("training.parallel=shard_map", "training.accumulation_steps=2", "training.average=swa", *PLAIN), (3, 4),
               marks=pytest.mark.slow),
  (("schedule.name=interleaved", "training.batch_size=8", "training.select=best"), (0,)),
], ids=("shard_map, parts, seeds, SWA", "interleaved"))
def test_calls_of_several_steps_have_the_bits_of_steps_one_by_one(options, seeds, calls, tmp_path):
  config = short(*LONG, *options)
  together, lines = logged(tmp_path / "together", config, seeds=seeds)
  assert max(count for _, count in calls) > 1
  number = len(calls)
  one_by_one, same = logged(tmp_path / "one", config, seeds=seeds, hooks=[lambda step, measured: None])
  assert all(count == 1 for _, count in calls[number:])
  assert_same(together, one_by_one)
  assert lines == same and any("train/loss" in line for line in lines)


def test_a_call_ends_where_something_is_due(calls, tmp_path):
  """Of 12 steps, epochs end after 3, 6 and 9; a line of the log is due after 5 and 10, a checkpoint after 7."""
  train(short(*LONG, *PLAIN, "checkpoint.every_steps=7"), folder=tmp_path)
  assert calls == [(0, 1), (1, 1), (2, 1), (3, 2), (5, 1), (6, 1), (7, 2), (9, 1), (10, 2)]


@pytest.mark.slow
def test_examples_that_are_too_large_for_the_device_give_the_same_batches(calls, monkeypatch):
  resident, _ = train(short(*LONG, *PLAIN), seeds=(3, 4), predicted=())
  monkeypatch.setattr(feeding.Feed.__init__, "__kwdefaults__", {"share": 0.0})
  sent, _ = train(short(*LONG, *PLAIN), seeds=(3, 4), predicted=())
  assert [count for _, count in calls[-12:]] == [1] * 12
  assert_same(resident, sent, rtol=1e-5, atol=1e-7)  # A program of its own, with other rounding.


def test_a_signal_during_a_call_ends_the_run_after_it_and_the_run_goes_on(calls, monkeypatch, tmp_path):
  config = short(*LONG, *PLAIN, "training.log_every_steps=100", "training.batch_size=4")
  whole = train(config)
  take = feeding.Feed.take

  def interrupted(feed, step, most):
    chunk = take(feed, step, most)
    if chunk.count > 3:
      signal.raise_signal(signal.SIGTERM)
    return chunk

  with monkeypatch.context() as patch:
    patch.setattr(feeding.Feed, "take", interrupted)
    with pytest.raises(training.Stopped, match="stopped after step 11 of 44; its state is in"):
      train(config, folder=tmp_path)
  assert_same(whole, train(config, folder=tmp_path))


def test_a_network_with_convolutions_takes_one_step_a_call_on_a_cpu():
  for options, loops in ((("model.name=simple_cnn", "model.channels=(2,)"), False), ((), True)):
    assert built(short(*options))[0].stages[0].loops == loops


def test_slow_steps_are_taken_in_short_calls(calls, monkeypatch):
  monkeypatch.setattr(loop, "CALL_SECONDS", 0.0)
  train(short(*LONG, *PLAIN), predicted=())
  assert np.all(np.diff([step for step, _ in calls]) == 1)
