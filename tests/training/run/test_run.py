"""A finished run as an object: it predicts what it saved, on any data, and is not trained again for an evaluation."""

import functools
import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from calib_jax import evaluation, training
from calib_jax._system.errors import UserError
from calib_jax.cli import apply, evaluate, inputs
from calib_jax.evaluation.reports import formats
from calib_jax.training import data, run
from calib_jax.training.config.load import FORMAT
from calib_jax.training.run import Run
from calib_jax.training.run.methods import method_name, plain_cross_entropy, remarks
from tests.programs import never
from tests.training.small import digits

pytestmark = [pytest.mark.xdist_group("run"), pytest.mark.usefixtures("no_figures")]
SMALL = ("num_seeds=2", "compare_with_cross_entropy=False", "training.num_steps=6", "evaluation.num_resamples=20",
         "model.hidden=(8,)", "training.select=best")


_config = functools.partial(digits, *SMALL)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  folder = tmp_path_factory.mktemp("run") / "run"
  run.execute(_config(), folder)
  return folder


def test_it_predicts_to_the_bit_what_it_saved(finished):  # In a fresh process: tests/as_users.py.
  loaded = Run.load(finished)
  test = loaded.splits(1).test
  saved = evaluation.load(finished / "predictions/test_seed1.npz").logits
  np.testing.assert_array_equal(loaded.predict(test.images, seed=1), saved)


def _swap(path):
  """Replaces predictions by other ones in a file that is as valid."""
  predictions = evaluation.load(path)
  evaluation.save(path, -predictions.logits, predictions.labels)


def test_files_that_are_not_those_of_the_run_are_named(finished, tmp_path, capsys):
  folder = shutil.copytree(finished, tmp_path / "run")
  loaded = Run.load(folder)
  images = loaded.splits(0).test.images[:4]
  loaded.saved("test"), loaded.predict(images)
  assert capsys.readouterr().err == ""
  _swap(folder / "predictions/test_seed0.npz")
  loaded.saved("validation")
  assert capsys.readouterr().err == ""  # Only what is used is compared.
  loaded.saved("test")
  assert capsys.readouterr().err == (f"warning: files of the run in {folder} are not as it left them, so the numbers "
                                     "may not be those of this run: predictions/test_seed0.npz.\n")
  (folder / "checkpoints/seeds0-1/6/added").write_text("")
  (folder / "config.json").write_text((folder / "config.json").read_text().replace('"seed": 0', '"seed":  0'))
  loaded = Run.load(folder)
  assert "this run: config.json." in capsys.readouterr().err
  loaded.predict(images)
  assert "this run: checkpoints/seeds0-1/6." in capsys.readouterr().err
  # What images are standardised by is compared too, before a model predicts with it.
  shape = json.loads((folder / "checkpoints/seeds0-1.json").read_text())
  (folder / "checkpoints/seeds0-1.json").write_text(json.dumps(shape | {"std": [3 * x for x in shape["std"]]}))
  loaded = Run.load(folder)
  loaded.predict(images)
  assert "checkpoints/seeds0-1.json." in capsys.readouterr().err
  # Without the manifest nothing can be compared, which is said once.
  (folder / "manifest.json").unlink()
  loaded = Run.load(folder)
  loaded.saved("test"), loaded.predict(images)
  assert capsys.readouterr().err == (f"warning: there is no {folder / 'manifest.json'}, so it is not known whether the "
                                     "files of this run are those that it wrote.\n")


def test_commands_that_compare_runs_say_it_too(finished, tmp_path):
  folder, sentences = shutil.copytree(finished, tmp_path / "run"), []
  inputs.model(str(folder), "test", {}, say=sentences.append)
  assert sentences == []
  _swap(folder / "predictions/test_seed1.npz")
  inputs.model(str(folder), "test", {}, say=sentences.append)
  (folder / "manifest.json").unlink()
  inputs.model(str(folder), "test", {}, say=sentences.append)
  assert "predictions/test_seed1.npz" in sentences[0] and "there is no" in sentences[1] and len(sentences) == 2
  run.execute(_config(), folder, hooks=[never])


def test_a_run_that_never_finished_is_not_accused_and_its_predictions_are_compared(tmp_path, capsys):
  folder = tmp_path / "run"
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(run.Run, "predict_sets", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
      run.execute(_config(), folder)
  capsys.readouterr()
  Run.load(folder).saved("test")
  assert capsys.readouterr().err == ""
  _swap(folder / "predictions/test_seed0.npz")
  Run.load(folder).saved("test")
  assert "this run: predictions/test_seed0.npz." in capsys.readouterr().err
  with pytest.raises(UserError, match="are not as the run left them: delete predictions/test_seed0.npz, and the same"):
    run.execute(_config(), folder, hooks=[never])
  (folder / "predictions/test_seed0.npz").unlink()
  run.execute(_config(), folder, hooks=[never])
  assert "predictions/test_seed0.npz (deleted)." in capsys.readouterr().err


@pytest.mark.parametrize(("overrides", "name"), [
  ((), "focal + soft_avuc"), (("augmentation.name=crop_flip",), "focal + soft_avuc"),
  (("loss.primary.name=cross_entropy", "loss.secondary.name="), "cross_entropy"),
  (("loss.primary={'name': 'cross_entropy', 'label_smoothing': 0.1}", "loss.secondary.name="),
   "cross_entropy (label_smoothing 0.1)"),
  (("loss.primary.name=cross_entropy", "loss.secondary.name=", "head.name=masked", "schedule.name=two_stage",
    "schedule.cache_features=True"), "cross_entropy, masked head, two_stage"),
  (("loss.primary.name=cross_entropy", "loss.secondary.name=", "augmentation.name=mixup"), "cross_entropy, mixup"),
  (("loss.primary.name=cross_entropy", "loss.secondary.name=", "augmentation.name=augmix"), "cross_entropy, augmix"),
  (("augmentation.name=randaugment",), "focal + soft_avuc, randaugment"),
  (("schedule.name=classifier_retraining", "stage2.optimizer.sharpness=0.1"),
   "focal + soft_avuc, classifier_retraining, SAM in stage 2"),
  (("schedule.name=two_stage", "stage2.loss.name=cross_entropy"),
   "focal + soft_avuc, two_stage, cross_entropy in stage 2"),
])
def test_a_methods_name_holds_what_differs_from_plain_training(overrides, name):
  config = _config(*overrides)
  plain = plain_cross_entropy(config)
  assert method_name(config) == name and method_name(plain) == "cross_entropy"
  assert plain.head.name == "linear" and plain.schedule.name == "joint" and training.plan(plain)
  assert plain.augmentation.name == ("crop_flip" if config.augmentation.name != "none" else "none")
  with config.unlocked():
    config.compare_with_cross_entropy = True
  assert sum("compare_with_cross_entropy" in sentence for sentence in remarks(config)) == (name == "cross_entropy")


@pytest.mark.parametrize(("arrays", "message"), [
  (None, "there is no file"), ({"images": np.zeros((30, 4, 4), np.uint8)}, r"images of .*other.npz have the shape"),
])
def test_files_out_of_distribution_are_read_before_anything_is_trained(arrays, message, tmp_path):
  if arrays:
    np.savez(tmp_path / "other.npz", **arrays, labels=np.arange(30) % 3)
  with pytest.raises(UserError, match=message):
    run.execute(_config(f"evaluation.ood=('{tmp_path / 'other.npz'}',)"), tmp_path / "run", hooks=[never])
  assert not (tmp_path / "run").exists()


def test_a_shifted_set_is_evaluated_without_training(finished):
  loaded = Run.load(finished)
  foggy = {"name": "digits", "corruption": "fog", "severity": 5}
  tables = loaded.evaluate({"test": None, "fog": foggy, "mine": tuple(loaded.splits(0).test)})
  assert list(tables) == ["test", "fog", "mine"] and list(tables["fog"]) == ["none", "TS", "SVS"]
  written = json.loads((finished / "results.json").read_text())["results"]["test"]
  assert formats.plain(tables["test"]) == written["focal + soft_avuc"]
  images, labels = data.load("digits", seed=0, validation_fraction=0.25, corruption="fog", severity=5).test
  accuracy = np.mean(loaded.predict(images, seed=0).argmax(1) == labels)
  np.testing.assert_allclose(tables["fog"]["none"]["accuracy"].per_seed[0], accuracy, rtol=1e-6)
  assert tables["mine"]["none"]["accuracy"].per_seed[0] == tables["test"]["none"]["accuracy"].per_seed[0]


@pytest.mark.slow
def test_what_changes_evaluation_evaluates_again_and_what_changes_training_is_another_run(finished, tmp_path):
  before = {path: path.read_bytes() for path in finished.glob("predictions/*_seed?.npz")}
  images = np.random.default_rng(0).integers(0, 256, (100, 8, 8), dtype=np.uint8)
  np.savez(tmp_path / "noise.npz", images=images, labels=np.arange(100) % 10)
  np.save(tmp_path / "snow.npy", images[..., None])
  np.save(tmp_path / "labels.npy", np.arange(100) % 10)
  published = f"'{tmp_path / 'snow.npy'}'"
  run.execute(_config("evaluation.num_bins=7", f"evaluation.corruptions=('fog', {published})",
                      "evaluation.severities=(2, 4)",
                      f"evaluation.ood=('{tmp_path / 'noise.npz'}',)", "evaluation.save_features=True",
                      "evaluation.predict_train=True"), finished, hooks=[never])
  results = json.loads((finished / "results.json").read_text())
  assert {name: size["kind"] for name, size in results["settings"]["sets"].items()} == {
    "test": "in_distribution", "fog_2": "shifted", "fog_4": "shifted", f"{tmp_path.name}_snow_2": "shifted",
    f"{tmp_path.name}_snow_4": "shifted", "noise": "out_of_distribution", "train": "in_distribution"}
  assert list(results["results"]["fog_4"]["focal + soft_avuc"]) == ["none", "TS", "SVS"]
  assert "auroc" in results["detection"]["noise"]["focal + soft_avuc"]["none"]["msp"]
  fog = evaluation.load(finished / "predictions/fog_4_seed0.npz")
  assert fog.kind == "shifted" and fog.features.shape == (359, 8)
  assert all(path.read_bytes() == content for path, content in before.items())
  assert json.loads((finished / "config.json").read_text())["evaluation"]["num_bins"] == 7
  with pytest.raises(UserError, match=r"\(the files named noise in evaluation.ood differ \(predictions are made anew "
                     r"if predictions/ is deleted\)\)"):
    run.execute(_config("evaluation.ood=('elsewhere/noise.npz',)"), finished)
  with pytest.raises(UserError, match=r"\(the files named .*_snow in evaluation.corruptions differ \(pred"):
    run.execute(_config(f"evaluation.corruptions=('elsewhere/{tmp_path.name}/snow.npy',)",
                        "evaluation.severities=(2, 4)"), finished)


@pytest.mark.slow
def test_a_finished_run_that_cannot_be_written_is_reported_again_without_its_lock(finished, tmp_path, monkeypatch,
                                                                                 capsys):
  folder = shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("lock"))
  monkeypatch.setattr(os, "access", lambda path, mode: False)
  capsys.readouterr()
  run.execute(_config(), folder, hooks=[never])
  text = capsys.readouterr().out
  assert text.startswith(f"{folder} is read-only: these are the results as the run wrote them.")
  assert (folder / "results.md").read_text(encoding="utf-8").strip() in text and not (folder / "lock").exists()
  with pytest.raises(UserError, match="holds a run of another config"):
    run.execute(_config("optimizer.learning_rate=0.01"), folder)


def test_more_seeds_train_only_those_that_are_new(finished, tmp_path):
  folder = tmp_path / "run"
  shutil.copytree(finished, folder)
  models_in_step = []
  run.execute(_config("num_seeds=3"), folder,
              hooks=[lambda step, measured: models_in_step.append(len(measured["loss"]))])
  assert models_in_step == [1] * 6  # The third seed alone.
  assert len(json.loads((folder / "results.json").read_text())["results"]["test"]["focal + soft_avuc"]["none"]["nll"][
    "per_seed"]) == 3
  again = Run.load(folder)
  np.testing.assert_array_equal(again.predict(again.splits(2).test.images, seed=2),
                                evaluation.load(folder / "predictions/test_seed2.npz").logits)


def test_a_second_command_is_refused_while_the_first_one_trains_and_until_it_has_written_all(tmp_path, monkeypatch):
  refused, finish = [], run.manifest.finish

  def second():
    with pytest.raises(UserError, match=f"run is in use by process {os.getpid()} on "):
      run.execute(_config("optimizer.learning_rate=0.01"), tmp_path / "run", hooks=[never])
    refused.append(1)

  def finished_beside_another(*arguments):
    before = _contents(tmp_path)
    second()
    assert _contents(tmp_path) == before
    finish(*arguments)

  monkeypatch.setattr(run.manifest, "finish", finished_beside_another)
  run.execute(_config(), tmp_path / "run", hooks=[lambda step, measured: second() if step == 3 else None])
  assert refused == [1, 1] and (tmp_path / "run/manifest.json").exists()


def test_interrupted_seeds_go_on_together(tmp_path):
  for name in ("seeds0-2", "seed5"):
    (tmp_path / "checkpoints" / name).mkdir(parents=True)
  groups = training.groups_to_train(tmp_path, range(7), [0, 1, 2, 3, 4, 6], together=True)
  assert [(g.seeds, g.folder.name) for g in groups] == [((0, 1, 2), "seeds0-2"), ((3, 4), "seeds3-4"), ((6,), "seed6")]
  groups = training.groups_to_train(tmp_path, [1, 2], [1, 2], together=False)
  assert [g.seeds for g in groups] == [(1,), (2,)]
  # The predictions of seed 0 are there, so that this group has trained, and predicts its bits only as a whole.
  groups = training.groups_to_train(tmp_path, [0, 1, 2], [1, 2], together=False)
  assert [g.seeds for g in groups] == [(0, 1, 2)]


def test_fitted_calibrators_are_kept(finished):
  from calib_jax import calibrators

  loaded = calibrators.load(finished / "calibrators/TS_seed1.npz")
  validation = evaluation.load(finished / "predictions/validation_seed1.npz")
  fitted = calibrators.temperature_scaling().fitted(validation.logits, validation.labels)
  np.testing.assert_array_equal(loaded.apply(validation.logits), fitted(validation.logits))
  # SVS is recommended for 359 examples of ten classes; nothing is added to an empty list, or without ``recommended``.
  assert calibrators.load(finished / "calibrators/SVS_seed0.npz").params["scale"].shape == (10,)
  for override, labels in (("calibrators={}", []), ("recommended=False", ["TS"])):
    loaded = Run(_config(f"evaluation.{override}"), finished)
    assert list(loaded.calibrators()) == labels


@pytest.mark.parametrize(("path", "value"), [
  (("num_seeds",), "2"), (("training", "batch_size"), None), (("evaluation", "num_bins"), [15]),
  (("evaluation", "calibrators"), []), (("model", "hidden"), 8), (("model", "hidden"), ["mlp"]),
  (("evaluation", "ensemble"), "no"), (("evaluation", "corruptions"), {}), (("model", "dropout"), "0"),
  (("loss", "weight"), "x"), (("data", "path"), 7), (("model", "num_tokens"), 10**12)])
def test_a_wrong_type_in_the_config_of_a_finished_run_is_one_sentence(path, value, finished, tmp_path):
  folder = shutil.copytree(finished, tmp_path / "run")
  fields = node = json.loads((folder / "config.json").read_text())
  for part in path[:-1]:
    node = node[part]
  node[path[-1]] = value
  (folder / "config.json").write_text(json.dumps(fields))
  with pytest.raises(UserError, match=f"config key {'.'.join(path)}"):
    Run.load(folder)


@pytest.mark.parametrize("address", ["gs://bucket/x", "s3://bucket/x", "file:///tmp/x", "gs:/bucket/x"])
def test_an_address_is_no_directory(address, tmp_path, monkeypatch, capsys):
  """The three commands that write refuse it at once; nothing is written beside the clone."""
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError, match=r"is an address, and files are written to a directory of this machine"):
    run.execute(_config(), pathlib.Path(address), hooks=[never])
  assert evaluate.main(["--test", "absent.npz", "--out", address]) == 2
  assert apply.main(["--calibrator", "absent.npz", "--predictions", "absent.csv", "--out", f"{address}.csv"]) == 2
  assert capsys.readouterr().err.count("is an address, and files") == 2 and not list(tmp_path.iterdir())


def test_a_run_that_left_nothing_but_its_log_does_not_block_its_directory(finished, tmp_path):
  """Such as one that diverged at once, whose rate its message says to lower."""
  before = tmp_path / "before"
  before.mkdir()
  for name in ("config.json", "environment.json", "metrics.jsonl"):
    shutil.copy(finished / name, before / name)
  sentence = run.directory.write_config(_config("optimizer.learning_rate=0.001"), before)
  assert "learning_rate" in sentence and sentence.endswith("which left no checkpoint, is replaced.")
  assert not (before / "metrics.jsonl").exists()
  assert json.loads((before / "config.json").read_text())["optimizer"]["learning_rate"] == 0.001
  (before / "predictions").mkdir()
  shutil.copy(finished / "predictions/test_seed0.npz", before / "predictions")
  with pytest.raises(UserError, match="holds a run of another config"):
    run.directory.write_config(_config(), before)


def test_what_cannot_be_is_one_sentence(finished, tmp_path):
  with pytest.raises(UserError, match="holds no run"):
    Run.load(tmp_path)
  loaded = Run.load(finished)
  with pytest.raises(UserError, match=r"images must be uint8 of shape \[N, 8, 8, 1\].*got float32 of shape \(2, 8, 8"):
    loaded.predict(np.zeros((2, 8, 8, 1), np.float32))
  with pytest.raises(UserError, match=r"channels first: images.transpose\(0, 2, 3, 1\)"):
    loaded.predict(np.zeros((2, 1, 8, 8), np.uint8))
  with pytest.raises(UserError, match=r"at least one, like those .* of shape \(0, 8, 8, 1\)"):
    loaded.predict(np.zeros((0, 8, 8, 1), np.uint8))
  with pytest.raises(UserError, match="holds no checkpoint of seed 9; it has those of 0, 1"):
    loaded.predict(np.zeros((2, 8, 8, 1), np.uint8), seed=9)
  last = Run.load(finished, which="last")
  assert np.abs(last.predict(loaded.splits(0).test.images) - loaded.predict(loaded.splits(0).test.images)).max() < 50


@pytest.mark.parametrize("number", [None, FORMAT - 1])
def test_a_directory_of_another_format_is_refused(number, finished, tmp_path):
  folder = shutil.copytree(finished, tmp_path / "run")
  fields = json.loads((folder / "config.json").read_text())
  (folder / "config.json").write_text(json.dumps({**fields, "format": number}))
  (folder / "manifest.json").unlink()
  before = _contents(folder)
  refusal = rf"config.json is of format {number}, and this version of calib_jax reads format {FORMAT}: use the version "
  with pytest.raises(UserError, match=refusal):
    Run.load(folder)
  with pytest.raises(UserError, match=refusal):
    run.execute(_config(), folder, hooks=[never])
  assert _contents(folder) == before


def _contents(folder):
  return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


def test_members_of_an_ensemble_see_the_same_corrupted_and_foreign_images():
  config = _config("data.split_seed=3", "evaluation.corruptions=('gaussian_noise',)", "evaluation.severities=(5,)")
  noisy = [[evaluated().examples.images for _, evaluated in run.data.additional_sets(config, seed)] for seed in (0, 1)]
  assert len(noisy[0]) == 1
  np.testing.assert_array_equal(noisy[0][0], noisy[1][0])
  own = _config("evaluation.corruptions=('gaussian_noise',)", "evaluation.severities=(5,)")
  noisy = [next(evaluated().examples.images for _, evaluated in run.data.additional_sets(own, seed)) for seed in (0, 1)]
  assert np.any(noisy[0] != noisy[1])
