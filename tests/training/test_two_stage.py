"""Two-stage training: the extractor stays to the bit, and only a new head trains, on images as they are stored."""

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import training
from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training.engine import feeding, stages
from calib_jax.training.run_log.progress import Progress
from tests.training.small import PLAIN, assert_same, built, finished, one_step, short, tiny_splits, train

pytestmark = pytest.mark.xdist_group("two_stage")  # One worker makes what most of these tests share.
SMALL = (*PLAIN, "training.num_epochs=1", "model.name=simple_cnn", "model.channels=(4,)", "optimizer.l2=0.01",
         "augmentation.name=crop_flip", "augmentation.padding=1")
TWO_STAGE = ("schedule.name=two_stage", "schedule.stage2_epochs=2")
HEADS = {"two_stage": ("head.name=two_stage", "head.width=4"), "linear": ("head.name=linear",)}


@pytest.fixture(scope="module")
def first_stage(tmp_path_factory):
  """A finished run of the first stage alone: its state and its directory."""
  folder = tmp_path_factory.mktemp("stage1")
  return finished(short(*SMALL), folder), folder


def _extractor(state):
  return {(kind, *path): x for kind in ("params", "batch_stats")
          for path, x in flax.traverse_util.flatten_dict(getattr(state, kind)).items() if path[0] != "head"}


def _frozen(before, after):
  before, after = _extractor(before), _extractor(after)
  assert before.keys() == after.keys() and any(kind == "batch_stats" for kind, *_ in before)
  for path in before:
    np.testing.assert_array_equal(before[path], after[path], err_msg=str(path))


def test_the_extractor_and_its_batch_statistics_are_frozen_to_the_bit(first_stage, monkeypatch):
  state, _ = first_stage
  ends = []
  monkeypatch.setattr(Progress, "stage", lambda _, last_step: ends.append(last_step))
  both, (predictions,) = train(short(*SMALL, *TWO_STAGE, *HEADS["two_stage"]))
  assert int(state.step[0]) == 3 and int(both.step[0]) == 9 and ends == [3, 9]
  _frozen(state, both)
  assert predictions["test"]["logits"].shape == (10, 3)
  # The optimizer holds arrays of the head's shapes alone.
  assert {x.shape for x in jax.tree.leaves(both.opt_state)} <= {
    x.shape for x in jax.tree.leaves(both.params["head"])} | {(1,)}


def test_the_first_stage_may_be_a_finished_run(first_stage):
  state, folder = first_stage
  config = short(*SMALL, *TWO_STAGE, "head.name=linear", f"schedule.workdir={folder}")
  second, = training.plan(config)
  assert second.name == "head" and second.num_epochs == 2
  program, keys = built(config)
  assert program.num_steps == 6  # There is no first stage to train.
  begun = program.stages[0].start(None, keys)
  _frozen(state, begun)
  assert np.any(state.params["head"]["kernel"] != begun.params["head"]["kernel"])  # A linear head is new too.


@pytest.mark.slow
@pytest.mark.parametrize("head", [("head.name=masked", "head.width=6"), ("head.name=simplex_etf",)], ids=str)
def test_a_head_with_batch_statistics_of_its_own_leaves_the_extractor(head, first_stage):
  state, folder = first_stage
  options = ("model.channels=(4,)", "schedule.stage2_epochs=1", f"schedule.workdir={folder}")
  _frozen(state, train(short(*SMALL, *TWO_STAGE, *head, *options), predicted=())[0])


def test_the_second_stage_sees_images_as_they_are_stored():
  """The loss of the same batch does not depend on the step, whose number draws the crops of the first stage."""
  config = short(*SMALL, *TWO_STAGE, *HEADS["two_stage"], "stage2.optimizer.learning_rate=0.0")
  first, second = training.plan(config)
  assert first.augmentation is None and second.augmentation.name == "none" and first.head.name == "linear"
  program, keys = built(config, devices=1)
  stage, losses = program.stages[1], []
  for step in (0, 7):
    state = stage.start(program.stages[0].start(None, keys), keys)
    _, batch = next(stages.batches(stage.plan.phases, 0, [0], salt=1, batch_size=16, num_devices=1))
    _, measured = one_step(stage.train_steps[0], state._replace(step=jnp.array([step])), batch, keys)
    losses.append(float(measured["loss"][0]))
  assert losses[0] == losses[1]


@pytest.mark.slow
def test_the_second_stage_may_augment_images_and_leave_the_backbone_in_training_mode(first_stage):
  options = ("schedule.augment=true", "schedule.backbone_in_training_mode=true")
  config = short(*SMALL, *TWO_STAGE, *HEADS["two_stage"], *options, f"schedule.workdir={first_stage[1]}")
  assert training.plan(config)[0].augmentation is None
  before, after = (_extractor(state) for state in (first_stage[0], train(config, predicted=())[0]))
  for path in before:
    assert np.array_equal(before[path], after[path]) == (path[0] == "params"), path
  with pytest.raises(UserError, match="batch statistics that go on"):
    plain = (o for o in SMALL if not o.startswith("augmentation."))
    run_config.check(short(*plain, *TWO_STAGE, *HEADS["two_stage"], options[1], "schedule.cache_features=true"), 1)


def test_the_second_stage_may_have_batches_of_its_own_size():
  config = short(*SMALL, *TWO_STAGE, *HEADS["two_stage"], "schedule.stage2_batch_size=32")
  program, _ = built(config, devices=1)
  # 44 examples are 3 batches of 16, and 2 of 32.
  assert [(stage.last_step, stage.steps_per_epoch) for stage in program.stages] == [(3, 3), (7, 2)]
  large = short(*SMALL, *TWO_STAGE, *HEADS["two_stage"], "schedule.stage2_batch_size=64")
  with pytest.raises(UserError, match="schedule.stage2_batch_size: a batch of 64 is larger than the 44 examples"):
    training.check_phases(large, tiny_splits())


LOGITS = jnp.asarray(np.random.default_rng(0).normal(size=(8, 3)), jnp.float32)
LABELS = jnp.arange(8) % 3


@pytest.mark.slow
def test_the_second_stage_may_have_another_loss_than_the_first():
  """Table 3 of Ni et al.: cross entropy trains the new head of a network that another loss has trained."""
  focal = [o for o in SMALL if not o.startswith("loss.")] + ["loss.primary.name=focal", "loss.secondary.name=soft_avuc"]
  config = short(*focal, *TWO_STAGE, *HEADS["two_stage"], "stage2.loss.name=cross_entropy",
                 "training.validation_loss=objective")
  nll = -np.asarray(jax.nn.log_softmax(LOGITS))[np.arange(8), LABELS].mean()
  np.testing.assert_allclose(training.plan(config)[1].phases[0].loss_fn(LOGITS, LABELS)[0], nll, rtol=1e-5)
  result = [loss({}, LOGITS[None], LABELS[None]) for loss in built(config, devices=1)[0].validation_losses]
  np.testing.assert_allclose(result[1], [nll], rtol=1e-5)  # That of the stage, and not of the first one.
  assert abs(result[0] - result[1]) > 0.01


@pytest.mark.parametrize(("options", "reason"), [
  (("stage2.loss.name=focal",), "has no second stage"),
  ((*TWO_STAGE, "stage2.loss.name=soft_avuc"), "must be one of"),
  ((*TWO_STAGE, "stage2.loss.name=adaptive_focal"), "learns from all steps of a run"),
  ((*TWO_STAGE, "stage2.loss.name=focal", "stage2.loss.gamma=-1.0"), r"gamma must be in \[0, inf\)")])
def test_a_loss_that_the_second_stage_cannot_have_is_refused(options, reason):
  with pytest.raises(UserError, match=reason):
    run_config.check(short(*SMALL, *options), 1)


def test_the_second_stage_averages_where_the_first_one_sums():
  options = (*SMALL, *TWO_STAGE, *HEADS["two_stage"], "loss.secondary.name=soft_avuc", "loss.secondary.threshold=0.5")
  _, mean = training.plan(short(*options, "loss.weight=0.5"))
  # The weight is beside the sum over 16 examples.
  first, second = training.plan(short(*options, "loss.reduction=sum", "loss.weight=8.0"))
  assert first.sums and not second.sums
  np.testing.assert_allclose(*(stage.phases[0].loss_fn(LOGITS, LABELS)[0] for stage in (mean, second)), rtol=1e-6)


def test_features_that_are_computed_once_give_the_numbers_of_forward_passes(monkeypatch):
  plain = tuple(o for o in SMALL if not o.startswith("augmentation."))
  config = short(*plain, *TWO_STAGE, *HEADS["two_stage"])
  forward, (wanted,) = train(config)
  shapes, start = [], feeding.Feed.__init__

  def noted(feed, phases, *arguments, **options):
    shapes.append(phases[0].examples[0].images.shape)
    start(feed, phases, *arguments, **options)

  monkeypatch.setattr(feeding.Feed, "__init__", noted)
  with config.unlocked():
    config.schedule.cache_features = True
  cached, (predictions,) = train(config)
  assert shapes == [(44, 4, 4, 1), (44, 4)]  # The steps of the second stage do not get images.
  _frozen(forward, cached)
  assert_same(forward.params, cached.params, rtol=1e-4, atol=1e-6)
  assert_same(wanted, predictions, rtol=1e-4, atol=1e-5)
  assert np.abs(forward.params["head"]["logits"]["kernel"]).max() > 0.1


@pytest.mark.parametrize(("options", "reason"), [
  (("schedule.name=classifier_retraining",), "augmentation.name 'crop_flip' gives an image other features in each"),
  ((*TWO_STAGE, "head.name=simplex_etf"), "the head 'simplex_etf' reads the map before pooling, which is not kept")])
def test_features_that_cannot_be_kept_are_refused(options, reason):
  with pytest.raises(UserError, match=f"config key schedule.cache_features: {reason}"):
    run_config.check(short(*SMALL, *options, "schedule.cache_features=true"), 1)
