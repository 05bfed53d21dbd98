"""The papers' tables as one command: what it plans, how long that takes, what it trains once, and the page."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from calib_jax import training
from calib_jax._system.errors import UserError
from experiments.common import comparison, counting, sweep
from experiments.weekend import __main__ as weekend
from experiments.weekend import costs, page, plan
from experiments.weekend.plan import TABLES, published

pytestmark = pytest.mark.usefixtures("no_figures")
TINY = ("--scale=tiny", "--seeds=2", "--tables", "soft_calibration", "--only", "cross_entropy+mmce", "focal+soft_avuc")


def test_every_published_number_has_a_cell_and_a_column_of_ours():
  counts = {}
  for name, table in TABLES.items():
    numbers = published(name)
    cells = {*zip(numbers.task, numbers.method, strict=True)}
    assert cells <= {m[:2] for m in table.experiment.methods(sweep.parse(table.experiment, ["--scale=paper"]))}
    assert {*numbers.calibrator} <= {"none", *table.experiment.calibrators}
    assert {*numbers.column} <= {*table.experiment.columns}
    counts[name] = (len(cells), len(numbers))
  assert counts == {"focal_temperature": (18, 90), "soft_calibration": (5, 15), "reweighted_risk_cifar10": (28, 56),
                    "reweighted_risk_cifar100": (28, 56), "mac_cal": (144, 144)}


def test_some_numbers_are_at_the_places_where_the_papers_print_them():
  number = published("focal_temperature").query("task == 'tiny_imagenet, resnet50' and method == 'focal_7'")
  assert number[["calibrator", "column", "printed"]].to_numpy().tolist() == [
    ["none", "accuracy", "50.9"], ["TS by log loss", "nll", "2.01"], ["TS by ECE", "adaptive", "1.01"],
    ["FTS by log loss", "nll", "2.01"], ["FTS by ECE", "adaptive", "0.96"]]
  assert number.error.iloc[0] == pytest.approx(0.3 / 5**0.5)
  risk = published("reweighted_risk_cifar100").query(
    "task == 'cifar100, wide_resnet28_10' and method == 'selective_risk'")
  assert risk.printed.tolist() == ["79.76", "4.91"]
  # The mean ECE of MaC-Cal over nine networks is the lowest of the table.
  by_loss = published("mac_cal").assign(ece=lambda x: x.printed.astype(float)).groupby("method").ece
  assert by_loss.get_group("masked").iloc[5] == 1.44 and by_loss.mean().idxmin() == "masked"


@pytest.mark.usefixtures("unchecked")
def test_hours_are_the_steps_times_the_recorded_seconds(tmp_path):
  options = weekend.parse(["--tables", "soft_calibration", f"--out={tmp_path}", "--card=a100"])
  config = plan.cells(options, {})[0].jobs[0].config
  name = costs.network(config)
  assert name.startswith("wide_resnet28_10 (") and "dtype=bfloat16" in name and name.endswith("32x32x3, batch 512")
  (tmp_path / "step_seconds.json").write_text(json.dumps({weekend._device(): {name: 0.1}, "2 x other": {name: 9.0}}))
  cells = plan.cells(options, weekend._recorded(tmp_path / "step_seconds.json")[weekend._device()])
  per_epoch = math.ceil(45_000 / 512)
  steps = 200 * per_epoch + 20 * (0.1 / 0.9) * per_epoch / 3  # Evaluations of 5,000 images, every ten epochs.
  assert len(cells) == 5 and all(cell.timed and len(cell.jobs) == 3 for cell in cells)
  assert [cell.hours for cell in cells] == pytest.approx(5 * [1.1 * steps * 0.1 / 3600])
  one = cells[0].hours
  for hours, fits in ((0, []), (1.01 * one, [1]), (4.5 * one, [3, 1]), (15.1 * one, [3] * 5)):
    assert [number for *_, number in plan.fitting(cells, hours) if number] == fits
  options.hours = 4.5 * one
  text = plan.text(plan.fitting(cells, options.hours), options)
  assert "| 1 of 3 runs fit |" in text and "| does not fit |" in text and "≈" not in text
  assert f"Table 1a {15 * one:.1f}. In {options.hours:g} hours 1 of 5 cells are whole" in text
  # A step that was timed on the card is used before one is timed here, and else operations are counted.
  assert costs.step_seconds(config, "h100", {}) == (42.95e-3, True)
  assert costs.step_seconds(config, "h100", {name: 0.1}) == (0.1, True)
  counted = counting.step_operations(config.model, (32, 32, 3), 100, 512)
  assert costs.step_seconds(config, "a100", {}) == (pytest.approx(counted / (0.12 * 312e12)), False)
  assert "≈ marks estimates: 12% of the 312 T" in plan.text(plan.fitting(plan.cells(options, {}), 1.0), options)


@pytest.mark.usefixtures("unchecked")
def test_cells_with_more_evidence_an_hour_are_first_and_shards_divide_them(monkeypatch):
  monkeypatch.setattr(counting, "step_operations", lambda model, image, classes, batch: batch * (
    1e9 if model["name"] == "resnet50" else 4e9))
  arguments = ["--card=a100", "--tables", "soft_calibration", "focal_temperature"]
  cells = plan.cells(weekend.parse(arguments), {})
  worth = [len(cell.numbers) / cell.hours for cell in cells]
  assert worth == sorted(worth, reverse=True) and len(cells) == 23
  assert cells[0].table.title.startswith("Komisarenko") and cells[-1].table.title.startswith("Karandikar")
  shard = plan.cells(weekend.parse([*arguments, "--shard=2/2"]), {})
  assert [cell.name() for cell in shard] == [cell.name() for cell in cells[1::2]]


def test_differences_have_intervals_over_both():
  def printed(text, error=math.nan, seeds=1, calibrator="none"):
    return pd.DataFrame([{"calibrator": calibrator, "column": "ece", "printed": text, "error": error, "seeds": seeds}])

  ours = np.array([0.02, 0.03, 0.025])
  rows = [{"task": "", "method": "m", "calibrator": "none", "seed": str(i), "ece": str(x)} for i, x in enumerate(ours)]
  by_seed, = comparison.values(rows, "ece").values()
  middle, half = page.difference(by_seed, next(printed("2.20", 0.1, 5).itertuples()))
  own = 100 * stats.t.ppf(0.975, 2) * ours.std(ddof=1) / 3**0.5
  assert middle == pytest.approx(100 * ours.mean() - 2.2)
  # The last place that is printed is 0.01, by half of which the published number is rounded.
  assert half == pytest.approx(math.hypot(own, 0.1 * stats.t.ppf(0.975, 4)) + 0.005)
  assert page.difference(by_seed, next(printed("9.00").itertuples()))[1] == pytest.approx(own + 0.005)
  near, far = (page.compared(rows, numbers)[0] for numbers in (printed("2.20", 0.1, 5), printed("9.00")))
  assert (near[1], near[4], far[1], far[4]) == ("2.20 ± 0.10", "yes", "9.00", "no")
  alone, = page.compared(rows[:1], printed("2.20"))
  assert alone[1:] == ["2.20", "2.00", "-0.20", ""]
  assert page.compared(rows, printed("2.20", calibrator="TS")) == []


@pytest.fixture
def trained(monkeypatch):
  """Replaces training by rows that are made up; gives the labels of what trains."""
  labels = []

  def run_job(job, experiment, stem, shard=None):
    labels.append(job.label())
    return [{"task": job.method.task, "method": job.method.name, "calibrator": calibrator, "seed": str(seed),
             "declared": job.declared, "accuracy": f"{0.5 + 0.01 * seed}", "nll": "1", "ece_equal_mass_l2": "0.1",
             "config": job.declared, "seconds": "36", "device": "1 x cpu", "jax": "0", "date": "2000-01-01"}
            for calibrator in ("none", *experiment.calibrators) for seed in job.seeds]

  monkeypatch.setattr(sweep, "run_job", run_job)
  monkeypatch.setattr(costs, "measure", lambda config: 1e-3)
  return labels


def test_cells_train_once_and_one_page_joins_the_numbers_of_shards(tmp_path, trained, capsys):
  command = [*TINY, f"--out={tmp_path}"]
  assert weekend.main([*command, "--dry_run"]) == 0
  assert trained == [] and "2 of 2 cells are whole" in capsys.readouterr().out and len(list(tmp_path.iterdir())) == 0
  assert weekend.main([*command, "--hours=1e-9"]) == 0 and trained == []  # Nothing fits.
  for i in (1, 2):
    assert weekend.main([*command, f"--shard={i}/2"]) == 0
  printed = capsys.readouterr().out
  assert "with --hours=0 makes the page" in printed and printed.count(
    "| Karandikar et al. 2021, Table 1a | focal+soft_avuc | accuracy %, none | 78.1 ± 0.08 | 50.50 ± 0.50 |") == 1
  assert len(trained) == 4 and len(list(tmp_path.glob("*_shard*of2.csv"))) == 2
  assert weekend.main([*command, "--hours=0"]) == weekend.main(command) == 0 and len(trained) == 4
  text = (tmp_path / "weekend_tiny.md").read_text(encoding="utf-8")
  assert "| 4.06 ± 0.14 | 10.00 ± 0.00 | +5.94 |  |" in text  # No interval: the seeds are equal.
  assert "these numbers say only that everything runs" in text
  assert "Not done" not in text and text.count("| Karandikar") == 6
  assert f"{tmp_path / 'weekend_tiny.md'} has the numbers.\n" in capsys.readouterr().out


@pytest.mark.parametrize(("error", "code", "message", "calls"), [
  (training.Stopped("SIGTERM: stopped after step 1", 15), 143, "stopped after step 1", 1),
  (UserError("a row fails"), 1, "failed: UserError: a row fails", 4), (None, 2, "GB free, and a run needs", 0)])
def test_a_full_disk_and_a_signal_stop_the_command_and_a_failure_does_not(error, code, message, calls, tmp_path,
                                                                          trained, monkeypatch, capsys):
  tried = []

  def broken(*arguments):
    tried.append(arguments)
    raise error

  monkeypatch.setattr(sweep, "run_job", broken)
  monkeypatch.setattr(weekend, "FREE", 0 if error else 10**30)
  assert weekend.main([*TINY, f"--out={tmp_path}"]) == code
  assert message in capsys.readouterr().err and len(tried) == calls
  if code == 1:
    assert "## Failed" in (tmp_path / "weekend_tiny.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("arguments", "message"), [
  ([], "--data must name the directory of the data sets: cifar100."),
  (["--data=DIR"], r"has no cifar100 (cifar100.npz or cifar-100-python.tar.gz or cifar100): download the archive"),
  (["--data=DIR/absent"], "--data must name a directory"),
  (["--out=DIR/file"], "file cannot be made a directory (File exists)."),
  (["--only", "vgg"], "--only: no cell of these tables has a name that holds vgg."),
  (["--hours=nan"], "--hours: must be a number of at least 0: got 'nan'"),
  (["--shard=3/2"], "--shard: must be i/n with 1 <= i <= n"), (["--tables=x"], "--tables: invalid choice: 'x'"),
])
def test_a_mistake_is_said_before_anything_trains(arguments, message, tmp_path, trained, capsys):
  (tmp_path / "file").touch()
  arguments = [argument.replace("DIR", str(tmp_path)) for argument in arguments]
  try:
    code = weekend.main(["--tables", "soft_calibration", f"--out={tmp_path}/out", *arguments])
  except SystemExit as error:  # Of the parser.
    code = error.code
  printed = capsys.readouterr().err
  assert code == 2 and message in printed and "Traceback" not in printed and trained == []
