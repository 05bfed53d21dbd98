"""The command that evaluates files: what it writes, compares and refuses."""

import json
import re

import numpy as np
import pytest

from calib_jax import calibrators, evaluation
from calib_jax._system import files as files_of
from calib_jax.cli import evaluate as command
from tests.evaluation.data import K, N, predictions

pytestmark = pytest.mark.xdist_group("results")  # One worker makes what most of these tests and test_results share.


def _write(path, part):
  np.savez(path, logits=part.logits, labels=part.labels)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  folder = tmp_path_factory.mktemp("files")
  _write(folder / "val.npz", predictions(3, rng=np.random.default_rng(1)))
  _write(folder / "test.npz", predictions(3))
  _write(folder / "poisoned.npz", predictions(3)._replace(labels=np.arange(N) % K))
  return folder


def _run(files, *arguments):
  given = (argument.partition("=") for argument in arguments)
  return command.main([f"--{name}={files / value}" if value.endswith(".npz") else f"--{name}{equals}{value}"
                       for name, equals, value in given] + ["--num_resamples=40"])


@pytest.mark.slow
def test_calibrators_never_see_test_labels_and_the_same_inputs_give_the_same_bytes(files, tmp_path, capsys,
                                                                                   monkeypatch):
  for name, test in (("a", "test"), ("b", "test"), ("poisoned", "poisoned")):
    if name == "b":  # Figures take most of the time, and are looked at once.
      monkeypatch.setattr("calib_jax.evaluation.reports.outputs.missing_for_figures", lambda: ["matplotlib"])
    assert _run(files, "fit=val.npz", f"test={test}.npz", "calibrators=temperature_scaling:objective=ece",
                f"out={tmp_path / name}", "figures=pdf", "figure_width=single") == 0
  a, b, poisoned = (tmp_path / name for name in ("a", "b", "poisoned"))
  fitted = "calibrators/temperature_scaling:objective=ece.npz"
  assert (a / "results.json").read_bytes() == (b / "results.json").read_bytes()
  assert (a / "results.json").read_bytes() != (poisoned / "results.json").read_bytes()
  assert (a / fitted).read_bytes() == (poisoned / fitted).read_bytes()
  assert {path.name for path in a.iterdir()} == {"results.json", "results.csv", "results.md", "results.tex", "figures",
                                                 "report.html", "calibrators", "calibrator.npz"}
  assert (a / "calibrator.npz").read_bytes() == (a / fitted).read_bytes()
  for name in ("reliability", "risk_coverage"):
    assert all((a / f"figures/{name}.{suffix}").stat().st_size > 1000 for suffix in ("pdf", "svg"))
    assert not (a / f"figures/{name}.png").exists()  # Which was not asked for.
  assert re.search(rb"/MediaBox \[ 0 0 244\.8 ", (a / "figures/reliability.pdf").read_bytes())  # 3.4 inches.
  assert 'width="244.8pt"' not in (a / "figures/reliability.svg").read_text(encoding="utf-8")  # That of the page.
  assert not list(a.rglob("*.tmp")) and "N = 400, K = 3" in capsys.readouterr().out
  calibrated = calibrators.load(a / fitted).apply(predictions(3).logits)
  np.testing.assert_allclose(np.exp(calibrated).sum(1), 1, rtol=1e-5)


def test_json_is_printed_alone(files, capsys):
  assert _run(files, "test=test.npz", "json=-") == 0
  content = json.loads(capsys.readouterr().out)
  assert list(content["results"]["test"]["test"]) == ["none"]
  assert _run(files, "test=test.npz", "open") == 2
  assert "--open opens the page that --out DIR writes" in capsys.readouterr().err


def test_one_file_is_cross_validated_and_the_same_file_twice_is_said(files, capsys):
  assert _run(files, "fit=val.npz", "folds=3", "calibrators=temperature_scaling") == 0
  assert "cross-validation over 3 folds" in capsys.readouterr().err
  assert _run(files, "fit=val.npz", "test=val.npz", "calibrators=temperature_scaling") == 0
  assert "hold the same predictions; calibrators are judged on what they were fitted to" in capsys.readouterr().err


def test_tokens_are_read_by_the_command_and_compared_if_they_are_scored(tmp_path, capsys):
  part = predictions(3)
  labels = np.where(np.arange(N) % 4, part.labels, -100).reshape(-1, 4)
  masked = np.where(np.arange(K) == (part.labels[:, None] + 1) % K, -np.inf, part.logits)
  for name, logits in (("a", part.logits), ("b", masked)):
    np.savez(tmp_path / f"{name}.npz", predictions=logits.reshape(-1, 4, K), label_ids=labels)
  arguments = [f"--test={tmp_path}/a.npz", f"--compare={tmp_path}/b.npz", "--num_resamples=20", "--json=-"]
  assert command.main(arguments) == 2
  assert "from -100 to 2. If -100 marks rows that are not scored, leave them out: --ignore_l" in capsys.readouterr().err
  assert command.main([*arguments, "--ignore_label", "-100"]) == 0
  printed = capsys.readouterr()
  assert printed.err.count(f"are read as {N} rows; the rows of each of its {N // 4} sequences") == 2
  content = json.loads(printed.out)
  assert content["settings"]["sets"]["a"]["num_examples"] == N * 3 // 4
  p = np.exp(masked.astype(np.float64))
  nll = -np.log((p / p.sum(1, keepdims=True))[np.arange(N), part.labels])[np.arange(N) % 4 > 0]
  assert content["results"]["a"]["b"]["none"]["nll"]["value"] == pytest.approx(nll.mean(), rel=1e-5)
  assert command.main([*arguments, "--task=multilabel", "--ignore_label=-100"]) == 2
  assert "--ignore_label is the label of whole rows" in capsys.readouterr().err


def test_subgroups_have_a_table_each_and_the_worst_is_in_the_first_line(tmp_path, capsys):
  part, rng = predictions(1, 3 * N), np.random.default_rng(0)
  task, domain = np.array(["a", "b", "c"])[np.arange(3 * N) % 3], rng.integers(0, 2, 3 * N)
  logits = np.where(task[:, None] == "b", 3 * part.logits, part.logits)
  np.savez(tmp_path / "x.npz", logits=logits, labels=part.labels, task=task, domain=domain)
  arguments = ["--by", "task", "domain", "--num_resamples=40", "--json", f"{tmp_path}/r.json"]
  assert command.main(["--test", f"{tmp_path}/x.npz", f"--compare={tmp_path}/x.npz", *arguments]) == 0
  printed = capsys.readouterr().out
  assert " Subgroup b of task is worse than the others together: overconfident by 12.4 " in printed.splitlines()[0]
  assert "By domain, no subgroup is shown to be worse than the others together; " in printed
  assert printed.count("\nBy task, the worst first. ") == printed.count("\nBy domain, the worst first. ") == 1
  assert command.main(["--fit", f"{tmp_path}/x.npz", "--calibrators=temperature_scaling", *arguments]) == 0  # In folds.
  printed, content = capsys.readouterr().out, json.loads((tmp_path / "r.json").read_text())
  # The temperature of all makes a and c underconfident.
  assert " Subgroup a of task is worse than the others together after temperature_scaling: under" in printed
  of_task = content["subgroups"]["x"]["task"]["uncalibrated"]
  right = (logits.argmax(1) == part.labels)[task == "b"]
  assert next(iter(of_task)) == "b" and of_task["b"]["accuracy"] == pytest.approx(right.mean())
  assert of_task["b"]["worse_p_value"] < 0.05 / 2 and of_task["b"]["num_examples"] == N
  assert list(content["subgroups"]["x"]["task"]["temperature_scaling"]) == ["a", "c", "b"]
  for name, message in (("nothing", "the subgroups 'nothing' must be 1200 integers or texts"),
                        ("row", "'row' has 1,200 different values, and at most 100 subgroups are reported")):
    np.savez(tmp_path / "y.npz", logits=logits, labels=part.labels, row=np.arange(3 * N))
    assert command.main(["--test", f"{tmp_path}/y.npz", "--by", name]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "message"), [
  ([], "name the predictions: --fit val.npz --test test.npz"),
  (["test=absent.npz"], "there is no file"),
  (["test=test.npz", "calibrators=temperature_scaling"], "--calibrators need predictions to be fitted to"),
  (["fit=val.npz", "folds=1"], "--folds must be from 2 to"),
  (["test=test.npz", "figure_width=single"], "--figure_width is of the formats of --figures"),
  (["fit=val.npz", "test=test.npz", "calibrators=temperatur_scaling"], "calibrator name must be one of"),
  (["fit=val.npz", "test=test.npz", "compare=."], "is a directory, not a file"),
  (["test=test.npz", "columns=accuracy,ese"], "column must be one of 'accuracy', 'nll'"),
  (["test=test.npz", "columns=nll_floor"], "column must be one of"),
  (["test=test.npz", "task=multilabel"], "multi-label predictions have logits [N, L]"),
])
def test_a_mistake_is_one_sentence_and_writes_nothing(files, arguments, message, tmp_path, capsys):
  assert _run(files, *arguments, f"out={tmp_path / 'out'}") == 2
  error = capsys.readouterr().err
  assert error.startswith("error: ") and message in error and error.count("\n") == 1
  assert not (tmp_path / "out").exists()


# Names of files that a terminal, a page or a spreadsheet would obey, and one that is not UTF-8.
HOSTILE = ("<img src=x onerror=alert(1)>", "=cmd|'", "\x1b[31m\nred\u202e", "\udcff")


def test_names_of_files_and_classes_are_printable_in_every_message(tmp_path, capsys):
  for number, name in enumerate(HOSTILE):
    part = predictions(3, rng=np.random.default_rng(number))
    np.savez(tmp_path / f"{name}.npz", logits=part.logits, labels=part.labels, classes=["\x1b[31ma", "<b>", "=1+1"])
  arguments = [f"--test={tmp_path / name}.npz" for name in HOSTILE]
  assert command.main([*arguments, "--json=-", f"--compare={tmp_path / HOSTILE[2]}.npz", "--num_resamples=20"]) == 0
  for bad in (f"--test={tmp_path}/absent\x1b[31m\udcff.npz", f"--compare={tmp_path / HOSTILE[3]}",
              f"--calibrators=\x1b[31m{HOSTILE[3]}", f"--out={tmp_path / HOSTILE[2]}.npz"):
    assert command.main([*arguments[:1], f"--fit={tmp_path / HOSTILE[3]}.npz", bad, "--num_resamples=20"]) == 2
  with pytest.raises(SystemExit):
    command.main(["\x1b[31m", "\udcff"])
  for text in capsys.readouterr():
    assert all(line.isprintable() for line in text.encode().decode().split("\n"))
    assert "1b[31m" in text  # As it is written: \x1b or \u001b.


def test_the_file_of_a_calibrator_can_be_written_whatever_its_label(tmp_path):
  names = {files_of.stem(label) for label in ("a/b", "\x1b[31m\udcff", "x" * 5000, "x" * 5001, "é" * 5000, "TS", "\0")}
  assert {"a_b", "TS", r"\x1b[31m\udcff", r"\x00"} < names and len(names) == 7
  for name in names:
    evaluation.save(tmp_path / f"{name}_seed10.npz", np.zeros((1, 2), np.float32), np.zeros(1, np.int32))
