"""The step that benchmarks time is that of the engine, on several devices."""

import jax
import numpy as np
import pytest

from calib_jax.training.engine import steps
from experiments.common.train_step import engine, engine_and_features
from tests.training.small import short, tiny_splits


def test_a_step_is_taken_each_time(monkeypatch):
  taken = []
  original = steps.train_step
  monkeypatch.setattr(steps, "train_step", lambda *a, **k: taken.append(a[1]["image"].shape) or original(*a, **k))
  step = engine(short("training.parallel=shard_map"), tiny_splits(), devices=jax.devices()[:2])
  step()
  assert set(taken) == {(8, 4, 4, 1)}


@pytest.mark.slow
def test_features_are_those_of_a_second_stage():
  config = short("schedule.name=two_stage", "schedule.cache_features=true", "head.name=two_stage")
  step, features = engine_and_features(config, tiny_splits(), stage=1)
  step()
  assert np.asarray(features()["features"]).shape[-1] == 5
