"""The search of Appendix G: its order, its rule, what it keeps, and the rows that stop it from training again."""

import shutil

import numpy as np
import pytest

from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from configs import common
from experiments import tune
from experiments.common import rows, settings, tuning
from experiments.common.commands import RESULTS
from experiments.leaderboard.methods import COMBINED, METHODS

CONFIG = settings.changed(run_config.load("configs/digits_savuc.py", []), {
  "loss.primary": {"name": "cross_entropy"}, "loss.secondary": {"name": "soft_avuc", "threshold": 0.5},
  "model.hidden": (4,), "training.num_steps": 2, "num_seeds": 2, "compare_with_cross_entropy": False})


def test_the_order_is_that_of_the_paper():
  assert list(tuning.search_space(CONFIG.loss.secondary)) == [
    "loss.secondary.threshold", "loss.secondary.temperature", "loss.weight", "optimizer.l2"]
  without = settings.changed(CONFIG, {"loss.secondary": {"name": ""}})
  assert list(tuning.search_space(without.loss.secondary)) == ["optimizer.l2"]


def test_the_best_gives_up_less_than_a_point_of_accuracy():
  trials = [tuning.Trial({"a": i}, *scores) for i, scores in enumerate(
    [(0.900, 0.05), (0.8901, 0.03), (0.8899, 0.01), (0.0, float("inf"))])]
  assert tuning.best(trials).fields == {"a": 1}
  with pytest.raises(UserError, match="none of the 1 settings trains: a = 3"):
    tuning.best(trials[3:])


def test_one_setting_after_another_keeps_the_best_of_those_before(tmp_path):
  asked = []

  def validate(config):
    weight, l2 = config.loss.weight, config.optimizer.l2
    asked.append((weight, l2))
    return 0.9, abs(weight - 0.3) + abs(l2 - 1e-3) * (1 + weight)

  search = {"loss.weight": (0.3, 3.0), "optimizer.l2": (1e-3, 2e-3)}
  path = tmp_path / "trials.csv"
  tuned = tuning.tuned(CONFIG, search, one_at_a_time=True, validate=validate, path=path)
  # The values that the config has are tried too, its weight 0.3 and its λ 0, and what lies beyond the best weight.
  assert CONFIG.loss.weight == 0.3
  assert asked == [(0.3, 0.0), (3.0, 0.0), (0.1, 0.0), (0.3, 1e-3), (0.3, 2e-3)]
  assert tuned.chosen == {"loss.weight": 0.3, "optimizer.l2": 1e-3}
  assert tuned.tried == {"loss.weight": [0.1, 0.3, 3.0], "optimizer.l2": [0.0, 1e-3, 2e-3]}
  assert (tuned.config.loss.weight, tuned.config.optimizer.l2) == (0.3, 1e-3)
  assert len(rows.read(path)) == 5
  again = tuning.tuned(CONFIG, search, one_at_a_time=True, validate=None, path=path)
  assert again.chosen == tuned.chosen and len(asked) == 5
  both = tuning.tuned(CONFIG, search, one_at_a_time=False, validate=validate, path=path)
  assert both.chosen == tuned.chosen and asked[5:] == [(3.0, 1e-3), (3.0, 2e-3), (0.1, 1e-3), (0.3, 5e-4)]


@pytest.mark.parametrize(("optimum", "tried"), [
  (4.0, (0.3, 1.0, 3.0, 10.0)), (0.3, (0.1, 0.3, 1.0)), (1e9, (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)),
  (0.1, (0.03, 0.1, 0.3, 1.0))])
def test_a_search_goes_on_until_the_best_lies_between_two_others_or_the_ladder_ends(optimum, tried):
  tuned = tuning.tuned(CONFIG, {"loss.weight": (0.3, 1.0)}, one_at_a_time=False, validate=lambda config: (
    0.9, abs(np.log(config.loss.weight / optimum))))
  assert tuned.tried == {"loss.weight": list(tried)}
  assert tuned.chosen["loss.weight"] == min(tried, key=lambda x: abs(np.log(x / optimum)))


def test_a_search_does_not_follow_an_error_that_accuracy_pays_for_and_names_have_no_next():
  tuned = tuning.tuned(CONFIG, {"loss.weight": (0.3, 1.0, 3.0)}, one_at_a_time=False, validate=lambda config: (
    0.9 - 0.02 * (config.loss.weight > 0.5), 1 / config.loss.weight))
  assert tuned.chosen == {"loss.weight": 0.3} and tuned.tried == {"loss.weight": [0.1, 0.3, 1.0, 3.0]}
  trials = [tuning.Trial({"loss.primary.confidence": name}, 0.9, 0.1) for name in ("msp", "margin")]
  assert not tuning.beyond(trials, trials[0].fields, tuning.LADDERS)


def test_every_number_that_a_method_tries_is_of_a_ladder_that_can_be_climbed():
  searched = {}
  for name, recipe in {**METHODS, **COMBINED}.items():
    for key, values in recipe.search.items():
      searched[key] = recipe.fields
      assert isinstance(values[0], str) or set(values) <= set(tuning.LADDERS[key]), name
  for key, fields in searched.items():
    ladder = tuning.LADDERS.get(key, ())
    assert [*ladder] == sorted(ladder)
    for x in (*ladder[:1], *ladder[-1:]):  # Both ends can be trained.
      settings.changed(run_config.complete(common.get_config().unlock()), {**fields, key: x})


@pytest.mark.slow
def test_a_setting_that_diverges_is_not_chosen():
  assert tuning.validation_scores(settings.changed(CONFIG, {"optimizer.learning_rate": 1e30})) == (0.0, float("inf"))


def test_configs_share_a_name_if_they_train_the_same_models():
  same = [{"evaluation.num_bins": 10}, {"num_seeds": 7}, {"data.dir": "elsewhere/tensorflow_datasets"},
          {"evaluation.laplace": "auto"}]
  other = [{"seed": 1}, {"loss.weight": 0.4}, {"data.path": "other.npz"}, {"model.dropout": 0.2},
           {"model.dropout": 0.2, "evaluation.samples": 4}]  # Saved predictions depend on the samples.
  assert {settings.digest(settings.changed(CONFIG, fields)) for fields in same} == {settings.digest(CONFIG)}
  assert len({settings.digest(settings.changed(CONFIG, fields)) for fields in other} | {settings.digest(CONFIG)}) == 6


def test_a_committed_page_is_made_from_its_trials(tmp_path, monkeypatch):
  monkeypatch.setattr(tuning, "validation_scores", None)  # Nothing is trained.
  committed = list(RESULTS.glob("tune_*.csv"))
  assert committed
  for path in committed:
    shutil.copy(path, tmp_path)
    assert tune.main([f"--config=configs/{path.stem.removeprefix('tune_')}.py", f"--workdir={tmp_path}"]) == 0
    page = path.with_suffix(".md")
    assert (tmp_path / page.name).read_text(encoding="utf-8") == page.read_text(encoding="utf-8")


def test_a_config_that_is_not_there_is_one_sentence(tmp_path, capsys):
  assert tune.main(["--config=configs/absent.py", f"--workdir={tmp_path}"]) == 2
  assert capsys.readouterr().out.startswith("error: ") and not list(tmp_path.iterdir())


def test_fields_and_values_of_ones_own_are_searched_one_by_one_or_as_a_grid(monkeypatch, tmp_path, capsys):
  tried = []

  def validate(config):
    tried.append((config.optimizer.learning_rate, config.optimizer.schedule, config.seed))
    return 0.9, abs(config.optimizer.learning_rate - 0.1) + (config.optimizer.schedule == "cosine")

  monkeypatch.setattr(tuning, "validation_scores", validate)
  command = ["--config=configs/digits_savuc.py", f"--workdir={tmp_path}", "--num_seeds=1", "--config.seed=100",
             "--search", "optimizer.learning_rate=0.01,0.1", "optimizer.schedule=cosine,constant"]
  assert tune.main([*command, "--grid"]) == 0
  assert tried == [(rate, name, 100) for rate in (0.01, 0.1) for name in ("cosine", "constant")]
  assert "Chosen: learning_rate 0.1, schedule constant." in capsys.readouterr().out
  assert tune.main(command) == 0 and len(tried) == 4  # Everything that it tries has been tried.
  for wrong, message in (("optimizer.l2", "must be a field and its values"), ("optimizer.l3=1", "does not exist"),
                         ("optimizer.l2=a", "must be of type float")):
    assert tune.main([*command[:3], "--search", wrong]) == 2
    assert message in capsys.readouterr().out
  assert tune.main([*command[:3], "--grid"]) == 2
