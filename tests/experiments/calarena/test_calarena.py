"""CalArena's protocol on data sets at hand: the examples, the rows, and what the page says of them."""

import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

from calib_jax._system.errors import UserError
from experiments.calarena import __main__ as command
from experiments.calarena import data_sets, measures, methods, page
from experiments.common import rows
from tests.calibrators.data import synthetic

FEW = {name: data_sets.SOURCES[name]._replace(classifiers=(classifier,))
       for name, classifier in (("iris", "naive Bayes"), ("digits_even", "logistic regression"))}


def _read(path, made):
  """The table of rows that are given as (data set, model, method, log loss) and further columns."""
  rows.write(path, [{"dataset": dataset, "model": model, "split": 0, "size": "all", "classes": 2, "cal_size": 100,
                     "method": method, "package": methods.OURS, "logloss": loss, "brier": loss, "ece-15": loss,
                     "fit_seconds": "", "note": "", **more} for dataset, model, method, loss, more in made])
  return page.labelled(rows.frame(path))


def test_halves_of_saved_predictions_and_of_their_groups_of_classes(tmp_path):
  logits, labels = synthetic(101, 10)
  np.savez(tmp_path / "cifar10_net.npz", logits=logits, labels=labels)
  np.savez(tmp_path / "imagenet_top1_net.npz", labels=labels, confidence=labels)
  np.savez(tmp_path / "cifar10_human.npz", probs=special.softmax(logits, axis=1), labels=labels)
  path = data_sets.networks(tmp_path)["cifar10", "net"]
  order = np.random.default_rng(3).permutation(101)
  experiment = data_sets.halves(path, "cifar10", 3)
  np.testing.assert_allclose(experiment.fit[0], special.log_softmax(logits, axis=1)[order[:50]], atol=1e-5)
  np.testing.assert_array_equal(experiment.test[1], labels[order[50:]])
  animals = data_sets.halves(path, "cifar10_animals", 3)
  probs = special.softmax(logits.astype(np.float64), axis=1)[order[50:], 2:8].sum(1)
  np.testing.assert_allclose(np.exp(animals.test[0]), np.stack([1 - probs, probs], axis=1), atol=1e-6)
  np.testing.assert_array_equal(animals.test[1], (labels[order[50:]] >= 2) & (labels[order[50:]] <= 7))
  assert [*data_sets.experiments(tmp_path)][-2:] == [("cifar10", "net"), ("cifar10_animals", "net")]
  with pytest.raises(UserError, match="no .npz file"):
    data_sets.networks(tmp_path / "none")


def test_trained_classifiers_are_tested_on_what_they_and_the_calibrators_have_not_seen():
  experiment, again, other = (data_sets.divided("iris", "naive Bayes", split) for split in (1, 1, 2))
  assert [len(y) for _, y in (experiment.fit, experiment.test)] == [37, 38]
  np.testing.assert_allclose(special.logsumexp(experiment.test[0], axis=1), 0, atol=1e-6)
  assert np.mean(experiment.test[0].argmax(1) == experiment.test[1]) > 0.85
  np.testing.assert_array_equal(experiment.fit[0], again.fit[0])
  assert not np.array_equal(experiment.fit[0], other.fit[0])


def test_a_failing_peer_has_an_empty_row_and_ours_may_not_fail(monkeypatch):
  def broken(inputs, labels):
    raise ValueError("class 2 is absent")

  def halved(inputs, labels):
    np.testing.assert_allclose(inputs.sum(1), 1, rtol=1e-6)  # The probabilities.
    return lambda other: np.full(other.shape, 1 / other.shape[1])

  monkeypatch.setitem(methods.PEERS, "identity", {"netcal": broken, "probmetrics": halved, "torch": halved})
  monkeypatch.setattr(methods, "versions", lambda: {"netcal", "probmetrics"})
  experiment = data_sets.divided("iris", "naive Bayes", 0)
  ours, failed, uniform = measures.measured(experiment, "identity", peers=True, timed=True)
  assert [row["package"] for row in (ours, failed, uniform)] == ["calib_jax", "netcal", "probmetrics"]
  assert failed["logloss"] == "" and failed["note"] == "ValueError: class 2 is absent"
  assert float(uniform["logloss"]) == pytest.approx(np.log(3), rel=1e-5) and float(uniform["fit_seconds"]) >= 0
  z, y = experiment.test
  assert float(ours["logloss"]) == pytest.approx(-z[np.arange(len(y)), y].mean(), rel=1e-5)
  monkeypatch.setattr(methods, "of", lambda *args: [methods.Method(methods.OURS, broken)])
  with pytest.raises(ValueError, match="absent"):
    list(measures.measured(experiment, "identity", peers=True, timed=False))


@pytest.mark.slow
def test_the_command_continues_and_its_page_is_of_its_rows(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(data_sets, "SOURCES", FEW)
  for module in (methods, command):
    monkeypatch.setattr(module, "versions", lambda: {})
  arguments = ["--splits=2", f"--out={tmp_path}", "--calibrators", "identity"]
  command.main(arguments)
  path = tmp_path / "calarena_local.csv"
  text, first = path.read_text(), rows.frame(path)
  assert "Not installed, and left out: torch, probmetrics, netcal, scikit-learn." in capsys.readouterr().out
  assert len(first) == 8 and {*first.method} == {"identity", "temperature_scaling"}
  assert {*first.split[first.fit_seconds.notna()]} == {0}
  path.write_text("".join(line for line in text.splitlines(True) if "digits_even,logistic regression,1" not in line))
  command.main(arguments)
  assert rows.frame(path).logloss.tolist() == first.logloss.tolist()
  printed = (tmp_path / "calarena_local.md").read_text(encoding="utf-8")
  assert "1 binary experiments on 1 data sets (digits_even) and 1 multiclass" in printed
  assert "| `temperature_scaling` |" in printed and (tmp_path / "calarena_local.png").stat().st_size > 5_000
  with pytest.raises(SystemExit, match="Did you mean 'platt'"):
    command.main([*arguments[:2], "--calibrators", "plat"])
  with pytest.raises(SystemExit, match="no such data set: digits_odd"):
    command.main([*arguments[:2], "--benchmarks", "digits_even", "digits_odd"])


def test_means_and_intervals_are_over_data_sets(tmp_path):
  losses = {("a", "1"): (0.1, 0.2), ("a", "2"): (0.3, 0.2), ("b", "1"): (0.5, 0.9)}
  made = [(*key, method, value + shift, {"split": split}) for key, values in losses.items()
          for method, value in zip(("m", "select"), values, strict=True) for split, shift in enumerate((-0.05, 0.05))]
  # Two methods lack an experiment, or a split of one.
  made += [("a", "1", "half", 0.1, {}), *((*key, "failing", 0.1, {}) for key in losses), ("b", "1", "failing", "", {})]
  made_rows = _read(tmp_path / "rows.csv", made)
  table = page.values(made_rows)
  assert [*table] == ["`m`", "`select`"] and page.best_single(table) == "`m`"
  np.testing.assert_allclose(table, list(losses.values()))
  np.testing.assert_allclose(page.over_datasets(table), [[0.2, 0.2], [0.5, 0.9]])
  np.testing.assert_allclose(page.wins(table)[0], [0.75, 0.25])
  differences = pd.Series([0.1, 0.3, 0.2])
  mean, half = page.student(differences)
  low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
  np.testing.assert_allclose([mean - half, mean + half], [low, high])
  first, *others = page.selections({"binary": made_rows})
  assert first["best"] == "`m`" and first["mean"] == pytest.approx(200) and first["half"] > 200
  assert len(others) == 3 and not first["shown"] and first["lower"] == 0  # Both scores, without forests too.


def test_pairs_compare_losses_and_times_of_the_same_fits(tmp_path):
  made = []
  for i, (theirs, seconds, size) in enumerate(((0.1004, 0.06, 2000), (0.3, 0.02, 5000), (0.1, 0.01, 500))):
    for package, loss, time in ((methods.OURS, 0.1, 0.01), ("probmetrics", theirs, seconds), ("netcal", "", "")):
      made.append(("a", str(i), "platt", loss, {"package": package, "cal_size": size, "fit_seconds": time}))
  table = _read(tmp_path / "rows.csv", made)
  pairs = page.pairs(table)
  assert {*pairs.package} == {"probmetrics"}
  np.testing.assert_allclose(pairs.loss, [0.0004, 0.2, 0.0], atol=1e-9)
  np.testing.assert_allclose(pairs.times, [6, 2, 1])
  same = page.same_method(table)
  assert same["all"] == (2, 3, 1, 0) and same["many"] == (1, 2, 1, 0) and same["fast"] == (1, 2)
  assert same["slow"] == ["platt (binary, probmetrics: 4.0)"]
  assert "| platt | probmetrics | binary | 1 of 2 | 1 of 1 |" in same["table"]


def test_metrics_are_those_of_their_definitions():
  logits, labels = synthetic(400, 4)
  p = special.softmax(logits.astype(np.float64), axis=1)
  bins = np.floor(15 * p.max(1)).astype(int)
  gaps = [abs(np.sum((p.argmax(1) == labels)[bins == b] - p.max(1)[bins == b])) for b in range(15)]
  assert measures.scores(np.log(p), labels) == pytest.approx({
    "brier": np.mean(np.sum((p - np.eye(4)[labels]) ** 2, axis=1)),
    "logloss": -np.mean(np.log(p[np.arange(400), labels])), "ece-15": np.sum(gaps) / 400,
    "accuracy": np.mean(p.argmax(1) == labels)}, rel=1e-5)
  logits, labels = synthetic(400, 2)
  p = special.softmax(logits.astype(np.float64), axis=1)[:, 1]
  bins = np.floor(15 * p).astype(int)
  ece = sum(abs(np.sum((labels - p)[bins == b])) for b in range(15)) / 400
  assert measures.scores(np.log(np.stack([1 - p, p], 1)), labels)["ece-15"] == pytest.approx(ece, rel=1e-4)


def test_win_rates_have_intervals_over_data_sets():
  index = pd.MultiIndex.from_product([range(20), [*"ab"]], names=["dataset", "model"])
  first = np.random.default_rng(0).uniform(size=20).round()  # Both experiments of a data set have the same winner.
  table = pd.DataFrame({"x": np.repeat(first, 2), "y": 0.5, "z": 0.5}, index)  # A tie is half a win.
  mean, low, high = page.wins(table)
  rate = np.mean(first == 0)
  np.testing.assert_allclose(mean, [rate, *2 * [0.75 - rate / 2]])
  half = 1.96 * np.sqrt(rate * (1 - rate) / 20)  # Of 20 data sets, not of 40 experiments.
  np.testing.assert_allclose([low[0], high[0]], [rate - half, rate + half], atol=0.3 * half)
