"""Runs an experiment: methods × seeds × calibrators, into one ``.csv`` file, a table and a figure.

An experiment is a declaration (``declaration.Experiment``) in a module of its own, whose ``main`` calls this one:

python -m experiments.NAME --scale=laptop --out=DIR [--shard=1/4 | --processes=4] [--only WORD ...] [--seeds=N]

Every run is one of ``calib_jax.training.run``: it is continued if it was stopped, and not repeated if it is finished. A
run that fails is reported at the end, after all others. ``DIR/STEM.csv`` has a row for each method, calibrator and
seed, with the hash of the config that trained it, versions, device and seconds. Runs whose rows it holds are skipped,
so that the same command on a finished experiment only makes the table (``.md``, ``.tex``) and the figure (``.png``)
again. If the rows of a run are deleted, they are made again from its predictions in ``DIR/runs``; if those are deleted
too, it trains again. Shards write files of their own, which the next command without ``--shard`` joins. A large
``.csv`` becomes a ``.csv.gz`` when the command ends (``rows``).
"""

import argparse
from collections.abc import Sequence
import datetime
import json
import pathlib
import re
import sys
import time
from typing import NamedTuple

from ml_collections import ConfigDict

from calib_jax import evaluation
from calib_jax._system import compilation, environment
from calib_jax._system.errors import UserError
from calib_jax.evaluation.predictions import ensembles
from calib_jax.evaluation.predictions.fitting import UNCALIBRATED
from calib_jax.training import Stopped, run
from calib_jax.training import config as run_config
from calib_jax.training.run import last_layer
from calib_jax.training.run.data import additional_sets
from experiments.common import commands, comparison, report, rows, scores, settings, tuning
from experiments.common.declaration import Experiment, Method

SCALES = ("tiny", "laptop", "paper")
NAMED = ("task", "method", "calibrator", "seed")  # The columns that name a row.
FIRST_MEMBER = 1000  # The first seed of the members of ensembles, beyond the seeds of single networks.


class Job(NamedTuple):
  """The seeds of a method that train in one run, and the name of what they train: the hash of its declaration."""

  method: Method
  config: ConfigDict
  seeds: tuple[int, ...]
  declared: str

  def label(self) -> str:
    """Returns the name of the run for messages."""
    seeds = f"seeds {self.seeds[0]}-{self.seeds[-1]}" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"
    return ", ".join(filter(None, (self.method.task, self.method.name, seeds)))


def jobs(methods: Sequence[Method], num_seeds: int | None = None) -> list[Job]:
  """Returns the runs of methods; seeds that train together, or are tuned, share one, as members of an ensemble do."""
  all_jobs = []
  for method in methods:
    config = method.config()
    seeds = tuple(range(config.seed, config.seed + (num_seeds or config.num_seeds)))
    declared = settings.digest(config)
    if method.search:
      declared = settings.hashed([declared, dict(method.search), dict(method.trials)])
    if method.members > 1:
      declared = settings.hashed([declared, method.members])
    if config.evaluation.laplace:  # Which changes what is predicted, and not what is trained.
      declared = settings.hashed([declared, config.evaluation.laplace])
    together = method.members == 1 and (config.training.seeds_together or method.search)
    all_jobs += [Job(method, config, part, declared) for part in ([seeds] if together else [(seed,) for seed in seeds])]
  return all_jobs


def main(experiment: Experiment, arguments: Sequence[str] | None = None) -> int:
  """Runs what has no rows yet and makes the table; returns the exit code, which is 1 if a run failed."""
  options = parse(experiment, arguments)
  stem = stem_of(experiment, options)
  if options.processes > 1:
    return _in_processes(experiment, options, sys.argv[1:] if arguments is None else list(arguments))
  try:
    commands.made(options.out)
    compilation.keep()  # Tuning, too, trains the same programs again and again.
    if not options.shard:
      _join(stem)
    wanted = [m for m in experiment.methods(options) if not options.only or any(
      word in f"{m.task} {m.name}" for word in options.only)]
    index, number = options.shard or (1, 1)
    failures = run_jobs(experiment, jobs(wanted, options.seeds)[index - 1::number], stem, options)
  except Stopped as stopped:
    print(f"\n{stopped}", file=sys.stderr)
    return 128 + stopped.signal
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  if options.shard:
    print(f"shard {'/'.join(map(str, options.shard))} is done; the same command without --shard makes the table.")
  elif len(table_rows := rows.texts(path_of(stem))):
    report.write(experiment, table_rows, stem)
    rows.pack(path_of(stem))
    print(f"{stem}.md holds the table.")
  for job, error in failures:
    print(f"failed: {job.label()}: {error}", file=sys.stderr)
  return 1 if failures else 0


def parse(experiment: Experiment, arguments: Sequence[str] | None = None) -> argparse.Namespace:
  """Returns the options of the command."""
  parser = commands.parser(f"experiments.{experiment.name}", experiment.title)
  parser.add_argument("--scale", choices=SCALES, default="laptop")
  parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("experiments/results"))
  parser.add_argument("--seeds", type=commands.count, help="the number of seeds; that of each config by default")
  parser.add_argument("--only", nargs="+", help="only methods whose names hold one of these words")
  parser.add_argument("--shard", type=shard, help="i/n: only every n-th run, from the i-th on; i is from 1 to n")
  parser.add_argument("--processes", type=commands.count, default=1, help="so many shards at once on this machine")
  experiment.arguments(parser)
  return parser.parse_args(arguments)


def stem_of(experiment: Experiment, options: argparse.Namespace) -> pathlib.Path:
  """Returns the path of the files of an experiment without what ends their names."""
  return options.out / f"{experiment.files()}_{experiment.suffix(options)}"


def shard(text: str) -> tuple[int, int]:
  """Returns the number of a shard, from 1, and how many there are, of a text such as "1/4"."""
  match = re.fullmatch(r"(\d+)/(\d+)", text)
  if not match or not 1 <= int(match[1]) <= int(match[2]):
    raise argparse.ArgumentTypeError(f"must be i/n with 1 <= i <= n, such as 1/4: got {text!r}")
  return int(match[1]), int(match[2])


def path_of(stem: pathlib.Path, shard: tuple[int, int] | None = None, suffix: str = "") -> pathlib.Path:
  """Returns the file of rows (or, by a suffix, of trials) of an experiment or of one of its shards."""
  part = "_shard{}of{}".format(*shard) if shard else ""
  return stem.with_name(f"{stem.name}{suffix}{part}.csv")


def _join(stem: pathlib.Path) -> None:
  """Appends the rows of shards to the file of all rows, and deletes the files of the shards."""
  for suffix in ("", "_trials"):
    for path in sorted(stem.parent.glob(f"{stem.name}{suffix}_shard*of*.csv")):
      if re.fullmatch(rf"{re.escape(stem.name + suffix)}_shard\d+of\d+\.csv", path.name):
        # Trials, which have no calibrator and seed, are known by their config alone.
        rows.append(path_of(stem, suffix=suffix), rows.texts(path), replacing=["config"] if suffix else NAMED)
        path.unlink()


def _in_processes(experiment: Experiment, options: argparse.Namespace, arguments: list[str]) -> int:
  """Runs a process for each shard, and then this command without shards, which makes the table."""
  number = options.processes
  others = commands.without_processes(arguments)
  codes = commands.together(f"experiments.{experiment.name}",
                            [[*others, f"--shard={i}/{number}"] for i in range(1, number + 1)])
  if max(codes) > 128:  # A signal stopped one of them.
    return max(codes)
  return max(*codes, main(experiment, others))


def run_jobs(experiment: Experiment, wanted: Sequence[Job], stem: pathlib.Path, options: argparse.Namespace
             ) -> list[tuple[Job, str]]:
  """Runs those of the jobs that have no rows yet, and appends their rows; returns the failures."""
  path = path_of(stem, options.shard)
  missing = without_rows(experiment, wanted, [*rows.read(path_of(stem)), *rows.read(path)])
  started, failures = time.monotonic(), []
  for i, job in enumerate(missing, 1):
    print(f"[{i}/{len(missing)}] {job.label()}", flush=True)
    try:
      new = run_job(job, experiment, stem, options.shard)
    except (Stopped, KeyboardInterrupt):
      raise
    except Exception as error:  # Whatever stops one run, the others go on.
      failures.append((job, f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"))
      print(f"failed: {failures[-1][1]}", file=sys.stderr, flush=True)
      continue
    rows.append(path, new, replacing=NAMED)
    print(f"[{i}/{len(missing)}] {job.label()} took {float(new[0]['seconds']):.0f} s; "
          f"{commands.left(started, i, len(missing))} for {len(missing) - i} more runs", flush=True)
  return failures


def without_rows(experiment: Experiment, wanted: Sequence[Job], table_rows: Sequence[rows.Row]) -> list[Job]:
  """Returns the jobs of which one of the rows is missing."""
  done = {tuple(row[name] for name in (*NAMED, "declared")) for row in table_rows}
  labels = (UNCALIBRATED, *experiment.calibrators)
  return [job for job in wanted if any((job.method.task, job.method.name, label, str(seed), job.declared) not in done
                                       for label in labels for seed in job.seeds)]


def run_job(job: Job, experiment: Experiment, stem: pathlib.Path, shard: tuple[int, int] | None = None
            ) -> list[dict[str, str]]:
  """Tunes, trains, calibrates and scores; returns the rows."""
  started, now = time.monotonic(), environment.environment()
  chosen, tried, finished = _trained(job, stem, shard)
  names = [name for name, _ in additional_sets(finished.config, job.seeds[0])]
  if finished.config.evaluation.laplace:  # The Laplace approximation predicts.
    model, validation = last_layer.laplace(finished, evaluation.Model({name: [] for name in ["test", *names]}, {}))
    saved = {**model.sets, "validation": validation}
  else:
    saved = {name: finished.saved(name) for name in ("validation", "test", *names)}
  if job.method.members > 1:
    saved = {name: [ensembles.pooled(of_members)] for name, of_members in saved.items()}
  foreign = set(map(run_config.ood_name, finished.config.evaluation.ood))
  others = {"shifted": [], "train": [], "ood": []}
  for name in names:
    others["ood" if name in foreign else "train" if name == "train" else "shifted"].append(saved[name])
  scored = scores.calibrated(saved["validation"], saved["test"], experiment.calibrators, others,
                             tuple(name for name in experiment.columns if name in scores.MORE))
  shared = {"chosen": json.dumps(chosen), "tried": json.dumps(tried), "declared": job.declared,
            "config": settings.digest(finished.config),
            "seconds": f"{time.monotonic() - started:.1f}", "date": str(datetime.date.today()),
            "jax": now["packages"]["jax"], "device": f"{len(now['devices'])} x {now['devices'][0]}",
            "git": now["git"] or ""}
  detection = dict.fromkeys(scores.DETECTION, "") if job.method.detects else {}
  images = {}  # The noise of the images is that of a mean over seeds, so that the first of a run has the sum.
  for label, _, _, left_out in scored:
    images.setdefault(label, []).append(left_out)
  return [{"task": job.method.task, "method": job.method.name, "calibrator": label, "seed": str(job.seeds[i]),
           **detection, **{key: f"{value:.6g}" for key, value in values.items()},
           **{f"images_{name}": "" if i else comparison.blocks_text([x[name] for x in images[label]])
              for name in images[label][0]}, **shared} for label, i, values, _ in scored]


def _trained(job: Job, stem: pathlib.Path, shard: tuple[int, int] | None
             ) -> tuple[dict[str, object], dict[str, list], run.Run]:
  """Tunes and trains; returns the chosen fields, the values that were tried of each, and the finished run."""
  config, chosen, tried = job.config, {}, {}
  if job.method.search:
    tuned = tuning.tuned(settings.changed(config, job.method.trials), job.method.search,
                         one_at_a_time=job.method.one_at_a_time, path=path_of(stem, shard, "_trials"))
    chosen, tried = tuned.chosen, tuned.tried
  members = job.method.members
  seeds = {"seed": job.seeds[0], "num_seeds": len(job.seeds)} if members == 1 else {
    "seed": FIRST_MEMBER + members * job.seeds[0], "num_seeds": members, "data.split_seed": job.seeds[0]}
  config = settings.changed(config, {**chosen, **seeds})
  name = re.sub(r"[^a-z0-9]+", "_", f"{job.method.task} {job.method.name}".lower()).strip("_")
  folder = stem.parent / "runs" / stem.name / f"{name}_{settings.digest(config)}"
  run.execute(config, folder, reports=False)
  finished = run.Run(config, folder)
  finished.predict_sets()
  return chosen, tried, finished
