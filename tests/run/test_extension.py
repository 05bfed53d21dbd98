"""A run that is made longer equals one that began so, or says why it does not."""

import functools
import json
import shutil

import jax
import numpy as np
import pytest

from calib_jax import evaluation, run, training
from calib_jax._system.errors import UserError
from calib_jax.training import checkpoints
from tests.programs import never
from tests.training.small import digits

pytestmark = [pytest.mark.xdist_group("run"), pytest.mark.usefixtures("no_figures")]
SMALL = ("num_seeds=2", "compare_with_cross_entropy=False", "evaluation.num_resamples=20", "model.hidden=(8,)",
         "evaluation.calibrators={}", "optimizer.schedule=constant", "training.batch_size=544",
         "training.evaluate_every_epochs=1")  # An epoch has 2 steps.


_config = functools.partial(digits, *SMALL)


def _state(folder):
  step, tree = checkpoints.newest(folder / "checkpoints/seeds0-1")
  return step, jax.tree.leaves(tree)


@pytest.mark.parametrize(("options", "per_epoch"), [
  pytest.param(("training.average=ema",), 2, marks=pytest.mark.slow),
  pytest.param(("training.average=swa", "training.average_fraction=0.5"), 2, marks=pytest.mark.slow),
  pytest.param(("schedule.name=interleaved", "data.held_out_fraction=0.5", "training.batch_size=536"), 4,
               marks=pytest.mark.slow),
  (("training.select=best", "loss.primary.name=focal"), 2)])
def test_a_constant_rate_goes_on_to_the_bit(options, per_epoch, tmp_path, capsys):
  config = [_config(*options, f"training.num_epochs={epochs}") for epochs in (2, 5)]
  run.execute(config[0], tmp_path / "extended")
  with pytest.raises(RuntimeError, match="killed"):
    run.execute(config[1], tmp_path / "extended", hooks=[_killed])
  assert not (tmp_path / "extended/results.json").exists()  # What is left is not taken for that of the longer run.
  taken = []
  run.execute(config[1], tmp_path / "extended", hooks=[lambda step, measured: taken.append(step)])
  assert taken == list(range(2 * per_epoch + 1, 5 * per_epoch + 1))  # It went on from the checkpoint.
  out = capsys.readouterr()
  assert "goes on with training.num_epochs from 2 to 5, which equals a run that began so." in out.out
  assert "warning" not in out.err
  run.execute(config[1], tmp_path / "whole")
  for name in ("validation_seed0", "test_seed0", "test_seed1"):
    files = [tmp_path / folder / f"predictions/{name}.npz" for folder in ("extended", "whole")]
    np.testing.assert_array_equal(*(evaluation.load(file).logits for file in files))
  states = [_state(tmp_path / folder) for folder in ("extended", "whole")]
  assert states[0][0] == states[1][0] == 5 * per_epoch
  for ours, theirs in zip(states[0][1], states[1][1], strict=True):
    np.testing.assert_array_equal(ours, theirs)
  results = [json.loads((tmp_path / name / "results.json").read_text())["results"] for name in ("extended", "whole")]
  assert results[0] == results[1]
  entry, = json.loads((tmp_path / "extended/environment.json").read_text())["extensions"]
  assert entry == {"fields": {"training.num_epochs": [2, 5]}, "not_equal_because": "",
                   "steps": [2 * per_epoch, 5 * per_epoch]}
  capsys.readouterr()
  run.execute(config[1], tmp_path / "extended", hooks=[never])  # It is finished, and nothing is wrong with it.
  out = capsys.readouterr()
  assert not out.err and "made anew" not in out.out and "longer" not in out.out


def _killed(step, measured):
  """A hook that stands for a crash."""
  raise RuntimeError("killed")


@pytest.fixture(scope="module")
def cosine(tmp_path_factory):
  folder = tmp_path_factory.mktemp("cosine") / "run"
  run.execute(_config("optimizer.schedule=cosine", "training.num_epochs=2"), folder)
  return folder


def test_another_schedule_goes_on_only_if_told_to(cosine, tmp_path, capsys):
  folder = shutil.copytree(cosine, tmp_path / "run")
  longer = _config("optimizer.schedule=cosine", "training.num_epochs=4")
  with pytest.raises(UserError, match=r"training.num_epochs from 2 to 4 .*'cosine' .*was 0.0146 .* is 0.05 .*--extend"):
    run.execute(longer, folder, hooks=[never])
  assert (folder / "predictions/test_seed0.npz").exists() and (folder / "results.json").exists()
  run.execute(longer, folder, extend=True)
  assert _state(folder)[0] == 8
  assert "which no run that began so equals: the learning rate of the schedule 'cosine'" in capsys.readouterr().out
  run.execute(longer, folder, hooks=[never])
  assert "an earlier command made this run longer by --extend" in capsys.readouterr().out


@pytest.mark.parametrize("overrides", [
  ("training.num_epochs=1",), ("training.num_epochs=4", "optimizer.learning_rate=0.01")])
def test_a_shorter_run_and_other_changes_are_refused_with_both_values(overrides, cosine):
  with pytest.raises(UserError, match=r"another config \(.*training.num_epochs was 2 and is [14]"):
    run.execute(_config("optimizer.schedule=cosine", *overrides), cosine, hooks=[never], extend=True)


@pytest.mark.parametrize(("options", "reason"), [
  ((), None), (("training.select=best",), None), (("training.average=ema",), None),
  (("optimizer.warmup_epochs=1",), None),
  (("training.select=best", "training.evaluate_every_epochs=4"), "training.select 'best' has compared"),
  (("training.select=refined", "training.select_after_epochs=2"), "training.select 'refined' has compared"),
  (("training.average=swa",), None), (("training.average=swa", "training.average_fraction=1.0"), None),
  (("training.average=swa", "training.average_fraction=0.75"),
   "keeps in its mean 1 of the shorter run's models, of epoch 1, which a run"),
  (("training.average=swa", "training.select=best"), "training.average 'swa' has scored the validation split"),
  (("training.average=swa", "loss.primary.name=adaptive_focal"), "training.average 'swa' has scored the validation"),
  (("schedule.name=layer_peeled",), "the schedule 'layer_peeled' freezes layers"),
  (("head.name=masked",), "the head 'masked' changes"), (("head={'name': 'masked', 'adaptive': False}",), None),
  (("optimizer.schedule=piecewise",), "schedule 'piecewise' depends on the number of steps"),
])
def test_what_depends_on_the_length_is_named(options, reason):
  configs = [_config(*options, f"training.num_epochs={epochs}") for epochs in (2, 4)]
  actual = training.extension(*configs, run.data.load_splits(configs[0], 0))
  assert actual[:2] == (4, 8)
  assert actual.obstacles == () if reason is None else reason in actual.obstacles[0] and len(actual.obstacles) == 1
  assert training.extension(*configs[::-1], run.data.load_splits(configs[0], 0)) is None


def test_only_the_last_stage_can_become_longer():
  configs = {key: _config("schedule.name=two_stage", *fields) for key, fields in {
    "before": ("training.num_epochs=2", "schedule.stage2_epochs=2"),
    "first": ("training.num_epochs=3", "schedule.stage2_epochs=2"),
    "last": ("training.num_epochs=2", "schedule.stage2_epochs=3", "stage2.optimizer.schedule=constant")}.items()}
  splits = run.data.load_splits(configs["before"], 0)
  assert training.extension(configs["before"], configs["first"], splits) is None
  assert training.extension(configs["last"].copy_and_resolve_references(), configs["last"], splits).obstacles == ()
  assert "cosine" in training.extension(configs["before"], _config(
    "schedule.name=two_stage", "training.num_epochs=2", "schedule.stage2_epochs=3"), splits).obstacles[0]
