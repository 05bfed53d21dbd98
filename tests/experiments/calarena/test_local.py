"""CalArena's protocol on data sets at hand: the examples, the rows, and what the page says of them."""

import numpy as np
import pytest
from scipy import special, stats

from calib_jax import calibrators
from experiments.calarena import command, local, local_page, local_peers, local_sets, local_table, methods
from experiments.common import commands, rows
from tests.calibrators.data import synthetic

pytestmark = pytest.mark.xdist_group("calarena")
FEW = {"iris": local_sets.Source(local_sets.SOURCES["iris"].make, ("naive Bayes",)),
       "digits_even": local_sets.Source(local_sets.SOURCES["digits_even"].make, ("logistic regression",))}


def _row(dataset, model, method, logloss, package=methods.OURS, split=0, classes=2, cal_size=100, **other):
  return {"dataset": dataset, "model": model, "split": str(split), "size": "all", "classes": str(classes),
          "cal_size": str(cal_size), "test_size": "100", "method": method, "package": package, "logloss": str(logloss),
          "brier": str(logloss), "ece-15": str(logloss), "accuracy": "1", "fit_seconds": "", "apply_seconds": "",
          "note": "", **other}


def test_halves_of_saved_predictions_and_of_their_groups_of_classes(tmp_path):
  logits, labels = synthetic(101, 10)
  np.savez(tmp_path / "cifar10_net.npz", logits=logits, labels=labels)
  np.savez(tmp_path / "imagenet_top1_net.npz", labels=labels, confidence=labels)
  np.savez(tmp_path / "cifar10_human.npz", probs=special.softmax(logits, axis=1), labels=labels)
  found = local_sets.networks(tmp_path)
  assert list(found) == [("cifar10", "net")]
  order = np.random.default_rng(3).permutation(101)
  experiment = local_sets.halves(found["cifar10", "net"], "cifar10", "net", 3)
  np.testing.assert_allclose(experiment.fit[0], special.log_softmax(logits, axis=1)[order[:50]], atol=1e-5)
  np.testing.assert_array_equal(experiment.test[1], labels[order[50:]])
  animals = local_sets.halves(found["cifar10", "net"], "cifar10_animals", "net", 3)
  probs = special.softmax(logits.astype(np.float64), axis=1)[order[50:], 2:8].sum(1)
  np.testing.assert_allclose(np.exp(animals.test[0]), np.stack([1 - probs, probs], axis=1), atol=1e-6)
  np.testing.assert_array_equal(animals.test[1], (labels[order[50:]] >= 2) & (labels[order[50:]] <= 7))
  names = [(dataset, model) for dataset, model, _ in local_sets.experiments(tmp_path)]
  assert names[-2:] == [("cifar10", "net"), ("cifar10_animals", "net")] and len(set(names)) == len(names)
  with pytest.raises(local_sets.UserError, match="no .npz file"):
    local_sets.networks(tmp_path / "none")


def test_there_are_twelve_experiments_of_each_task_without_any_saved_predictions():
  tasks = [dataset.endswith("_2") or dataset in ("breast_cancer", "diabetes_above_median", "digits_even",
                                                 "fashion_mnist_small_tops")
           for dataset, _, _ in local_sets.experiments(None)]
  assert sum(tasks) >= 12 and len(tasks) - sum(tasks) >= 12


def test_trained_classifiers_are_tested_on_what_they_and_the_calibrators_have_not_seen():
  experiment = local_sets.divided("iris", "naive Bayes", 1)
  assert [len(y) for _, y in (experiment.fit, experiment.test)] == [37, 38]
  np.testing.assert_allclose(special.logsumexp(experiment.test[0], axis=1), 0, atol=1e-6)
  assert np.mean(experiment.test[0].argmax(1) == experiment.test[1]) > 0.85
  again = local_sets.divided("iris", "naive Bayes", 1)
  np.testing.assert_array_equal(experiment.fit[0], again.fit[0])
  other = local_sets.divided("iris", "naive Bayes", 2)
  assert not np.array_equal(experiment.fit[0], other.fit[0])


def test_corners_are_padded_without_a_change():
  logits, labels = synthetic(100, 3)
  for name in methods.CORNERS:
    calibrator = calibrators.get(name)
    params = calibrator.fit(logits, labels)
    padded = methods.padded(params)
    count = padded["x"].shape[-1]
    assert count & (count - 1) == 0 and count >= params["x"].shape[-1]
    np.testing.assert_array_equal(calibrator.apply(padded, logits), calibrator.apply(params, logits))


def test_a_failing_peer_has_an_empty_row_and_ours_may_not_fail(monkeypatch):
  def broken(inputs, labels):
    raise ValueError("class 2 is absent")

  def halved(inputs, labels):
    np.testing.assert_allclose(inputs.sum(1), 1, rtol=1e-6)  # The probabilities.
    return lambda other: np.full(other.shape, 1 / other.shape[1])

  monkeypatch.setitem(methods.PEERS, "identity", {"netcal": broken, "probmetrics": halved, "torch": halved})
  monkeypatch.setattr(methods, "_installed", lambda: frozenset({"netcal", "probmetrics"}))
  experiment = local_sets.divided("iris", "naive Bayes", 0)
  found = list(local.measured(experiment, "identity", peers=True, timed=True))
  assert [row["package"] for row in found] == ["calib_jax", "netcal", "probmetrics"]
  assert found[1]["logloss"] == "" and found[1]["note"] == "ValueError: class 2 is absent"
  assert float(found[2]["logloss"]) == pytest.approx(np.log(3), rel=1e-5) and float(found[2]["fit_seconds"]) >= 0
  z, y = experiment.test
  assert float(found[0]["logloss"]) == pytest.approx(-z[np.arange(len(y)), y].mean(), rel=1e-5)
  monkeypatch.setattr(methods, "of", lambda *args: [methods.Method("identity", methods.OURS, broken)])
  with pytest.raises(ValueError, match="absent"):
    list(local.measured(experiment, "identity", peers=True, timed=False))


def test_the_command_continues_and_its_page_is_of_its_rows(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(local_sets, "SOURCES", FEW)
  monkeypatch.setattr(methods, "_installed", lambda: frozenset())
  arguments = ["--data=local", "--splits=2", f"--out={tmp_path}", "--calibrators", "identity", "temperature_scaling"]
  command.main(arguments)
  path = tmp_path / "calarena_local.csv"
  text, first = path.read_text(), rows.read(path)
  assert "Not installed, and left out: torch, probmetrics, netcal, scikit-learn." in capsys.readouterr().out
  assert len(first) == 8 and {row["method"] for row in first} == {"identity", "temperature_scaling"}
  assert {row["split"] for row in first if row["fit_seconds"]} == {"0"}
  path.write_text("".join(line for line in text.splitlines(True) if "digits_even,logistic regression,1" not in line))
  command.main(arguments)
  repeated = rows.read(path)
  assert [row["logloss"] for row in repeated] == [row["logloss"] for row in first]
  page = (tmp_path / "calarena_local.md").read_text()
  assert "1 binary experiments on 1 data sets (digits_even) and 1 multiclass" in page
  assert "| `temperature_scaling` |" in page and (tmp_path / "calarena_local.png").stat().st_size > 5_000
  with pytest.raises(SystemExit, match="Did you mean 'platt'"):
    command.main([*arguments[:3], "--calibrators", "plat"])
  out = tmp_path / "one"
  command.main([*arguments[:2], f"--out={out}", *arguments[3:], "--benchmarks", "digits_even"])
  assert {row["dataset"] for row in rows.read(out / "calarena_local.csv")} == {"digits_even"}
  with pytest.raises(SystemExit, match="no such data set: digits_odd"):
    command.main([*arguments[:3], "--benchmarks", "digits_even", "digits_odd"])


def test_means_and_intervals_are_over_data_sets():
  losses = {("a", "1"): (0.1, 0.2), ("a", "2"): (0.3, 0.2), ("b", "1"): (0.5, 0.9)}
  made = [_row(*key, method, value + shift, split=split) for key, values in losses.items()
          for method, value in zip(("m", "select"), values, strict=True) for split, shift in enumerate((-0.05, 0.05))]
  made.append(_row("a", "1", "half", 0.1))
  found = local_table.table(made)
  assert found.methods == [("m", "calib_jax"), ("select", "calib_jax")] and found.partial == [("half", "calib_jax")]
  np.testing.assert_allclose(found.values["logloss"], list(losses.values()))
  np.testing.assert_allclose(local_table.excess(found.values["logloss"], found.experiments), [0.025, 0.225])
  np.testing.assert_allclose(local_table.mean_ranks(found.values["logloss"], found.experiments), [1.25, 1.75])
  np.testing.assert_allclose(local_table.wins(found.values["logloss"], found.experiments)[0], [0.75, 0.25])
  assert local_table.best_single(found) == 0
  differences = np.array([0.1, 0.3, 0.2])
  mean, half = local_table.student(differences)
  low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
  np.testing.assert_allclose([mean - half, mean + half], [low, high])
  lines = local_page._select(made, "binary")
  assert "`select` less the best single method, `m`, is +200.0" in lines[0] and "not told apart" in lines[0]


def test_failed_fits_leave_a_method_out():
  made = [_row(dataset, "1", method, 0.1) for dataset in "ab" for method in ("m", "other")]
  made[1]["logloss"] = ""
  found = local_table.table(made)
  assert found.methods == [("m", "calib_jax")] and found.partial == [("other", "calib_jax")]


def test_pairs_compare_losses_and_times_of_the_same_fits():
  made = []
  for i, (theirs, seconds, size) in enumerate(((0.1004, 0.06, 2000), (0.3, 0.02, 5000), (0.1, 0.01, 500))):
    made.append(_row("a", str(i), "platt", 0.1, cal_size=size, fit_seconds="0.01"))
    made.append(_row("a", str(i), "platt", theirs, "probmetrics", cal_size=size, fit_seconds=str(seconds)))
    made.append(_row("a", str(i), "platt", "", "netcal", cal_size=size))
  pair, = local_peers.pairs(made)
  assert (pair.name, pair.package, pair.task) == ("platt", "probmetrics", "binary")
  np.testing.assert_allclose(pair.losses, [0.0004, 0.2, 0.0], atol=1e-9)
  assert pair.many.tolist() == [True, True, False]
  np.testing.assert_allclose(pair.times, [6, 2])
  np.testing.assert_allclose(pair.fewer, [1])
  text = "\n".join(local_peers.same_method(made))
  assert "2 of 3 log losses agree to 1e-3, 1 are lower by calib_jax and 0 by the other" in text
  assert "1 of 2 agree, 1 are lower by calib_jax" in text
  assert "| platt | probmetrics | binary | 1 of 2 | 1 of 1 |" in text
  assert "met in 1 of 2 fits, and by the median it is missed by platt (binary, probmetrics: 4.0)" in text


def test_the_committed_page_is_of_the_committed_rows():
  path = commands.RESULTS / "calarena_local.csv"
  assert local_page.page(rows.read(path)) == path.with_suffix(".md").read_text(encoding="utf-8")
