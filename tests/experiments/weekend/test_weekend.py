"""The papers' tables as one command: what it plans, how long that takes, what it trains once, and the page."""

import contextlib
import errno
import json
import math
import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from calib_jax import models, training
from calib_jax._system.errors import UserError
from calib_jax.run import lock
from calib_jax.training import checkpoints
from calib_jax.training.distributed import stopping
from calib_jax.training.run_log import metric_log
from experiments.common import counting, rows, settings, sweep
from experiments.common.commands import ROOT
from experiments.weekend import command as weekend
from experiments.weekend import costs, page, plan, published, work
from experiments.weekend.tables import TABLES, Number

pytestmark = [pytest.mark.usefixtures("no_figures"), pytest.mark.xdist_group("weekend")]
TINY = ("--scale=tiny", "--seeds=2", "--tables", "soft_calibration", "--only", "cross_entropy+mmce", "focal+soft_avuc")


def _options(*arguments):
  options = weekend.parse(arguments)
  options.network = "mlp"
  return options


def test_every_published_number_has_a_cell_and_a_column_of_ours():
  counts = {}
  for name, make in TABLES.items():
    table = make()
    methods = {(m.task, m.name) for m in table.experiment.methods(sweep.parse(table.experiment, ["--scale=paper"]))}
    assert set(table.numbers) <= methods
    for numbers in table.numbers.values():
      assert all(number.calibrator in ("none", *table.experiment.calibrators) for number in numbers)
      assert {number.column for number in numbers} <= {*table.experiment.columns}
    counts[name] = (len(table.numbers), sum(map(len, table.numbers.values())))
  assert counts == {"focal_temperature": (18, 90), "soft_calibration": (5, 15), "reweighted_risk_cifar10": (28, 56),
                    "reweighted_risk_cifar100": (28, 56), "mac_cal": (144, 144)}


def test_some_numbers_are_at_the_places_where_the_papers_print_them():
  number = TABLES["focal_temperature"]().numbers["tiny_imagenet, resnet50", "focal_7"]
  assert [(x.calibrator, x.column, x.mean) for x in number] == [
    ("none", "accuracy", 50.9), ("TS by log loss", "nll", 2.01), ("TS by ECE", "adaptive", 1.01),
    ("FTS by log loss", "nll", 2.01), ("FTS by ECE", "adaptive", 0.96)]
  assert number[0].error == pytest.approx(0.3 / 5**0.5) and [x.unit for x in number] == [0.1] + 4 * [0.01]
  risk = TABLES["reweighted_risk_cifar100"]().numbers["cifar100, wide_resnet28_10", "selective_risk"]
  assert [x.mean for x in risk] == [79.76, 4.91]
  assert TABLES["mac_cal"]().numbers["cifar100, resnet110", "masked"][0].mean == 1.44
  # Every percentage is one, and the mean ECE of MaC-Cal over nine networks is the lowest of the table.
  means = {loss: np.mean(values) for loss, values in published.MAC_CAL.items()}
  assert min(means, key=means.get) == "masked"


def test_hours_are_the_steps_times_the_recorded_seconds(tmp_path):
  options = _options("--tables", "soft_calibration", f"--out={tmp_path}")
  name = costs.network(plan.cells(options, {})[0].config)
  assert name.startswith("wide_resnet28_10 (") and "dtype=bfloat16" in name and name.endswith("32x32x3, batch 512")
  (tmp_path / "step_seconds.json").write_text(json.dumps({weekend._device(): {name: 0.1}, "2 x other": {name: 9.0}}))
  found = plan.cells(options, weekend._recorded(tmp_path / "step_seconds.json"))
  per_epoch = math.ceil(45_000 / 512)
  steps = 200 * per_epoch + 20 * (0.1 / 0.9) * per_epoch / 3  # Evaluations of 5,000 images, every ten epochs.
  assert len(found) == 5 and all(cell.measured and cell.num_seeds == 3 for cell in found)
  for cell in found:
    assert cell.hours == pytest.approx(3 * 1.1 * steps * 0.1 / 3600)
  one = found[0].hours / 3
  for hours, fits in ((0, []), (1.01 * one, [1]), (4.5 * one, [3, 1]), (15.1 * one, [3] * 5)):
    options.hours = hours
    assert [number for *_, number in plan.fitting(found, options) if number] == fits
  options.hours = 4.5 * one
  text = plan.text(plan.fitting(found, options), options)
  assert "| 1 of 3 runs fit |" in text and "| does not fit |" in text and "≈" not in text
  assert f"Table 1a {15 * one:.1f}. In {options.hours:g} hours 1 of 5 cells are whole" in text


def test_estimates_are_those_of_counted_operations():
  options = _options("--tables", "soft_calibration")
  cell = plan.cells(options, {})[0]
  # The multiplications of WRN-28-10 are 5.2e9 for an image; at its borders XLA counts those of the padding out.
  assert 0.85 < costs.forward_operations(cell.config) / (2 * 5.25e9) < 1.02
  seconds = 3 * costs.forward_operations(cell.config) * 512 / (0.12 * 989e12)
  assert costs.step_seconds(cell.config, "h100", {}) == (pytest.approx(seconds), False)
  assert "≈ marks estimates: 12% of the 989 T" in plan.text(plan.fitting([cell], options), options)


def test_models_of_a_small_network_train_together_unless_that_was_measured_to_be_slower(monkeypatch):
  monkeypatch.setattr(costs, "forward_operations",
                      lambda config: {"preresnet56": 2.3e8, "mlp": 1e4}.get(config.model.name, 2.5e9))
  options, table = _options("--tables", "reweighted_risk_cifar10"), TABLES["reweighted_risk_cifar10"]()
  method, large = (next(m for m in table.experiment.methods(options)
                        if m.task == f"cifar10, {network}") for network in ("preresnet56", "resnet50"))

  def cell(measured, method=method, options=options):
    return plan._cell(table, method, plan._numbers(table, method), options, measured)

  small = cell({})
  alone, at_once = costs.network(small.config), costs.network(small.config, 3)
  assert alone != at_once and at_once.endswith("batch 128, 3 models")
  for measured, together, seconds in (({}, 3, None), ({alone: 0.02}, 3, None), ({alone: 0.02, at_once: 0.03}, 3, 0.01),
                                      ({alone: 0.02, at_once: 0.06}, 1, 0.02), ({alone: 0.02, at_once: 0.1}, 1, 0.02)):
    found = cell(measured)
    assert found.together == together and found.num_seeds == 3 and len(found.jobs) == (1 if together == 3 else 3)
    assert found.jobs[0].seeds == ((0, 1, 2) if together == 3 else (0,))
    assert found.config.training.seeds_together == (together == 3)
    assert found.measured == (seconds is not None)
    if seconds:
      assert found.hours == pytest.approx(3 * 1.1 * costs.num_steps(found.config) * seconds / 3600)
    assert found.jobs[0].declared == small.jobs[0].declared  # Rows count however they were trained.
  assert "| 3 together |" in plan.text(plan.fitting([small], options), options)
  tiny = plan.cells(_options(*TINY), {})[0]
  names = costs.network(tiny.config), costs.network(tiny.config, 2)
  slower = plan.cells(_options(*TINY), {names[0]: 0.1, names[1]: 0.3})[0]
  assert tiny.together == 2 and len(slower.jobs) == 2 and not slower.config.training.seeds_together
  for one in (cell({}, large), cell({}, method, _options("--seeds=1"))):
    assert one.together == 1 and not one.config.training.seeds_together


@pytest.mark.slow
def test_which_networks_are_small():
  options = _options("--tables", "reweighted_risk_cifar10", "mac_cal")
  by_task = {m.task: m for name in options.tables for m in TABLES[name]().experiment.methods(options)[::-1]}
  configs = [by_task[f"cifar10, {network}"].config() for network in ("preresnet56", "densenet121", "resnet50")]
  operations = [config.training.batch_size * costs.forward_operations(config) / costs.passes.FORWARD
                for config in configs]
  assert operations == [pytest.approx(x, rel=0.02) for x in (0.9e11, 6.7e11, 9.4e11)]  # As docs/weekend.md has them.
  assert [costs.is_small(config) for config in configs] == [True, True, False]


def test_operations_are_counted_where_the_device_does_not(monkeypatch):
  def product(a, b):
    return a @ b

  shapes = jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((16, 4), jnp.float32)
  assert counting.operations(product, *shapes) == 2 * 8 * 16 * 4
  monkeypatch.setattr(jax.stages.Lowered, "cost_analysis", lambda self: None)  # As on Nvidia's devices and TPUs.
  assert counting.operations(product, *shapes) == pytest.approx(2 * 8 * 16 * 4, rel=0.1)
  with monkeypatch.context() as patch:
    patch.setattr(jax, "local_devices", lambda **_: (_ for _ in ()).throw(RuntimeError("Unknown backend cpu")))
    assert counting.operations(product, *shapes) == pytest.approx(2 * 8 * 16 * 4, rel=0.1)
  monkeypatch.setattr(jax.stages.Compiled, "cost_analysis", lambda self: [{"bytes accessed": 3.0}])
  with pytest.raises(UserError, match="unset JAX_PLATFORMS"):
    counting.operations(product, *shapes)


def test_a_step_of_several_models_can_be_timed():
  config = plan.cells(_options(*TINY), {})[0].config
  assert 0 < costs.measure(config, 2, repeats=2) < 60


def test_a_backward_pass_takes_twice_a_forward_pass():
  model = models.get("resnet8", num_classes=10)
  image = jax.ShapeDtypeStruct((4, 32, 32, 3), jnp.float32)
  variables = jax.eval_shape(lambda key, x: model.init(key, x, train=False), jax.random.key(0), image)

  def loss(params, rest, x):
    return jnp.sum(model.apply({"params": params, **rest}, x, train=False))

  rest = {key: value for key, value in variables.items() if key != "params"}
  forward, both = (jax.jit(f).lower(variables["params"], rest, image).cost_analysis()["flops"]
                   for f in (loss, jax.grad(loss)))
  assert both / forward == pytest.approx(1 / costs.passes.FORWARD, rel=0.15)


def test_cells_with_more_evidence_an_hour_are_first_and_shards_divide_them(tmp_path, monkeypatch):
  monkeypatch.setattr(costs, "forward_operations", lambda config: 1e9 if config.model.name == "resnet50" else 4e9)
  arguments = [f"--out={tmp_path}", "--tables", "soft_calibration", "focal_temperature"]
  found = plan.cells(_options(*arguments), {})
  worth = [len(cell.numbers) * cell.num_seeds / cell.hours for cell in found]
  assert worth == sorted(worth, reverse=True) and len(found) == 23
  assert found[0].table.title.startswith("Komisarenko") and found[-1].table.title.startswith("Karandikar")
  names = [[cell.name() for cell in weekend._cells(_options(*arguments, f"--shard={i}/2"), {})] for i in (1, 2)]
  assert sorted([*names[0], *names[1]]) == sorted(cell.name() for cell in found)
  assert [len(part) for part in names] == [12, 11]


def test_differences_have_intervals_over_both(monkeypatch):
  def found(values):
    return [{"task": "", "method": "m", "calibrator": "none", "seed": str(i), "ece": str(x)}
            for i, x in enumerate(values)]

  ours = np.array([0.02, 0.03, 0.025])
  one, = page.compared(found(ours), [Number("none", "ece", 2.2, 0.1, 5)])
  half = 100 * stats.t.ppf(0.975, 2) * ours.std(ddof=1) / 3**0.5
  assert one.difference == pytest.approx(100 * ours.mean() - 2.2)
  # The last place that is printed is 0.01, by half of which the published number is rounded.
  assert one.half == pytest.approx(math.hypot(half, 0.1 * stats.t.ppf(0.975, 4)) + 0.005)
  assert one.cells()[0] == "2.2 ± 0.10" and one.cells()[3] == "yes"
  far, = page.compared(found(ours), [Number("none", "ece", 9.0)])
  assert far.half == pytest.approx(half + 0.005) and far.cells()[0] == "9" and far.cells()[3] == "no"
  alone, = page.compared(found(ours[:1]), [Number("none", "ece", 2.2)])
  assert alone.cells() == ["2.2", "2.00", "-0.20", ""]
  assert page.compared(found(ours), [Number("TS", "ece", 2.2)]) == []


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
  monkeypatch.setattr(costs, "measure", lambda config, num_models: 1e-3)
  return labels


def test_cells_train_once_and_their_numbers_are_on_the_page(tmp_path, trained, capsys):
  command = [*TINY, f"--out={tmp_path}"]
  assert weekend.main([*command, "--dry_run"]) == 0
  assert trained == [] and "2 of 2 cells are whole" in capsys.readouterr().out and len(list(tmp_path.iterdir())) == 0
  assert weekend.main(command) == 0
  printed = capsys.readouterr().out
  assert len(trained) == 2 and printed.count("| Karandikar et al. 2021, Table 1a | focal+soft_avuc | accuracy %, none "
                                             "| 78.1 ± 0.08 | 50.50 ± 0.50 |") == 1
  text = (tmp_path / "weekend_tiny.md").read_text(encoding="utf-8")
  assert "| 4.06 ± 0.14 | 10.00 ± 0.00 | +5.94 | |" in text.replace("|  |", "| |")  # No interval: the seeds are equal.
  assert "these numbers say only that everything runs" in text and "Not done" not in text
  assert weekend.main(command) == 0 and len(trained) == 2


def test_what_another_process_has_is_left_to_it(tmp_path, trained, capsys):
  command = [*TINY, f"--out={tmp_path}"]
  cell = weekend._cells(_options(*command), {})[0]
  job = cell.jobs[0]
  claim = tmp_path / "claims" / f"soft_calibration_tables_tiny_{cell.method.name}_seeds_0_1_{job.declared}".replace(
    "+", "_")
  claim.mkdir(parents=True)
  holder = subprocess.Popen([sys.executable, "-c", "import fcntl, os, sys, time\n"
                             f"file = open({str(claim / lock.NAME)!r}, 'w')\n"
                             "fcntl.flock(file, fcntl.LOCK_EX)\nprint('held', flush=True)\ntime.sleep(600)"],
                            stdout=subprocess.PIPE)
  try:
    assert holder.stdout.readline() == b"held\n"
    assert weekend.main(command) == 0
    assert len(trained) == 1 and job.label() not in trained
    assert f"- Karandikar et al. 2021, Table 1a: {cell.name()}, 1 of 1 runs" in (
      tmp_path / "weekend_tiny.md").read_text(encoding="utf-8")
  finally:
    holder.kill()
    holder.wait()
    holder.stdout.close()
  assert weekend.main(command) == 0 and trained[1] == job.label()  # A killed process holds nothing.


def test_shards_write_files_of_their_own_that_one_page_joins(tmp_path, trained, capsys):
  command = [*TINY, f"--out={tmp_path}"]
  for i in (1, 2):
    assert weekend.main([*command, f"--shard={i}/2"]) == 0
  assert f"{tmp_path / 'weekend_tiny.md'} has the numbers.\n" in capsys.readouterr().out
  assert len(trained) == 2 and len(list(tmp_path.glob("*_shard*of2.csv"))) == 2
  assert weekend.main([*command, "--hours=0"]) == 0 and len(trained) == 2
  text = (tmp_path / "weekend_tiny.md").read_text(encoding="utf-8")
  assert "Not done" not in text and text.count("| Karandikar") == 6


def test_a_full_disk_and_a_signal_stop_the_command_and_a_failure_does_not(tmp_path, trained, monkeypatch, capsys):
  command = [*TINY, f"--out={tmp_path}"]
  with monkeypatch.context() as patch:
    patch.setattr(work, "FREE", 10**30)
    assert weekend.main(command) == 2
    assert "GB free, and a run needs" in capsys.readouterr().err and trained == []
  for error, code, message in ((training.Stopped("SIGTERM: stopped after step 1", 15), 143, "stopped after step 1"),
                               (UserError("it could not be written (no space is left); free some"), 2, "no space"),
                               (UserError("a row fails"), 1, "failed: Karandikar")):
    calls = []

    def broken(*arguments, error=error, calls=calls):
      calls.append(arguments)
      raise error

    with monkeypatch.context() as patch:
      patch.setattr(sweep, "run_job", broken)
      assert weekend.main(command) == code
    assert message in capsys.readouterr().err and len(calls) == (2 if code == 1 else 1)
  assert "## Failed" in (tmp_path / "weekend_tiny.md").read_text(encoding="utf-8")
  assert weekend.main(command) == 0 and len(trained) == 2


@pytest.mark.slow
def test_a_run_that_takes_longer_than_planned_is_stopped_at_its_checkpoint(tmp_path, trained, monkeypatch, capsys):
  before, calls = signal.getsignal(signal.SIGTERM), []

  def slow(*arguments):
    calls.append(arguments)
    with stopping.requests() as requested:
      for step in range(3000):
        time.sleep(0.01)
        if number := requested(step):
          raise training.Stopped(f"SIGTERM: seed 0 stopped after step {step}; its state is in DIR", number)
    raise AssertionError("nothing stopped it")

  monkeypatch.setattr(costs, "measure", lambda config, num_models: 1e-9)
  with monkeypatch.context() as patch:
    patch.setattr(sweep, "run_job", slow)
    assert weekend.main([*TINY, f"--out={tmp_path}", "--hours=0.001"]) == 0
  said = capsys.readouterr()
  assert "The 0.001 hours are over: seed 0 stopped after step" in said.out and "its state is in DIR" in said.out
  assert "SIGTERM" not in said.out + said.err and len(calls) == 1 and signal.getsignal(signal.SIGTERM) == before
  assert "## Not done" in (tmp_path / "weekend_tiny.md").read_text(encoding="utf-8")
  assert "weekend_tiny.md has the numbers, and the 2 runs that are not done." in said.out
  assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
  assert weekend.main([*TINY, f"--out={tmp_path}"]) == 0 and len(trained) == 2


@pytest.mark.parametrize("trains", [True, False])
def test_a_signal_after_the_last_step_of_a_run_stops_the_command(trains, tmp_path, trained, monkeypatch, capsys):
  calls = []

  def late(*arguments):
    calls.append(arguments)
    with stopping.requests() if trains else contextlib.nullcontext():
      signal.raise_signal(signal.SIGTERM)  # While the run is evaluated, or its rows are made: no step asks any more.
    return []

  with monkeypatch.context() as patch:
    patch.setattr(sweep, "run_job", late)
    assert weekend.main([*TINY, f"--out={tmp_path}"]) == 143
  said = capsys.readouterr()
  assert len(calls) == 1 and "SIGTERM: stopped while no run trained; the same command goes on." in said.err
  assert "weekend_tiny.md has the numbers, and the 2 runs that are not done." in said.out
  assert weekend.main([*TINY, f"--out={tmp_path}"]) == 0 and len(trained) == 2


def test_what_comes_after_the_last_step_is_not_stopped():
  with work.stopped_after(0.01) as over:
    time.sleep(0.1)  # SIGTERM would end this process.
  assert not over


@pytest.mark.parametrize("where", ["rows", "page", "predictions"])
def test_a_disk_that_is_full_elsewhere_is_one_sentence(where, tmp_path, trained, monkeypatch, capsys):
  def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device", "a file")

  place = {"rows": (sweep, "keep"), "page": (work, "write_page"), "predictions": (sweep, "run_job")}[where]
  with monkeypatch.context() as patch:
    patch.setattr(*place, full)
    assert weekend.main([*TINY, f"--out={tmp_path}"]) == 2
  said = capsys.readouterr().err
  assert said.startswith("error: ") and "No space left" in said and said.count("\n") == 1 and len(trained) <= 1
  assert weekend.main([*TINY, f"--out={tmp_path}"]) == 0


@pytest.mark.parametrize(("arguments", "message"), [
  ([], "--data must name the directory of the data sets: cifar100."),
  (["--data=DIR"], r"has no cifar100 (cifar100.npz or cifar-100-python.tar.gz or cifar100): download the archive"),
  (["--data=DIR/absent"], "--data must name a directory"),
  (["--out=DIR/file"], "file cannot be made a directory (File exists)."),
  (["--only", "vgg"], "--only: no cell of these tables has a name that holds vgg."),
  (["--hours=nan"], "--hours: must be a number of at least 0: got 'nan'"), (["--hours=-1"], "at least 0: got '-1'"),
  (["--seeds=0"], "--seeds: must be a whole number of at least 1: got '0'"), (["--processes=0"], "at least 1: got '0'"),
  (["--shard=3/2"], "--shard: must be i/n with 1 <= i <= n"), (["--tables=x"], "--tables: invalid choice: 'x'"),
])
def test_a_mistake_is_said_before_anything_trains(arguments, message, tmp_path, trained, capsys):
  (tmp_path / "file").touch()
  arguments = [argument.replace("DIR", str(tmp_path)) for argument in arguments]
  try:
    code = weekend.main(["--tables", "soft_calibration", f"--out={tmp_path}/out", *arguments])
  except SystemExit as error:  # Of the parser.
    code = error.code
  said = capsys.readouterr().err
  assert code == 2 and message in said and "Traceback" not in said and trained == []


def interrupt(patch, how="", place=0):
  """Makes the command save every fourth step, and stops it after the checkpoint of a step, or before all if it is 0.

  Returns a list that gets the steps from which runs go on. Processes that are killed call it, too.
  """
  changed, save, restore = plan._changed, checkpoints.Checkpoints.save, checkpoints.Checkpoints.restore
  starts = []

  def saved(self, step, tree):
    def full(*_, **__):
      raise ValueError("RESOURCE_EXHAUSTED: No space left on device")

    if how == "full" and step > place:
      patch.setattr(self.manager, "save", full)
    save(self, step, tree)
    if how == "kill" and step == place:
      self.manager.wait_until_finished()
      os.kill(os.getpid(), signal.SIGKILL)

  def restored(self, like):
    found = restore(self, like)
    starts.append(found and found[0])
    print("from step", starts[-1], flush=True)
    if how == "kill" and place == 0:
      os.kill(os.getpid(), signal.SIGKILL)
    return found

  patch.setattr(plan, "_changed", lambda *options: settings.changed(changed(*options), {"checkpoint.every_steps": 4}))
  patch.setattr(checkpoints.Checkpoints, "save", saved)
  patch.setattr(checkpoints.Checkpoints, "restore", restored)
  patch.setattr(metric_log, "EVENTS", False)
  return starts


KILLED = """
import runpy, sys
import pytest
from tests.experiments.weekend import test_weekend
test_weekend.interrupt(pytest.MonkeyPatch(), "kill", int(sys.argv.pop(1)))
runpy.run_module("experiments.weekend", run_name="__main__")
"""


@pytest.mark.slow
def test_a_cell_goes_on_after_kills_and_a_full_disk(tmp_path, capsys):
  command = ["--scale=tiny", "--seeds=2", "--tables", "soft_calibration", "--only", "focal+soft_avuc"]
  recorded = tmp_path / "run" / "step_seconds.json"
  for place in (0, 4):  # Before it has written a checkpoint, and after.
    killed = subprocess.run([sys.executable, "-c", KILLED, str(place), *command, f"--out={tmp_path}/run"], cwd=ROOT,
                            capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL and "from step None" in killed.stdout, killed.stderr
    if place == 0:  # The seeds train together, however busy this machine was when it timed their steps.
      (device, by_network), = json.loads(recorded.read_text()).items()
      assert len(by_network) == 2 and all(0 < seconds < 10 for seconds in by_network.values())  # Alone, both at once.
      recorded.write_text(json.dumps({device: {name: 1.0 for name in by_network}}))
  (tmp_path / "whole").mkdir()
  (tmp_path / "whole" / recorded.name).write_text(recorded.read_text())
  said = {}
  for how, place, out, code, start in (("full", 8, "run", 2, 4), ("", 0, "run", 0, 8), ("", 0, "whole", 0, None)):
    with pytest.MonkeyPatch.context() as patch:
      starts = interrupt(patch, how, place)
      assert weekend.main([*command, f"--out={tmp_path / out}"]) == code
    said[how or out] = capsys.readouterr()
    assert starts == [start]
    assert bool(list((tmp_path / out).glob("*.csv"))) == (code == 0)
  assert "no space is left); the one of step 8 is whole" in said["full"].err and said["full"].err.count("error: ") == 1
  assert "| focal+soft_avuc | accuracy %, none | 78.1 ± 0.08 |" in said["run"].out
  name = "soft_calibration_tables_tiny.csv"
  one, other = ([{key: value for key, value in row.items() if key not in ("seconds", "date")}
                 for row in rows.read(tmp_path / out / name)] for out in ("run", "whole"))
  assert one == other and len(one) == 8
  assert {(row["method"], row["seed"]) for row in one} == {("focal+soft_avuc", "0"), ("focal+soft_avuc", "1")}


def test_a_step_is_timed_on_all_local_devices(monkeypatch):
  asked = []
  monkeypatch.setattr(costs, "engine", lambda config, splits, devices, num_models: asked.append(
    (len(devices), splits.train.images.shape, splits.num_classes, num_models)) or (lambda: time.sleep(0.002)))
  config = plan.cells(_options(*TINY), {})[0].config
  assert 0.002 <= costs.measure(config, 3, repeats=3) < 0.1
  assert asked == [(len(jax.local_devices()), (config.training.batch_size, 8, 8, 1), 10, 3)] and asked[0][0] > 1
