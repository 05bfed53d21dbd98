"""Under every schedule, and with every head, a run goes on to the same bits after its process died."""

import jax
import pytest

from calib_jax import config as run_config
from calib_jax import training
from calib_jax.training.engine import program
from tests.training.small import assert_same, tiny_splits, train
from tests.training.test_heads_compose import configured


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """The directory of a finished run with a linear head, for schedules that start from one."""
  folder = tmp_path_factory.mktemp("first")
  config = configured("linear", *TINY)
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
  config = configured(head, *TINY, *options)
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
