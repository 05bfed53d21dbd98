"""Runs and files side by side, head and tail classes, severities, and the calibrator that selects itself."""

import json

import numpy as np
import pytest
from scipy import special

from calib_jax import evaluation
from calib_jax.cli import compare, inputs
from calib_jax.cli import evaluate as command
from calib_jax.evaluation.predictions import fitting
from calib_jax.evaluation.predictions.predictions import Predictions, differing
from calib_jax.evaluation.sections import class_groups
from calib_jax.training.config.load import FORMAT
from calib_jax.training.run import manifest

pytestmark = pytest.mark.xdist_group("compare")  # One worker makes what most of these tests share.
N, K, SEEDS = 200, 3, (0, 1, 2)  # Intervals over two seeds are too wide to tell rows apart.
OPTIONS = ("--num_resamples=20", "--calibrators", "temperature_scaling")


def _arrays(seed, scale, examples=0):
  """Logits of a model on a set; ``examples`` chooses the set, and ``seed`` the errors of the model."""
  rng = np.random.default_rng((examples, 99))
  logits = 2 * rng.normal(size=(N, K))
  labels = (special.softmax(logits, axis=1).cumsum(1) > rng.uniform(size=(N, 1))).argmax(1)
  noise = np.random.default_rng((seed, examples)).normal(size=(N, K))
  return (scale * (logits + 0.3 * noise)).astype(np.float32), labels.astype(np.int32)


def _write_run(folder, seeds, scale, sets=("validation", "test", "fog_1", "snow_1")):
  (folder / "predictions").mkdir(parents=True)
  for number, name in enumerate(sets):
    for seed in seeds:
      kind = "shifted" if "_" in name else "in_distribution"
      evaluation.save(folder / "predictions" / f"{name}_seed{seed}.npz", *_arrays(seed, scale, number), kind,
                      train_counts=np.array([100, 10, 1]))
  (folder / "config.json").write_text(json.dumps({"name": folder.name}))
  lines = [json.dumps({"seed": seed, "step": step, "train/loss": step + seed}) for step in (1, 2) for seed in seeds]
  (folder / "metrics.jsonl").write_text("\n".join(lines))
  manifest.write(folder, manifest.Manifest((folder / "config.json").read_text(), manifest.digests(folder)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("compare")
  _write_run(folder / "sharp", SEEDS, 3)
  _write_run(folder / "plain", SEEDS, 1)
  logits, labels = _arrays(5, 1, 1)
  np.savez(folder / "other.npz", logits=logits, labels=labels)
  _write_run(folder / "half", (0,), 1, ("test",))
  return folder


@pytest.fixture(scope="module")
def compared(folder):
  out = folder / "out"
  paths = [str(folder / name) for name in ("sharp", "plain", "other.npz")]
  assert compare.main([*paths, "--baseline=plain", f"--out={out}", *OPTIONS]) == 0
  return out


def _nll(logits, labels):
  return -special.log_softmax(logits.astype(np.float64), axis=1)[np.arange(N), labels].mean()


@pytest.mark.slow
def test_runs_and_files_are_in_one_table(compared):
  content = json.loads((compared / "results.json").read_text())
  table = content["results"]["test"]
  assert {name: list(rows) for name, rows in table.items()} == {
    "plain": ["none", "temperature_scaling"], "sharp": ["none", "temperature_scaling"], "other": ["none"]}
  for name, scale in (("plain", 1), ("sharp", 3)):
    expected = [_nll(*_arrays(seed, scale, 1)) for seed in SEEDS]
    np.testing.assert_allclose(table[name]["none"]["nll"]["per_seed"], expected, rtol=1e-5)
  assert set(content["results"]) == {"test", "fog_1", "snow_1"} and "other" not in content["results"]["fog_1"]
  np.testing.assert_allclose(table["other"]["none"]["nll"]["per_seed"], [_nll(*_arrays(5, 1, 1))], rtol=1e-5)
  (change,) = [x for x in content["differences"]["test"]
               if {x["row"], x["minus"]} == {"other, uncalibrated", "sharp, uncalibrated"}]
  nll = {f"{name}, uncalibrated": table[name]["none"]["nll"]["value"] for name in ("other", "sharp")}
  np.testing.assert_allclose(change["nll"]["difference"], nll[change["row"]] - nll[change["minus"]], rtol=1e-4)
  effects = content["seeds"]["test"]
  assert "cohens_d" in effects["sharp, uncalibrated"]["nll"] and "cohens_d" not in effects["plain, uncalibrated"]["nll"]


@pytest.mark.slow
def test_the_page_has_all_runs_and_says_that_seeds_are_pooled(compared):
  text = (compared / "report.html").read_text()
  assert "plain against sharp against other" in text and "&#34;name&#34;: &#34;sharp&#34;" in text
  change = json.loads((compared / "results.json").read_text())["differences"]["test"]
  (points,) = [100 * x["ece"]["difference"] for x in change
               if (x["row"], x["minus"]) == ("sharp, uncalibrated", "plain, uncalibrated")]
  assert "sharp against plain" in text and f"the debiased ECE is {points:.1f} points higher (95% interval" in text
  assert "d against plain" in text and "The predictions of all seeds are pooled" in text and "tail" in text
  assert (compared / "figures" / "training.svg").exists() and (compared / "figures" / "severity.svg").exists()


def test_labels_of_all_seeds_are_compared():
  a, b, longer = np.array([0, 1, 2]), np.array([0, 2, 1]), np.array([0, 1, 2, 2])
  for labels, other, expected in (
      ([a], [a], None), ([a, b], [a, b], None), ([a, a], [a], None), ([a], [a, a, a], None), ([a], [b], (0, 0)),
      ([a, a], [a, b], (1, 1)), ([a, b], [b, a], (0, 0)), ([a, b], [a], (1, 0)), ([a], [a, a, b], (0, 2)),
      ([a], [longer], (0, 0)), ([a, a, a], [b, b], (0, 0))):
    assert differing(labels, other) == expected


def test_two_seeds_of_the_same_predictions_are_said(tmp_path):
  models = {}
  for name, seeds in (("a", (0, 1)), ("b", (2, 1))):
    _write_run(tmp_path / name, (0, 1), 1, ("test",))
    models[name] = fitting.Model({"test": [Predictions(*_arrays(seed, 1)) for seed in seeds]}, {})
  sentences = []
  inputs.check_models(models, "test", {name: tmp_path / name for name in models}, sentences.append)
  assert sentences == ["warning: b (test_seed1.npz) and a (test_seed1.npz) hold the same test predictions."]


def _with_another_seed(folder, scale, examples, size=N):
  """Writes a run whose test set of seed 1 is another one."""
  _write_run(folder, SEEDS, scale, ("validation", "test"))
  logits, labels = _arrays(1, scale, examples)
  evaluation.save(folder / "predictions/test_seed1.npz", logits[:size], labels[:size])
  manifest.write(folder, manifest.Manifest((folder / "config.json").read_text(), manifest.digests(folder)))
  return folder


@pytest.mark.slow
def test_other_examples_of_one_seed_are_said_and_not_paired(folder, tmp_path, capsys):
  mixed = _with_another_seed(tmp_path / "mixed", 1, 7)
  assert compare.main([str(folder / "sharp"), str(mixed), "--json=-", *OPTIONS]) == 0
  output = capsys.readouterr()
  assert "warning: the test labels of mixed (test_seed1.npz) are not those of sharp (test_seed1.npz), so" in output.err
  pairs = [{change["row"].split(",")[0], change["minus"].split(",")[0]}
           for change in json.loads(output.out)["differences"]["test"]]
  assert pairs and {"mixed", "sharp"} not in pairs
  files = [f"{folder}/sharp/predictions/{name}_seed0.npz" for name in ("validation", "test")]
  assert command.main(["--fit", files[0], "--test", files[1], "--compare", str(mixed), *OPTIONS]) == 0
  assert "the test labels of mixed (test_seed1.npz) are not those of test_seed0, so" in capsys.readouterr().err


def test_sets_that_cannot_be_compared_are_named(folder, tmp_path, capsys):
  short = _with_another_seed(tmp_path / "short", 1, 1, 150)
  assert compare.main([str(folder / "sharp"), str(short), *OPTIONS]) == 2
  assert (f"error: {short}/predictions/test_seed1.npz has 150 examples and test_seed0.npz 200: the predictions of test "
          "must be of the") in capsys.readouterr().err
  logits, labels = _arrays(5, 1, 1)
  np.savez(tmp_path / "four.npz", logits=np.concatenate([logits, logits[:, :1]], 1), labels=labels)
  assert command.main(["--test", str(folder / "other.npz"), "--compare", str(tmp_path / "four.npz")]) == 2
  assert "error: the predictions of four have 4 classes, those of other 3." in capsys.readouterr().err


@pytest.mark.parametrize(("paths", "message"), [
  (["sharp"], "name at least two"), (["sharp", "half"], "must hold predictions of the validation and the test split"),
  (["sharp", "."], "is a directory, not a file"),
  (["sharp", "absent.npz"], "there is no file"),
  (["sharp", "plain", "--baseline=x"], "--baseline must be one of sharp"),
])
def test_a_mistake_is_one_sentence(folder, paths, message, capsys):
  assert compare.main([path if path.startswith("--") else str(folder / path) for path in paths]) == 2
  *before, error = capsys.readouterr().err.splitlines()
  assert error.startswith("error: ") and message in error and all(line.startswith("caution: ") for line in before)


@pytest.mark.slow
def test_runs_whose_configs_name_own_code_are_compared_without_importing_it(folder, tmp_path, capsys):
  _write_run(tmp_path / "own", (0,), 2)
  own = {"name": "no_such_module:factory"}  # An import would be an error.
  config = json.dumps({"format": FORMAT, "loss": {"primary": own}, "evaluation": {"calibrators": {"mine": own}}})
  (tmp_path / "own" / "config.json").write_text(config)
  manifest.write(tmp_path / "own", manifest.Manifest(config, manifest.digests(tmp_path / "own")))
  assert compare.main([str(tmp_path / "own"), str(folder / "plain"), "--json=-", *OPTIONS]) == 0
  captured = capsys.readouterr()
  assert "warning" not in captured.err and "error" not in captured.err  # There may be progress.
  assert list(json.loads(captured.out)["results"]["test"]) == ["own", "plain"]


def _groups(labels):
  """The scores of the groups of one model whose examples have these labels, and the values of the examples."""
  values = evaluation.per_example([evaluation.Predictions(_arrays(0, 1)[0], labels.astype(np.int32))], num_redraws=2)
  return class_groups.class_groups({"a": values}, np.array([100, 10, 1]), num_resamples=50)["a"], values


def test_groups_have_the_scores_of_their_members():
  labels = _arrays(0, 1)[1]
  by_group, values = _groups(np.where(labels == 2, 0, labels))
  assert list(by_group) == ["head", "medium"]
  for rows, group in ((labels == 1, "medium"), (labels != 1, "head")):
    for name, expected in (("accuracy", values.correct[rows].mean()), ("nll", values.nll[rows].mean())):
      assert by_group[group][name].estimate == pytest.approx(expected, rel=1e-4)
      assert by_group[group][name].low <= expected <= by_group[group][name].high
  where, arrays = np.arange(N) % 3 > 0, (values.confidence, values.correct, (labels == 1).astype(np.int32)[:, None])
  errors = class_groups._errors(15)
  np.testing.assert_allclose(errors(*arrays, where=where), errors(*(x[where] for x in arrays)), rtol=1e-5)
  assert 0 < by_group["head"]["ece"].estimate < errors(*arrays)[0]  # It is less the bias of the sample.
  assert not class_groups.is_long_tailed(np.array([100, 40, 30])) and not class_groups.is_long_tailed(None)
  # The interval of a group of one example is not its value alone, which all resamples have.
  by_group, values = _groups(np.where(np.arange(N) == 0, 2, labels % 2))
  tail = by_group["tail"]["nll"]
  assert tail.estimate == pytest.approx(values.nll[0, 0], rel=1e-5) and tail.low < tail.estimate < tail.high
