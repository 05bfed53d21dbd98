"""Under every schedule, and with every head, a run goes on to the same bits after its process died."""

import pytest

from calib_jax import training
from calib_jax.training.engine import program
from tests.training.small import assert_same, built, finished, train
from tests.training.test_heads_compose import configured

TINY = ("model.hidden=(5,)", "loss.primary.name=cross_entropy", "loss.secondary.name=", "training.num_epochs=3",
        "checkpoint.every_steps=2")
CACHED = "two_stage, cached features"
# Every schedule and every head; all their pairs take two minutes.
DYING = (("joint", "masked"), ("interleaved", "two_stage"), ("classifier_retraining", "variational"),
         ("warm_start", "simplex_etf"), ("layer_peeled", "variational"), ("two_stage", "simplex_etf"),
         (CACHED, "masked"))


@pytest.fixture(scope="module")
def first(tmp_path_factory):
  """The directory of a finished run with a linear head, for schedules that start from one."""
  folder = tmp_path_factory.mktemp("first")
  finished(configured("linear", *TINY), folder)
  return folder


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "head"), DYING)
def test_a_run_that_dies_goes_on_to_the_same_bits(schedule, head, first, tmp_path, monkeypatch):
  """It dies twice, and loses the steps after its last checkpoint; a stage has 9 steps, or 6 if it is the second.

  All parts of the run use one compiled program, which takes most of the time. Runs in processes of their own, each with
  its own program, are in test_resuming.
  """
  options = (f"schedule.name={schedule.split(',')[0]}",)
  options += ("schedule.stage2_epochs=2",) if "two_stage" in schedule or "classifier" in schedule else ()
  options += ("schedule.cache_features=true",) if schedule == CACHED else ()
  options += (f"schedule.workdir={first}",) if schedule == "warm_start" else ()
  options += ("loss.secondary.name=soft_avuc", "data.held_out_fraction=0.4") if schedule == "interleaved" else ()
  assert {name.split(",")[0] for name, _ in DYING} == training.SCHEDULES.keys()
  config = configured(head, *TINY, *options)
  whole_run, _ = built(config)
  monkeypatch.setattr(program, "build", lambda *arguments: whole_run)
  whole, _ = train(config, predicted=())
  for death in (5, whole_run.num_steps - 1):
    def die(step, measured, death=death):
      if step == death:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
      train(config, folder=tmp_path, predicted=(), hooks=[die])
    last = training.Checkpoints(tmp_path)
    assert last.last == (death - 1) // 2 * 2  # The checkpoints are those of even steps.
    last.close()
  assert_same(whole, train(config, folder=tmp_path, predicted=())[0])
