"""Trains the cells of a plan until the time is over; several processes may share the directory.

What a process trains it claims by a lock in the directory, which ends with the process, however it ends. A run that was
stopped goes on from its last checkpoint, on whichever machine takes it next. One that takes longer than planned is
stopped when the time is over, as by SIGTERM: it saves a checkpoint.
"""

import argparse
from collections.abc import Iterator, Sequence
import contextlib
import errno
import pathlib
import re
import shutil
import signal
import sys
import time

from calib_jax._system.errors import UserError
from calib_jax._system.files import write_text
from calib_jax.run import lock
from calib_jax.training import Stopped
from experiments.common import sweep
from experiments.weekend import page, plan

FREE = 2 * 10**9  # Bytes that must be free on the disk before a run starts.


class FullDisk(Exception):
  """Says that the disk is full."""


@contextlib.contextmanager
def claimed(folder: pathlib.Path) -> Iterator[bool]:
  """Claims a folder for this process in a ``with`` block; gives False if another process has it."""
  folder.mkdir(parents=True, exist_ok=True)
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(lock.held(folder))
    except UserError as error:
      if "is in use" not in str(error):
        raise
      yield False
    else:
      yield True


@contextlib.contextmanager
def alone(out: pathlib.Path) -> Iterator[None]:
  """Waits until no other process writes in the directory, and keeps others waiting in a ``with`` block."""
  while True:
    with claimed(out / "claims" / "rows") as mine:
      if mine:
        yield
        return
    time.sleep(0.1)


@contextlib.contextmanager
def stopped_after(seconds: float) -> Iterator[list[int]]:
  """Stops a run that still trains after some seconds of a ``with`` block; gives a list that has an item if it did.

  What comes after the last step of a run, its predictions and rows, is not stopped: it takes little time. A SIGTERM of
  someone else raises ``Stopped`` there.
  """
  over = []

  def stop(number, frame):
    if not over:
      raise Stopped("SIGTERM: stopped while no run trained; the same command goes on.", number)

  def ring(number, frame):
    if signal.getsignal(signal.SIGTERM) != stop:  # A run trains, and saves a checkpoint when it gets the signal.
      over.append(number)
      signal.raise_signal(signal.SIGTERM)

  before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop), signal.SIGALRM: signal.signal(signal.SIGALRM, ring)}
  signal.setitimer(signal.ITIMER_REAL, min(max(seconds, 0.01), 10**8), 1.0)
  try:
    yield over
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
      signal.signal(number, handler)


def train(planned: Sequence[tuple[plan.Cell, Sequence[sweep.Job], int]], options: argparse.Namespace,
          started: float) -> int:
  """Trains what fits, cell by cell, prints the published numbers beside ours, and writes the page after each cell.

  Args:
    planned: the cells of this process in order, of ``plan.fitting``.
    options: the options of the command.
    started: the ``time.monotonic()`` from which ``options.hours`` count.

  Returns:
    The exit code: 0; 1 if a run failed; 2 if the disk is full; 128 plus the number of the signal that stopped it.
  """
  failures, code, over = [], 0, []
  try:
    with stopped_after(started + 3600 * options.hours - time.monotonic()) as over:
      for cell, jobs, _ in planned:
        trained = [_train(cell, job, options, started, failures) for job in jobs]
        found = cell.rows(options)
        if any(trained) and found:
          print("\n".join([*page.HEADING, *page.lines(cell, found)]), flush=True)
          write_page(planned, options, failures)
    print(write_page(planned, options, failures), flush=True)
  except Stopped as stopped:
    if over:
      print(f"The {options.hours:g} hours are over: {str(stopped).partition(': ')[2]}", flush=True)
    else:
      print(f"\n{stopped}", file=sys.stderr)
      code = 128 + stopped.signal
    print(write_page(planned, options, failures), flush=True)
  except (FullDisk, OSError) as error:
    if not is_full(error):
      raise
    print(f"error: {error}", file=sys.stderr)
    return 2
  return code or (1 if failures else 0)


def is_full(error: BaseException | None) -> bool:
  """Returns whether an error, or one that it comes from, says that the disk is full."""
  numbers = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
  return error is not None and (isinstance(error, FullDisk) or getattr(error, "errno", None) in numbers
                                or "no space is left" in str(error) or is_full(error.__cause__ or error.__context__))


def write_page(planned: Sequence[tuple[plan.Cell, Sequence[sweep.Job], int]], options: argparse.Namespace,
               failures: Sequence[str] = ()) -> str:
  """Writes the page of what is done by all processes; returns a sentence that says so."""
  path = options.out / f"weekend_{options.scale}.md"
  with alone(options.out):
    now = [(cell, cell.missing(options), 0) for cell, _, _ in planned]
    write_text(path, page.page(now, options, failures))
  number = sum(len(missing) for _, missing, _ in now)
  return f"{path} has the numbers" + (f", and the {number} runs that are not done." if number else ".")


def _train(cell: plan.Cell, job: sweep.Job, options: argparse.Namespace, started: float, failures: list[str]) -> bool:
  """Trains one run, unless it does not fit any more or another process has it; returns whether it did."""
  name = re.sub(r"[^a-z0-9]+", "_", f"{cell.stem(options).name} {job.label()}".lower())
  left = options.hours - (time.monotonic() - started) / 3600
  if cell.hours_of([job]) > left:
    return False
  if (free := shutil.disk_usage(options.out).free) < FREE:
    raise FullDisk(f"{options.out} has {free / 1e9:.1f} GB free, and a run needs {FREE / 1e9:g} GB: free some space "
                   "and give the same command again; it goes on from the last checkpoint.")
  with claimed(options.out / "claims" / f"{name}_{job.declared}") as mine:
    if not mine or job not in cell.missing(options):  # Another process has it, or has finished it meanwhile.
      return False
    print(f"{cell.table.title}: {job.label()}, {cell.hours_of([job]):.2f} h", flush=True)
    try:
      new = sweep.run_job(job, cell.table.experiment, cell.stem(options), options.shard)
      with alone(options.out):
        sweep.keep(cell.table.experiment, job, new, sweep.path_of(cell.stem(options), options.shard))
    except Stopped:
      raise
    except Exception as error:  # Whatever stops one run, the others go on, unless the disk is full for them too.
      text = f"{cell.table.title}: {job.label()}: {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
      if is_full(error):
        raise FullDisk(text if "same command" in text else f"{text}. Free some space and give the same command again; "
                       "it goes on from the last checkpoint.") from error
      failures.append(text)
      print(f"failed: {text}", file=sys.stderr, flush=True)
      return False
  return True
