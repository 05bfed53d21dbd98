"""The page of an experiment: its tables, what made them, and what follows from them."""

import pathlib

import pandas as pd

from calib_jax._system.files import write_text
from experiments.common import comparison, scales
from experiments.common.declaration import Experiment
from experiments.common.markdown import between

__all__ = ["between", "made_by", "page", "write"]


def write(experiment: Experiment, rows: pd.DataFrame, stem: pathlib.Path) -> None:
  """Writes the page (``.md``), the table in LaTeX (``.tex``) and the figure (``.png``) of an experiment.

  Args:
    experiment: its declaration.
    rows: all of its rows.
    stem: the path of its files without their suffix.
  """
  write_text(stem.with_suffix(".md"), page(experiment, rows, stem.name))
  write_text(stem.with_suffix(".tex"), comparison.latex(_shown(experiment, rows), experiment.columns, experiment.cost))
  if experiment.figure:
    experiment.figure(rows, stem.with_suffix(".png"))


def page(experiment: Experiment, rows: pd.DataFrame, name: str) -> str:
  """Returns the page in Markdown; ``name`` is that of the experiment's files."""
  title = ": ".join(filter(None, [experiment.title, scales.described(name.removeprefix(f"{experiment.files()}_"))]))
  lines = [f"# {title}", "", made_by(experiment, rows), ""]
  if findings := experiment.findings(rows):
    lines += [*findings, ""]
  if experiment.shown:
    lines += ["## Results", "", f"Calibrated by {', '.join(experiment.shown)}; the rows have all.", ""]
  lines.append(comparison.markdown_tables(_shown(experiment, rows), experiment.columns, experiment.cost))
  if experiment.figure:
    lines += [f"![{title}]({name}.png)", ""]
  return "\n".join(lines)


def _shown(experiment: Experiment, rows: pd.DataFrame) -> pd.DataFrame:
  return rows if experiment.shown is None else rows[rows["calibrator"].isin(experiment.shown)]


def made_by(experiment: Experiment, rows: pd.DataFrame) -> str:
  """Returns the sentences that say what made the rows."""
  device, jax, date = (", ".join(filter(None, rows[column].unique())) for column in ("device", "jax", "date"))
  revisions = ", ".join(dict.fromkeys(git[:12] + "-dirty" * git.endswith("-dirty") for git in rows["git"].unique()))
  seeds, runs = rows["seed"].nunique(), rows.groupby(["task", "method", "config"], sort=False)["seconds"].last()
  return (f"`python -m experiments.{experiment.name}` made this page from the rows in the `.csv` or `.csv.gz` file "
          "beside it, which have the hash of their config, the seconds of their run, and the revision of the code "
          f"({revisions}). {seeds} seed{'s' * (seeds > 1)}, {len(runs)} runs, {sum(map(float, runs)) / 60:.0f} "
          f"minutes on {device}, JAX {jax}, {date}. ± is the standard error of the mean, "
          f"{comparison.population(rows)}. Bold: better than every other row of the table, by 95% intervals of the "
          "differences of the same seeds.")
