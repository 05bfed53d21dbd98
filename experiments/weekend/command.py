"""Trains the tables of the papers at paper scale, the most published evidence per hour first, beside what is printed.

Run: python -m experiments.weekend --data=DIR --hours=48 [--tables NAME ...] [--dry_run] [--shard=1/4] [--out=DIR]

`--data` is a directory with the archives of CIFAR-10, CIFAR-100 and Tiny ImageNet, or what `python -m calib_jax.data
prepare` makes of them. First it times a step of every network that may start, which takes a few minutes, and says what
fits; `--dry_run` does only the latter, from the times that are there or else from counted operations. Then it trains,
and prints the published numbers beside ours when a cell ends; OUT/weekend_paper.md has all of them.

The same command goes on where it was stopped: a kill, a preemption or a full disk costs what was trained since the last
checkpoint, at most five minutes. Machines that share `--out` take what no other has; machines that do not take
`--shard=i/n`, and their .csv files are copied into one directory, where `--hours=0` makes the page. `--processes=n`
runs n at once on one GPU, each with its part of the memory.
"""

import argparse
from collections.abc import Sequence
import json
import pathlib
import sys
import time

import jax

from calib_jax._system import compilation
from calib_jax._system.errors import UserError
from calib_jax._system.files import read_json, write_text
from calib_jax.data.archives import ARCHIVES
from experiments.common import commands, scales, sweep
from experiments.weekend import costs, plan, work
from experiments.weekend.tables import TABLES


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
  """Returns the options of the command."""
  parser = commands.parser(__package__, __doc__)
  parser.add_argument("--data", default="", help="the directory of the data sets")
  parser.add_argument("--hours", type=commands.amount, default=48.0, help="what must end by then; 48 by default")
  parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES), help="all by default")
  parser.add_argument("--only", nargs="+", help="only cells whose names hold one of these words")
  parser.add_argument("--seeds", type=commands.count, help="the models of a cell; those of each table by default")
  parser.add_argument("--dry_run", action="store_true", help="only says what fits")
  parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/weekend"))
  parser.add_argument("--shard", type=sweep.shard, help="i/n: only every n-th cell, from the i-th on")
  parser.add_argument("--processes", type=commands.count, default=1, help="so many at once on this machine")
  parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="what backbones compute in")
  parser.add_argument("--card", choices=list(costs.CARDS), default="h100", help="for estimates before steps are timed")
  parser.add_argument("--scale", choices=("tiny", "paper"), default="paper", help="tiny only shows that it runs")
  return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
  """Plans and trains.

  Args:
    arguments: the command line without the name of the program; None for that of this process.

  Returns:
    The exit code: 0; 1 if a run failed; 2 for a mistake in what the command is given, or a full disk; 128 plus the
    number of the signal that stopped it.
  """
  started, options = time.monotonic(), parse(arguments)
  options.network = next(iter(scales.NETWORKS))  # Of the laptop's scale, which is none of those here.
  try:
    if not options.dry_run and options.processes > 1:
      line = commands.without_processes(sys.argv[1:] if arguments is None else list(arguments))
      return max(commands.together("experiments.weekend", [line] * options.processes))
    path = (options.out if options.dry_run else commands.made(options.out)) / "step_seconds.json"
    planned = plan.fitting(_cells(options, _recorded(path)), options)
    while not options.dry_run:
      _check_data(planned, options)
      if not _measure(planned, path):
        break
      # Other cells may fit now, whose networks are not timed yet.
      planned = plan.fitting(_cells(options, _recorded(path)), options)
    print(plan.text(planned, options), flush=True)
    if options.dry_run:
      return 0
    return work.train(planned, options, started)
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2


def _cells(options: argparse.Namespace, measured: dict[str, float]) -> list[plan.Cell]:
  """Returns the cells of this process, in order."""
  found = [cell for cell in plan.cells(options, measured)
           if not options.only or any(word in cell.name() for word in options.only)]
  if not found:
    raise UserError(f"--only: no cell of these tables has a name that holds {' or '.join(options.only)}.")
  index, number = options.shard or (1, 1)
  return found[index - 1::number]


def _device() -> str:
  return f"{jax.local_device_count()} x {jax.local_devices()[0].device_kind}"


def _recorded(path: pathlib.Path) -> dict[str, float]:
  """Returns the seconds of a step by network, as they were timed on a device like this one."""
  return read_json(path).get(_device(), {}) if path.exists() else {}


def _measure(planned: Sequence[tuple[plan.Cell, Sequence[sweep.Job], int]], path: pathlib.Path) -> bool:
  """Times a step of the networks of cells of which something fits, and records it; returns whether any was new."""
  measured = _recorded(path)
  before = len(measured)
  compilation.keep()
  for cell, _, number in planned:
    models = {1, cell.num_seeds} if costs.is_small(cell.config) else {1}  # The faster way is chosen.
    for num_models in sorted(models) if number else ():
      name = costs.network(cell.config, num_models)
      if name in measured:
        continue
      measured[name] = costs.measure(cell.config, num_models)
      print(f"a step of {name} takes {1e3 * measured[name]:.1f} ms on {_device()}", flush=True)
      with work.alone(path.parent):
        others = read_json(path) if path.exists() else {}
        write_text(path, json.dumps({**others, _device(): {**others.get(_device(), {}), **measured}}, indent=2) + "\n")
  return len(measured) > before


def _check_data(planned: Sequence[tuple[plan.Cell, Sequence[sweep.Job], int]], options: argparse.Namespace) -> None:
  """Raises a UserError that names the data sets that are not there, before anything trains."""
  names = dict.fromkeys(cell.config.data.name for cell, _, number in planned if number)
  if options.scale == "paper" and names and not options.data:
    raise UserError("--data must name the directory of the data sets: " + ", ".join(names) + ".")
  folder, absent = pathlib.Path(options.data).expanduser(), []
  for name in names:
    if name in ARCHIVES:
      files = (f"{name}.npz", ARCHIVES[name].file, *(("tiny-imagenet-200",) if name == "tiny_imagenet" else (name,)))
      if not any((folder / file).exists() for file in files):
        absent.append(f"{name} ({' or '.join(files)})")
  if absent:
    raise UserError(f"{folder} has no {' and no '.join(absent)}: download the archive, or choose other --tables.")

