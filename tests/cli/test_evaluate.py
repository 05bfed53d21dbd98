"""What the commands that judge predictions print, write and open."""

import json
import subprocess
import sys

import numpy as np
import pytest
from scipy import special

from calib_jax import calibrators, evaluation
from calib_jax.cli import compare, inputs
from calib_jax.cli import evaluate as command
from calib_jax.evaluation.reports import formats, outputs

pytestmark = pytest.mark.xdist_group("evaluate")  # One worker compiles what these tests share.
N, K = 300, 4


def _arrays(seed, columns=()):
  """Overconfident logits, or log-odds of ``columns`` labels, and labels."""
  rng = np.random.default_rng(seed)
  if columns:
    odds = 2 * rng.normal(size=(N, *columns)) - 1
    labels = rng.uniform(size=odds.shape) < 1 / (1 + np.exp(-odds))
    return {"logits": (2 * odds).astype(np.float32), "labels": labels.astype(np.int32)}
  logits = 2 * rng.normal(size=(N, K))
  labels = (special.softmax(logits, axis=1).cumsum(1) > rng.uniform(size=(N, 1))).argmax(1)
  return {"logits": (2 * logits).astype(np.float32), "labels": labels}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  folder = tmp_path_factory.mktemp("files")
  for name, arrays in (("val", _arrays(0)), ("mine", _arrays(1)), ("shifted", _arrays(2)),
                       ("binary", _arrays(3, columns=(1,))), ("labels", _arrays(4, columns=(2,)))):
    np.savez(folder / f"{name}.npz", **arrays)
  return folder


@pytest.fixture
def pages(monkeypatch):
  """The pages that are written, which are empty here, and those that are opened."""
  opened, write = [], outputs.write

  def written(results, folder, **options):
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(outputs, "missing_for_figures", lambda: ["matplotlib"])
      write(results, folder, **options)
    (folder / "report.html").write_text(options["title"])

  monkeypatch.setattr(outputs, "write", written)
  monkeypatch.setattr("webbrowser.open", opened.append)
  return opened


def _run(files, *arguments):
  return command.main([*(a if a.startswith("--") else str(files / a) for a in arguments), "--num_resamples=40"])


def test_the_terminal_says_what_to_do_then_the_table_and_what_was_written(files, pages, tmp_path, capsys):
  out = tmp_path / "out"
  assert _run(files, "--fit", "val.npz", "--test", "mine.npz", "--test", "shifted.npz",
              "--columns=accuracy,ece,ece_debiased,mce,nll_calibration", f"--out={out}", "--open") == 0
  printed = capsys.readouterr().out
  content = json.loads((out / "results.json").read_text())
  line, reasons = content["verdict"]["first_line"], content["verdict"]["reasons"]
  assert printed.strip().startswith(f"{line}\n\n- {reasons[0]}\n") and line.startswith("Use TS (T = ")
  assert (out / "results.md").read_text().strip() in printed
  assert content["verdict"]["recommendations"][0]["numbers"]["temperature"] == pytest.approx(2, abs=0.5)
  assert {name: list(rows) for name, rows in content["results"]["mine"].items()} == {"mine": ["none", "TS", "SVS"]}
  head = "| evaluated on | calibrated by | accuracy % "
  assert head in printed and "debiased ECE %" in printed and "| NLL " not in printed.partition(head)[2].splitlines()[0]
  latex = (out / "results.tex").read_text()
  assert r"& accuracy \% & ECE \%, equal width, norm 1 & debiased ECE \% & MCE \% & calibration part " in latex
  none, scaled = (content["results"]["mine"]["mine"][label] for label in ("none", "TS"))
  assert none["nll_calibration"]["low"] > 0 > scaled["nll_calibration"]["low"]  # Computed as it is asked for.
  assert printed.splitlines()[-2:] == [
    f"{out} holds calibrator.npz, calibrators/, results.csv, results.json, results.md, results.tex.",
    f"The page: {out / 'report.html'}"]
  assert pages == [(out / "report.html").as_uri()]
  assert (out / "report.html").read_text() == "Calibration on mine, shifted"


def test_models_are_named_by_their_files_and_the_better_one_comes_first(files, pages, tmp_path, capsys):
  rng = np.random.default_rng(9)
  worse = dict(_arrays(1))
  worse["logits"] = worse["logits"] + 8 * rng.normal(size=worse["logits"].shape).astype(np.float32)
  (tmp_path / "b").mkdir()
  np.savez(tmp_path / "b/mine.npz", **worse)
  for arguments in (("--test", "mine.npz", f"--compare={tmp_path}/b/mine.npz"),
                    ("--test", f"{tmp_path}/b/mine.npz", "--compare", "mine.npz")):
    assert command.main([*(a if a.startswith("-") or a.startswith("/") else str(files / a) for a in arguments),
                         f"--out={tmp_path / 'out'}", "--num_resamples=40"]) == 0
    line = capsys.readouterr().out.strip().splitlines()[0]
    names = list(json.loads((tmp_path / "out/results.json").read_text())["results"]["mine"])
    better = "mine" if arguments[1] == "mine.npz" else names[1]
    assert line.startswith(f"Use {better}: log loss ") and "% accuracy" in line
    assert (tmp_path / "out/report.html").read_text() == f"{' against '.join(names)} on mine"
    assert names[0] == "mine" and names[1] == ("b/mine" if better == "mine" else f"{files.name}/mine")


def test_rows_of_the_test_set_that_are_in_the_fit_set_are_counted(files, tmp_path, capsys):
  fit, test = _arrays(21), _arrays(22)
  mixed = {key: np.concatenate([test[key], fit[key][7:27]]) for key in test}
  coarse = [x | {"logits": np.round(x["logits"] / 2)} for x in (fit, test)]  # Whose rows are equal by chance.
  assert len({*map(bytes, coarse[0]["logits"])} & {*map(bytes, coarse[1]["logits"])}) > 20
  for name, arrays in (("of_fit", fit), ("mixed", mixed), ("other", test), ("coarse_fit", coarse[0]),
                       ("coarse", coarse[1])):
    np.savez(tmp_path / f"{name}.npz", **arrays)
  for name, number, of_fit in (("mixed", 20, "of_fit"), ("other", 0, "of_fit"), ("coarse", 0, "coarse_fit")):
    assert _run(tmp_path, "--fit", f"{of_fit}.npz", "--test", f"{name}.npz", "--calibrators=temperature_scaling") == 0
    printed = capsys.readouterr().err
    assert ("hold the scores" in printed) == (number > 0)
    assert not number or f"{number} of the {N + number:,} rows of {name} hold the scores of rows of --fit" in printed


def test_output_that_nobody_reads_to_its_end_is_no_error(files, tmp_path):
  program = "import sys; from calib_jax.cli.evaluate import main; sys.exit(main(sys.argv[1:]))"
  arguments = f'--test {files / "mine.npz"} --json - --num_resamples 2'
  done = subprocess.run(["bash", "-c", f'set -o pipefail; "{sys.executable}" -c "{program}" {arguments} | head -c 5'],
                        capture_output=True, text=True)
  assert done.returncode == 0 and "error" not in done.stderr and "Traceback" not in done.stderr, done.stderr
  assert len(done.stdout) == 5


def test_binary_and_multi_label_files_have_the_reliability_of_the_positive_class(files, capsys):
  assert _run(files, "--test", "binary.npz", "--task=binary", "--json=-") == 0
  printed = capsys.readouterr()
  content = json.loads(printed.out)
  positive = content["positive_class"]["binary"]["uncalibrated"]
  arrays = _arrays(3, columns=(1,))
  probs = 1 / (1 + np.exp(-arrays["logits"][:, 0].astype(np.float64)))
  bins, outcome = np.ceil(probs * 15), arrays["labels"][:, 0]
  expected = sum(abs((probs - outcome)[bins == j].sum()) for j in range(1, 16)) / N
  np.testing.assert_allclose([positive["probability"], positive["share"], positive["ece"]["value"]],
                             [probs.mean(), outcome.mean(), expected], rtol=1e-4)
  assert "is of class 1, the positive one" in printed.err and positive["ece"]["p_value"] > 0
  assert _run(files, "--fit", "labels.npz", "--test", "labels.npz", "--task=multilabel", "--json=-") == 0
  content = json.loads(capsys.readouterr().out)
  assert list(content["results"]) == ["labels", "labels: label 0", "labels: label 1"]
  assert [content["settings"]["sets"][name]["num_examples"] for name in content["results"]] == [2 * N, N, N]
  by_set = content["results"]
  accuracy = [by_set[name]["labels"]["none"]["accuracy"]["value"] for name in by_set]
  assert accuracy[0] == pytest.approx(np.mean(accuracy[1:]))
  assert "notes" not in content["settings"]
  assert _run(files, "--test", "mine.npz", "--task=binary") == 2
  assert "has 4 classes: --task=binary is for two" in capsys.readouterr().err


@pytest.mark.slow
def test_of_many_labels_the_worst_are_shown_and_their_number_is_said(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr("calib_jax.evaluation.reports.figures", lambda *_, **__: {})
  rng, number = np.random.default_rng(0), 23
  odds = 2 * rng.normal(size=(N, number))
  labels = (rng.uniform(size=odds.shape) < 1 / (1 + np.exp(-odds))).astype(np.int32)
  factor = np.where(np.arange(number) % 7 == 3, 1.0, 3.0)  # Three labels are calibrated, and the others are not.
  factor[20] = 20.0
  classes = np.array([f"c{k}" for k in range(number)])
  np.savez(tmp_path / "x.npz", logits=(factor * odds).astype(np.float32), labels=labels, classes=classes)
  assert command.main(["--test", str(tmp_path / "x.npz"), "--task=multilabel", "--num_resamples=2",
                       f"--out={tmp_path / 'out'}"]) == 0
  content = json.loads((tmp_path / "out/results.json").read_text())
  pooled, first, *rest = content["results"]
  assert (pooled, first) == ("x", "x: c20")
  assert {first, *rest} == {f"x: c{k}" for k in range(number) if factor[k] > 1}
  assert " and 16 more</h1>" in (tmp_path / "out/report.html").read_text()
  sentence = "x has 23 labels: the 20 of the largest calibration errors (of their uncalibrated probabilities"
  for text in (capsys.readouterr().out, *((tmp_path / "out" / name).read_text() for name in (
      "results.md", "results.json", "report.html"))):
    assert sentence in text


def test_cautions_come_after_the_table_once_and_with_the_names_of_the_runs(files, tmp_path, capsys):
  few = {name: array[:80] for name, array in _arrays(0).items()}
  for run in ("a", "b"):
    (tmp_path / run / "predictions").mkdir(parents=True)
    for name in ("validation", "test"):
      evaluation.save(tmp_path / run / f"predictions/{name}_seed0.npz", few["logits"] * (2 if run == "a" else 1),
                      few["labels"].astype(np.int32))
  options = ["--calibrators", "vector_scaling", "--num_resamples=20"]
  assert compare.main([str(tmp_path / "a"), str(tmp_path / "b"), *options]) == 0
  printed = capsys.readouterr()
  (caution,) = [line for line in printed.err.splitlines() if " caution: " in line]
  assert caution.startswith("a, b: caution: vector_scaling: ") and "caution" not in printed.out
  assert printed.err.splitlines()[-1] == caution
  (tmp_path / "b/config.json").write_text('{"name": "b"')
  assert compare.main([str(tmp_path / "a"), str(tmp_path / "b"), *options]) == 2
  assert f"{tmp_path}/b/config.json cannot be read as JSON" in capsys.readouterr().err


def test_default_calibrators_are_what_is_recommended_for_the_size():
  defaults = {(n, k): list(calibrators.recommended(n, k)) for n, k in (
    (299, 10), (300, 10), (999, 10), (1000, 10), (499, 100), (500, 100), (5000, 100), (25_000, 1000), (50_000, 1000),
    (999, 3), (1000, 3), (1999, 2), (2000, 2))}
  assert defaults == {(299, 10): ["TS"], (300, 10): ["TS", "SVS"], (999, 10): ["TS", "SVS"], (1000, 10): ["TS", "SMS"],
                   (499, 100): ["TS"], (500, 100): ["TS", "SVS"], (5000, 100): ["TS", "SMS"],
                   (25_000, 1000): ["TS", "SVS"], (50_000, 1000): ["TS", "SVS"],
                      (999, 3): ["TS"], (1000, 3): ["TS", "SMS"], (1999, 2): ["TS"], (2000, 2): ["TS", "spline"]}
  assert inputs.labelled([]) == {} and list(inputs.labelled(["platt"])) == ["platt"]


def test_errors_stand_as_computed_and_without_their_bias_in_columns_of_their_own():
  error = evaluation.Estimate(0.12, 0.1, 0.08, 0.1101, 0.02, 0.25, [0.12])
  row = evaluation.Row(dict.fromkeys(evaluation.COLUMNS, error), evaluation.Interval(0, 0, 0))
  results = evaluation.Results(15, 100, {"test": evaluation.EvaluatedSet(100, 3, 1, rows={("m", "none"): row})})
  rows = formats.to_rows(results)
  short, every = (dict(zip(*x, strict=True)) for x in (rows, formats.to_rows(results, every=True)))
  assert [short[name] for name in ("NLL", "ECE %, equal width, norm 1", "noise floor %", "p", "debiased ECE %")] == [
    "0.1000 [0.0800, 0.1101]", "12.00", "2.00", "0.250", "10.00 [8.00, 11.01]"]
  assert every["MCE %"] == "12.00" and every["debiased MCE %"] == "10.00 [8.00, 11.01]"
  lines = evaluation.markdown(rows).splitlines()
  assert len({len(line) for line in lines}) == 1 and all(cell in lines[2] for cell in rows[1])
