"""A run that is stopped goes on to the same bits, in every stage, and with the states of heads, losses and averages.

Kills of processes, which lose the steps after a checkpoint, are in test_resuming.
"""

import numpy as np
import pytest

from calib_jax import training
from tests.training.small import PLAIN, assert_same, draw_fast, finished, short, stop, train

CNN = ("model.name=simple_cnn", "model.channels=(4,)", "optimizer.l2=0.01")
RETRAIN = (*CNN, "training.num_epochs=2", "schedule.stage2_epochs=2", "schedule.name=classifier_retraining",
           "stage2.optimizer.weight_decay=0.1", "training.evaluate_every_epochs=1")
DROPOUT = ("model.dropout=0.4", "evaluation.samples=7", "checkpoint.every_steps=2")
# The step after which the run is stopped, and its options; an epoch has 3 steps.
FAST = {
  "shard_map": (3, ("training.num_epochs=2", "training.parallel=shard_map", "loss.secondary.name=soft_avuc")),
  "between stages": (6, (*RETRAIN, "training.select=best")),
}
SLOW = {
  "simplex_etf": (4, (*CNN[:2], "training.num_epochs=2", "loss.primary.name=cross_entropy", "head.name=simplex_etf",
                      "head.target=0.6")),
  "AugMix, V-TST, parts, summed": (4, (
    "training.num_epochs=2", "augmentation.name=augmix", "augmentation.width=1", "augmentation.depth=1",
    "head.name=variational", "head.width=4", "training.accumulation_steps=2", "loss.reduction=sum",
    "optimizer.clip_norm=1.0")),
  "dropout, SAM, EMA, AdaFocal, shard_map": (5, (
    *DROPOUT, "optimizer.sharpness=0.05", "training.average=ema", "training.parallel=shard_map",
    "loss.primary.name=adaptive_focal")),
}


@pytest.mark.parametrize(("step", "options"), [
  *(pytest.param(*case, id=name) for name, case in FAST.items()),
  *(pytest.param(*case, id=name, marks=pytest.mark.slow) for name, case in SLOW.items())])
def test_a_run_that_is_stopped_goes_on_to_the_same_bits(step, options, tmp_path, monkeypatch):
  draw_fast(monkeypatch)
  config = short("loss.secondary.name=", *options)
  whole = train(config)
  assert np.isfinite(whole[1][0]["test"]["logits"]).all()
  stop(config, step, tmp_path)
  assert_same(whole, train(config, folder=tmp_path))


@pytest.mark.slow
def test_a_warm_start_that_dies_goes_on_from_its_checkpoint_and_not_from_its_start(tmp_path):
  """It loses the step after its last checkpoint, which is of an even step."""
  plain = (*PLAIN, "training.num_epochs=2", "checkpoint.every_steps=2")
  finished(short(*plain), tmp_path)
  config = short(*plain, "schedule.name=warm_start", f"schedule.workdir={tmp_path}")
  whole = train(config)

  def die(step, measured):
    if step == 5:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    train(config, folder=tmp_path / "run", hooks=[die])
  last = training.Checkpoints(tmp_path / "run")
  assert last.last == 4
  last.close()
  assert_same(whole, train(config, folder=tmp_path / "run"))
