"""What commands share: the parser of their options, and where their results go."""

import argparse
from collections.abc import Mapping, Sequence
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"


def parser(module: str, text: str, *, results: bool = False) -> argparse.ArgumentParser:
  """Returns the parser of a command.

  Args:
    module: the ``__spec__.name`` of the module.
    text: its docstring, whose first line describes the command.
    results: whether the command has ``--workdir``, the directory of its results.
  """
  made = argparse.ArgumentParser(prog=f"python -m {module.removesuffix('.__main__')}", allow_abbrev=False,
                                 description=text.splitlines()[0])
  if results:
    made.add_argument("--workdir", type=_directory, default="experiments/results", help="where the results go")
  return made


def add_numbers(parser: argparse.ArgumentParser, defaults: Mapping[str, float]) -> None:
  """Adds options that are numbers, of the kind of their defaults."""
  for name, default in defaults.items():
    parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{default} by default")


def save_for_docs(figure, name: str, note: str) -> None:
  """Writes a figure of the guides to docs/figures, and says so, with a note on what is drawn."""
  path = ROOT / "docs" / "figures" / name
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=130)
  print(f"\nwrote docs/figures/{name}, {note}")


def without_processes(arguments: Sequence[str]) -> list[str]:
  """Returns a command line without ``--processes=n`` or ``--processes n``."""
  return [text for i, text in enumerate(arguments) if not text.startswith("--processes")
          and (i == 0 or arguments[i - 1] != "--processes")]


def together(module: str, lines: Sequence[Sequence[str]]) -> list[int]:
  """Runs a module with each of some command lines, all at once; returns their exit codes.

  JAX otherwise reserves three quarters of a GPU's memory for the first process; here each gets its part of nine tenths,
  unless ``XLA_PYTHON_CLIENT_MEM_FRACTION`` is set. It has no effect on a CPU or a TPU, whose chips one process holds.
  """
  environment = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / len(lines):.3f}", **os.environ}
  processes = [subprocess.Popen([sys.executable, "-m", module, *line], env=environment) for line in lines]
  return [process.wait() for process in processes]


def left(started: float, done: int, number: int) -> str:
  """Returns how long the rest of a number of jobs takes, of which some are done since the time ``started``."""
  return f"{(time.monotonic() - started) / done * (number - done) / 60:.0f} min left"


def _directory(text: str) -> pathlib.Path:
  """A directory, which is made if it is not there."""
  path = pathlib.Path(text)
  path.mkdir(parents=True, exist_ok=True)
  return path
