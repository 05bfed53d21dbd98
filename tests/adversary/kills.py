"""Runs that are killed at random moments, under every schedule: the continued run predicts the same bytes."""

import os
import pathlib
import random
import shutil
import signal
import time
from typing import Any

from calib_jax import training
from tests.adversary.judge import Outcome
from tests.programs import python, start

OPTIONS = ("--config=configs/digits_savuc.py", "--config.num_seeds=1", "--config.compare_with_cross_entropy=False",
           "--config.training.num_steps=40", "--config.checkpoint.every_steps=4", "--config.evaluation.num_resamples=2",
           "--config.model.hidden=(16,)", "--config.evaluation.calibrators={}")
# What a schedule needs to be told.
FURTHER = {
  "interleaved": ("--config.data.held_out_fraction=0.3",),
  "two_stage": ("--config.data.held_out_fraction=0.3", "--config.schedule.stage2_epochs=2",
                "--config.schedule.cache_features=true"),
  "classifier_retraining": ("--config.schedule.stage2_epochs=2",),
}


def schedules() -> list[str]:
  """Returns the schedules that runs are killed under."""
  return list(training.SCHEDULES)


def kill(number: int, seed: int, scratch: pathlib.Path) -> Outcome:
  """Kills a run once or twice at random moments and continues it.

  Args:
    number: the number of the case, which says which schedule.
    seed: the seed of all cases.
    scratch: a folder that all cases of the attack share, for the runs that nobody kills.
  Returns: what became of it.
  """
  began, draw = time.monotonic(), random.Random(f"{seed} kills {number}")
  schedule = schedules()[number % len(schedules())]
  folder = scratch / f"killed{number}"
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  (scratch / "compiled").mkdir(mode=0o700, exist_ok=True)
  os.environ["JAX_COMPILATION_CACHE_DIR"] = str(scratch / "compiled")  # Of the programs that are started here.

  def outcome(fault="", detail=""):
    return Outcome(number, not fault, fault, f"{schedule}: {detail}" if detail else schedule, time.monotonic() - began)

  options = _options(schedule, scratch)
  whole, seconds = _whole(schedule, options, scratch)
  if whole is None:
    return outcome("traceback", seconds)
  moments = []
  for _ in range(draw.randint(1, 2)):
    process = start("main.py", *options, f"--workdir={folder / 'run'}", tmp_path=folder)
    moments.append(draw.uniform(0.3, 1) * seconds)
    time.sleep(moments[-1])
    process.send_signal(signal.SIGKILL)
    text = process.communicate(timeout=60)[0]
    if "Traceback" in text:
      return outcome("traceback", text[-300:])
  done = _finish(options, folder)
  at = " and ".join(f"{moment:.2f}" for moment in moments)
  if done.returncode or "Traceback" in done.stderr:
    return outcome("traceback", f"killed at {at} of {seconds:.2f} s: {done.stderr[-300:]}")
  for name in ("validation", "test"):
    one, other = (run / f"predictions/{name}_seed0.npz" for run in (whole, folder / "run"))
    if one.read_bytes() != other.read_bytes():
      return outcome("silent", f"killed at {at} of {seconds:.2f} s: other predictions of {name}")
  shutil.rmtree(folder)
  return outcome()


def _options(schedule: str, scratch: pathlib.Path) -> tuple[str, ...]:
  options = (*OPTIONS, f"--config.schedule.name={schedule}", *FURTHER.get(schedule, ()))
  if schedule == "warm_start":
    first, _ = _whole("joint", (*OPTIONS, "--config.schedule.name=joint"), scratch)
    options += (f"--config.schedule.workdir={first}",)
  return options


def _finish(options: tuple[str, ...], folder: pathlib.Path) -> Any:
  return python("main.py", *options, f"--workdir={folder / 'run'}", tmp_path=folder)


def _whole(schedule: str, options: tuple[str, ...], scratch: pathlib.Path) -> tuple[pathlib.Path | None, Any]:
  """Returns the run of a schedule that nobody killed, and how many seconds it took; None and what it said if it failed.

  Runs of the same schedule share it. Two workers may make it at once; the first that is complete stays.
  """
  kept = scratch / f"whole_{schedule}"
  if not kept.is_dir():
    folder = scratch / f"whole_{schedule}_{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    _finish(options, folder)  # Compiles, which the killed runs do not need to do any more.
    shutil.rmtree(folder / "run")
    began = time.monotonic()
    process = start("main.py", *options, f"--workdir={folder / 'run'}", tmp_path=folder)
    text = process.communicate(timeout=300)[0]
    if process.returncode:
      return None, text[-300:]
    (folder / "seconds").write_text(str(time.monotonic() - began))
    try:
      folder.rename(kept)
    except OSError:  # The other worker was faster.
      shutil.rmtree(folder)
  return kept / "run", float((kept / "seconds").read_text())
