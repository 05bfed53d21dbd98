"""The page of an experiment: its tables, what made them, and what follows from them."""

import pathlib

import pandas as pd

from calib_jax._system.files import write_text
from experiments.common import comparison, markdown, scales
from experiments.common.declaration import Experiment


def write(experiment: Experiment, rows: pd.DataFrame, stem: pathlib.Path) -> None:
  """Writes the page (``.md``), the table in LaTeX (``.tex``) and the figure (``.png``) of an experiment."""
  write_text(stem.with_suffix(".md"), page(experiment, rows, stem.name))
  write_text(stem.with_suffix(".tex"), comparison.latex(_shown(experiment, rows), experiment.columns, experiment.cost))
  if experiment.figure:
    experiment.figure(rows, stem.with_suffix(".png"))
  experiment.also(rows, stem)


def page(experiment: Experiment, rows: pd.DataFrame, name: str) -> str:
  """Returns the page in Markdown; ``name`` is that of the experiment's files."""
  title = ": ".join(filter(None, [experiment.title, scales.described(name.removeprefix(f"{experiment.files()}_"))]))
  return markdown.filled(
    "common/experiment.md.jinja", title=title, name=name, module=experiment.name, seeds=rows["seed"].nunique(),
    revisions=dict.fromkeys(git[:12] + "-dirty" * git.endswith("-dirty") for git in rows["git"].unique()),
    runs=rows.groupby(["task", "method", "config"], sort=False)["seconds"].last().astype(float).tolist(),
    made_by={column: ", ".join(filter(None, rows[column].unique())) for column in ("device", "jax", "date")},
    population=comparison.population(rows), findings=experiment.findings(rows, name), shown=experiment.shown,
    tables=comparison.markdown_tables(_shown(experiment, rows), experiment.columns, experiment.cost),
    has_figure=experiment.figure is not None)


def _shown(experiment: Experiment, rows: pd.DataFrame) -> pd.DataFrame:
  return rows if experiment.shown is None else rows[rows["calibrator"].isin(experiment.shown)]
