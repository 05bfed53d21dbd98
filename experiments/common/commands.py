"""What commands share: the parser of their options, and where their results go."""

import argparse
import pathlib

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


def _directory(text: str) -> pathlib.Path:
  """A directory, which is made if it is not there."""
  path = pathlib.Path(text)
  path.mkdir(parents=True, exist_ok=True)
  return path
