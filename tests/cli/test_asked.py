"""What ``evaluate`` answers where it is asked for a cut, for sets of classes and for costs, and what it refuses."""

import json
import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from calib_jax import calibrators, evaluation, metrics, thresholds
from calib_jax.cli import apply, asked
from calib_jax.cli import evaluate as command
from calib_jax.evaluation import Predictions
from calib_jax.evaluation.asked import Asked
from calib_jax.evaluation.predictions.calibrated import Calibrated
from calib_jax.evaluation.reports import formats
from calib_jax.evaluation.reports.drawing import FIGURES
from calib_jax.evaluation.reports.report_figure import Shown
from calib_jax.evaluation.results import Interval
from calib_jax.evaluation.sections import SECTIONS
from calib_jax.evaluation.verdict import uses

pytestmark = pytest.mark.xdist_group("evaluate")
RUNS = {}
COSTS = "act,ill,healthy\nsend home,10,0\ntreat,0,1\n"


def _arrays(seed, n=1500, right=1.0, names=("healthy", "ill")):
  """Two classes; logits are twice too large, or more wrong where ``right`` is small."""
  rng = np.random.default_rng(seed)
  odds = 4 * rng.normal(size=n)
  labels = (rng.uniform(size=n) < 1 / (1 + np.exp(-right * odds))).astype(np.int32)
  arrays = {"logits": np.stack([-odds, odds], 1).astype(np.float32), "labels": labels, "patient": np.arange(n)}
  return arrays | ({"classes": np.array(names)} if names else {})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  folder = tmp_path_factory.mktemp("asked")
  for name, arrays in {"fit": _arrays(0), "test": _arrays(1), "choose": _arrays(2), "drift": _arrays(3, right=0.3),
                       "few": _arrays(4, 40), "plain": _arrays(5, names=())}.items():
    np.savez(folder / f"{name}.npz", **arrays)
    confidence = 1 / (1 + np.exp(-2 * np.abs(arrays["logits"][:, 1].astype(float))))
    np.savez(folder / f"{name}_records.npz", confidence=confidence,
             correct=(arrays["logits"][:, 1] > 0) == arrays["labels"])
  (folder / "costs.csv").write_text(COSTS)
  return folder


def _run(files, capsys, *arguments):
  """The exit code, the JSON and the messages; the same arguments are evaluated once."""
  if arguments not in RUNS:
    named = [str(files / a) if a.endswith((".npz", ".csv")) else a for a in arguments]
    code = command.main([*named, "--num_resamples=20", "--json", "-"])
    captured = capsys.readouterr()
    RUNS[arguments] = code, json.loads(captured.out or "{}"), captured.err
  return RUNS[arguments]


TS = ("--fit", "fit.npz", "--calibrators", "temperature_scaling")


def test_a_cut_is_chosen_out_of_fold_or_on_a_file_of_its_own_and_judged_on_the_test_set(files, capsys):
  of_fold = _run(files, capsys, *TS, "--test", "test.npz", "--risk=0.05")[1]
  of_file = _run(files, capsys, *TS, "--test", "test.npz", "--choose", "choose.npz", "--risk=0.05")[1]
  arrays = {name: dict(np.load(files / f"{name}.npz")) for name in ("fit", "test", "choose")}

  def confidence(name):
    odds = np.abs(arrays[name]["logits"][:, 1] * 2).astype(np.float64)
    return 1 / (1 + np.exp(-odds)), (arrays[name]["logits"][:, 1] > 0) == arrays[name]["labels"]

  for content, chosen in ((of_fold, "fit"), (of_file, "choose")):
    use = content["uses"]["test"]["uncalibrated"]
    expected = thresholds.selective_threshold(*confidence(chosen))
    check = thresholds.check_threshold(expected.cut, *confidence("test"))
    assert use["cut"] == pytest.approx(expected.cut, rel=1e-6) and use["guarantee"] == str(expected)
    assert use["errors"]["estimate"] == pytest.approx(check.risk, abs=0.003)
    assert use["chosen_on"].endswith(f"{chosen}.npz")
    calibrated = content["uses"]["test"]["temperature_scaling"]
    # Of two classes a temperature keeps the order, so that the same are accepted, at another cut, with the guarantee.
    assert calibrated["chosen_on"] == f"{use['chosen_on']}, by the confidences before calibration, whose order stays"
    assert calibrated["accepted"] == use["accepted"] and calibrated["errors"] == use["errors"]
    assert calibrated["cut"] < use["cut"] - 1e-3
    assert content["verdict"]["first_line"].endswith(f"cut {calibrated['cut']!r}.")
    assert content["verdict"]["recommendations"][-1]["kind"] == "automate"


def _records(path, seed, n=1200):
  """Answers whose stated confidences have many ties, and are 11 points too high."""
  rng = np.random.default_rng(seed)
  stated = rng.choice([0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0], p=[0.05, 0.1, 0.2, 0.25, 0.2, 0.1, 0.1], size=n)
  correct = rng.random(n) < np.clip(stated - 0.11, 0, 1) * 0.97
  rows = [{"confidence": c, "correct": bool(y)} for c, y in zip(stated.tolist(), correct, strict=True)]
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return stated, correct


def test_cuts_of_stated_confidences_are_kept_by_a_map_that_keeps_their_order(tmp_path, capsys):
  """Of Platt and temperature: each row has the cut of the stated confidences, which can be given back to the files."""
  _records(tmp_path / "val.jsonl", 0)
  stated, correct = _records(tmp_path / "test.jsonl", 1)
  options = ["--risk=0.25", "--num_resamples=20", "--json", "-"]
  files = ["--fit", str(tmp_path / "val.jsonl"), "--test", str(tmp_path / "test.jsonl")]
  for calibrator in ("platt", "temperature_scaling"):
    out = tmp_path / calibrator
    capsys.readouterr()
    assert command.main([*files, "--calibrators", calibrator, *options, "--out", str(out), "--columns", "nll"]) == 0
    content = json.loads(capsys.readouterr().out)
    uses_by_row = content["uses"]["test"]
    own, mapped = uses_by_row["uncalibrated"], uses_by_row[calibrator]
    assert own["accepted"] == mapped["accepted"] == np.mean(stated >= own["cut"]) > 0.3
    assert own["errors"] == mapped["errors"] and "approximate" not in mapped["chosen_on"]
    assert own["errors"]["estimate"] == pytest.approx(np.mean(~correct[stated >= own["cut"]]))
    # Given back: to the stated confidences, to the calibrator, and to the file that apply writes.
    assert apply.main(["--calibrator", str(out / "calibrator.npz"), "--predictions", str(tmp_path / "test.jsonl"),
                       "--out", str(tmp_path / "mended.csv")]) == 0
    for line in ([*files[2:], f"--cut={own['cut']!r}"], ["--test", str(tmp_path / "mended.csv"),
                                                         f"--cut={mapped['cut']!r}"],
                 [*files, "--calibrators", calibrator, f"--cut={mapped['cut']!r}"]):
      capsys.readouterr()
      assert command.main([*line, *options]) == 0
      given, = {use["accepted"] for by_row in json.loads(capsys.readouterr().out)["uses"].values()
                for use in by_row.values() if "accepted" in use}
      assert given == own["accepted"]
    assert command.main([*files[2:], f"--cut={own['cut']!r}", "--fail_if=risk>0.1", *options[1:]]) == 3


def test_platt_keeps_the_ranking_in_cross_validation_too(tmp_path, capsys):
  _records(tmp_path / "val.jsonl", 0)
  assert command.main(["--fit", str(tmp_path / "val.jsonl"), "--calibrators", "platt", "--num_resamples=20"]) == 0
  assert "and the ranking stays." in capsys.readouterr().out.splitlines()[0]


def test_a_first_line_does_not_deny_the_cut_of_another_row(files, capsys):
  _, content, _ = _run(files, capsys, "--fit", "fit.npz", "--calibrators", "matrix_scaling", "--test", "test.npz",
                       "--risk=0.05")
  by_row = content["uses"]["test"]
  results = SimpleNamespace(asked=Asked(0.05), row_name=lambda row: row[1], sections={"uses": {"test": {
    "none": by_row["uncalibrated"],
    "MS": {"cut": np.nan, "guarantee": "no cut is shown to have ≤ 5% errors", "accepted": 0.0}}}})
  (line,) = uses.recommendation(results, ("mine", "MS"))
  assert line.text == (
    f"For MS no cut is shown to have ≤ 5% errors, and for none one is: {by_row['uncalibrated']['guarantee']}.")


def test_without_a_test_set_a_cut_is_chosen_and_not_judged(files, capsys):
  code, content, _ = _run(files, capsys, *TS, "--risk=0.05")
  use = content["uses"]["fit"]["temperature_scaling"]
  assert code == 0 and "guarantee" in use and "errors" not in use
  assert any("not judged, for which --test is needed" in reason for reason in content["verdict"]["reasons"])


def test_records_have_the_cut_of_the_predictions_that_they_are_of(files, capsys):
  uses = [_run(files, capsys, *TS[:1], f"fit{kind}.npz", *TS[2:], "--test", f"test{kind}.npz", "--risk=0.05")[1]["uses"]
          for kind in ("", "_records")]
  ours, theirs = (use[name]["uncalibrated"] for use, name in zip(uses, ("test", "test_records"), strict=True))
  assert ours["cut"] == pytest.approx(theirs["cut"], rel=1e-5) and ours["accepted"] == theirs["accepted"]
  assert uses[1]["test_records"]["temperature_scaling"]["cut"] < theirs["cut"]


def test_no_cut_is_said(files, capsys):
  _, content, _ = _run(files, capsys, "--test", "test.npz", "--choose", "few.npz", "--risk=0.05")
  assert content["uses"]["test"]["uncalibrated"]["cut"] is None
  assert content["verdict"]["first_line"].endswith("No cut is shown to have ≤ 5% errors with 40 examples (95% sure); "
                                                   "≤ 10% would, but that is a choice after a look.")
  use = {"cut": np.nan, "accepted": 0.0, "errors": Interval(np.nan, 0.0, 1.0), "p_value": 1.0}
  assert SECTIONS["uses"].table({"test": {"TS": use}}, None).rows == [["test", "TS", "none", "0", "none", "1"]]


def test_a_chosen_cut_that_fails_on_a_set_leads_with_that(files, capsys):
  options = (*TS, "--choose", "choose.npz", "--test", "drift.npz", "--risk=0.05", "--fail_if=risk>0.05")
  code, content, _ = _run(files, capsys, *options)
  assert code == 3
  line = content["verdict"]["first_line"]
  assert re.search(r"\. More than 5% errors are shown on drift, against what \S+choose.npz says: automate \d+% ", line)
  assert re.search(r"≤ 5% errors \(95% sure\): cut 0\.\d+\.$", line)


def test_each_group_counts_once(files, tmp_path, capsys):
  """Of patients with 1 to 9 rows, those of many rows are wrong more often."""
  for name, seed in (("fit", 10), ("choose", 11), ("test", 12)):
    arrays, rng = _arrays(seed, 600), np.random.default_rng(seed)
    arrays["labels"] = np.where(rng.uniform(size=600) < 0.98, arrays["logits"][:, 1] > 0, arrays["logits"][:, 1] <= 0)
    sizes = np.where((arrays["logits"][:, 1] > 0) == arrays["labels"], 1, 9)
    np.savez(tmp_path / f"{name}.npz", **{key: x if key == "classes" else np.repeat(x, sizes, axis=0)
                                          for key, x in arrays.items()})
  _, content, _ = _run(tmp_path, capsys, *TS, "--choose", "choose.npz", "--test", "test.npz", "--risk=0.05",
                       "--groups=patient")
  use = content["uses"]["test"]["uncalibrated"]
  assert use["guarantee"].startswith("automate 100% of the cases at ≤ 5% errors (95% sure, each group counts once)")
  assert 0.005 < use["errors"]["estimate"] < 0.04  # Of rows it is 15%.
  (sentence,) = (x for x in content["verdict"]["reasons"] if "the cut accepts" in x)
  assert sentence.endswith("are errors, each group counts once.")


@pytest.mark.parametrize(("sets", "code", "sentence"), [
  (["test"], 0, "The cut 0.97 of the uncalibrated model is not shown to fail."),
  (["drift"], 3, "The cut 0.97 of the uncalibrated model no longer holds: more than 5% errors are shown on drift."),
  (["test", "drift"], 3, "more than 5% errors are shown on drift.")])
def test_a_stored_cut_that_no_longer_holds_on_a_set_fails_the_command_if_that_is_asked(sets, code, sentence, files,
                                                                                       capsys):
  options = [word for name in sets for word in ("--test", f"{name}.npz")] + ["--cut=0.97"]
  actual, content, _ = _run(files, capsys, *options, "--fail_if=risk>0.05")
  assert actual == code and content["verdict"]["first_line"].endswith(sentence)
  assert _run(files, capsys, *options, "--risk=0.05")[0] == 0
  for name in sets:
    arrays, use = np.load(files / f"{name}.npz"), content["uses"][name]["uncalibrated"]
    certain = np.abs(arrays["logits"][:, 1]) * 2 >= np.log(0.97 / 0.03)
    check = thresholds.check_threshold(0.5, certain.astype(float), (arrays["logits"][:, 1] > 0) == arrays["labels"])
    assert use["p_value"] == pytest.approx(check.p_value) and (use["p_value"] <= 0.05) == (name == "drift")


@pytest.mark.parametrize(("sets", "limit", "code"), [
  (["test"], 0.02, 3), (["test"], 0.3, 0), (["drift"], 0.1, 3), (["test", "drift"], 0.1, 3), (["few"], 0.05, 0)])
def test_an_ece_that_is_shown_to_be_too_high_fails_the_command_and_its_noise_floor_is_said(sets, limit, code, files,
                                                                                          capsys):
  """Not one that few examples raise: the limit is compared with the interval of the ECE without its noise."""
  options = [word for name in sets for word in ("--test", f"{name}.npz")]
  actual, content, _ = _run(files, capsys, *options, f"--fail_if=ece>{limit}")
  last = content["verdict"]["recommendations"][-1]
  assert actual == code and last["kind"] == ("cut_fails" if code else "ece_holds") and not content["uses"]
  assert re.search(rf"a calibrated model would show .*% as noise: more than {100 * limit:g}% is "
                   f"{'shown' if code else 'not shown'}", content["verdict"]["first_line"])
  if sets[-1] == "drift":
    assert "The ECE on drift is" in content["verdict"]["first_line"]


@pytest.mark.parametrize(("sets", "limit", "code"), [
  (["test"], 0.2, 0), (["test"], 0.02, 3), (["test", "few"], 0.2, 3), (["TS", "test"], 0.2, 0)])
def test_a_promise_holds_only_where_the_bound_of_every_set_is_below_it(sets, limit, code, files, capsys):
  fitted, sets = (TS if "TS" in sets else []), [name for name in sets if name != "TS"]
  options = [word for name in sets for word in ("--test", f"{name}.npz")]
  actual, content, _ = _run(files, capsys, *fitted, *options, f"--fail_if=ece_upper>{limit}")
  last = content["verdict"]["recommendations"][-1]
  assert actual == code and last["kind"] == ("cut_fails" if code else "ece_holds")
  assert f"a promise of {100 * limit:g}% {'is not shown' if code else 'holds'}." in content["verdict"]["first_line"]
  bounds = []
  for name in sets:
    logits, labels = (np.load(files / f"{name}.npz")[key] for key in ("logits", "labels"))
    if fitted:
      fit = np.load(files / "fit.npz")
      logits = np.asarray(calibrators.temperature_scaling().fitted(fit["logits"], fit["labels"])(logits))
    pair = metrics.top_label(np.asarray(jax.nn.softmax(logits)), labels)
    rows = sum(map(len, content["results"][name].values()))
    assert rows == (2 if fitted else 1)
    level = 1 - 0.05 / (len(sets) * rows)
    bounds.append(metrics.calibration_error_upper(*map(np.asarray, pair), level=level).upper)
  assert last["numbers"]["upper"] == pytest.approx(max(bounds), abs=1e-6)


def test_a_bound_of_the_true_error_stands_beside_the_error_unless_the_calibrators_have_seen_the_labels(files, capsys):
  _, content, _ = _run(files, capsys, "--test", "test.npz", "--test", "few.npz")
  logits, labels = (np.load(files / "test.npz")[key] for key in ("logits", "labels"))
  pair = metrics.top_label(np.asarray(jax.nn.softmax(logits)), labels)
  upper = metrics.calibration_error_upper(*map(np.asarray, pair)).upper
  said = f"is at most {100 * upper:.1f}%, 95% sure."
  assert said in content["verdict"]["reasons"][0]
  assert sum("at most" in sentence for sentence in content["verdict"]["reasons"]) == 1
  _, content, _ = _run(files, capsys, *TS, "--test", "test.npz")  # Once, of the row to use, among two.
  fit = np.load(files / "fit.npz")
  logits = np.asarray(calibrators.temperature_scaling().fitted(fit["logits"], fit["labels"])(logits))
  pair = metrics.top_label(np.asarray(jax.nn.softmax(logits)), labels)
  said = f"{100 * metrics.calibration_error_upper(*map(np.asarray, pair), level=0.975).upper:.1f}%, 95% sure."
  assert ["at most" in sentence for sentence in content["verdict"]["reasons"]] == [False, True]
  assert said in content["verdict"]["reasons"][1]
  _, content, _ = _run(files, capsys, *TS)
  assert content["verdict"]["recommendations"][0]["kind"] == "use"
  assert not any("at most" in sentence for sentence in content["verdict"]["reasons"])


def test_sets_and_costs_are_those_of_the_library(files, capsys):
  _, content, _ = _run(files, capsys, *TS, "--test", "test.npz", "--choose", "choose.npz", "--sets=0.9", "--costs",
                       "costs.csv")
  test, choose = (dict(np.load(files / f"{name}.npz")) for name in ("test", "choose"))
  probs = {name: np.exp(a["logits"]) / np.exp(a["logits"]).sum(1, keepdims=True)
           for name, a in (("test", test), ("choose", choose))}
  sets = thresholds.prediction_sets(probs["choose"], choose["labels"])(probs["test"])
  decision = thresholds.decision_threshold(probs["test"], np.array([[0.0, 10.0], [1.0, 0.0]]), test["labels"])
  use = content["uses"]["test"]["uncalibrated"]
  assert use["set_size"] == pytest.approx(sets.sum(1).mean(), abs=0.002)
  assert use["set_coverage"]["estimate"] == pytest.approx(sets[np.arange(len(sets)), test["labels"]].mean(), abs=0.002)
  cost, saved = use["cost"], use["less_than_always_treat"]
  assert [cost["estimate"], cost["low"], cost["high"]] == pytest.approx([decision.cost, *decision.interval], abs=1e-3)
  assert saved["estimate"] == pytest.approx(decision.saved[1], abs=1e-3)
  calibrated = content["uses"]["test"]["temperature_scaling"]
  less = cost["estimate"] - calibrated["cost"]["estimate"]
  assert calibrated["less_than_uncalibrated"]["estimate"] == pytest.approx(less)
  assert any("the acts by temperature_scaling cost" in reason for reason in content["verdict"]["reasons"])


def test_costs_without_names_of_classes_are_taken_in_order_and_it_is_said(files, capsys):
  _, content, messages = _run(files, capsys, "--test", "plain.npz", "--costs", "costs.csv")
  assert "its columns are taken in their order: ill is class 0" in messages
  plain = np.load(files / "plain.npz")
  sent_home = plain["logits"][:, 1] * 2 > np.log(10)  # Class 1, healthy, is ten times as probable as class 0.
  cost = np.where(sent_home, 10 * (1 - plain["labels"]), plain["labels"]).mean()
  assert content["uses"]["plain"]["uncalibrated"]["cost"]["estimate"] == pytest.approx(cost, abs=1e-6)


@pytest.mark.parametrize(("arguments", "match"), [
  (["--test", "test.npz", "--risk=0.05"], "must be others: name both, or a cut from before"),
  ([*TS, "--test", "fit.npz", "--risk=0.05"], "hold the same predictions: a cut must be chosen on others"),
  ([*TS, "--test", "test.npz", "--choose", "fit.npz", "--risk=0.05"], "and --fit hold the same predictions"),
  ([*TS, "--test", "test.npz", "--choose", "test.npz", "--risk=0.05"], "and test hold the same predictions"),
  (["--fit", "fit.npz", "--test", "test.npz", "--cut=0.9", "--risk=0.05"], "of one calibrator: name it by"),
  (["--test", "test.npz", "--cut=0.9"], "needs the --risk that it was chosen for"),
  (["--test", "test.npz", "--cut=nan", "--risk=0.05"], "--cut must be a number"),
  ([*TS, "--test", "test.npz", "--risk=1.5"], "risk must be in"),
  ([*TS, "--test", "test.npz", "--fail_if=risk>1e9"], "--fail_if must be 'risk>NUMBER'"),
  ([*TS, "--test", "test.npz", "--fail_if=__import__('os')"], "--fail_if must be 'risk>NUMBER'"),
  ([*TS, "--test", "test.npz", "--risk=0.1", "--fail_if=risk>0.05"], "with the number of --risk"),
  ([*TS, "--fail_if=risk>0.05"], "--fail_if is judged on --test"),
  ([*TS, "--sets=0.9"], "--sets are judged on --test"),
  ([*TS, "--test", "test.npz", "--compare", "drift.npz", "--risk=0.05"], "--risk is for one model: leave out --comp"),
  (["--test", "test.npz", "--fail_if=risk>0.1"], "is judged at a cut of the confidences: name the one in use by --cut"),
  ([*TS, "--fail_if=ece>0.1"], "--fail_if is judged on --test"),
  (["--test", "test.npz", "--fail_if=ece>2"], "or 'ece>NUMBER' or 'ece_upper>NUMBER': got 'ece>2'"),
  ([*TS, "--test", "test.npz", "--fit_by", "patient", "--ood", "test.npz"], "--fit_by cannot be combined with --ood"),
  (["--test", "test.npz", "--weights", "patient", "--ood", "test.npz", "--costs", "costs.csv"],
   "--weights cannot be combined with --ood and --costs"),
  ([*TS, "--test", "test.npz", "--choose", "choose.npz"], "add one of them"),
  ([*TS, "--test", "test.npz", "--cut=0.9", "--risk=0.05", "--sets=0.9"], "leave out one of them"),
  (["--test", "test_records.npz", "--costs", "costs.csv"], "records have no class, so leave them out"),
  (["--test", "test.npz", "--costs", "absent.csv"], "absent.csv must be a matrix of costs.*it is no file")])
def test_what_is_not_sound_is_refused(arguments, match, files, capsys):
  code, _, messages = _run(files, capsys, *arguments)
  assert code == 2 and "error: " in messages and re.search(match, messages), messages


@pytest.mark.parametrize(("text", "match"), [
  ("", "matrix of costs"), ("act,healthy,ill\n", "it has no rows"), ("act,healthy,ill\na,0\n", "line 2 has 2 fields"),
  ("act,healthy,ill\na,0,x\n", "could not convert"), ("act,healthy,ill\na,0,inf\n", "not finite"),
  ("act,healthy,ill\na,0,1\na,1,0\n", "an act is there twice"),
  ("act,healthy,sick\na,0,1\n", "name the classes healthy, ill")])
def test_a_matrix_of_costs_that_cannot_be_read_is_refused(text, match, tmp_path):
  (tmp_path / "costs.csv").write_text(text)
  test = Predictions(np.zeros((1, 2), np.float32), np.zeros(1, np.int32), classes=("healthy", "ill"))
  with pytest.raises(asked.UserError, match=match):
    asked.read_costs(tmp_path / "costs.csv", test, print)


def test_the_figure_and_the_text_have_the_cut_and_what_judges_it():
  arrays = _arrays(1)
  test = Predictions(arrays["logits"], arrays["labels"])
  choose = Calibrated.of(Predictions(*(_arrays(2)[name] for name in ("logits", "labels"))))
  judged = [evaluation.judge({"mine": evaluation.Model({"test": [test]}, {})}, num_resamples=20, asked=question)
            for question in (Asked(0.05, chosen_on={"none": (choose, "others")}), Asked(0.05, stored={"none": 2.0}))]
  use, nothing = (results.sections["uses"]["test"]["uncalibrated"] for results in judged)
  axes, empty = (FIGURES["risk_coverage"].draw(Shown(results)) for results in judged)
  (point, _, (arm,)), = axes.containers
  assert point.get_xydata() == pytest.approx(np.array([[use["accepted"], 100 * use["errors"].estimate]]))
  assert arm.get_segments()[0][:, 1] == pytest.approx([100 * use["errors"].low, 100 * use["errors"].high])
  assert any(line.get_label() == "5%, as asked" for line in empty.lines) and not empty.containers
  text = formats.text(judged[0])
  assert f"cut {use['cut']!r}" in text and "| guarantee" in text and "judged on test" in text
  assert nothing["accepted"] == 0 and "On test the cut accepts 0% of the cases." in judged[1].verdict.reasons


def test_of_costs_only_what_is_shown_is_said():
  judged = {"less_than_always_wait": Interval(1.0, -0.5, 2.5), "less_than_always_treat": Interval(2.0, 1.0, 3.0),
            "less_than_uncalibrated": Interval(0.1, -0.1, 0.3)}
  assert uses._savings(judged) == ("any one act for all cases is not shown to cost more, wait 1.00 (-0.50 to 2.50); "
                                   "calibration is not shown to save: 0.10 (-0.10 to 0.30)")
  shown = judged | {"less_than_always_wait": Interval(1.0, 0.5, 1.5), "less_than_uncalibrated": Interval(0.2, 0.1, 0.3)}
  assert uses._savings(shown) == ("any one act for all cases costs more, wait 1.00 (0.50 to 1.50); calibration saves "
                                  "0.20 (0.10 to 0.30)")
