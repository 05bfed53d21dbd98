"""A run that is stopped goes on to the same bits, under every schedule, in every stage, and with every head.

Kills of processes are in test_resuming, and runs that die between checkpoints in test_dying.
"""

import numpy as np
import pytest

from tests.training.small import assert_same, digits, stop, train

SMALL = ("training.batch_size=16", "training.log_every_steps=1", "optimizer.learning_rate=0.05", "loss.secondary.name=")
MLP, CNN = ("model.hidden=(5,)",), ("model.name=simple_cnn", "model.channels=(4,)", "optimizer.l2=0.01")
TWO_STAGE = (*MLP, "training.num_epochs=1", "schedule.stage2_epochs=2", "loss.primary.name=cross_entropy",
             "schedule.name=two_stage")
RETRAIN = (*CNN, "training.num_epochs=2", "schedule.stage2_epochs=2", "schedule.name=classifier_retraining",
           "stage2.optimizer.weight_decay=0.1", "training.evaluate_every_epochs=1")
PEELED = ("model.name=simple_cnn", "model.channels=(4,4)", "training.num_epochs=3", "schedule.name=layer_peeled",
          "optimizer.l2=0.01", "optimizer.weight_decay=0.1", "optimizer.decay_norms_and_biases=true")
MASKED = (*TWO_STAGE, "head.name=masked", "head.width=6")
VARIATIONAL = (*TWO_STAGE, "head.name=variational", "head.width=4")
AUGMIX = (*MLP, "training.num_epochs=2", "augmentation.name=augmix", "augmentation.padding=0", "augmentation.width=1",
          "augmentation.depth=1", "checkpoint.every_steps=2")
DROPOUT = (*MLP, "training.num_epochs=3", "model.dropout=0.4", "evaluation.samples=7", "checkpoint.every_steps=2")
# The step after which the run is stopped, and its options; an epoch has 3 steps.
FAST = {
  "shard_map": (3, (*MLP, "training.num_epochs=2", "training.parallel=shard_map", "loss.secondary.name=soft_avuc")),
  "between stages": (6, (*RETRAIN, "training.select=best")),
}
SLOW = {
  "last": (6, RETRAIN), "second stage": (9, RETRAIN),
  "two_stage": (5, (*CNN, *TWO_STAGE[1:], "head.name=two_stage", "head.width=4", "augmentation.name=mixup",
                    "augmentation.padding=1")),
  "layer_peeled": (5, PEELED),
  "masked, best": (5, (*MASKED, "training.select=best")), "a mask an epoch": (6, (*MASKED, "head.per_epoch=true")),
  "masked, train, shard_map": (8, (*MASKED, "head.measured=train", "training.parallel=shard_map")),
  "variational": (5, VARIATIONAL),
  "simplex_etf": (4, (*CNN[:2], "training.num_epochs=2", "loss.primary.name=cross_entropy", "head.name=simplex_etf",
                      "head.target=0.6")),
  "AugMix, V-TST, parts": (4, (*AUGMIX, "head.name=variational", "head.width=4", "training.accumulation_steps=2")),
  "AugMix, SAM, EMA, AdaFocal": (4, (*AUGMIX, "optimizer.sharpness=0.1", "training.average=ema",
                                     "loss.primary.name=adaptive_focal")),
  "dropout, parts": (5, (*DROPOUT, "training.accumulation_steps=2")),
  "dropout, SAM, EMA, shard_map": (5, (*DROPOUT, "optimizer.sharpness=0.05", "training.average=ema",
                                       "training.parallel=shard_map")),
}


@pytest.mark.parametrize(("step", "options"), [
  *(pytest.param(*case, id=name) for name, case in FAST.items()),
  *(pytest.param(*case, id=name, marks=pytest.mark.slow) for name, case in SLOW.items())])
def test_a_run_that_is_stopped_goes_on_to_the_same_bits(step, options, tmp_path):
  config = digits(*SMALL, *options)
  whole = train(config)
  assert np.isfinite(whole[1][0]["test"]["logits"]).all()
  stop(config, step, tmp_path)
  assert_same(whole, train(config, folder=tmp_path))
