"""Runs on a disk that is full, and unfinished runs whose files are damaged, end with a sentence or the same numbers."""

import json
import random
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from tests.programs import python, start
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
@pytest.mark.parametrize("part", [0.4, 0.9])
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_when_there_is_space(part, whole, disk, tmp_path):
  pages = sum(-(-path.stat().st_size // 4096) for path in whole.rglob("*") if path.is_file())
  folder = disk(int(4 * pages * part)) / "run"
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


def _killed(folder, seen, tmp_path):
  """Starts a run and kills it once a file is there."""
  process = start("main.py", *OPTIONS, f"--workdir={folder}", tmp_path=tmp_path)
  while not next(folder.glob(seen), None):
    assert process.poll() is None, process.communicate()
    time.sleep(0.01)
  process.send_signal(signal.SIGKILL)
  process.communicate()


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
  """Runs that were killed: in training after a second checkpoint, and once their predictions were written."""
  folder = tmp_path_factory.mktemp("killed")
  done = python("tests/training/killed.py", 33, int(signal.SIGKILL), *OPTIONS, f"--workdir={folder / 'training'}",
                tmp_path=folder)
  assert done.returncode == -signal.SIGKILL, done.stderr
  _killed(folder / "evaluation", "predictions/test_seed0.npz", folder)
  assert not (folder / "evaluation" / "results.json").exists()
  return folder


def _damage(path, draw):
  """Changes, cuts, empties, deletes or replaces a file."""
  content = bytearray(path.read_bytes())
  match draw.randrange(6):
    case 0 | 1 if content:
      content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    case 2:
      del content[draw.randrange(len(content) or 1):]
    case 3:
      content.clear()
    case 4:
      content = draw.randbytes(len(content))
    case _:
      path.unlink()
      return "deleted"
  path.write_bytes(content)
  return "changed"


@pytest.mark.parametrize("phase", ["training", "evaluation"])
@pytest.mark.parametrize("case", [0, 2, 4])  # Checkpoints; JSON; predictions, if there are any.
def test_a_damaged_unfinished_run_goes_on_to_the_same_numbers_or_says_what_is_wrong(case, phase, unfinished, whole,
                                                                                    tmp_path):
  folder, draw = tmp_path / "run", random.Random(f"{phase} {case}")
  shutil.copytree(unfinished / phase, folder)
  kinds = [sorted(path for path in folder.glob(pattern) if path.is_file()) for pattern in (
    "checkpoints/**/*", "checkpoints/*.json", "*.json", "metrics.jsonl", "predictions/*")]
  files = next(kind for kind in (kinds[case % 5], kinds[0]) if kind)
  damaged = [(path.relative_to(folder), _damage(path, draw)) for path in draw.sample(files, min(2, len(files)))]
  done = python("main.py", *OPTIONS, f"--workdir={folder}", tmp_path=tmp_path)
  if done.returncode:
    _refused(done)
  else:
    assert "Traceback" not in done.stderr, (damaged, done.stderr)
    assert _predictions(folder) == _predictions(whole), (damaged, done.stderr)
