"""What commands share: the parser of their options, and where their results go."""

import argparse
from collections.abc import Mapping, Sequence
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from calib_jax._system.errors import UserError

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"


def parser(module: str, text: str, *, results: bool = False) -> argparse.ArgumentParser:
  """Returns the parser of a command by its module and docstring; one with ``results`` has ``--workdir`` for them."""
  made = argparse.ArgumentParser(prog=f"python -m {module.removesuffix('.__main__')}", allow_abbrev=False,
                                 description=text.splitlines()[0])
  if results:
    made.add_argument("--workdir", type=directory, default="experiments/results", help="where the results go")
  return made


def amount(text: str) -> float:
  """Returns a number of hours or minutes, which is not negative."""
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  if not 0 <= value < math.inf:
    raise argparse.ArgumentTypeError(f"must be a number of at least 0: got {text!r}")
  return value


def named_files(texts: Sequence[str]) -> dict[str, pathlib.Path]:
  """Returns the paths of texts such as "NAME=FILE" by their names, which are those of the files if they have none.

  >>> named_files(["focal 3=runs/val.npz", "runs/test.npz"])
  {'focal 3': PosixPath('runs/val.npz'), 'test': PosixPath('runs/test.npz')}
  """
  pairs = [(name, pathlib.Path(path)) for name, _, path in (text.rpartition("=") for text in texts)]
  return {name or path.stem: path for name, path in pairs}


def count(text: str) -> int:
  """Returns a whole number of at least one."""
  if not re.fullmatch("0*[1-9][0-9]{0,8}", text):
    raise argparse.ArgumentTypeError(f"must be a whole number of at least 1: got {text!r}")
  return int(text)


def directory(text: str) -> pathlib.Path:
  """Returns a directory, which is made if it is not there."""
  try:
    return made(pathlib.Path(text))
  except UserError as error:
    raise argparse.ArgumentTypeError(str(error)) from error


def made(path: pathlib.Path) -> pathlib.Path:
  """Makes a directory if it is not there, and returns it."""
  try:
    path.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UserError(f"{path} cannot be made a directory ({error.strerror}).") from error
  return path


def add_numbers(parser: argparse.ArgumentParser, defaults: Mapping[str, float]) -> None:
  """Adds options that are numbers, of the kind of their defaults."""
  for name, default in defaults.items():
    parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{default} by default")


def without_processes(arguments: Sequence[str]) -> list[str]:
  """Returns a command line without ``--processes=n`` or ``--processes n``."""
  return [text for i, text in enumerate(arguments) if not text.startswith("--processes")
          and (i == 0 or arguments[i - 1] != "--processes")]


def together(module: str, lines: Sequence[Sequence[str]]) -> list[int]:
  """Runs a module with each of some command lines, all at once; returns their exit codes.

  SIGTERM goes on to all of them, as Ctrl-C does by itself, so that each saves a checkpoint. The code of one that a
  signal ended is 128 plus the signal's number.

  JAX otherwise reserves three quarters of a GPU's memory for the first process; here each gets its part of nine tenths,
  unless ``XLA_PYTHON_CLIENT_MEM_FRACTION`` is set. It has no effect on a CPU or a TPU, whose chips one process holds.
  """
  environment = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / len(lines):.3f}", **os.environ}
  processes = []

  def receive(number, frame):
    for process in processes if number == signal.SIGTERM else ():  # A terminal sends Ctrl-C to all of them.
      process.send_signal(number)

  before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
  try:
    for line in lines:
      processes.append(subprocess.Popen([sys.executable, "-m", module, *line], env=environment))
    codes = [process.wait() for process in processes]
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
  return [code if code >= 0 else 128 - code for code in codes]


def left(started: float, done: int, number: int) -> str:
  """Returns how long the rest of a number of jobs takes, of which some are done since the time ``started``."""
  return f"{(time.monotonic() - started) / done * (number - done) / 60:.0f} min left"

