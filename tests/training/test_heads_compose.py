"""Every head trains with losses, mixes, long-tailed data, seeds and calibrators by config alone, and in every schedule
goes on to the same bits after a stop."""

import signal

import flax.traverse_util
import jax
import numpy as np
import pytest

from calib_jax import calibrators, data, training
from calib_jax import config as run_config
from calib_jax.training import stopping
from tests.training.test_engine import ROOT, _same, _splits

HEADS = {"linear": (), "two_stage": ("head.width=4",), "variational": ("head.width=4", "head.num_samples=2"),
         "masked": ("head.width=6",), "simplex_etf": ()}
SMALL = ("model.name=simple_cnn", "model.channels=(10,)", "training.batch_size=16", "training.num_epochs=1",
         "training.stage2_epochs=1", "training.log_every_steps=1", "optimizer.learning_rate=0.05")
COMPOSED = {
  "focal, soft AvUC, several parts": (
    "loss.primary.name=focal", "loss.secondary.name=soft_avuc", "loss.secondary.threshold=0.5",
    "training.accumulation_steps=2", "augmentation.name=crop_flip", "augmentation.padding=1"),
  "mixup, Brier score of devices": (  # Secondary losses take no mixed labels.
    "loss.primary.name=brier", "loss.secondary.name=", "loss.scope=device", "augmentation.name=mixup",
    "augmentation.padding=0"),
  "MIT-L, AdaFocal, summed": ("loss.primary.name=adaptive_focal", "loss.secondary.name=", "loss.reduction=sum",
                              "optimizer.clip_norm=1.0", "stage2.optimizer.clip_norm=1.0",
                              "augmentation.name=mixup_inference", "augmentation.padding=0"),
  "selective risk, SB-ECE, shard_map": (
    "loss.primary.name=selective_risk", "loss.secondary.name=soft_binned_ece", "training.parallel=shard_map"),
}


def _config(head, *overrides):
  chosen = (f"head.name={head}", *HEADS[head], *SMALL, *overrides)
  config = run_config.load(str(ROOT / "configs/digits_savuc.py"), [f"--config.{o}" for o in chosen])
  run_config.check(config, 2)
  return config


def _composes():
  """Each head with two of the combinations, in turn, so that each combination has two or three heads."""
  return [pytest.param(head, name, id=f"{head}: {name}") for i, head in enumerate(HEADS)
          for j, name in enumerate(COMPOSED) if (i + j) % 2 == 0]


@pytest.mark.slow
@pytest.mark.parametrize(("head", "name"), _composes())
def test_it_trains_on_long_tailed_data_with_two_seeds_and_is_calibrated(head, name):
  """Through both stages; a loss would be NaN, or the run stop with an error, if parts did not fit together."""
  config = _config(head, *COMPOSED[name], "training.schedule=two_stage", "data.name=digits_lt",
                   "data.imbalance_ratio=0.2", "training.num_steps=3", "training.stage2_epochs=1",
                   "training.batch_size=64")
  splits = [data.load(seed=seed, **run_config.data_options(config)) for seed in (0, 1)]
  small = [s._replace(train=s.train.take(np.arange(128)), validation=s.validation.take(np.arange(40)),
                      test=s.test.take(np.arange(20))) for s in splits]
  seen = []
  _, found = training.train(config, small, seeds=[0, 1], devices=jax.devices()[:2],
                            hooks=[lambda step, measured: seen.append(np.asarray(measured["loss"]))])
  assert len(seen) == 3 + 2 and np.isfinite(seen).all()
  assert not np.array_equal(found[0]["test"]["logits"], found[1]["test"]["logits"])
  scaling = calibrators.temperature_scaling()
  for predictions in found:
    validation, test = predictions["validation"], predictions["test"]
    log_probs = scaling.apply(scaling.fit(validation["logits"], validation["labels"]), test["logits"])
    np.testing.assert_allclose(np.exp(log_probs).sum(-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(np.argmax(log_probs, -1), np.argmax(test["logits"], -1))


SCHEDULES = (("classifier_retraining", "masked", 5), ("warm_start", "simplex_etf", 2),
             ("layer_peeled", "variational", 2), ("interleaved", "two_stage", 2), ("two_stage", "simplex_etf", 5))


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "head", "step"), SCHEDULES)
def test_a_run_that_is_stopped_goes_on_to_the_same_bits(schedule, head, step, tmp_path):
  options = (f"training.schedule={schedule}", "loss.primary.name=cross_entropy", "data.held_out_fraction=0.4",
             "loss.secondary.name=" + ("soft_avuc" if schedule == "interleaved" else ""))
  if schedule == "warm_start":
    options += (f"stage1.workdir={_finished(head, tmp_path / 'first')}",)
  config = _config(head, *options)
  whole = _train(config)

  def interrupt(done, measured):
    if done == step:
      signal.raise_signal(signal.SIGTERM)

  with pytest.raises(stopping.Stopped):
    _train(config, folder=tmp_path / "run", hooks=[interrupt])
  _same(whole, _train(config, folder=tmp_path / "run"))


def _train(config, **options):
  return training.train(config, [_splits()], seeds=[0], devices=jax.devices()[:2], **options)


def _finished(head, folder):
  """The directory of a run of one epoch."""
  config = _config(head, "loss.primary.name=cross_entropy", "loss.secondary.name=")
  group = training.Group((0,), folder / "checkpoints" / "seed0")
  group.write_shape(training.shape_of(_splits()))
  (folder / "config.json").write_text(config.to_json())
  _train(config, folder=group.folder)
  return folder


@pytest.mark.slow
@pytest.mark.parametrize("head", ["variational", "masked", "simplex_etf"])
def test_the_second_stage_leaves_the_extractor_as_the_first_one_left_it(head):
  """To the bit, with its batch statistics, also beside a head that has batch statistics or draws of its own."""
  plain = ("loss.primary.name=cross_entropy", "loss.secondary.name=")
  first, _ = _train(_config("linear", *plain))
  both, _ = _train(_config(head, *plain, "training.schedule=two_stage"))
  assert int(both.step[0]) == 2 * int(first.step[0])
  for kind in ("params", "batch_stats"):
    before, after = (flax.traverse_util.flatten_dict(getattr(state, kind)) for state in (first, both))
    paths = [path for path in before if path[0] != "head"]
    assert paths and {path for path in after if path[0] != "head"} == set(paths)
    for path in paths:
      np.testing.assert_array_equal(before[path], after[path], err_msg=str(path))
