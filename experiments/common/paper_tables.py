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

from calib_jax.training import config as run_config
from experiments.common import claims, comparison, markdown, scales, scores, settings, tuning
from experiments.common.declaration import Experiment, Method

AT_LAPTOP = ("cifar10", {"augmentation": {"padding": 0, "flip": False}, "schedule.stage2_batch_size": 0})


def _config(paper: ModuleType, data: str, model: str, fields: Mapping[str, object],
            at_paper_scale: Mapping[str, object], options: argparse.Namespace) -> ConfigDict:
  if options.scale != "paper":
    values = AT_LAPTOP[1] | (scales.SCALED["tiny"] if options.scale == "tiny" else {})
    printed = paper.recipe(data, model)
    if "loss.weight" in fields and printed.loss.reduction == "sum":  # Here the mean is minimised.
      fields = {**fields, "loss.weight": fields["loss.weight"] / printed.training.batch_size}
    return settings.changed(scales.base(options), scales.scaled(fields, values) | {"loss.reduction": "mean"})
  config = run_config.complete(paper.recipe(data, model).unlock()).lock()
  return settings.changed(config, {**fields, **at_paper_scale, **scales.directory(options),
                                   "compare_with_cross_entropy": False})


def declared(name: str, title: str, paper: ModuleType, columns: tuple[str, ...],  # noqa: PLR0917
             calibrators: Mapping[str, Mapping[str, object]], rows: Sequence[str] = (),
             extra: Mapping[str, Mapping[str, object]] = {}, judged: Sequence[claims.Claim] = (),
             at_paper_scale: Callable[[str], Mapping[str, object]] = lambda data: {},
             always: Mapping[str, object] = {}, tuned: bool = False, note: str = "",
             figure: Callable[[pd.DataFrame, pathlib.Path], object] | None = None) -> Experiment:
  """Returns the declaration of a table; ``judged`` are the paper's claims, and ``note`` a sentence on the rows."""
  def search(fields):
    return tuning.search_space(fields.get("loss.secondary", {"name": ""})) if tuned else {}

  def methods(options):
    """Cross entropy comes first; all have the fields of their data set."""
    every_method = []
    cells = [(data, model) for data, models in paper.NETWORKS.items() for model in models]
    trials = scales.TRIALS | ({"num_seeds": 1} if options.scale != "laptop" else {})
    for data, model in cells if options.scale == "paper" else [(AT_LAPTOP[0], cells[0][1])]:
      losses = paper.losses(data, model)
      named = {label: fields for label, fields in losses.items() if not rows or label in rows} | dict(extra)
      task, more = (f"{data}, {model}", at_paper_scale(data)) if options.scale == "paper" else ("", {})
      for label, fields in named.items():
        config = functools.partial(_config, paper, data, model, {**fields, **always}, more, options)
        every_method.append(Method(task, label, config, search(fields), trials if tuned else {}, one_at_a_time=tuned,
                                   detects="evaluation.ood" in more))
    return every_method

  def findings(table_rows, page):
    """The table of other images, if the rows have it, and what the paper claims, judged by the rows."""
    own = paper.losses(AT_LAPTOP[0], next(iter(next(iter(paper.NETWORKS.values()))))) | dict(extra)
    settings_of = {label: {"loss.primary.name": "cross_entropy"} | settings.flat(fields)
                   for label, fields in own.items()}
    searches = {label: search(fields) for label, fields in own.items() if tuned}
    detected = table_rows[table_rows.get(scores.DETECTION[0], pd.Series("", table_rows.index)) != ""]
    return markdown.filled(
      "common/paper_table.md.jinja", config=f"{paper.__name__.replace('.', '/')}.py", tuned=tuned, about_rows=note,
      detection=comparison.markdown_tables(detected, scores.DETECTION) if len(detected) else "",
      population=comparison.population(table_rows), lines=claims.table(
        table_rows, [claim for claim in judged if claim.column in table_rows], settings_of, searches,
        published=page.endswith("_paper")), published=page.endswith("_paper"), elsewhere=[]).splitlines()

  return Experiment(name, title, methods, calibrators, columns, arguments=scales.arguments, suffix=scales.suffix,
                    figure=figure, findings=findings)
