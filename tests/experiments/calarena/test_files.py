"""The comparison on CalArena's files: its CSV format, metrics, win rates and ranks, on a small file of its layout."""

import csv

import h5py
import numpy as np
import pytest
from scipy import special

from calib_jax import calibrators
from calib_jax._system.errors import UserError
from experiments.calarena import command, files, ranks
from experiments.common.rows import append
from tests.calibrators.data import synthetic

pytestmark = pytest.mark.xdist_group("calarena")  # One worker makes what most of these tests share.
NAMES = ["identity", "temperature_scaling", "histogram_binning"]


def _benchmark(folder, name, datasets=("a", "b"), models=("one", "two"), k=4):
  """Writes a file in CalArena's layout; of a binary one only the probabilities of class 1."""
  with h5py.File(folder / f"{name}.h5", "w") as file:
    for i, dataset in enumerate(datasets):
      for j, model in enumerate(models):
        logits, labels = synthetic(400, k, seed=10 * i + j)
        probs = special.softmax(logits, axis=1)[:, 1 if name.endswith("-binary") else slice(None)]
        group = file.create_group(f"{dataset}/{model}")
        for part, rows in (("cal", slice(150)), ("test", slice(150, None))):
          group.create_dataset(f"probas_{part}", data=probs[rows], compression="gzip")
          group.create_dataset(f"labels_{part}", data=labels[rows].astype(np.int64))


def _rows(path):
  with path.open(encoding="utf-8", newline="") as file:
    return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  folder = tmp_path_factory.mktemp("calarena")
  _benchmark(folder, "small-multiclass")
  command.main([f"--data={folder}", f"--out={folder / 'out'}", "--calibrators", *NAMES[1:]])
  return folder


@pytest.mark.slow
def test_csv_files_have_the_columns_and_values_of_calarena(finished):
  logits, labels = (part[150:] for part in synthetic(400, 4, seed=11))
  rows = _rows(finished / "out/small-multiclass/temperature_scaling.csv")
  assert list(rows[0]) == ["dataset", "model", "cal_size", "test_size", "n_classes", "temperature_scaling_brier",
                           "temperature_scaling_logloss", "temperature_scaling_ece-15", "temperature_scaling_accuracy",
                           "temperature_scaling_time"]
  assert [list(row.values())[:5] for row in rows] == [[d, m, "150", "250", "4"] for d in "ab" for m in ("one", "two")]
  p = special.softmax(logits.astype(np.float64), axis=1)
  identity = _rows(finished / "out/small-multiclass/identity.csv")[3]
  bins = np.floor(15 * p.max(1)).astype(int)
  gaps = [abs(np.sum((p.argmax(1) == labels)[bins == b] - p.max(1)[bins == b])) for b in range(15)]
  expected = {"brier": np.mean(np.sum((p - np.eye(4)[labels]) ** 2, axis=1)),
              "logloss": -np.mean(np.log(p[np.arange(250), labels])), "ece-15": np.sum(gaps) / 250,
              "accuracy": np.mean(p.argmax(1) == labels)}
  for metric, value in expected.items():
    assert float(identity[f"identity_{metric}"]) == pytest.approx(value, rel=1e-5)
  # The calibration half is bent by 1.7 and more, so that a temperature takes some of the log loss away.
  assert float(rows[3]["temperature_scaling_logloss"]) < expected["logloss"]


@pytest.mark.slow
def test_a_second_run_fits_only_what_is_missing(finished, capsys):
  path = finished / "out/small-multiclass/temperature_scaling.csv"
  before, others = path.read_text(), (finished / "out/small-multiclass/histogram_binning.csv").read_bytes()
  path.write_text("".join(before.splitlines(keepends=True)[:-1]))
  command.main([f"--data={finished}", f"--out={finished / 'out'}", "--calibrators", *NAMES[1:]])
  without_time = [[line.rsplit(",", 1)[0] for line in text.splitlines()] for text in (before, path.read_text())]
  assert without_time[0] == without_time[1]
  assert (finished / "out/small-multiclass/histogram_binning.csv").read_bytes() == others
  assert "small-multiclass" in capsys.readouterr().err  # The progress line.


@pytest.mark.slow
def test_published_results_are_compared_and_those_of_other_files_refused(finished, tmp_path):
  out, published = finished / "out", tmp_path / "small-multiclass"
  published.mkdir()
  for name, source, add in (("Base-model", "identity", 0.0), ("XX", "temperature_scaling", 0.01)):
    rows = [{key.replace(source, name): float(value) + add if "brier" in key else value
             for key, value in row.items()} for row in _rows(out / f"small-multiclass/{source}.csv")]
    for row in rows:
      append(published / f"{name}.csv", [row])
  ranks.write(out / "small-multiclass", published)
  page = (out / "small-multiclass.md").read_text(encoding="utf-8")
  assert "4 calibrators, 3 of calib_jax (in code type) and 1 as published by CalArena, on 4 experiments" in page
  assert "| XX |" in page and "Base-model" not in page and (out / "small-multiclass.png").stat().st_size > 5_000
  ours = [[float(row[f"{name}_brier"]) for row in _rows(out / f"small-multiclass/{name}.csv")] for name in NAMES[:2]]
  gain = np.subtract(*ours)
  line = next(line for line in page.splitlines() if line.startswith("| `temperature_scaling`"))
  assert f"| {1000 * gain.mean():+.2f} ({100 * np.mean(gain / ours[0]):+.1f}%) |" in line
  text = (published / "Base-model.csv").read_text()
  first = _rows(published / "Base-model.csv")[0]["Base-model_brier"]
  (published / "Base-model.csv").write_text(text.replace(first, "0.9"))
  with pytest.raises(UserError, match="a/one: before calibration the Brier score is"):
    ranks.write(out / "small-multiclass", published)


def test_win_rates_ranks_and_the_critical_difference():
  values = np.array([[0.3, 0.1, 0.2], [0.3, 0.3, 0.1]])
  np.testing.assert_allclose(ranks.win_rates(values), [[0, 1, 0.5], [0, 0, 1]])  # A tie is no win.
  mean_ranks, _, difference = ranks.mean_ranks(values, np.array([0, 1]))
  np.testing.assert_allclose(mean_ranks, [2.75, 1.75, 1.5])
  np.testing.assert_allclose(difference, 2.343 * np.sqrt(3 * 4 / (6 * 2)), rtol=1e-3)
  # Demšar 2006, Section 3.2.2: four classifiers on 14 data sets; chi² of 9.28 has a p-value of 0.0258.
  rng = np.random.default_rng(0)
  assert ranks.mean_ranks(rng.normal(size=(14, 4)), np.arange(14))[2] == pytest.approx(1.25, abs=0.005)
  # One dataset of two experiments and one of one: means are over datasets.
  averaged = ranks.mean_ranks(np.array([[0.0, 1.0], [3.0, 1.0], [0.0, 1.0]]), np.array([0, 0, 1]))[0]
  np.testing.assert_allclose(averaged, [1.5, 1.5])
  datasets = [(str(i // 2), str(i % 2)) for i in range(40)]
  assert np.array_equal(np.bincount(ranks.blocks(datasets)), np.full(20, 2))
  assert np.array_equal(ranks.blocks(datasets[:38]), np.arange(38))
  rates = np.repeat(rng.uniform(size=(20, 1)), 2, axis=0)
  low, high = ranks.interval(rates, ranks.blocks(datasets))
  half = 1.96 * rates.std() / np.sqrt(20)  # Of 20 datasets, not of 40 experiments.
  np.testing.assert_allclose([low[0], high[0]], [rates.mean() - half, rates.mean() + half], atol=0.3 * half)


def test_binary_benchmarks_are_one_column_and_have_the_kuiper_metric(tmp_path):
  _benchmark(tmp_path, "small-binary", datasets=("a",), models=("one",), k=2)
  command.main([f"--data={tmp_path}", f"--out={tmp_path}", "--calibrators", "identity"])
  found, = _rows(tmp_path / "small-binary/identity.csv")
  logits, labels = (part[150:] for part in synthetic(400, 2))
  p = special.softmax(logits.astype(np.float64), axis=1)[:, 1]
  order = np.argsort(p)
  walk = np.concatenate([[0], np.cumsum((labels - p)[order])]) / 250
  bins = np.floor(15 * p).astype(int)
  ece = sum(abs(np.sum((labels - p)[bins == b])) for b in range(15)) / 250
  assert float(found["identity_kuiper"]) == pytest.approx(np.ptp(walk), rel=1e-4)
  assert float(found["identity_ece-15"]) == pytest.approx(ece, rel=1e-4)
  assert float(found["identity_brier"]) == pytest.approx(2 * np.mean((labels - p) ** 2), rel=1e-5)
  assert "n_classes" not in found


def test_mistakes_and_help_run_nothing(tmp_path, capsys):
  with pytest.raises(SystemExit, match="0"):
    command.main(["--help"])
  assert "--published" in capsys.readouterr().out
  with pytest.raises(SystemExit, match="has no file"):
    command.main([f"--data={tmp_path}"])
  _benchmark(tmp_path, "small-multiclass", datasets=("a",), models=("one",))
  with pytest.raises(SystemExit, match="Did you mean 'temperature_scaling'"):
    command.main([f"--data={tmp_path}", f"--out={tmp_path / 'out'}", "--calibrators", "temprature_scaling"])
  assert not (tmp_path / "out").exists()


def test_every_registered_calibrator_has_the_options_that_it_needs():
  assert {name.partition(":")[0] for name in files.CALIBRATORS} == set(calibrators.CALIBRATORS)
  for name in files.CALIBRATORS:
    files.calibrator(name)


@pytest.mark.parametrize("k", [2, 4, 10])
def test_metrics_are_those_of_probmetrics(k):
  theirs = pytest.importorskip("probmetrics.metrics")
  import torch

  logits, labels = synthetic(900, k)
  labels[labels == 3] = 2  # A class without an example is left out of the calibration error.
  probs = special.softmax(2 * logits, axis=1)
  found = files.scores(np.log(probs), labels, binary=k == 2)
  expected = theirs.Metrics.from_names(list(found)).compute_all_from_labels_probs(
    torch.from_numpy(labels.astype(np.int64)), torch.from_numpy(probs))
  assert found == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-5)
