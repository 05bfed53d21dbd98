"""Runs on a disk that is full end with a sentence, and go on to the same numbers when there is space."""

import json
import shutil
import subprocess

import numpy as np
import pytest

from tests.programs import python
from tests.training.small import RUN

OPTIONS = (*RUN, "--config.checkpoint.every_steps=10")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("unfinished")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """A run that nothing disturbs."""
  folder = tmp_path_factory.mktemp("whole")
  done = python("main.py", *OPTIONS, f"--workdir={folder / 'run'}", tmp_path=folder)
  assert done.returncode == 0, done.stderr
  return folder / "run"


def _predictions(folder):
  return {path.name: path.read_bytes() for path in (folder / "predictions").glob("*.npz")}


def _refused(done):
  """Asserts that a command ended with one sentence."""
  last = done.stderr.strip().splitlines()[-1]
  assert done.returncode == 2 and last.startswith("error: ") and len(last) < 3000, (done.returncode, done.stderr)
  assert "Traceback" not in done.stderr + done.stdout, done.stderr
  return last


@pytest.fixture
def disk(tmp_path):
  """A function that mounts a disk of so many KB in memory, or changes its size; it returns its directory."""
  folder = tmp_path / "disk"
  folder.mkdir()

  def resized(kilobytes):
    options = f"{'remount,' if folder.is_mount() else ''}size={kilobytes}k"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "calib_jax", str(folder)], capture_output=True,
                          text=True, check=False)
    if done.returncode:
      pytest.skip(f"a disk cannot be mounted here: {done.stderr.strip()}")
    return folder

  yield resized
  subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


@pytest.mark.skipif(not shutil.which("mount"), reason="there is no command mount")
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_when_there_is_space(whole, disk, tmp_path):
  pages = sum(-(-path.stat().st_size // 4096) for path in whole.rglob("*") if path.is_file())
  folder = disk(int(4 * pages * 0.9)) / "run"
  command = ("main.py", *OPTIONS, f"--workdir={folder}")
  message = _refused(python(*command, tmp_path=tmp_path))
  assert "space" in message, message
  for path in folder.rglob("*.json"):
    json.loads(path.read_text())
  for path in folder.rglob("*.npz"):
    assert np.load(path).files
  disk(64 * 1024)
  done = python(*command, tmp_path=tmp_path)
  assert done.returncode == 0, done.stderr
  assert "cannot be read whole" not in done.stderr
  assert _predictions(folder) == _predictions(whole)
