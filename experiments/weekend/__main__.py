"""Trains the tables of the papers at paper scale, the most published evidence per hour first, beside what is printed.

Run: python -m experiments.weekend --data=DIR --hours=48 [--tables NAME ...] [--dry_run] [--shard=1/4] [--out=DIR]

`--data` is a directory with the archives of CIFAR-10, CIFAR-100 and Tiny ImageNet, or what `python -m calib_jax.training.data
prepare` makes of them. First it times a step of every network that may start, which takes a few minutes, and says what
fits; `--dry_run` does only the latter, from the times that are there or else from counted operations. Then it trains,
and prints the published numbers beside ours when a cell ends; OUT/weekend_paper.md has all of them.

Nothing starts that does not fit into the hours, and SIGTERM, as `timeout 48h python -m …` sends it, saves a checkpoint
of what takes longer than planned. The same command goes on where it was stopped: a kill, a preemption or a full disk
costs what was trained since the last checkpoint, at most five minutes. Several machines take a shard each,
`--shard=i/n`; with their .csv files in one directory, `--hours=0` makes the page. `--processes=n` runs n shards at once
on one GPU, each with its part of the memory.
"""

import argparse
from collections.abc import Sequence
import json
import pathlib
import shutil
import sys
import time

import jax

from calib_jax._system import compilation
from calib_jax._system.errors import UserError
from calib_jax._system.files import read_json, write_text
from calib_jax.training import Stopped
from calib_jax.training.data.archives import ARCHIVES
from experiments.common import commands, scales, sweep
from experiments.weekend import costs, page, plan

FREE = 2 * 10**9  # Bytes that must be free on the disk before a run starts.


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
  """Returns the options of the command."""
  parser = commands.parser(__package__, __doc__)
  parser.add_argument("--data", default="", help="the directory of the data sets")
  parser.add_argument("--hours", type=commands.amount, default=48.0, help="what must end by then; 48 by default")
  parser.add_argument("--tables", nargs="+", choices=list(plan.TABLES), default=[*plan.TABLES], help="all by default")
  parser.add_argument("--only", nargs="+", help="only cells whose names hold one of these words")
  parser.add_argument("--seeds", type=commands.count, help="the models of a cell; those of each table by default")
  parser.add_argument("--dry_run", action="store_true", help="only says what fits")
  parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/weekend"))
  parser.add_argument("--shard", type=sweep.shard, help="i/n: only every n-th cell, from the i-th on")
  parser.add_argument("--processes", type=commands.count, default=1, help="so many shards at once on this machine")
  parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="what backbones compute in")
  parser.add_argument("--card", choices=list(costs.CARDS), default="h100", help="for estimates before steps are timed")
  parser.add_argument("--scale", choices=("tiny", "paper"), default="paper", help="tiny only shows that it runs")
  options = parser.parse_args(arguments)
  options.network = next(iter(scales.NETWORKS))  # Of the laptop's scale, which is none of those here.
  return options


def main(arguments: Sequence[str] | None = None) -> int:
  """Plans and trains; returns the exit code, which is 1 if a run failed and 2 for a mistake or a full disk."""
  started, options = time.monotonic(), parse(arguments)
  try:
    if not options.dry_run and options.processes > 1:
      line = commands.without_processes(sys.argv[1:] if arguments is None else list(arguments))
      codes = commands.together("experiments.weekend", [
        [*line, f"--shard={i}/{options.processes}"] for i in range(1, options.processes + 1)])
      return max(*codes, main([*line, "--hours=0"]))
    if not options.dry_run:
      commands.made(options.out)
    planned = _planned(options)
    print(plan.text(planned, options), flush=True)
    return 0 if options.dry_run else train([cell for cell, *_ in planned], options,
                                           started + 3600 * options.hours)
  except (UserError, OSError) as error:  # A full disk is an OSError.
    print(f"error: {error}", file=sys.stderr)
    return 2


def train(cells: Sequence[plan.Cell], options: argparse.Namespace, end: float) -> int:
  """Trains what still fits, cell by cell, and prints the published numbers beside ours; returns the exit code.

  Args:
    cells: the cells of this process in order.
    options: the options of the command.
    end: the ``time.monotonic()`` at which the hours are over.
  """
  failures, code = [], 0
  try:
    for cell in cells if options.hours else ():  # --hours=0 only makes the page.
      missing = cell.missing()
      for job in missing:
        if time.monotonic() + 3600 * cell.hours > end:
          continue
        if (free := shutil.disk_usage(options.out).free) < FREE:
          raise UserError(f"{options.out} has {free / 1e9:.1f} GB free, and a run needs {FREE / 1e9:g} GB: free some "
                          "space and give the same command again; it goes on from the last checkpoint.")
        print(f"{cell.table.title}: {cell.hours:.2f} h", flush=True)
        failures += [f"{cell.table.title}: {failed.label()}: {text}" for failed, text in sweep.run_jobs(
          cell.table.experiment, [job], cell.stem, options)]
      if len(cell.missing()) < len(missing):
        print(page.table([(cell, cell.rows())]), flush=True)
        _write_page(cells, options, failures)
  except Stopped as stopped:
    print(f"\n{stopped}", file=sys.stderr)
    code = 128 + stopped.signal
  print(_write_page(cells, options, failures), flush=True)
  return code or (1 if failures else 0)


def _write_page(cells: Sequence[plan.Cell], options: argparse.Namespace, failures: Sequence[str]) -> str:
  """Writes the page of what is done by all shards; returns a sentence that says so."""
  if options.shard:
    return "This shard is done; the same command without --shard and with --hours=0 makes the page of all."
  path = options.out / f"weekend_{options.scale}.md"
  write_text(path, page.page(cells, options, failures))
  number = sum(len(cell.missing()) for cell in cells)
  return f"{path} has the numbers" + (f", and the {number} runs that are not done." if number else ".")


def _planned(options: argparse.Namespace) -> list[plan.Planned]:
  """Returns what this process trains, in order, after a step of each of its networks is timed."""
  path = options.out / "step_seconds.json"
  while True:  # Once networks are timed, cells may fit whose networks are not.
    timed = _recorded(path).get(_device(), {})
    planned = plan.fitting(plan.cells(options, timed), options.hours)
    if options.dry_run:
      return planned
    configs = [cell.jobs[0].config for cell, _, number in planned if number]
    _check_data(dict.fromkeys(config.data.name for config in configs), options)
    new = {name: config for config in configs if (name := costs.network(config)) not in timed}
    if not new:
      return planned
    compilation.keep()
    for name, config in new.items():
      seconds, recorded = costs.measure(config), _recorded(path)  # Shards write in the same file.
      recorded.setdefault(_device(), {})[name] = seconds
      print(f"a step of {name} takes {1e3 * seconds:.1f} ms on {_device()}", flush=True)
      write_text(path, json.dumps(recorded, indent=2) + "\n")


def _device() -> str:
  return f"{jax.local_device_count()} x {jax.local_devices()[0].device_kind}"


def _recorded(path: pathlib.Path) -> dict[str, dict[str, float]]:
  """Returns the seconds of a step by device and network."""
  return read_json(path) if path.exists() else {}


def _check_data(names: Sequence[str], options: argparse.Namespace) -> None:
  """Raises a UserError that names the data sets that are not there, before anything trains."""
  if options.scale == "paper" and names and not options.data:
    raise UserError("--data must name the directory of the data sets: " + ", ".join(names) + ".")
  folder, absent = pathlib.Path(options.data).expanduser(), []
  for name in filter(ARCHIVES.__contains__, names):
    files = (f"{name}.npz", ARCHIVES[name].file, "tiny-imagenet-200" if name == "tiny_imagenet" else name)
    if not any((folder / file).exists() for file in files):
      absent.append(f"{name} ({' or '.join(files)})")
  if absent:
    raise UserError(f"{folder} has no {' and no '.join(absent)}: download the archive, or choose other --tables.")


if __name__ == "__main__":
  sys.exit(main())
