"""The page of an experiment: its tables, what made them, and what follows from them."""

from collections.abc import Sequence
import pathlib

from calib_jax._system.files import write_text
from experiments.common import comparison, scales
from experiments.common.declaration import Experiment
from experiments.common.rows import Row


def between(text: str, begin: str, end: str, *parts: str) -> str:
  r"""Returns a text with the n-th of ``parts`` between the n-th ``begin`` and the ``end`` that follows it.

  >>> between("a<old>b", "<", ">", "new")
  'a<\n\nnew\n>b'
  """
  before, *rest = text.split(begin)
  return before + "".join(f"{begin}\n\n{part}\n{end}{after.split(end, 1)[1]}"
                          for part, after in zip(parts, rest, strict=True))


def write(experiment: Experiment, rows: Sequence[Row], stem: pathlib.Path) -> None:
  """Writes the page (``.md``), the table in LaTeX (``.tex``) and the figure (``.png``) of an experiment.

  Args:
    experiment: its declaration.
    rows: all of its rows.
    stem: the path of its files without their suffix.
  """
  write_text(stem.with_suffix(".md"), page(experiment, rows, stem.name))
  write_text(stem.with_suffix(".tex"), comparison.latex(_shown(experiment, rows), experiment.columns, experiment.cost))
  if experiment.figure:
    experiment.figure(list(rows), stem.with_suffix(".png"))


def page(experiment: Experiment, rows: Sequence[Row], name: str) -> str:
  """Returns the page in Markdown; ``name`` is that of the experiment's files."""
  title = ": ".join(filter(None, [experiment.title, scales.described(name.removeprefix(f"{experiment.files()}_"))]))
  lines = [f"# {title}", "", *made_by(experiment, rows), ""]
  if findings := experiment.findings(list(rows)):
    lines += [*findings, ""]
  if experiment.shown:
    lines += ["## Results", "", f"Calibrated by {', '.join(experiment.shown)}; the rows have all.", ""]
  lines.append(comparison.markdown(_shown(experiment, rows), experiment.columns, experiment.cost))
  if experiment.figure:
    lines += [f"![{title}]({name}.png)", ""]
  return "\n".join(lines)


def _shown(experiment: Experiment, rows: Sequence[Row]) -> list[Row]:
  return [row for row in rows if experiment.shown is None or row["calibrator"] in experiment.shown]


def made_by(experiment: Experiment, rows: Sequence[Row]) -> list[str]:
  """Returns the sentences that say what made the rows."""
  def distinct(column):
    return ", ".join(dict.fromkeys(row[column] for row in rows if row[column]))

  revisions = ", ".join(dict.fromkeys(row["git"][:12] + "-dirty" * row["git"].endswith("-dirty") for row in rows))

  seeds = sorted({int(row["seed"]) for row in rows})
  runs = {(row["task"], row["method"], row["config"]): float(row["seconds"]) for row in rows}
  return [f"`python -m experiments.{experiment.name}` made this page from the rows in the `.csv` or `.csv.gz` file "
          "beside it, which have the hash of their config, the seconds of their run, and the revision of the code "
          f"({revisions}). {len(seeds)} seed{'s' * (len(seeds) > 1)}, {len(runs)} runs, {sum(runs.values()) / 60:.0f} "
          f"minutes on {distinct('device')}, JAX {distinct('jax')}, {distinct('date')}. ± is the standard error of the "
          f"mean, {comparison.population(rows)}. Bold: better than every other row of the table, by 95% intervals "
          "of the differences of the same seeds."]
