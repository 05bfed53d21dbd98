"""The runner of experiments: what it trains, skips, resumes and reports, and the table that it makes."""

import functools
import json
import re
import signal

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from calib_jax import training
from calib_jax.training import config as run_config
from calib_jax.training import run
from experiments.common import commands, comparison, rows, scores, settings, sweep, tuning
from experiments.common.declaration import Experiment, Method
from experiments.estimators import seeds_and_images

FIELDS = {"model.hidden": (4,), "training.num_steps": 2, "num_seeds": 2, "compare_with_cross_entropy": False,
          "loss.secondary": {"name": ""}}


def _config(**fields):
  return settings.changed(run_config.load("configs/digits_savuc.py", []), {**FIELDS, **fields})


def _methods(options):
  del options
  named = {"plain": {}, "broken": {"data.path": "missing.npz", "data.name": "npz"},
           "apart": {"training.seeds_together": False}}
  return [Method("digits", name, functools.partial(_config, **fields)) for name, fields in named.items()]


EXPERIMENT = Experiment("test", "A test", _methods, {"TS": {"name": "temperature_scaling"}},
                        suffix=lambda options: "small")


pytestmark = [pytest.mark.usefixtures("no_figures"), pytest.mark.xdist_group("sweep")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """The directory of a whole experiment, of which one run fails."""
  out = tmp_path_factory.mktemp("sweep")
  assert sweep.main(EXPERIMENT, [f"--out={out}"]) == 1
  return out


@pytest.fixture
def trained(monkeypatch):
  """The names of the runs that a command executes."""
  names, execute = [], run.execute
  monkeypatch.setattr(run, "execute", lambda config, folder, **options: (
    names.append(re.sub(r"_[0-9a-f]{12}$", "", folder.name)), execute(config, folder, **options)))
  return names


def test_a_run_that_fails_is_reported_and_the_others_have_rows(finished, capsys):
  assert sweep.main(EXPERIMENT, [f"--out={finished}", "--only", "broken"]) == 1
  assert "failed: digits, broken, seeds 0-1: UserError: config key data.path: there is no" in capsys.readouterr().err
  results = rows.read(finished / "test_small.csv")
  assert [(row["method"], row["calibrator"], row["seed"]) for row in results] == [
    *(("plain", c, s) for c in ("none", "TS") for s in "01"), *(("apart", c, s) for s in "01" for c in ("none", "TS"))]
  assert all(np.isfinite(float(row[name])) for row in results for name in ("accuracy", "nll", "ece", "floor"))
  # Seeds give the same models whether they train together or not, except that those that train together are all
  # normalised by the mean and deviation of the first one's training images.
  values = comparison.values(results, "nll")
  together, single = (values["digits", name, "none"] for name in ("plain", "apart"))
  assert [together[s] for s in "01"] == pytest.approx([single[s] for s in "01"], rel=1e-3)


@pytest.mark.slow
def test_sets_out_of_distribution_have_columns_of_their_own(tmp_path):
  images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
  np.savez(tmp_path / "noise.npz", images=images, labels=np.arange(40) % 2)

  def made(ood):
    config = functools.partial(_config, **{"evaluation.ood": ood, "evaluation.corruptions": ("contrast",),
                                           "evaluation.severities": (5,), "num_seeds": 1})
    job, = sweep.jobs([Method("", f"with {len(ood)}", config, detects=True)])
    return sweep.run_job(job, EXPERIMENT, tmp_path / "rows")

  other, alone = made((str(tmp_path / "noise.npz"),)), made(())
  assert all(0 <= float(row[name]) <= 1 for row in other for name in scores.DETECTION)
  assert all(row[name] == "" for row in alone for name in scores.DETECTION) and set(alone[0]) == set(other[0])
  # The labels of other images are no labels: means over corrupted images leave them out.
  assert [row["accuracy_shifted"] for row in other] == [row["accuracy_shifted"] for row in alone]


def test_a_finished_experiment_only_makes_its_table_again(finished, trained):
  path = finished / "test_small.csv"
  before, page = path.read_bytes(), (finished / "test_small.md").read_bytes()
  (finished / "test_small.md").unlink()
  assert sweep.main(EXPERIMENT, [f"--out={finished}", "--only", "plain", "apart"]) == 0
  assert trained == [] and path.read_bytes() == before and (finished / "test_small.md").read_bytes() == page
  # A row that is lost is made again, and no other.
  lines = before.decode().splitlines(keepends=True)
  path.write_text("".join(line for line in lines if not line.startswith("digits,apart,TS,1")))
  assert sweep.main(EXPERIMENT, [f"--out={finished}", "--only", "plain", "apart"]) == 0
  assert trained == ["digits_apart"]

  def numbers(text):
    return {tuple(line.split(",")[:-5]) for line in text.decode().splitlines()}  # Without seconds, date and versions.

  assert numbers(path.read_bytes()) == numbers(before)


def test_shards_divide_the_runs_and_are_joined(tmp_path, trained, finished):
  wanted = ["--only", "apart"]
  for i in (1, 2):
    assert sweep.main(EXPERIMENT, [f"--out={tmp_path}", f"--shard={i}/2", *wanted]) == 0
  assert trained == ["digits_apart", "digits_apart"] and not (tmp_path / "test_small.csv").exists()
  assert sweep.main(EXPERIMENT, [f"--out={tmp_path}", *wanted]) == 0
  assert len(trained) == 2 and not list(tmp_path.glob("*shard*"))
  joined, before = (comparison.values(rows.read(folder / "test_small.csv"), "nll") for folder in (tmp_path, finished))
  assert joined == {key: value for key, value in before.items() if key[1] == "apart"}


def test_a_signal_stops_the_whole_command(tmp_path, monkeypatch, capsys):
  def stopped(*arguments, **options):
    raise training.Stopped("SIGTERM: stopped after step 1 of 2", 15)

  monkeypatch.setattr(run, "execute", stopped)
  assert sweep.main(EXPERIMENT, [f"--out={tmp_path}", "--only", "apart"]) == 143
  assert "stopped after step 1 of 2" in capsys.readouterr().err and not (tmp_path / "test_small.csv").exists()


def _rows(**values):
  return pd.DataFrame([{"task": "", "method": name, "calibrator": "none", "seed": str(i), "nll": str(x),
                        "accuracy": "0.5"} for name, column in values.items() for i, x in enumerate(column)])


def test_differences_are_paired_by_seed():
  a, b = {"0": 1.0, "1": 3.0, "2": 2.0, "9": 7.0}, {"2": 1.5, "1": 2.0, "0": 0.9}
  change = comparison.paired(a, b)
  expected = stats.ttest_rel([1.0, 3.0, 2.0], [0.9, 2.0, 1.5]).confidence_interval()
  assert (change.low, change.high) == pytest.approx((expected.low, expected.high))
  assert change.effect == pytest.approx(np.mean([0.1, 1.0, 0.5]) / np.std([0.1, 1.0, 0.5], ddof=1))
  assert np.isnan(comparison.paired({"0": 1.0}, {"0": 0.5}).low)


@pytest.mark.parametrize("seeds", [2, 10])
def test_p_values_hold_far_in_the_tail_where_those_of_one_of_many_claims_lie(seeds, monkeypatch):
  """With Welch's degrees of freedom 6% and 0.6% of the p-values are below 0.45%."""
  changes, repeats, paired = [], 3000, comparison.paired
  monkeypatch.setattr(seeds_and_images, "REPEATS", repeats)
  monkeypatch.setattr(comparison, "paired", lambda *rows: changes.append(paired(*rows)) or changes[-1])
  seeds_and_images.equal_rows(seeds, share=0.3)
  assert len(changes) == repeats
  for limit in (0.05, 0.05 / 11):  # More have a chance of 0.2%.
    assert sum(x.p_value < limit for x in changes) <= limit * repeats + 3 * (limit * (1 - limit) * repeats) ** 0.5
  assert all((x.p_value < 0.05) == (not x.low <= 0 <= x.high) for x in changes)


def _of_blocks(images):
  """The row of one seed whose value is the mean over images, as ``scores.without_blocks`` has its noise."""
  by_seed = comparison.BySeed({"0": images.mean()})
  by_seed.blocks = np.array([np.delete(images, block).mean() for block in np.split(np.arange(images.size), 20)])
  by_seed.blocks -= by_seed.blocks.mean()
  return by_seed


def test_intervals_of_one_seed_hold_the_mean_over_other_images_and_make_no_claim():
  held, rng = 0, np.random.default_rng(0)
  for _ in range(1000):
    a, b = rng.exponential(size=(2, 400)) + rng.exponential(size=400)
    value, low, high = comparison.of_one_seed(_of_blocks(a), _of_blocks(b))
    held += low <= 0 <= high
  assert abs(held - 950) < 4 * (1000 * 0.95 * 0.05) ** 0.5
  of_blocks = stats.ttest_rel(*(np.mean(np.split(x, 20), axis=1) for x in (a, b))).confidence_interval()
  assert (value, low, high) == pytest.approx(((a - b).mean(), of_blocks.low, of_blocks.high))
  error = np.std(np.mean(np.split(a, 20), axis=1), ddof=1) / 20**0.5
  assert comparison.cell(_of_blocks(a), "nll") == f"{a.mean():.4f} ± {error:.4f}"
  assert np.isnan(comparison.paired(_of_blocks(a + 9), _of_blocks(b)).low)  # So nothing is bold.
  assert comparison.cell(comparison.BySeed({"0": 0.5}), "nll") == "0.5000"


def test_equal_differences_of_all_seeds_have_no_interval():
  change = comparison.paired({"0": 0.5, "1": 0.5}, {"0": 0.25, "1": 0.25})
  assert change.mean == 0.25 and np.isnan(change.p_value) and np.isnan(change.high)
  assert comparison.paired({"0": 0.5, "1": 0.4}, {"0": 0.5, "1": 0.4})[:3] == (0, 0, 0)


def test_bold_is_only_what_is_better_than_every_other_row():
  clear = _rows(a=(0.1, 0.2, 0.3), b=(0.2, 0.301, 0.4), c=(0.3, 0.4, 0.499))
  assert comparison.best(comparison.values(clear, "nll"), "nll") == {("", "a", "none")}
  near = _rows(a=(0.1, 0.2, 0.3), b=(0.2, 0.1, 0.4), c=(0.3, 0.4, 0.499))
  assert comparison.best(comparison.values(near, "nll"), "nll") == set()
  assert comparison.best(comparison.values(clear, "accuracy"), "accuracy") == set()


def test_a_seed_that_diverged_is_counted():
  results = _rows(a=(0.1, 0.2, float("nan")))
  assert comparison.cell(comparison.values(results, "nll")["", "a", "none"], "nll") == (
    "0.1500 ± 0.0500 (1 of 3 diverged)")


def test_a_method_is_tuned_and_its_rows_say_what_was_tried(monkeypatch, tmp_path):
  tried = []

  def validate(config):
    tried.append((config.loss.weight, config.optimizer.l2))
    return 0.9, abs(config.loss.weight - 0.3) + config.optimizer.l2

  monkeypatch.setattr(tuning, "validation_scores", validate)
  search = {"loss.weight": (0.1, 0.3), "optimizer.l2": (0.0, 0.1)}
  config = functools.partial(_config, **{"loss.secondary": {"name": "soft_avuc"}, "loss.weight": 0.1})
  method = Method("", "tuned", config, search, {}, one_at_a_time=True)
  job, = sweep.jobs([method])
  made, chosen = sweep.run_job(job, EXPERIMENT, tmp_path / "test"), {"loss.weight": 0.3, "optimizer.l2": 0.0}
  assert (0.1, 0.1) not in tried  # One field after another.
  assert {(row["chosen"], row["tried"]) for row in made} == {(json.dumps(chosen), json.dumps({
    "loss.weight": [0.1, 0.3, 1.0], "optimizer.l2": [0.0, 0.1]}))}  # Until the best is inside.
  assert {row["config"] for row in made} == {settings.digest(settings.changed(config(), chosen))}
  assert len(rows.read(tmp_path / "test_trials.csv")) == len(set(tried))


def test_an_ensemble_is_a_row_of_its_own_that_pools_networks_of_the_same_images(tmp_path):
  method = Method("digits", "two", _config, members=2)
  experiment = EXPERIMENT._replace(methods=lambda options: [method])
  assert [job.seeds for job in sweep.jobs([method])] == [(0,), (1,)]
  assert sweep.main(experiment, [f"--out={tmp_path}", "--seeds=1"]) == 0
  results = rows.read(tmp_path / "test_small.csv")
  assert [(row["calibrator"], row["seed"]) for row in results] == [("none", "0"), ("TS", "0")]
  folder, = (tmp_path / "runs" / "test_small").iterdir()
  members = run.Run.load(folder).saved("test")
  assert len(members) == 2 and run.Run.load(folder).config.data.split_seed == 0
  probs = np.mean([np.exp(x.logits - np.logaddexp.reduce(x.logits, axis=1, keepdims=True)) for x in members], axis=0)
  nll = -np.mean(np.log(probs[np.arange(len(probs)), members[0].labels]))
  assert float(results[0]["nll"]) == pytest.approx(nll, rel=1e-5)


def test_processes_share_the_memory_of_a_gpu(monkeypatch):
  started = []

  class Popen:
    def __init__(self, command, env):
      started.append((command[2:], env["XLA_PYTHON_CLIENT_MEM_FRACTION"]))

    def wait(self):
      return 0

  monkeypatch.setattr(commands.subprocess, "Popen", Popen)
  monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
  others = commands.without_processes(["--out=x", "--processes", "3", "--seeds=2", "--processes=3"])
  assert others == ["--out=x", "--seeds=2"]
  assert commands.together("experiments.test", [[*others, f"--shard={i}/3"] for i in (1, 2, 3)]) == [0, 0, 0]
  assert [fraction for _, fraction in started] == ["0.300"] * 3
  assert started[2][0] == ["experiments.test", "--out=x", "--seeds=2", "--shard=3/3"]
  monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.2")
  commands.together("experiments.test", [[]])
  assert started[-1][1] == "0.2"


def test_sigterm_stops_all_processes_and_a_killed_one_is_no_success(tmp_path, monkeypatch):
  (tmp_path / "one.py").write_text("import os, pathlib, signal, sys, time\nhow = sys.argv[1]\n"
                                   "signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))\n"
                                   "pathlib.Path(how).touch()\n"
                                   "if how == 'killed':\n  os.kill(os.getpid(), signal.SIGKILL)\n"
                                   "if how == 'last':\n"
                                   "  while not os.path.exists('first'):\n    time.sleep(0.01)\n"
                                   "  os.kill(os.getppid(), signal.SIGTERM)\n"
                                   "if how != 'done':\n  time.sleep(60)\n")
  monkeypatch.chdir(tmp_path)
  before = signal.getsignal(signal.SIGTERM)
  assert commands.together("one", [["done"], ["killed"]]) == [0, 137]
  assert commands.together("one", [["first"], ["last"]]) == [143, 143]
  assert signal.getsignal(signal.SIGTERM) == before
  monkeypatch.setattr(commands, "together", lambda *_: [0, 143])
  monkeypatch.setattr(sweep, "run_jobs", None)  # What is left does not start after that.
  assert sweep.main(EXPERIMENT, [f"--out={tmp_path}", "--processes=2"]) == 143


@pytest.mark.parametrize(("argument", "message"), [
  *((f"--shard={shard}", "must be i/n with 1 <= i <= n") for shard in ("0/2", "3/2", "1")),
  ("--seeds=0", "must be a whole number of at least 1: got '0'"), ("--processes=two", "at least 1: got 'two'")])
def test_numbers_of_seeds_processes_and_shards_that_do_not_exist_are_refused(argument, message, capsys):
  with pytest.raises(SystemExit):
    sweep.parse(EXPERIMENT, [argument])
  assert message in capsys.readouterr().err


def test_a_row_can_be_the_laplace_approximation_of_the_last_layer(tmp_path):
  method = Method("digits", "Laplace", functools.partial(_config, **{"evaluation.laplace": "full"}))
  experiment = EXPERIMENT._replace(methods=lambda options: [method])
  assert sweep.main(experiment, [f"--out={tmp_path}", "--seeds=1"]) == 0
  row, = (row for row in rows.read(tmp_path / "test_small.csv") if row["calibrator"] == "none")
  folder, = (tmp_path / "runs" / "test_small").iterdir()
  finished = run.Run.load(folder)
  test, images = finished.saved("test")[0], finished.splits(0).test.images
  log_probs = finished.laplace(0).log_probs(finished.features(images, seed=0))
  nll = -np.mean(np.asarray(log_probs)[np.arange(len(test.labels)), test.labels])
  plain = test.logits - np.logaddexp.reduce(test.logits, axis=1, keepdims=True)
  assert float(row["nll"]) == pytest.approx(nll, rel=1e-4)
  assert float(row["nll"]) != pytest.approx(-np.mean(plain[np.arange(len(plain)), test.labels]), rel=1e-3)


def test_sign_flips_are_those_of_scipy_and_hold_their_level():
  rng = np.random.default_rng(0)
  p_values = []
  for _ in range(400):
    differences = rng.standard_t(2, 6)
    values = dict(enumerate(differences))
    p_values.append(comparison.sign_flips(values, dict.fromkeys(values, 0.0)))
  expected = stats.permutation_test((differences,), np.sum, permutation_type="samples", n_resamples=np.inf)
  assert p_values[-1] == pytest.approx(expected.pvalue)
  assert min(p_values) == 2 / 64 and np.mean(np.array(p_values) <= 0.05) < 0.07  # It is 1/32 for all symmetric ones.
