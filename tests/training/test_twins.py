"""Two runs that are started in the same directory by mistake: one runs, and its results are those of a run alone."""

import json
import pathlib
import signal
import time

import pytest

from tests.programs import python, start
from tests.training.small import RUN

OPTIONS = (*RUN, "--config.checkpoint.every_steps=20")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("twins")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
  """A run that nobody disturbs, and how many seconds it took."""
  folder = tmp_path_factory.mktemp("alone")
  began = time.monotonic()
  done = python("main.py", *OPTIONS, f"--workdir={folder / 'run'}", tmp_path=folder)
  assert done.returncode == 0, done.stderr
  return folder / "run", time.monotonic() - began


def _log(folder):
  """The lines of the log without times and memory, which differ from run to run."""
  return [{key: value for key, value in json.loads(line).items() if not key.startswith("time/")}
          for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _same(folder, other):
  """Asserts that two runs left the same predictions, results and log, whole."""
  names = sorted(path.relative_to(other).as_posix() for path in other.glob("predictions/*"))
  assert names == sorted(path.relative_to(folder).as_posix() for path in folder.glob("predictions/*")) != []
  for name in (*names, "results.json", "results.md"):
    assert (folder / name).read_bytes() == (other / name).read_bytes(), name
  assert _log(folder) == _log(other)


def test_the_second_of_two_is_refused_while_the_first_lives(alone, tmp_path):
  arguments = (*OPTIONS, f"--workdir={tmp_path / 'run'}")
  first = start("tests/training/killed.py", 21, int(signal.SIGSTOP), *arguments, tmp_path=tmp_path)
  try:
    while pathlib.Path(f"/proc/{first.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
      assert first.poll() is None
      time.sleep(0.05)
    second = python("main.py", *arguments, tmp_path=tmp_path)
    assert second.returncode == 2
    assert f"run is in use by process {first.pid} on " in second.stderr.splitlines()[-1]
    assert "Traceback" not in second.stderr
    first.send_signal(signal.SIGCONT)
    output = first.communicate(timeout=300)[0]
    assert first.returncode == 0, output
  finally:
    first.kill()
  _same(tmp_path / "run", alone[0])


def test_two_that_meet_in_the_evaluation(alone, tmp_path):
  """The first run evaluates its predictions; runs of the same and of other configs, and a comparison, come to it.

  It is stopped meanwhile, so that they meet it in this phase, and then ends as if it had been alone.
  """
  folder, arguments = tmp_path / "run", (*OPTIONS, f"--workdir={tmp_path / 'run'}")
  first = start("main.py", *arguments, tmp_path=tmp_path)
  try:
    while not (folder / "predictions" / "test_seed0.npz").exists():
      assert first.poll() is None, first.communicate()
      time.sleep(0.005)
    first.send_signal(signal.SIGSTOP)
    assert not (folder / "results.json").exists()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for further in ((), ("--config.optimizer.learning_rate=0.01",), ("--config.evaluation.num_bins=7",)):
      second = python("main.py", *arguments, *further, tmp_path=tmp_path)
      assert second.returncode == 2 and "Traceback" not in second.stderr
      assert f"run is in use by process {first.pid} on " in second.stderr.splitlines()[-1]
    compared = python("-m", "calib_jax", "compare", folder, alone[0], "--num_resamples=2", tmp_path=tmp_path,
                      blocked=("tensorflow", "tensorboard"))
    assert compared.returncode in (0, 2) and "Traceback" not in compared.stderr
    assert compared.returncode == 0 or compared.stderr.splitlines()[-1].startswith("error: ")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    first.send_signal(signal.SIGCONT)
    output = first.communicate(timeout=300)[0]
    assert first.returncode == 0, output
  finally:
    first.kill()
  _same(folder, alone[0])
