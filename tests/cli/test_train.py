"""``main.py`` end to end, as a user runs it."""

import json
import signal

import jax
import numpy as np
import pytest

from calib_jax import evaluation
from calib_jax.training import config as run_config
from calib_jax.training.run import directory, lock
import main
from tests.programs import python

QUICK = ("--config.num_seeds=2", "--config.training.num_steps=12", "--config.evaluation.num_resamples=50")


def _arguments(workdir):
  return ["--config=configs/digits_savuc.py", f"--workdir={workdir}", *QUICK]


def _digits(workdir, *overrides, tmp_path, **options):
  return python("main.py", *_arguments(workdir), *overrides, tmp_path=tmp_path, **options)


pytestmark = pytest.mark.xdist_group("main")  # One worker makes the run that most tests look at.


@pytest.fixture
def here(monkeypatch):
  """``main`` in this process, in which JAX is in use, so that it cannot look for other processes."""
  monkeypatch.setattr("calib_jax.training.distributed.processes._connected", (None, None, None))
  return main.main


def test_what_a_user_gives_is_repeated_printably(here, tmp_path, capsys):
  (tmp_path / "taken").touch()
  config = "--config=configs/digits_savuc.py"
  for arguments in (["--config=no\x1b[31m\udcff.py", f"--workdir={tmp_path}"],
                    [config, f"--workdir={tmp_path}", "--config.da\x1b[31mta=1"],
                    [config, f"--workdir={tmp_path / 'taken' / (chr(27) + '[31m')}"]):
    assert here(arguments) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and error.isprintable() and r"\x1b[31m" in error


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  folder = tmp_path_factory.mktemp("digits")
  return folder / "run", _digits(folder / "run", tmp_path=folder, blocked=("tensorflow", "tensorboard"))


def test_the_demo_leaves_everything_that_explains_the_run(finished):
  workdir, done = finished
  assert done.returncode == 0, done.stderr
  assert "examples/s" in done.stderr and "left" in done.stderr and "loss" in done.stderr
  names = {path.name for path in workdir.iterdir()} - {lock.NAME}
  assert {"config.json", "environment.json", "metrics.jsonl", "checkpoints", "predictions", "results.json",
          "results.md", "figures", "report.html", "baseline"} <= names
  assert all(f"{workdir}/{name}" in done.stdout for name in names)
  assert json.loads((workdir / "config.json").read_text())["training"]["num_steps"] == 12
  assert json.loads((workdir / "environment.json").read_text())["packages"]["jax"]
  assert {path.suffix for path in (workdir / "figures").iterdir()} == {".svg"}
  page = (workdir / "report.html").read_text()
  assert "data:image/svg+xml;base64," in page
  assert not list(workdir.rglob("*.tmp"))


@pytest.mark.slow
def test_what_was_compiled_is_kept_in_the_users_cache_directory(tmp_path):
  python("tests/training/killed.py", 2, int(signal.SIGKILL), "--config=configs/digits_savuc.py",
         f"--workdir={tmp_path / 'runs' / 'a'}", tmp_path=tmp_path, JAX_COMPILATION_CACHE_DIR=None,
         XDG_CACHE_HOME=tmp_path / "cache")
  cache = tmp_path / "cache" / "calib_jax"
  assert list(cache.glob("jit_*")) and cache.stat().st_mode & 0o777 == 0o700
  assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a"]


def test_a_finished_run_is_only_reported_again(finished, here, no_figures, capsys):
  before = {path: path.stat().st_mtime_ns for path in finished[0].rglob("predictions/*.npz")}
  log = (finished[0] / "metrics.jsonl").read_bytes()
  assert here(_arguments(finished[0])) == 0
  printed = capsys.readouterr()
  assert "step" not in printed.err
  assert before == {path: path.stat().st_mtime_ns for path in finished[0].rglob("predictions/*.npz")}
  assert log == (finished[0] / "metrics.jsonl").read_bytes()
  assert (finished[0] / "results.md").read_text().strip() in printed.out


def test_the_log_has_training_and_validation_of_every_seed(finished):
  lines = [json.loads(line) for line in (finished[0] / "metrics.jsonl").read_text().splitlines()]
  assert {line["seed"] for line in lines} == {0, 1}
  for seed in (0, 1):
    last = {k: v for line in lines if line["seed"] == seed and line["step"] == 12 for k, v in line.items()}
    assert {"train/loss", "train/primary", "train/secondary", "train/l2", "train/accuracy", "validation/accuracy",
            "validation/nll", "validation/ece"} <= last.keys()
    assert all(np.isfinite(v) for v in last.values())


def test_the_table_has_both_methods_before_and_after_calibration_with_intervals(finished):
  workdir, done = finished
  results = json.loads((workdir / "results.json").read_text())["results"]["test"]
  assert list(results) == ["cross_entropy", "focal + soft_avuc"]
  for method, folder in (("cross_entropy", workdir / "baseline"), ("focal + soft_avuc", workdir)):
    assert list(results[method]) == ["none", "TS", "SVS"]
    for row in results[method].values():
      wanted = {name for name in evaluation.COLUMNS if name not in ("nll_calibration", "nll_refinement")}
      assert set(row) == wanted - {"sweep", "smooth"}  # Which need 200 resamples.
      assert all(cell["low"] <= cell["high"] and len(cell["per_seed"]) == 2 for cell in row.values())
    # The numbers are those of the predictions on disk, computed here from their definitions.
    accuracy, nll = [], []
    for seed in (0, 1):
      logits, labels = evaluation.load(folder / f"predictions/test_seed{seed}.npz")[:2]
      assert logits.shape == (359, 10)
      log_z = np.log(np.exp(logits.astype(np.float64)).sum(1))
      nll.append(np.mean(log_z - logits[np.arange(359), labels]))
      accuracy.append(np.mean(logits.argmax(1) == labels))
    np.testing.assert_allclose(results[method]["none"]["accuracy"]["per_seed"], accuracy, rtol=1e-6)
    np.testing.assert_allclose(results[method]["none"]["nll"]["estimate"], np.mean(nll), rtol=1e-5)
    assert results[method]["TS"]["nll"]["estimate"] <= results[method]["none"]["nll"]["estimate"] + 0.02
  assert (workdir / "results.md").read_text().strip() in done.stdout


def test_a_directory_that_holds_another_run_is_left_alone(finished, here, capsys):
  def changed():
    files = (path for path in finished[0].rglob("*") if path.is_file() and path.name != lock.NAME)
    return {path: path.stat().st_mtime_ns for path in files}

  before = changed()
  assert here([*_arguments(finished[0]), "--config.loss.weight=0.25"]) == 2
  assert "holds a run of another config (loss.weight was 0.3 and is 0.25" in capsys.readouterr().err
  assert before == changed()


def test_a_mistake_ends_in_one_sentence_and_exit_code_2(tmp_path):
  done = _digits(tmp_path / "never", "--config.training.num_step=3", tmp_path=tmp_path, num_devices=8,
                 KUBERNETES_SERVICE_HOST="10.0.0.1")
  assert done.returncode == 2
  assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")
  assert "Traceback" not in done.stderr + done.stdout
  assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(("workdir", "reason"), [
  ("", "--workdir is empty, perhaps because a variable of the shell is not set"), (" ", "--workdir is empty"),
  ("a\udcffb", "is not UTF-8"), ("file", "file is a file, or a link to"),
  ("dangling", "dangling is a file, or a link to what does not exist"),
])
def test_a_directory_that_cannot_be_a_runs_is_refused_before_anything_else(workdir, reason, here, tmp_path, monkeypatch,
                                                                         capsys):
  (tmp_path / "file").write_text("")
  (tmp_path / "dangling").symlink_to("nowhere")
  monkeypatch.setattr("calib_jax.training.config.load", lambda *_: pytest.fail("nothing is read before the check"))
  monkeypatch.chdir(tmp_path)
  assert here(_arguments(workdir)) == 2
  error = capsys.readouterr().err
  assert reason in error and error.count("\n") == 1 and len(list(tmp_path.iterdir())) == 2


def test_where_jax_is_in_use_the_program_says_what_to_call(tmp_path, monkeypatch, capsys):
  assert jax.devices()
  monkeypatch.setattr("calib_jax.training.distributed.processes._connected", None)
  assert main.main(_arguments(tmp_path / "never")) == 2
  assert "JAX is in use in this process already" in capsys.readouterr().err and not (tmp_path / "never").exists()


def test_other_devices_are_said(tmp_path):
  config = run_config.load("configs/digits_savuc.py", [])
  assert directory.write_config(config, tmp_path) is None
  path = tmp_path / "environment.json"
  path.write_text(json.dumps({**json.loads(path.read_text()), "devices": ["TPU v4"] * 4}))
  assert "this run began on 4 x TPU v4 and continues on 8 x cpu: its numbers" in directory.write_config(
    config, tmp_path)
  assert directory.write_config(config, tmp_path) is None


@pytest.mark.slow
def test_npz_trains_without_tensorflow_scikit_learn_and_figures(tmp_path):
  """Most runs of these tests are on digits and without TensorFlow and Matplotlib."""
  images = np.random.default_rng(0).integers(0, 256, (90, 8, 8, 3), dtype=np.uint8)
  np.savez(tmp_path / "mine.npz", images=images, labels=np.arange(90) % 3)
  blocked = ("tensorflow", "tensorflow_datasets", "tensorboard", "matplotlib", "sklearn")
  done = _digits(tmp_path / "run", "--config.data.name=npz", f"--config.data.path={tmp_path / 'mine.npz'}",
                 "--config.num_seeds=1", "--config.training.num_steps=13", "--config.profile=2",
                 "--config.training.batch_size=32",
                 "--config.compare_with_cross_entropy=False", "--config.evaluation.calibrators={}",
                 tmp_path=tmp_path, blocked=blocked)
  assert done.returncode == 0, done.stderr
  assert done.stdout.count("TensorBoard events are off") == 1
  assert "figures and the page are not written, because matplotlib cannot be imported" in done.stdout
  assert (tmp_path / "run" / "results.json").exists() and not (tmp_path / "run" / "events").exists()
  assert len(list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))) == 1


def test_help_says_that_a_config_is_executed(capsys):
  with pytest.raises(SystemExit):
    main.main(["--help"])
  assert "is Python and is executed, so use only files that you trust" in " ".join(capsys.readouterr().out.split())


def test_a_config_is_printed_without_a_directory_and_a_run_needs_one(here, capsys):
  assert here(["--config=configs/digits_savuc.py", "--print_config", "--config.num_seeds=3"]) == 0
  assert "\n--config.num_seeds=3\n" in capsys.readouterr().out.partition("# As there:")[0]
  assert here(["--config=configs/digits_savuc.py"]) == 2
  assert "--workdir names the run's directory: --workdir=runs/mine." in capsys.readouterr().err
