"""Heads train with losses, mixes, long-tailed data, seeds and calibrators by config alone."""

import flax.traverse_util
import jax
import numpy as np
import pytest

from calib_jax import calibrators, data, training
from calib_jax import config as run_config
from tests.programs import ROOT
from tests.training.small import train

HEADS = {"linear": (), "variational": ("head.width=4", "head.num_samples=2"), "masked": ("head.width=6",),
         "simplex_etf": ()}
CNN = ("model.name=simple_cnn", "model.channels=(10,)")
SMALL = ("training.batch_size=16", "training.num_epochs=1", "training.log_every_steps=1",
         "optimizer.learning_rate=0.05")
COMPOSED = {
  "MIT-L, AdaFocal, summed": ("loss.primary.name=adaptive_focal", "loss.secondary.name=", "loss.reduction=sum",
                              "optimizer.clip_norm=1.0", "stage2.optimizer.clip_norm=1.0",
                              "augmentation.name=mixup_inference", "augmentation.padding=0"),
  "selective risk, SB-ECE, shard_map, cached features": (
    "loss.primary.name=selective_risk", "loss.secondary.name=soft_binned_ece", "training.parallel=shard_map",
    "schedule.cache_features=true"),
}


def configured(head, *overrides):
  chosen = (f"head.name={head}", *HEADS[head], *SMALL, *CNN, *overrides)
  config = run_config.load(str(ROOT / "configs/digits_savuc.py"), [f"--config.{o}" for o in chosen])
  run_config.check(config, 2)
  return config


@pytest.mark.slow
@pytest.mark.parametrize(("head", "name"), list(zip(("variational", "masked"), COMPOSED, strict=True)))
def test_it_trains_on_long_tailed_data_with_two_seeds_and_is_calibrated(head, name):
  """Through both stages; a loss would be NaN, or the run stop with an error, if parts did not fit together."""
  config = configured(head, *COMPOSED[name], "schedule.name=two_stage", "data.name=digits_lt",
                   "data.imbalance_ratio=0.2", "training.num_steps=3", "schedule.stage2_epochs=1",
                   "training.batch_size=64")
  splits = [data.load(seed=seed, **run_config.data_options(config)) for seed in (0, 1)]
  small = [s._replace(train=s.train.take(np.arange(128)), validation=s.validation.take(np.arange(40)),
                      test=s.test.take(np.arange(20))) for s in splits]
  seen = []
  _, result = training.train(config, small, seeds=[0, 1], devices=jax.devices()[:2],
                            hooks=[lambda step, measured: seen.append(np.asarray(measured["loss"]))])
  assert len(seen) == 3 + 2 and np.isfinite(seen).all()
  assert not np.array_equal(result[0]["test"]["logits"], result[1]["test"]["logits"])
  scaling = calibrators.temperature_scaling()
  for predictions in result:
    validation, test = predictions["validation"], predictions["test"]
    log_probs = scaling.apply(scaling.fit(validation["logits"], validation["labels"]), test["logits"])
    np.testing.assert_allclose(np.exp(log_probs).sum(-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(np.argmax(log_probs, -1), np.argmax(test["logits"], -1))


@pytest.mark.slow
@pytest.mark.parametrize("head", ["masked", "simplex_etf"])
def test_the_second_stage_leaves_the_extractor_as_the_first_one_left_it(head):
  """To the bit, with its batch statistics, also beside a head that has batch statistics or draws of its own."""
  plain = ("loss.primary.name=cross_entropy", "loss.secondary.name=")
  first, _ = train(configured("linear", *plain), predicted=())
  both, _ = train(configured(head, *plain, "schedule.name=two_stage", "schedule.stage2_epochs=1"), predicted=())
  assert int(both.step[0]) == 2 * int(first.step[0])
  for kind in ("params", "batch_stats"):
    before, after = (flax.traverse_util.flatten_dict(getattr(state, kind)) for state in (first, both))
    paths = [path for path in before if path[0] != "head"]
    assert paths and {path for path in after if path[0] != "head"} == set(paths)
    for path in paths:
      np.testing.assert_array_equal(before[path], after[path], err_msg=str(path))
