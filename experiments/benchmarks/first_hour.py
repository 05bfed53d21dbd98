"""A newcomer's first hour: install, demo, a CSV, a loss and a model of one's own, and the site, from a clean clone.

Run: python -m experiments.benchmarks.first_hour [--folder DIR] [--python PYTHON] [--skip WORD ...]

It needs git, make and Python alone. The clone, its environments and its caches are in a temporary directory, so that
nothing that is installed, downloaded or compiled already is used. Each step is a command that the guides have; the
first that fails ends the replay, and its last lines are printed. Seconds of processors say what a busy machine hides.
"""

from collections.abc import Sequence
import os
import pathlib
import platform
import resource
import subprocess
import tempfile
import time
from typing import NamedTuple

from experiments.common import commands

LOSS = '''"""A loss of my own, and a calibrator beside the default one."""

from configs import common
from calib_jax import losses


def squared(logits, labels, *, power: float = 1.5):
  return losses.cross_entropy(logits, labels) ** power


def get_config():
  config = common.get_config()
  config.loss.primary = dict(name="my_run:squared", power=1.5)
  config.evaluation.calibrators.Vector = dict(name="vector_scaling")
  config.training.num_epochs = 20
  return config
'''
# Writes the demo's predictions of seed 0 as another program would save them.
CSV = """
import csv, numpy as np
for name, split in (("val", "validation"), ("test", "test")):
  saved = np.load(f"runs/fashion_mnist_small_savuc/predictions/{split}_seed0.npz")
  with open(f"{name}.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["label", *(f"logit_{i}" for i in range(saved["logits"].shape[1]))])
    writer.writerows([label, *row] for label, row in zip(saved["labels"], saved["logits"].tolist()))
"""


class Step(NamedTuple):
  """A step of the first hour: what it does, and its command in the clone."""

  name: str
  command: Sequence[str]


class Done(NamedTuple):
  """How a step went: its seconds on the clock and of all processors, and whether it ended well."""

  wall: float
  processors: float
  is_well: bool


def steps(source: str, python: str) -> list[Step]:
  """Returns the steps for a clone of ``source``, whose environments are those of ``python``."""
  own = ".venv/bin/python"
  return [
    Step("clone", ["git", "clone", "--quiet", source, "."]),
    Step("install", ["make", ".venv/demo", f"PYTHON={python}"]),
    Step("demo", ["make", "demo", f"PYTHON={python}"]),
    Step("a CSV file", ["sh", "-c", f'{own} -c "$CSV" && {own} -m calib_jax evaluate --fit val.csv --test test.csv '
                                    "--out runs/csv"]),
    Step("own loss", [own, "main.py", "--config=my_run.py", "--workdir=runs/own_loss"]),
    Step("own parts", [own, "main.py", "--config=examples/own/config.py", "--workdir=runs/own"]),
    Step("site", ["make", "docs", f"PYTHON={python}"]),
  ]


def run(step: Step, folder: pathlib.Path, environment: dict[str, str]) -> Done:
  """Runs a step, whose output goes to a file beside the clone."""
  before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
  with (folder.parent / f"{step.name.replace(' ', '_')}.log").open("wb") as log:
    done = subprocess.run(step.command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
  return Done(time.monotonic() - started, spent, done.returncode == 0)


def fresh_environment(cache: pathlib.Path) -> dict[str, str]:
  """Returns the environment of a user who has none of ours: no variables of Python or JAX, and empty caches."""
  kept = {name: value for name, value in os.environ.items()
          if not name.startswith(("PYTHON", "JAX_", "XLA_", "VIRTUAL_ENV", "CALIB_JAX"))}
  return kept | {"XDG_CACHE_HOME": str(cache), "CSV": CSV}


def replay(folder: pathlib.Path, source: str, python: str, skipped: Sequence[str] = ()) -> int:
  """Runs all steps and prints the table; returns the exit code."""
  clone, environment = folder / "calib_jax", fresh_environment(folder / "cache")
  clone.mkdir(parents=True)
  print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the "
        f"start, Python {platform.python_version()}, {time.strftime('%B %Y')}\n\n"
        "| step | command | seconds | processor seconds |\n|---|---|---|---|", flush=True)
  total = Done(0.0, 0.0, True)
  for step in steps(source, python):
    if any(word in step.name for word in skipped):
      continue
    if step.name == "own loss":
      (clone / "my_run.py").write_text(LOSS, encoding="utf-8")
    done = run(step, clone, environment)
    total = Done(total.wall + done.wall, total.processors + done.processors, done.is_well)
    shown = " ".join(step.command[-1:] if step.command[0] == "sh" else step.command).replace(source, "URL")
    shown = shown.replace(f" PYTHON={python}", "").replace('.venv/bin/python -c "$CSV" && ', "")
    print(f"| {step.name} | `{shown}` | {done.wall:.0f} | {done.processors:.0f} |", flush=True)
    if not done.is_well:
      log = folder / f"{step.name.replace(' ', '_')}.log"
      print(f"\nfailed: {step.name}; {log} ends with\n" + "\n".join(log.read_text(errors="replace").splitlines()[-20:]))
      return 1
  print(f"| all | | {total.wall:.0f} | {total.processors:.0f} |")
  return 0


def main() -> int:
  """Replays the first hour; returns the exit code."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("--folder", type=pathlib.Path, help="where the clone goes; by default a temporary directory, "
                      "which is deleted afterwards")
  parser.add_argument("--source", default=str(commands.ROOT), help="the repository to clone; this one by default")
  parser.add_argument("--python", default="python3", help="the Python of the environments")
  parser.add_argument("--skip", nargs="+", default=[], metavar="WORD", help="steps to leave out, such as site")
  options = parser.parse_args()
  if options.folder:
    return replay(options.folder.resolve(), options.source, options.python, options.skip)
  with tempfile.TemporaryDirectory() as folder:
    return replay(pathlib.Path(folder), options.source, options.python, options.skip)


if __name__ == "__main__":
  raise SystemExit(main())
