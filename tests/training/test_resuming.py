"""Runs that are killed, in processes of their own: going on gives the same bytes, alone and in company."""

import signal
import socket
import threading

import numpy as np
import pytest

from calib_jax import evaluation
from calib_jax._system.errors import UserError
from calib_jax.training.distributed import processes
from tests.programs import python, start
from tests.training.small import RUN

SELECTED = (*RUN, "--config.training.select=best", "--config.training.evaluate_every_epochs=1")


# 22 steps of the first stage, and two epochs of 9 of the second, on cached features.
TWO_STAGE = ("--config.schedule.name=two_stage", "--config.schedule.cache_features=true",
             "--config.training.num_steps=22", "--config.schedule.stage2_epochs=2")
MASKED = ("--config.head.name=masked", "--config.head.width=6")
VARIATIONAL = ("--config.head.name=variational", "--config.head.width=6", "--config.head.num_samples=2")


@pytest.mark.slow
def test_a_kill_leaves_no_trace(tmp_path):
  kill, options = 36, (*RUN, "--config.training.parallel=shard_map", *TWO_STAGE, *MASKED)  # In the second stage.
  whole = python("main.py", *options, f"--workdir={tmp_path / 'whole'}", tmp_path=tmp_path)
  assert whole.returncode == 0, whole.stderr
  done = python("tests/training/killed.py", kill, int(signal.SIGKILL), *options, f"--workdir={tmp_path / 'killed'}",
                tmp_path=tmp_path)
  assert done.returncode == -signal.SIGKILL, done.stderr
  assert "cannot be read whole" not in done.stderr
  done = python("main.py", *options, f"--workdir={tmp_path / 'killed'}", tmp_path=tmp_path)
  assert done.returncode == 0, done.stderr
  for name in ("validation", "test"):
    one, other = (tmp_path / run / f"predictions/{name}_seed0.npz" for run in ("whole", "killed"))
    assert one.read_bytes() == other.read_bytes()
  for name in ("results.json", "results.md"):
    assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()
  steps = {run: [line.split('"step": ')[1].split(",")[0]
                 for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()
                 if "validation/nll" in line or "train/loss" in line] for run in ("whole", "killed")}
  assert steps["whole"] == steps["killed"]  # Nothing is logged twice.


def _pair(tmp_path, *first, second=("main.py",), options=RUN, shared=False):
  """Two processes of one run, four devices each, with one directory if ``shared``; their exit codes and output."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  started = [start(*program, *options, f"--coordinator=127.0.0.1:{port}", "--num_processes=2", f"--process_id={i}",
                   f"--workdir={tmp_path / f'process{0 if shared else i}'}", tmp_path=tmp_path, num_devices=4)
             for i, program in enumerate((first, second))]
  killer = threading.Timer(300, lambda: [process.kill() for process in started])
  killer.start()
  output = [process.communicate()[0] for process in started]
  killer.cancel()
  return [process.returncode for process in started], output


# By two stages with averages; both processes have one directory.
PARALLEL = (*SELECTED, *TWO_STAGE, *VARIATIONAL, "--config.training.parallel=shard_map",
            "--config.training.average=swa", "--config.training.average_fraction=0.5")


@pytest.mark.slow
def test_a_lost_process_ends_the_other_and_both_go_on_as_one(tmp_path):
  lost = ("tests/training/killed.py", 21, int(signal.SIGKILL))  # The one that both find each other by.
  survivor = ("tests/training/killed.py", 10**9, int(signal.SIGKILL))  # It never gets there.
  codes, output = _pair(tmp_path, *lost, second=survivor, options=PARALLEL, shared=True)
  assert codes[0] == -signal.SIGKILL and codes[1] not in (0, None)
  assert "another process of this run ended" in output[1] and "start all of them again" in output[1]
  done = python("main.py", *PARALLEL, f"--workdir={tmp_path / 'alone'}", tmp_path=tmp_path, num_devices=8)
  assert done.returncode == 0, done.stderr
  codes, output = _pair(tmp_path, "main.py", options=PARALLEL, shared=True)
  assert codes == [0, 0], output
  for name in ("validation", "test"):
    one, two = (evaluation.load(tmp_path / run / f"predictions/{name}_seed0.npz") for run in ("alone", "process0"))
    np.testing.assert_array_equal(one.labels, two.labels)
    np.testing.assert_allclose(two.logits, one.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_sigterm_to_one_process_stops_both_after_the_same_step(tmp_path):
  endless = (*RUN, "--config.training.num_steps=1000000")  # They agree within a second or so, and are not waited for.
  codes, output = _pair(tmp_path, "main.py", second=("tests/training/killed.py", 5, int(signal.SIGTERM)),
                        options=endless)
  assert codes == [143, 143], output
  assert len({text.split("stopped after step ")[1].split(" ")[0] for text in output}) == 1
  for text in output:
    assert "SIGTERM: focal + soft_avuc, interleaved, seed0 stopped after step" in text and "Traceback" not in text
    assert "the same command continues from there" in text


PREPARE = '''
import os, sys, time
import numpy as np
from calib_jax.training.distributed import processes
from calib_jax.training.data.sources import tfds

FILE = sys.argv[1]


class Builder:
  data_dir = FILE

  def __init__(self):
    self.is_there = os.path.exists(FILE)  # TFDS, too, reads what there is when a builder is made.

  def is_prepared(self):
    return self.is_there

  def download_and_prepare(self):
    time.sleep(1)
    open(FILE, "x").close()
    print("prepared")

  label = type("Label", (), {"num_classes": 2})
  info = type("Info", (), {"homepage": "http://localhost", "features": {"label": label}})

  def as_dataset(self, split, batch_size):
    return [{"image": np.zeros((4, 2, 2, 1), np.uint8), "label": np.arange(4) % 2} for _ in split]


tfds._tfds_builder = lambda name, folder: (type("Module", (), {"as_numpy": staticmethod(lambda x: x)}), Builder())
tfds.socket.getaddrinfo = lambda *args: None
processes.connect(sys.argv[2], 2, int(sys.argv[3]))
print(len(tfds.read("mnist", "/", ["train", "test"])[0][0].labels), "read")
'''


@pytest.mark.slow
def test_one_of_several_processes_prepares_a_data_set_that_they_share(tmp_path):
  (tmp_path / "prepare.py").write_text(PREPARE)
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  started = [start(tmp_path / "prepare.py", tmp_path / "data", f"127.0.0.1:{port}", i, tmp_path=tmp_path, num_devices=1)
             for i in range(2)]
  output = [process.communicate(timeout=120)[0] for process in started]
  assert [process.returncode for process in started] == [0, 0], output
  assert ["prepared" in text for text in output] == [True, False] and all("4 read" in text for text in output)


@pytest.mark.parametrize(("given", "message"), [
  (("localhost:1", None, None), "--coordinator, --num_processes and --process_id go together"),
  ((None, 2, 0), "go together"), (("localhost:1", 2, 2), r"--process_id must be in \[0, 1\].*got 2"),
])
def test_flags_of_processes_that_cannot_be_are_one_sentence(given, message):
  with pytest.raises(UserError, match=message):
    processes.connect(*given)
