"""Every head trains with losses, mixes, long-tailed data, seeds and calibrators by config alone, and in every schedule
goes on to the same bits after its process died."""

import itertools

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import calibrators, data, evaluation, losses, metrics, training
from calib_jax import config as run_config
from calib_jax.training.engine import program, stages
from tests.calibrators.data import CASES, SHAPE, made
from tests.programs import ROOT
from tests.training.small import assert_same, tiny_splits, train

HEADS = {"linear": (), "two_stage": ("head.width=4",), "variational": ("head.width=4", "head.num_samples=2"),
         "masked": ("head.width=6",), "simplex_etf": (), "shared_body": ("head.members=2", "head.width=6")}
CNN = ("model.name=simple_cnn", "model.channels=(10,)")
SMALL = ("training.batch_size=16", "training.num_epochs=1", "training.log_every_steps=1",
         "optimizer.learning_rate=0.05")
COMPOSED = {
  "focal, soft AvUC, several parts": (
    "loss.primary.name=focal", "loss.secondary.name=soft_avuc", "loss.secondary.threshold=0.5",
    "training.accumulation_steps=2", "augmentation.name=crop_flip", "augmentation.padding=1"),
  "mixup, Brier score and SB-ECE of devices": (
    "loss.primary.name=brier", "loss.secondary.name=soft_binned_ece", "loss.scope=device", "augmentation.name=mixup",
    "augmentation.padding=0"),
  "MIT-L, AdaFocal, summed": ("loss.primary.name=adaptive_focal", "loss.secondary.name=", "loss.reduction=sum",
                              "optimizer.clip_norm=1.0", "stage2.optimizer.clip_norm=1.0",
                              "augmentation.name=mixup_inference", "augmentation.padding=0"),
  "selective risk, SB-ECE, shard_map, cached features": (
    "loss.primary.name=selective_risk", "loss.secondary.name=soft_binned_ece", "training.parallel=shard_map",
    "schedule.cache_features=true"),
}


def _config(head, *overrides):
  model = () if any(o.startswith("model.") for o in overrides) else CNN
  chosen = (f"head.name={head}", *HEADS[head], *SMALL, *model, *overrides)
  config = run_config.load(str(ROOT / "configs/digits_savuc.py"), [f"--config.{o}" for o in chosen])
  run_config.check(config, 2)
  return config


def _composes():
  """Each head with one of the combinations, in turn; the steps of all heads and losses are traced below."""
  return [pytest.param(head, name, id=f"{head}: {name}")
          for head, name in zip(HEADS, itertools.cycle(COMPOSED), strict=False)]


@pytest.mark.slow
@pytest.mark.parametrize(("head", "name"), _composes())
def test_it_trains_on_long_tailed_data_with_two_seeds_and_is_calibrated(head, name):
  """Through both stages; a loss would be NaN, or the run stop with an error, if parts did not fit together."""
  config = _config(head, *COMPOSED[name], "schedule.name=two_stage", "data.name=digits_lt",
                   "data.imbalance_ratio=0.2", "training.num_steps=3", "schedule.stage2_epochs=1",
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


def _roles():
  """Each loss in each of its roles with one head, in turn."""
  roles = [*(("primary", name) for name in (*losses.PER_EXAMPLE, *losses.PER_BATCH)),
           *(("secondary", name) for name in losses.PER_BATCH)]
  return [(role, name, list(HEADS)[i % len(HEADS)]) for i, (role, name) in enumerate(roles)]


@pytest.mark.slow
@pytest.mark.parametrize(("role", "loss", "head"), _roles())
def test_its_step_is_built_with_every_loss(role, loss, head):
  """The step is traced on shapes; that each loss trains is shown in test_every_loss."""
  other = ("loss.secondary.name=",) if role == "primary" else ("loss.primary.name=cross_entropy",)
  threshold = (f"loss.{role}.threshold=0.5",) if loss == "avuc" else ()
  config = _config(head, "model.hidden=(5,)", *other, f"loss.{role}.name={loss}", *threshold)
  built = program.build(config, [tiny_splits()], [0], jax.devices()[:1]).stages[0]
  keys = jax.random.key(0)[None]
  state = jax.eval_shape(built.init, keys)
  _, batch = next(stages.batches(built.plan.phases, 0, [0], batch_size=16, num_devices=1))
  after, measured = jax.eval_shape(built.train_steps[0], state, batch, keys)
  assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
  assert role in measured and measured["loss"].shape == (1,)


SAVED = ("masked", "variational")  # Logits, and logarithms of mean probabilities.


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """The predictions of two heads after an epoch on digits, saved and read back, by head and split."""
  folder, found = tmp_path_factory.mktemp("predictions"), {}
  splits = data.load("digits", seed=0, validation_fraction=0.5)
  splits = splits._replace(validation=splits.validation.take(np.arange(SHAPE[0])))
  for head in SAVED:
    config = _config(head, "loss.primary.name=cross_entropy", "loss.secondary.name=", "training.batch_size=120",
                     "model.hidden=(32,)")
    _, (predictions,) = training.train(config, [splits], seeds=[0], devices=jax.devices()[:1])
    for split, arrays in predictions.items():
      evaluation.save(folder / f"{head}_{split}.npz", arrays["logits"], arrays["labels"])
      found[head, split] = evaluation.load(folder / f"{head}_{split}.npz")
  return found


@pytest.mark.slow
@pytest.mark.xdist_group("saved predictions")
@pytest.mark.parametrize("head", SAVED)
@pytest.mark.parametrize("name", ["temperature_scaling", "dirichlet", "isotonic", "structured_matrix_scaling"])
def test_calibrators_of_each_kind_fit_the_saved_predictions(name, head, saved):
  calibrator, validation, test = made(name, **CASES[name]), saved[head, "validation"], saved[head, "test"]
  params = calibrator.fit(validation.logits, validation.labels)
  fitted, log_probs = calibrator.apply(params, validation.logits), calibrator.apply(params, test.logits)
  assert log_probs.shape == test.logits.shape and np.isfinite(np.exp(log_probs)).all()
  np.testing.assert_allclose(np.exp(log_probs).sum(-1), 1, rtol=1e-5)
  before = metrics.nll(jax.nn.softmax(validation.logits), validation.labels)
  assert metrics.nll(jnp.exp(fitted), validation.labels) <= before + 1e-3


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """The directory of a finished run with a linear head, for schedules that start from one."""
  folder = tmp_path_factory.mktemp("first")
  config = _config("linear", *TINY)
  group = training.Group((0,), folder / "checkpoints" / "seed0")
  group.write_shape(training.shape_of(tiny_splits()))
  (folder / "config.json").write_text(run_config.to_json(config))
  train(config, folder=group.folder)
  return folder


TINY = ("model.hidden=(5,)", "loss.primary.name=cross_entropy", "loss.secondary.name=", "training.num_epochs=3",
        "checkpoint.every_steps=2")
CACHED = "two_stage, cached features"
# Every schedule and every head; all their pairs take two minutes.
DYING = (("joint", "masked"), ("interleaved", "two_stage"), ("classifier_retraining", "variational"),
         ("warm_start", "simplex_etf"), ("layer_peeled", "variational"), ("two_stage", "simplex_etf"),
         (CACHED, "masked"))


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "head"), DYING)
def test_a_run_that_dies_goes_on_to_the_same_bits(schedule, head, finished, tmp_path, monkeypatch):
  """It dies twice, and loses the steps after its last checkpoint; a stage has 9 steps, or 6 if it is the second.

  All parts of the run use one compiled program, which takes most of the time. Runs in processes of their own, each with
  its own program, are in test_resuming.
  """
  options = (f"schedule.name={schedule.split(',')[0]}",)
  options += ("schedule.stage2_epochs=2",) if "two_stage" in schedule or "classifier" in schedule else ()
  options += ("schedule.cache_features=true",) if schedule == CACHED else ()
  options += (f"schedule.workdir={finished}",) if schedule == "warm_start" else ()
  options += ("loss.secondary.name=soft_avuc", "data.held_out_fraction=0.4") if schedule == "interleaved" else ()
  assert {name.split(",")[0] for name, _ in DYING} == training.SCHEDULES.keys()
  config = _config(head, *TINY, *options)
  built = program.build(config, [tiny_splits()], [0], jax.devices()[:2])
  monkeypatch.setattr(program, "build", lambda *arguments: built)
  whole, _ = train(config, predicted=())
  for death in (5, built.num_steps - 1):
    def die(step, measured, death=death):
      if step == death:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
      train(config, folder=tmp_path, predicted=(), hooks=[die])
    last = training.Checkpoints(tmp_path)
    assert last.last == (death - 1) // 2 * 2  # The checkpoints are those of even steps.
    last.close()
  assert_same(whole, train(config, folder=tmp_path, predicted=())[0])


@pytest.mark.slow
@pytest.mark.parametrize("head", ["variational", "masked", "simplex_etf", "shared_body"])
def test_the_second_stage_leaves_the_extractor_as_the_first_one_left_it(head):
  """To the bit, with its batch statistics, also beside a head that has batch statistics or draws of its own."""
  plain = ("loss.primary.name=cross_entropy", "loss.secondary.name=")
  first, _ = train(_config("linear", *plain))
  both, _ = train(_config(head, *plain, "schedule.name=two_stage", "schedule.stage2_epochs=1"))
  assert int(both.step[0]) == 2 * int(first.step[0])
  for kind in ("params", "batch_stats"):
    before, after = (flax.traverse_util.flatten_dict(getattr(state, kind)) for state in (first, both))
    paths = [path for path in before if path[0] != "head"]
    assert paths and {path for path in after if path[0] != "head"} == set(paths)
    for path in paths:
      np.testing.assert_array_equal(before[path], after[path], err_msg=str(path))
