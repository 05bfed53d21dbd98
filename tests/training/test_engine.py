"""The engine's promises within one process: phases, seeds side by side, best_model, checkpoints, guard rails."""

import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from calib_jax import losses, training
from calib_jax._system.errors import UserError
from calib_jax.training import averages, best_model, checkpoints, data, models
from calib_jax.training.distributed.stopping import requests
from calib_jax.training.engine import stages
from calib_jax.training.run_log import progress
from tests.training.small import alone, assert_same, draw_fast, logged, short, stop, tiny_splits, train

# ---- schedules

def test_an_interleaved_epoch_takes_every_majority_and_then_every_held_out_example_once():
  config = short("schedule.name=interleaved", "data.held_out_fraction=0.4", "training.batch_size=8")
  splits = [tiny_splits(0), tiny_splits(1)]
  stage, = training.SCHEDULES["interleaved"](config, [s.train for s in splits], [0, 1])
  phases = stage.phases
  assert [(p.name, stages.phase_steps(p, 8)) for p in phases] == [("train", 4), ("held_out", 3)]  # 26 and 18 of 44.
  for part, split in zip(zip(*(phase.examples for phase in phases), strict=True), splits, strict=True):
    images = np.concatenate([p.images.reshape(-1, 16) for p in part])
    np.testing.assert_array_equal(np.unique(images, axis=0), np.unique(split.train.images.reshape(-1, 16), axis=0))
  options = {"batch_size": 8, "num_devices": 2, "host": (0, 1)}
  source = stages.batches(phases, 0, [0, 1], **options)
  order = [next(source) for _ in range(21)]
  assert [phase for phase, _ in order] == [0, 0, 0, 0, 1, 1, 1] * 3
  for epoch in range(3):
    for phase in (0, 1):
      for seed in (0, 1):
        taken = [batch["image"][:, seed][batch["mask"][:, seed]].reshape(-1, 16)
                 for p, batch in order[7 * epoch : 7 * epoch + 7] if p == phase]
        wanted = phases[phase].examples[seed].images.reshape(-1, 16)
        assert sorted(map(tuple, np.concatenate(taken))) == sorted(map(tuple, wanted))
  for start in (3, 4, 6, 7, 12):
    phase, batch = next(stages.batches(phases, start, [0, 1], **options))
    assert phase == order[start][0]
    assert_same(batch, order[start][1])


@pytest.mark.slow
def test_a_phase_minimises_its_own_loss_at_its_own_rate():
  # One epoch of one step each, of gradient descent from the same start, phase by phase.
  options = ("training.batch_size=64", "optimizer.momentum=0.0", "optimizer.schedule=constant", "loss.weight=0.7",
             "schedule.name=interleaved", "data.held_out_fraction=0.5", "schedule.secondary_rate=2.0")
  first, moved = (train(short(*options, f"training.num_steps={steps}"), predicted=())[0].params for steps in (1, 2))
  config, split = short(*options), tiny_splits()
  _, held_out = data.held_out(split.train, 0.5, 0)
  model = models.get(num_classes=3, **config.model)
  images = data.normalize(held_out.images, split.mean, split.std)

  def loss(params):
    return 0.7 * losses.soft_avuc(model.apply({"params": params}, images), held_out.labels, threshold=0.5,
                                  temperature=0.1)

  params = jax.tree.map(lambda x: x[0], first)
  step = jax.tree.map(lambda g: -2 * 0.05 * g[None], jax.jit(jax.grad(loss))(params))
  assert_same(jax.tree.map(np.subtract, moved, first), step, rtol=1e-3, atol=1e-7)


def test_a_run_too_short_for_its_second_phase_is_refused():
  options = ("schedule.name=interleaved", "data.held_out_fraction=0.4", "training.batch_size=8")
  for steps in (1, 4):  # The first phase has 4 steps and the second 3.
    with pytest.raises(UserError, match=f"num_steps: {steps} steps never reach the phase 'held_out' of .*begins "
                                        "after 4 steps of an epoch: set it to 7 or more"):
      training.check_phases(short(*options, f"training.num_steps={steps}"), tiny_splits())
  training.check_phases(short(*options, "training.num_steps=5"), tiny_splits())
  training.check_phases(short(*options), tiny_splits())


@pytest.mark.parametrize(("options", "reason"), [
  (("training.batch_size=64",), r"a batch of 64 is larger than the \d\d examples of the phase 'train' of .* 'joint', .*"
   r"set it to \d\d or less\.$"),
  (("schedule.name=interleaved", "data.held_out_fraction=0.1", "training.batch_size=16"),
   r"larger than the \d examples of the phase 'held_out' .*set it to \d or less, or raise data.held_out_fraction\.$"),
])
def test_a_batch_that_no_phase_can_fill_is_refused(options, reason):
  with pytest.raises(UserError, match=reason):
    training.check_phases(short(*options), tiny_splits())


@pytest.mark.slow
def test_batch_statistics_of_the_second_phase_may_stay():
  options = ("model.name=simple_cnn", "model.channels=(4,)", "schedule.name=interleaved", "training.batch_size=64")
  before, moving, frozen = (jax.tree.leaves(train(short(*options, *more), predicted=())[0].batch_stats) for more in (
    ("training.num_steps=1",), ("training.num_steps=2",), ("training.num_steps=2", "schedule.freeze_batch_stats=true")))
  assert_same(frozen, before)
  assert len(before) == 2 and all(np.any(a != b) for a, b in zip(moving, before, strict=True))


def test_every_step_draws_its_own_crops(tmp_path):
  """One example, and parameters that stay: only what is drawn can change the loss."""
  config = short("optimizer.learning_rate=0.0", "loss.secondary.name=", "augmentation.name=crop_flip")
  split = tiny_splits()
  split = split._replace(train=split.train.take(np.array([5])))
  _, lines = logged(tmp_path, config, splits=[split], predicted=())
  assert len({round(line["train/primary"], 4) for line in lines if "train/primary" in line}) == 3


# ---- seeds side by side, on any number of devices

TOGETHER = {
  "interleaved": ("schedule.name=interleaved",),
  "mixup, parts, best": ("model.name=simple_cnn", "model.channels=(4,)", "augmentation.name=mixup",
                         "augmentation.padding=1", "training.accumulation_steps=2", "training.select=best")}


@pytest.mark.parametrize("name", [
  name if name == "interleaved" else pytest.param(name, marks=pytest.mark.slow)
  for name in TOGETHER])
def test_neither_other_seeds_nor_devices_change_a_model(name, monkeypatch):
  """The last batch of 16 holds 12, so that some of the four devices have padding alone."""
  draw_fast(monkeypatch)
  config = short(*TOGETHER[name])
  together, results = train(config, (4, 7), devices=4)
  own, (predictions,) = train(config, (7,), devices=1)
  assert_same(jax.tree.map(lambda x: x[1:], together), own, rtol=2e-4, atol=1e-4)
  assert_same(results[1], predictions, rtol=1e-3, atol=2e-4)
  assert np.abs(results[0]["test"]["logits"] - results[1]["test"]["logits"]).max() > 0.01


# ---- accumulation


def test_a_part_of_padding_alone_leaves_batch_statistics_as_they_are():
  options = ("model.name=simple_cnn", "model.channels=(4,)", "training.num_epochs=2")
  split = tiny_splits()
  split = split._replace(train=split.train.take(np.arange(12)))
  padded, whole = (train(short(*options, f"training.batch_size={4 * parts}", f"training.accumulation_steps={parts}"),
                         splits=[split])[0] for parts in (4, 3))
  assert_same(padded.batch_stats, whole.batch_stats, rtol=1e-4, atol=1e-6)
  assert_same(padded.params, whole.params, rtol=1e-4, atol=1e-6)


# ---- pmap and shard_map

def test_shard_map_and_pmap_train_and_predict_the_same():
  options = ("schedule.name=interleaved", "training.num_epochs=2", "training.select=best", "num_seeds=2")
  (one, first), (two, second) = (train(short(*options, f"training.parallel={parallel}"), (0, 1), 8)
                                 for parallel in ("pmap", "shard_map"))
  assert_same(two, one, rtol=1e-5, atol=1e-6)
  assert_same(second, first, rtol=1e-5, atol=1e-5)


# ---- selection

def test_the_best_model_is_that_of_the_lowest_validation_loss_after_the_warm_up(tmp_path):
  # Validation labels are wrong, so that the loss rises as the model learns: the first epoch that counts is the best.
  split = tiny_splits()
  split = split._replace(validation=split.validation._replace(labels=(split.validation.labels + 1) % 3))
  options = ("training.evaluate_every_epochs=1", "loss.secondary.name=", "optimizer.schedule=constant")
  config = short(*options, "training.num_epochs=5", "training.select=best", "training.select_after_epochs=2")
  (_, (best,)), lines = logged(tmp_path, config, splits=[split])
  assert np.all(np.diff([line["validation/loss"] for line in lines if "validation/loss" in line]) > 0)
  _, (third,) = train(short(*options, "training.num_epochs=3"), splits=[split])
  np.testing.assert_allclose(best["test"]["logits"], third["test"]["logits"], rtol=1e-4, atol=1e-4)


def test_the_refined_nll_is_that_after_each_seeds_own_temperature():
  logits = np.random.default_rng(0).normal(size=(2, 200, 4)).astype(np.float32) * np.float32([1, 5])[:, None, None]
  labels = (logits + np.random.default_rng(1).gumbel(size=logits.shape) * 2).argmax(-1).astype(np.int32)
  scaled = np.float64(logits)[None] / np.geomspace(0.1, 50, 2000)[:, None, None, None]
  nll = special.logsumexp(scaled, -1) - np.take_along_axis(scaled, labels[None, ..., None], -1)[..., 0]
  np.testing.assert_allclose(best_model.refined_nll(logits, labels), nll.mean(-1).min(0), rtol=1e-4)


@pytest.mark.slow
def test_refined_selection_is_by_the_refined_nll(monkeypatch, tmp_path):
  refined = iter((3.0, 1.0, 2.0))
  monkeypatch.setattr(best_model, "refined_nll", lambda logits, labels: jnp.array([next(refined)]))
  train(short("training.evaluate_every_epochs=1", "training.select=refined"), folder=tmp_path, predicted=())
  best = checkpoints.newest(tmp_path)[1]["best"]
  assert best["step"] == [6] and best["loss"] == [1.0]


def test_each_seed_keeps_its_best_and_stops_at_its_own_patience():
  losses_of = np.array([[3, 4, 2, 5, 0], [1, 2, 2, 0.5, 0.1], [5, 4, 3, 2, 1]], np.float32)
  state = training.TrainState(jnp.zeros(3, jnp.int32), {"w": jnp.zeros((3, 2))}, {}, (), {}, jnp.zeros(3, jnp.int32))
  best, ended = best_model.start(state), []
  for step in range(5):
    state = state._replace(step=jnp.full(3, step + 1), params={"w": jnp.full((3, 2), step + 1.0)})
    best = best_model.update(best, state.step, averages.variables(state), losses_of[:, step], 2)
    ended.append(best_model.stopped(best, 2))
  np.testing.assert_array_equal(best.step, [5, 1, 5])
  np.testing.assert_array_equal(best.variables["params"]["w"][:, 0], [5, 1, 5])
  np.testing.assert_array_equal(best.loss, [0, 1, 1])
  assert ended == [False] * 5
  assert best_model.stopped(best._replace(since=jnp.array([2, 2, 3])), 2)


def test_a_run_stops_when_nothing_improves_and_resuming_it_does_not_go_on(tmp_path):
  config = short("training.select=best", "training.patience=2", "training.evaluate_every_epochs=1",
                 "training.num_epochs=40", "optimizer.learning_rate=0.0")
  state, (predictions,) = train(config, folder=tmp_path)
  assert int(state.step[0]) == 9  # The first evaluation is the best, and two more are no better.
  again, (same,) = train(config, folder=tmp_path)
  assert_same((state, predictions), (again, same))


def test_the_checkpoint_of_a_finished_run_is_read_and_not_called_damaged(tmp_path):
  results = [train(short("training.select=best"), folder=tmp_path) for _ in range(2)]
  assert_same(*results)
  assert (tmp_path / "9").is_dir() and not list(tmp_path.glob("*damaged*"))


# ---- states of losses

@pytest.mark.parametrize(("name", "options", "first"), [
  ("adaptive_focal", ("num_bins=3", "rate=2.0"), lambda logits, labels: losses.update_adaptive_focal(
    losses.init_adaptive_focal(3, 1.0), jax.nn.softmax(logits).max(-1), logits.argmax(-1) == labels, rate=2.0)),
  pytest.param("class_adaptive_label_smoothing", ("margin=0.5", "every=1"), lambda logits, labels:
               losses.update_class_adaptive(losses.init_class_adaptive(logits.shape[1]), 1, logits, margin=0.5,
                                            every=1), marks=pytest.mark.slow)])
def test_a_state_follows_the_validation_split_epoch_by_epoch(name, options, first):
  config = short(f"loss.primary.name={name}", *(f"loss.primary.{option}" for option in options), "loss.secondary.name=",
                 "training.num_epochs=2", "training.num_steps=3")  # The three steps of one epoch.
  state, (predictions,) = train(config)
  wanted, initial = jax.jit(first)(**predictions["validation"]), training.of_loss(config.loss, 3)[name].init()
  assert_same(alone(state.loss_states[name]), wanted, rtol=1e-3, atol=1e-6)
  assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(initial, wanted, strict=True))


def test_selective_risk_counts_the_scores_of_an_epoch_and_starts_the_next_from_zero(tmp_path):
  train(short("loss.primary.name=selective_risk", "loss.primary.num_bins=8", "loss.secondary.name=",
              "training.num_steps=4", "checkpoint.every_steps=1",
              "checkpoint.keep=4"), folder=tmp_path, predicted=())
  keeper = training.Checkpoints(tmp_path, keep=4)
  counts = [checkpoints.read(keeper.manager, step)["state"]["loss_states"]["selective_risk"]["counts"].sum()
            for step in (2, 3, 4)]
  keeper.close()
  assert counts == [32, 0, 16]  # An epoch of 44 examples has steps of 16, 16 and 12.


# ---- checkpoints

def _flip_bits(checkpoint, quarters):
  """Changes a bit at the ``quarters`` of every file of arrays: Orbax writes some of them twice, and reads one."""
  for file in (f for f in checkpoint.rglob("d/*") if f.is_file() and f.stat().st_size > 1000):
    content = bytearray(file.read_bytes())
    for quarter in quarters:
      content[quarter * len(content) // 4] ^= 1
    file.write_bytes(content)


def test_a_run_goes_on_from_its_newest_whole_checkpoint(tmp_path, capsys):
  config = short("checkpoint.every_steps=2", "checkpoint.keep=3", "training.select=best",
                 "training.evaluate_every_epochs=1")
  whole, (predictions,) = train(config)
  train(config, folder=tmp_path)
  assert sorted(p.name for p in tmp_path.iterdir()) == ["6", "8", "9"]
  # The newest loses half of its files' bytes, the one before has some bits changed.
  for file in (tmp_path / "9").rglob("*"):
    if file.is_file() and file.stat().st_size > 1000:
      file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
  _flip_bits(tmp_path / "8", (1, 2, 3))
  again, (same,) = train(config, folder=tmp_path)
  told = capsys.readouterr().err
  assert told.count("cannot be read whole") == 2 and f"{tmp_path / '9'} cannot" in told and "9.damaged" in told
  assert_same((whole, predictions), (again, same))
  assert (tmp_path / "9").exists()


@pytest.mark.parametrize(("name", "old", "new", "reason"), [
  ("default/_METADATA", b"skip_deserialize", b"skip_deserialise", "its metadata is damaged: KeyError: 'skip_deser"),
  ("default/_METADATA", b"{", b"[", "its metadata is damaged: JSONDecodeError"),
  ("_CHECKPOINT_METADATA", None, b"[]", "Metadata dict must be a dictionary"),
])
def test_a_refused_checkpoint_says_why(name, old, new, reason, tmp_path):
  keeper = checkpoints.Checkpoints(tmp_path)
  keeper.save(1, {"w": np.ones(3, np.float32)})
  keeper.close()
  path = tmp_path / "1" / name
  path.write_bytes(path.read_bytes().replace(old, new) if old else new)
  with pytest.raises(UserError, match=f"cannot be read whole.*{reason}") as error:
    checkpoints.newest(tmp_path)
  assert "\n" not in str(error.value)
  if old is None:
    with pytest.raises(UserError, match=f"cannot be opened .*{reason}"):
      checkpoints.Checkpoints(tmp_path)


def test_a_changed_bit_of_a_weight_is_found(tmp_path, capsys):
  """The storage itself does not notice it: numbers that hardly compress are stored as they are."""
  tree = {"w": np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)}
  keeper = training.Checkpoints(tmp_path)
  keeper.save(1, tree)
  keeper.save(2, tree)
  keeper.close()
  _flip_bits(tmp_path / "2", (2,))
  step, back = training.Checkpoints(tmp_path).restore(lambda step: tree)
  assert step == 1 and "its numbers are not those that were written" in capsys.readouterr().err
  assert_same(back, tree)


def test_a_disk_that_takes_no_more_is_one_sentence_and_harms_nothing(tmp_path, monkeypatch):
  keeper = training.Checkpoints(tmp_path, keep=2)
  tree = {"x": np.arange(4.0)}
  keeper.save(1, tree)
  keeper.close()
  keeper = training.Checkpoints(tmp_path, keep=2)

  def full(*args, **kwargs):
    raise ValueError("RESOURCE_EXHAUSTED: No space left on device")

  monkeypatch.setattr(keeper.manager, "save", full)
  with pytest.raises(UserError, match="no space is left.*the one of step 1 is whole.*the same command again"):
    keeper.save(2, tree)
  step, back = training.Checkpoints(tmp_path).restore(lambda step: tree)
  assert step == 1
  assert_same(back, tree)


class Output:
  """What a call of a step returns at once, and what it holds when the devices are ready."""

  def __init__(self, value):
    self.value, self.is_ready = value, False

  def block_until_ready(self):
    self.is_ready = True
    return self

  def __array__(self, dtype=None, copy=None):
    return self.value


def test_predictions_are_asked_for_one_call_at_a_time():
  """Two devices of a CPU with two threads waited for each other where 352 calls were queued, and JAX then aborts."""
  before = []

  def step(variables, batch):
    assert all(x.is_ready for x in before)
    before.append(Output(np.concatenate(batch["label"], 1)))
    return {"label": before[-1], "mask": Output(np.concatenate(batch["mask"], 1))}

  part = tiny_splits().train
  labels = training.predict(step, {}, [part], 8, training.Layout.of(jax.devices()[:2]))["labels"]
  np.testing.assert_array_equal(labels, [part.labels])
  assert len(before) == 6


# ---- what a run says

@pytest.mark.slow
def test_the_time_left_leaves_out_steps_that_do_something_for_the_first_time(monkeypatch):
  """Steps 1, 2, 3 and 6 are the first plain one, the first report, the first end of an epoch, and both in one."""
  counted = []
  monkeypatch.setattr(progress.Progress, "count", lambda _, steps, examples, seconds: counted.append((steps, examples)))
  train(short("training.log_every_steps=2", "loss.secondary.name="), predicted=())
  assert counted == [(1, 16), (2, 32), (1, 12)]  # Steps 4, 7 and 8, and 9; an epoch has 16, 16 and 12 examples.


# ---- guard rails

def test_a_loss_that_is_not_finite_stops_the_run_and_names_step_part_and_checkpoint(tmp_path):
  config = short("optimizer.learning_rate=1e30", "optimizer.schedule=constant", "checkpoint.every_steps=1")
  with pytest.raises(UserError, match=r"the (primary part of the loss|gradient) is (nan|inf) at step 2 \(seed 0\).*"
                                      r"lower optimizer.learning_rate.*the last checkpoint is .*/1, and a changed"):
    train(config, folder=tmp_path)
  assert [p.name for p in tmp_path.iterdir()] == ["1"]


class Poisoned(models.MODELS["mlp"]):
  """The features of a batch that holds a white image are not finite."""

  def __call__(self, x, **options):
    features = super().__call__(x, **options)
    return features._replace(vector=features.vector * jnp.where(jnp.any(jnp.min(x, axis=(1, 2, 3)) > 3), jnp.nan, 1))


def test_steps_that_are_not_finite_change_nothing_and_are_counted(monkeypatch):
  monkeypatch.setitem(models.MODELS, "poisoned", Poisoned)
  splits = tiny_splits()
  splits.train.images[5] = 255  # Example 0 also pads.
  state, _ = train(short("model.name=poisoned", "training.num_epochs=1", "training.max_skipped_steps=1"),
                   splits=[splits], predicted=())
  assert int(state.skipped[0]) == 1 and int(state.step[0]) == 3
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))


# ---- signals

def test_a_signal_ends_a_run_after_its_step(tmp_path):
  """By SIGINT; the tests of runs that go on send SIGTERM."""
  handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
  stop(short(), 5, tmp_path, signal.SIGINT, "SIGINT: train stopped after step 5 of 9; its state is in .*/5,")
  assert handlers == {n: signal.getsignal(n) for n in handlers}


def test_the_end_of_a_connection_stops_a_run_unless_it_is_ignored():
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # As ``nohup`` has it.
  try:
    with requests() as requested:
      signal.raise_signal(signal.SIGHUP)
      assert requested() == 0
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with requests() as requested:
      signal.raise_signal(signal.SIGHUP)
      assert requested() == signal.SIGHUP
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
  finally:
    signal.signal(signal.SIGHUP, before)
