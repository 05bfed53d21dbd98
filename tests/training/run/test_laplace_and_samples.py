"""Runs with sampled predictions, and with rows whose last layer has a posterior."""

import json
import shutil

import numpy as np
import pytest
from scipy.special import softmax

from calib_jax import evaluation
from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training import run
from calib_jax.training.last_layer import laplace
from calib_jax.training.run import Run, execution
from calib_jax.training.run.directory import other_predictions
from calib_jax.training.run.methods import method_name, plain_cross_entropy
from tests.programs import never
from tests.training.small import digits

pytestmark = [pytest.mark.xdist_group("laplace"), pytest.mark.usefixtures("no_figures")]
SMALL = ("num_seeds=2", "compare_with_cross_entropy=False", "training.num_steps=6", "evaluation.num_resamples=10",
         "model.hidden=(8,)", "evaluation.recommended=False", "loss.primary.name=cross_entropy", "loss.secondary.name=",
         "model.dropout=0.3")
NAME = "cross_entropy, dropout 0.3"


def _config(*overrides):
  config = digits(*SMALL, *overrides)
  run_config.check(config, 1)
  return config


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  folder = tmp_path_factory.mktemp("run") / "run"
  run.execute(_config("evaluation.samples=4", "evaluation.laplace=full", "evaluation.corruptions=('fog',)",
                      "evaluation.severities=(2,)", "evaluation.ensemble=True", "data.split_seed=1"), folder)
  return folder


def _map_logits(loaded, features, seed):
  head = {name: np.asarray(x) for name, x in loaded.variables(seed)["params"]["head"].items()}
  return features @ head["kernel"] + head["bias"]


def _nll(log_probs, labels):
  return -np.mean(log_probs[np.arange(len(labels)), labels])


@pytest.mark.slow
def test_predictions_are_of_as_many_samples_in_files_and_afterwards(finished):
  loaded = Run.load(finished)
  test = loaded.splits(1).test
  saved = evaluation.load(finished / "predictions/test_seed1.npz").logits
  np.testing.assert_array_equal(loaded.predict(test.images, seed=1), saved)
  np.testing.assert_allclose(np.exp(saved).sum(1), 1, rtol=1e-5)
  np.testing.assert_allclose(loaded.predict(test.images[5:9], seed=1), saved[5:9], rtol=1e-4, atol=1e-5)
  plain = _map_logits(loaded, loaded.features(test.images, seed=1), 1)
  assert np.abs(np.exp(saved) - np.exp(plain) / np.exp(plain).sum(1, keepdims=True)).max() > 1e-3


@pytest.mark.slow
def test_an_ensemble_is_the_mean_of_the_probabilities_of_its_seeds(finished):
  with pytest.raises(UserError, match="evaluation.ensemble needs the models of several seeds, and one validation"):
    _config("evaluation.ensemble=True")
  loaded = Run.load(finished)
  splits = loaded.splits(0)
  np.testing.assert_array_equal(splits.validation.images, loaded.splits(1).validation.images)
  members = np.stack([softmax(loaded.predict(splits.test.images, seed=seed), axis=1) for seed in (0, 1)])
  assert np.abs(members[0] - members[1]).max() > 1e-3
  np.testing.assert_allclose(np.exp(loaded.predict(splits.test.images)), members.mean(0), rtol=1e-5, atol=1e-6)
  rows = json.loads((finished / "results.json").read_text())["results"]["test"]
  for name, is_each in ((f"{NAME}, 4 samples", False), (f"{NAME}, 4 samples, ensemble of 2", False),
                        (f"{NAME}, 4 samples, ensemble of 2, TS of each", True)):
    assert list(rows[name]) == (["none"] if is_each else ["none", "TS"])
  np.testing.assert_allclose(rows[f"{NAME}, 4 samples, ensemble of 2"]["none"]["nll"]["value"],
                             _nll(np.log(members.mean(0)), splits.test.labels), rtol=1e-5)


@pytest.mark.slow
def test_tables_have_the_rows_of_the_laplace_approximation_of_training_features(finished):
  rows = json.loads((finished / "results.json").read_text())["results"]
  assert list(rows) == ["test", "fog_2"]
  expected = [f"{NAME}, 4 samples", f"{NAME}, Laplace"]
  expected += [f"{name}, ensemble of 2{end}" for name in expected for end in ("", ", TS of each")]
  assert list(rows["test"]) == expected and all("TS" in rows["test"][name] for name in expected[:3])
  loaded, nll = Run.load(finished), []
  for seed in (0, 1):
    splits, head = loaded.splits(seed), loaded.variables(seed)["params"]["head"]
    features = loaded.features(splits.train.images, seed=seed)
    posterior = laplace.fit(features, splits.train.labels, hessian="full", **head)
    log_probs = posterior.log_probs(loaded.features(splits.test.images, seed=seed))
    nll.append(_nll(log_probs, splits.test.labels))
    assert loaded.laplace(seed).prior_precision == posterior.prior_precision
    saved = evaluation.load(finished / f"predictions/laplace_full/test_seed{seed}.npz")
    np.testing.assert_allclose(saved.logits, log_probs, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(saved.train_counts, np.bincount(splits.train.labels, minlength=10))
  np.testing.assert_allclose(rows["test"][f"{NAME}, Laplace"]["none"]["nll"]["value"], np.mean(nll), rtol=1e-5)


@pytest.mark.slow
def test_another_approximation_needs_no_training_and_other_samples_need_other_predictions(finished, tmp_path, capsys):
  shutil.copytree(finished, tmp_path / "run")
  before = (tmp_path / "run/predictions/laplace_full/test_seed0.npz").read_bytes()
  fields = ("data.split_seed=1", "evaluation.laplace=kronecker")
  run.execute(_config("evaluation.samples=4", *fields), tmp_path / "run", hooks=[never])
  rows = json.loads((tmp_path / "run/results.json").read_text())["results"]["test"]
  actual = evaluation.load(tmp_path / "run/predictions/laplace_kronecker/test_seed0.npz")
  assert list(rows) == [f"{NAME}, 4 samples", f"{NAME}, Laplace"]
  loaded = Run.load(tmp_path / "run")
  features = loaded.features(loaded.splits(0).test.images)
  assert isinstance(loaded.laplace().hessian, laplace.Kronecker)
  np.testing.assert_allclose(actual.logits, loaded.laplace().log_probs(features), rtol=1e-5, atol=1e-6)
  assert (tmp_path / "run/predictions/laplace_full/test_seed0.npz").read_bytes() == before
  with pytest.raises(UserError, match=r"evaluation.samples was 4 and is 5 \(predictions are made anew if their dir"):
    run.execute(_config("evaluation.samples=5", *fields), tmp_path / "run", hooks=[never])
  shutil.rmtree(tmp_path / "run/predictions")
  run.execute(_config("evaluation.samples=0", *fields), tmp_path / "run", hooks=[never])
  loaded = Run.load(tmp_path / "run")
  np.testing.assert_allclose(loaded.saved("test")[0].logits, _map_logits(loaded, features, 0), rtol=1e-4, atol=1e-4)
  # What this config does not predict is not missed: the full approximation, and the corrupted images.
  assert "cannot be made anew" not in capsys.readouterr().err
  run.execute(_config("evaluation.samples=0", *fields), tmp_path / "run", hooks=[never])
  assert "warning" not in capsys.readouterr().err


def test_what_predictions_another_config_cannot_use(tmp_path):
  configs = [_config(*options) for options in ((), ("evaluation.samples=4",))]
  sets = [_config(f"evaluation.ood=('{name}/noise.npz',)") for name in ("old", "new")]
  for name in ("baseline/predictions", "predictions"):
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "test_seed0.npz").touch()
    expected = ["evaluation.samples was 0 and is 4 (predictions are made anew if their directory is deleted)"]
    assert other_predictions(tmp_path, *configs) == (expected if name == "predictions" else [])
    assert other_predictions(tmp_path, *sets) == []
  (tmp_path / "baseline/predictions/noise_seed0.npz").touch()
  same = "the files named noise in evaluation.ood differ (predictions are made anew if "
  assert other_predictions(tmp_path, *sets) == [f"{same}baseline/predictions/ is deleted)"]
  (tmp_path / "predictions/laplace_full").mkdir()
  (tmp_path / "predictions/laplace_full/noise_seed0.npz").touch()
  assert other_predictions(tmp_path, *sets) == [f"{same}predictions/ and baseline/predictions/ are deleted)"]
  # A set that the last command did not have, and whose predictions an earlier one left.
  phrase, = other_predictions(tmp_path, _config(), sets[1])
  assert phrase.startswith("the files named noise in evaluation.ood were predicted by an earlier command, maybe from")


@pytest.mark.slow
def test_what_no_approximation_is_for_is_refused(finished, tmp_path, monkeypatch):
  with pytest.raises(UserError, match="evaluation.laplace must be one of '' for none, auto, full, kronecker: got"):
    _config("evaluation.laplace=diag")
  monkeypatch.setattr(laplace, "LARGEST_FULL", 10)
  loaded = Run.load(finished)
  with pytest.raises(UserError, match="evaluation.laplace: hessian 'full' is for at most 10 weights: got 90"):
    loaded.laplace()
  with pytest.raises(UserError, match="evaluation.laplace: hessian 'full' is for at most 10 weights: got 90"):
    run.execute(_config("evaluation.laplace=full"), tmp_path / "large")
  assert not (tmp_path / "large").exists()  # It is refused before anything trains.
  with loaded.config.unlocked():
    loaded.config.head.name = "two_stage"
  with pytest.raises(UserError, match="for the head 'linear', whose one layer it approximates: this run's is 'two"):
    loaded.laplace()


def test_one_network_has_one_row_of_its_approximation():
  """Stochastic depth is part of the model, so the baseline of plain cross entropy with samples is the same network."""
  fields = ("loss.primary.name=cross_entropy", "loss.secondary.name=", "model.name=resnet8", "model.last_survival=0.5",
            "evaluation.samples=4", "evaluation.laplace=full")
  config = digits(*fields)
  methods = [method_name(plain_cross_entropy(config)), method_name(config)]
  assert methods == ["cross_entropy", "cross_entropy, 4 samples"]
  assert execution.of_networks(config, methods) == {"cross_entropy, Laplace": "cross_entropy"}
  config = _config("evaluation.samples=4")
  plain = plain_cross_entropy(config)
  methods = [method_name(plain), method_name(config)]
  assert methods == ["cross_entropy", f"{NAME}, 4 samples"] and plain.model.dropout == plain.evaluation.samples == 0
  assert execution.of_networks(config, methods) == {
    "cross_entropy, Laplace": "cross_entropy", f"{NAME}, Laplace": f"{NAME}, 4 samples"}
