"""Tables of the papers as declarations: the config of a paper has the networks of the tasks and the losses of the rows.

At paper scale the tasks are the data sets and networks of the table. At laptop scale the same losses and heads train
the network of the leaderboard on the images of `--data`, one task.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import functools
import pathlib
from types import ModuleType

from ml_collections import ConfigDict
import pandas as pd

from calib_jax import config as run_config
from experiments.common import claims, comparison, markdown, scales, scores, settings, tuning
from experiments.common.declaration import Experiment, Method

AT_LAPTOP = ("cifar10", {"augmentation": {"padding": 0, "flip": False}, "schedule.stage2_batch_size": 0})


def methods(paper: ModuleType, rows: Sequence[str], extra: Mapping[str, Mapping[str, object]],
            at_paper_scale: Callable[[str], Mapping[str, object]], always: Mapping[str, object], tuned: bool,
            options: argparse.Namespace) -> list[Method]:
  """Returns the methods of a table, cross entropy first, with the fields of each data set, tuned or not."""
  every_method = []
  cells = [(data, model) for data, models in paper.NETWORKS.items() for model in models]
  for data, model in cells if options.scale == "paper" else [(AT_LAPTOP[0], cells[0][1])]:
    losses = paper.losses(data, model)
    named = {name: fields for name, fields in losses.items() if not rows or name in rows} | dict(extra)
    task = f"{data}, {model}" if options.scale == "paper" else ""
    more = at_paper_scale(data) if options.scale == "paper" else {}
    for name, fields in named.items():
      config = functools.partial(_config, paper, data, model, {**fields, **always}, more, options)
      search = _search(fields) if tuned else {}
      trials = scales.TRIALS | ({"num_seeds": 1} if options.scale != "laptop" else {})
      every_method.append(Method(task, name, config, search, trials if search else {}, one_at_a_time=tuned,
                                 detects="evaluation.ood" in more))
  return every_method


def _search(fields: Mapping[str, object]) -> dict[str, tuple[float, ...]]:
  """Returns the values that are tried for a row by its fields."""
  return tuning.search_space(fields.get("loss.secondary", {"name": ""}))


def _config(paper: ModuleType, data: str, model: str, fields: Mapping[str, object],
            at_paper_scale: Mapping[str, object], options: argparse.Namespace) -> ConfigDict:
  if options.scale != "paper":
    scaled = scales.SCALED["tiny"] if options.scale == "tiny" else AT_LAPTOP[1]
    printed = paper.recipe(data, model)
    if "loss.weight" in fields and printed.loss.reduction == "sum":  # Here the mean is minimised.
      fields = {**fields, "loss.weight": fields["loss.weight"] / printed.training.batch_size}
    return settings.changed(scales.base(options), {
      **{key: {**value, **AT_LAPTOP[1]["augmentation"]} if key == "augmentation" else scaled.get(key, value)
         for key, value in fields.items()}, "loss.reduction": "mean"})
  config = run_config.complete(paper.recipe(data, model).unlock()).lock()
  return settings.changed(config, {**fields, **at_paper_scale, **scales.directory(options),
                                   "compare_with_cross_entropy": False})


def declared(name: str, title: str, paper: ModuleType, columns: tuple[str, ...],
             calibrators: Mapping[str, Mapping[str, object]], rows: Sequence[str] = (),
             extra: Mapping[str, Mapping[str, object]] = {}, judged: Sequence[claims.Claim] = (),
             at_paper_scale: Callable[[str], Mapping[str, object]] = lambda data: {},
             always: Mapping[str, object] = {}, tuned: bool = False, note: str = "",
             figure: Callable[[pd.DataFrame, pathlib.Path], object] | None = None) -> Experiment:
  """Returns the declaration of a table; ``judged`` are the paper's claims, and ``note`` a sentence on the rows."""
  of_paper = functools.partial(methods, paper, rows, extra, at_paper_scale, always, tuned)
  return Experiment(name, title, of_paper, calibrators, columns, arguments=scales.arguments,
                    suffix=scales.suffix, figure=figure,
                    findings=functools.partial(_findings, paper, judged, extra, tuned, note))


def _findings(paper: ModuleType, judged: Sequence[claims.Claim], extra: Mapping[str, Mapping[str, object]],
              tuned: bool, note: str, rows: pd.DataFrame, name: str) -> list[str]:
  """The table of other images, if the rows have it, and what the paper claims, judged by the rows."""
  own = paper.losses(AT_LAPTOP[0], next(iter(next(iter(paper.NETWORKS.values()))))) | dict(extra)
  settings_of = {name: {"loss.primary.name": "cross_entropy"} | settings.flat(fields) for name, fields in own.items()}
  searches = {name: _search(fields) for name, fields in own.items()} if tuned else {}
  detected = rows[rows.get(scores.DETECTION[0], pd.Series("", rows.index)) != ""]
  return markdown.filled(
    "common/paper_table.md.jinja", config=f"{paper.__name__.replace('.', '/')}.py", tuned=tuned, about_rows=note,
    detection=comparison.markdown_tables(detected, scores.DETECTION) if len(detected) else "",
    population=comparison.population(rows), lines=claims.table(
      rows, [claim for claim in judged if claim.column in rows], settings_of, searches,
      published=name.endswith("_paper")), published=name.endswith("_paper"), elsewhere=[]).splitlines()
