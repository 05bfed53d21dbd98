"""The comparison on CalArena's files: its CSV format, metrics, win rates and ranks, on a small file of its layout."""

import h5py
import numpy as np
import pandas as pd
import pytest
from scipy import special

from calib_jax import calibrators
from calib_jax._system.errors import UserError
from experiments.calarena import __main__ as command
from experiments.calarena import files, ranks
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


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  folder = tmp_path_factory.mktemp("calarena")
  _benchmark(folder, "small-multiclass")
  command.main([f"--data={folder}", f"--out={folder / 'out'}", "--calibrators", *NAMES[1:]])
  return folder


@pytest.mark.slow
def test_csv_files_have_the_columns_and_values_of_calarena(finished):
  logits, labels = (part[150:] for part in synthetic(400, 4, seed=11))
  rows = pd.read_csv(finished / "out/small-multiclass/temperature_scaling.csv")
  assert [*rows] == ["dataset", "model", "cal_size", "test_size", "n_classes", *(
    f"temperature_scaling_{column}" for column in ("brier", "logloss", "ece-15", "accuracy", "time"))]
  assert rows.iloc[:, :5].values.tolist() == [[d, m, 150, 250, 4] for d in "ab" for m in ("one", "two")]
  p = special.softmax(logits.astype(np.float64), axis=1)
  identity = pd.read_csv(finished / "out/small-multiclass/identity.csv").iloc[3]
  bins = np.floor(15 * p.max(1)).astype(int)
  gaps = [abs(np.sum((p.argmax(1) == labels)[bins == b] - p.max(1)[bins == b])) for b in range(15)]
  expected = {"brier": np.mean(np.sum((p - np.eye(4)[labels]) ** 2, axis=1)),
              "logloss": -np.mean(np.log(p[np.arange(250), labels])), "ece-15": np.sum(gaps) / 250,
              "accuracy": np.mean(p.argmax(1) == labels)}
  assert {metric: identity[f"identity_{metric}"] for metric in expected} == pytest.approx(expected, rel=1e-5)
  # The calibration half is bent by 1.7 and more, so that a temperature takes some of the log loss away.
  assert rows.temperature_scaling_logloss[3] < expected["logloss"]


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
  rows = {source: pd.read_csv(out / f"small-multiclass/{source}.csv") for source in NAMES}
  for name, source, add in (("Base-model", "identity", 0.0), ("XX", "temperature_scaling", 0.01)):
    table = rows[source].rename(columns=lambda column: column.replace(source, name))  # noqa: B023
    table.assign(**{f"{name}_brier": table[f"{name}_brier"] + add}).to_csv(published / f"{name}.csv", index=False)
  ranks.write(out / "small-multiclass", published)
  page = (out / "small-multiclass.md").read_text(encoding="utf-8")
  assert "4 calibrators, 3 of calib_jax (in code type) and 1 as published by CalArena, on 4 experiments" in page
  assert "| XX |" in page and "Base-model" not in page and (out / "small-multiclass.png").stat().st_size > 5_000
  before = rows["identity"].identity_brier
  gain = before - rows["temperature_scaling"].temperature_scaling_brier
  line = next(line for line in page.splitlines() if line.startswith("| `temperature_scaling`"))
  assert f"| {1000 * gain.mean():+.2f} ({100 * (gain / before).mean():+.1f}%) |" in line
  path = published / "Base-model.csv"
  path.write_text(path.read_text().replace(str(before[0]), "0.9"))
  with pytest.raises(UserError, match="a/one: before calibration the Brier score is"):
    ranks.write(out / "small-multiclass", published)


def test_win_rates_and_their_intervals_are_over_datasets_where_there_are_enough():
  rates = ranks.win_rates(pd.DataFrame([[0.3, 0.1, 0.2], [0.3, 0.3, 0.1]]))
  np.testing.assert_allclose(rates, [[0, 1, 0.5], [0, 0, 1]])  # A tie is no win.
  datasets = [str(i // 2) for i in range(40)]
  assert np.array_equal(np.bincount(ranks.blocks(datasets)), np.full(20, 2))
  assert np.array_equal(ranks.blocks(datasets[:38]), np.arange(38))
  rates = np.repeat(np.random.default_rng(0).uniform(size=(20, 1)), 2, axis=0)
  low, high = ranks.interval(rates, ranks.blocks(datasets))
  half = 1.96 * rates.std() / np.sqrt(20)  # Of 20 datasets, not of 40 experiments.
  np.testing.assert_allclose([low[0], high[0]], [rates.mean() - half, rates.mean() + half], atol=0.3 * half)


def test_mean_ranks_and_the_critical_difference_are_over_datasets():
  index = pd.MultiIndex.from_product([[*map(str, range(20))], ["a", "b"]], names=["dataset", "model"])
  # The scores of "x" in the experiments of a dataset are averaged before they are ranked.
  scores = pd.DataFrame({"identity": 0.0, "x": [-1.0, 3.0] * 20, "y": 0.5, "z": 0.75}, index)
  values = pd.concat(dict.fromkeys((*ranks.METRICS, "accuracy"), scores), axis=1)
  page, mean_ranks, difference = ranks.comparison(values, {"identity", "x"})
  assert mean_ranks.to_dict() == {"identity": 1, "x": 4, "y": 2, "z": 3}
  assert "Mean ranks over 20 datasets" in page and "| `x` |" in page and "| z |" in page
  # Demšar 2006, Section 3.2.2: the critical value of four classifiers is 2.569.
  assert difference == pytest.approx(2.569 * np.sqrt(4 * 5 / (6 * 20)), rel=1e-3)


def test_binary_benchmarks_are_one_column_and_have_the_kuiper_metric(tmp_path):
  _benchmark(tmp_path, "small-binary", datasets=("a",), models=("one",), k=2)
  command.main([f"--data={tmp_path}", f"--out={tmp_path}", "--calibrators", "identity"])
  row, = pd.read_csv(tmp_path / "small-binary/identity.csv").to_dict("records")
  logits, labels = (part[150:] for part in synthetic(400, 2))
  p = special.softmax(logits.astype(np.float64), axis=1)[:, 1]
  walk = np.concatenate([[0], np.cumsum((labels - p)[np.argsort(p)])]) / 250
  bins = np.floor(15 * p).astype(int)
  ece = sum(abs(np.sum((labels - p)[bins == b])) for b in range(15)) / 250
  assert row["identity_kuiper"] == pytest.approx(np.ptp(walk), rel=1e-4)
  assert row["identity_ece-15"] == pytest.approx(ece, rel=1e-4)
  assert row["identity_brier"] == pytest.approx(2 * np.mean((labels - p) ** 2), rel=1e-5)
  assert "n_classes" not in row


def test_mistakes_run_nothing(tmp_path):
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
  ours = files.scores(np.log(probs), labels, binary=k == 2)
  expected = theirs.Metrics.from_names(list(ours)).compute_all_from_labels_probs(
    torch.from_numpy(labels.astype(np.int64)), torch.from_numpy(probs))
  assert ours == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-5)
