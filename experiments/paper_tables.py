"""Tables of the papers as declarations: each cell is a config of configs/recipes.py, and each variant a row.

At paper scale the tasks are the data sets and networks of the table. At laptop scale the same losses and heads train
the network of the leaderboard on the images of `--data`, one task.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import functools
import pathlib

from ml_collections import ConfigDict

from calib_jax import config as run_config
from configs import recipes, variants
from experiments import claims, leaderboard, settings
from experiments.declaration import Experiment, Method
from experiments.rows import Row

Cells = Sequence[tuple[str, str]]  # Data sets and networks.
# The corruptions of blur, noise, compression and lighting in Figure 5 of Ni et al., at all severities.
CORRUPTED = {"mac_cal": {"evaluation.corruptions": ("gaussian_blur", "shot_noise", "jpeg_compression", "brightness")}}
AT_LAPTOP = ("cifar10", {"training.stage2_epochs": 10, "augmentation": {"padding": 0, "flip": False}})


def methods(paper: str, cells: Cells, rows: Sequence[str], extra: Mapping[str, Mapping[str, object]],
            options: argparse.Namespace) -> list[Method]:
  """Returns the methods of a table.

  Args:
    paper: its name in ``recipes.PAPERS``.
    cells: its data sets and networks.
    rows: the variants of the paper in the table; empty for all.
    extra: fields of more rows by name.
    options: the options of the command.
  Returns: the methods, cross entropy first.
  """
  found = []
  for data, model in cells if options.scale == "paper" else [(AT_LAPTOP[0], cells[0][1])]:
    named = {"cross_entropy": {}, **variants.PAPERS[paper](data, model)}
    named = {name: fields for name, fields in named.items() if not rows or name in rows} | dict(extra)
    task = f"{data}, {model}" if options.scale == "paper" else ""
    found += [Method(task, name, functools.partial(_config, paper, data, model, fields, options))
              for name, fields in named.items()]
  return found


def _config(paper: str, data: str, model: str, fields: Mapping[str, object], options: argparse.Namespace) -> ConfigDict:
  if options.scale != "paper":
    scaled = leaderboard.SCALED["tiny"] if options.scale == "tiny" else AT_LAPTOP[1]
    printed = recipes.PAPERS[paper](data, model)
    if "loss.weight" in fields and printed.loss.reduction == "sum":  # Here the mean is minimised.
      fields = {**fields, "loss.weight": fields["loss.weight"] / printed.training.batch_size}
    return settings.changed(leaderboard.base(options), {
      **{key: {**value, **AT_LAPTOP[1]["augmentation"]} if key == "augmentation" else scaled.get(key, value)
         for key, value in fields.items()}, "loss.reduction": "mean"})
  config = recipes.config(data, model, "", paper).unlock()
  fields = {**fields, **CORRUPTED.get(paper, {}), "compare_with_cross_entropy": False}
  return settings.changed(run_config.complete(config).lock(), fields)


def declared(name: str, title: str, paper: str, cells: Cells, columns: tuple[str, ...],
             calibrators: Mapping[str, Mapping[str, object]], rows: Sequence[str] = (),
             extra: Mapping[str, Mapping[str, object]] | None = None, judged: Sequence[claims.Claim] = (),
             figure: Callable[[list[Row], pathlib.Path], object] | None = None) -> Experiment:
  """Returns the declaration of a table; ``judged`` are the paper's claims. See ``methods`` and ``Experiment``."""
  return Experiment(name, title, functools.partial(methods, paper, cells, rows, extra or {}), calibrators, columns,
                    arguments=leaderboard.arguments, stem=functools.partial(_stem, name), figure=figure,
                    findings=functools.partial(_findings, judged))


def _stem(name: str, options: argparse.Namespace) -> str:
  """The name of the files, which at laptop scale holds that of the images and of the network."""
  return leaderboard.stem(options).replace("leaderboard", name, 1)


def _findings(judged: Sequence[claims.Claim], rows: Sequence[Row]) -> list[str]:
  """What the paper claims, judged by the rows."""
  table = claims.table(rows, [claim for claim in judged if claim.column in rows[0]])
  return ["## What the paper claims", "",
          "A claim agrees or disagrees where the 95% interval of the difference, paired by seed, excludes zero. "
          "Cohen's d is the difference in units of its deviation over seeds. The losses have the values of "
          "configs/variants.py, those of the paper where it prints them; nothing is tuned for this network.", "",
          *table, "", "## All rows"
          ] if len(table) > 2 else []
