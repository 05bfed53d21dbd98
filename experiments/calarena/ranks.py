"""Win rates, improvements and ranks of calibrators from CSV files in CalArena's format (Berta et al. 2026).

- The win rate of a calibrator is the share of the other calibrators that it beats, averaged over experiments. Its 95%
  interval is from resampled datasets, or, where a benchmark has fewer than 20 datasets, from resampled experiments.
- The post-hoc improvement (PHI) in a score is the score before calibration minus that after it (for the accuracy the
  reverse), averaged over experiments; the relative one is divided by the score before calibration.
- Mean ranks, the Friedman test and Nemenyi's critical difference follow Demšar 2006: two calibrators whose mean ranks
  differ by less than the critical difference are not told apart. The blocks are datasets or experiments, as above.

Only experiments of which every calibrator has a result count.
"""

from collections.abc import Sequence
import pathlib

import numpy as np
import pandas as pd

from calib_jax._system.errors import UserError
from calib_jax._system.files import write_text
from experiments.common import markdown, ranking
from experiments.common.rows import frame

KEY = ["dataset", "model", "cal_size", "test_size"]  # The first columns of a row, which say which experiment it is of.
BASE, PUBLISHED_BASE = "identity", "Base-model"
METRICS = ("brier", "logloss", "ece-15")
ENOUGH_DATASETS = 20
RESAMPLES, LEVEL = 1000, 0.95


def load(folder: pathlib.Path) -> pd.DataFrame | None:
  """Reads the CSV files of a folder, one a calibrator: a row a calibrator and experiment; None if there is no file."""
  tables = {path.stem: frame(path, text=KEY[:2]) for path in sorted(folder.glob("*.csv"))}
  renamed = [table.rename(columns={column: column.removeprefix(f"{name}_") for column in table}).assign(calibrator=name)
             for name, table in tables.items()]
  return pd.concat(renamed) if renamed else None


def joined(ours: pd.DataFrame, published: pd.DataFrame | None) -> pd.DataFrame:
  """Puts tables side by side.

  Args:
    ours: the table of ``load``, with the rows of no calibration among them.
    published: the same, or None; its own rows of no calibration must agree with ours.

  Returns:
    Scores by experiment, of those that all calibrators have, and in the columns by metric and calibrator.

  Raises:
    UserError: if there is no such experiment, two calibrators have one name, or the scores before calibration disagree.
  """
  if published is not None:
    both = set(ours.calibrator) & set(published.calibrator)
    if both:
      raise UserError(f"ours and the published results both have a calibrator called {min(both)}.")
    own, theirs = (table[table.calibrator == name].set_index(KEY).brier
                   for table, name in ((ours, BASE), (published, PUBLISHED_BASE)))
    for key, difference in (own - theirs).items():
      if abs(difference) > 1e-4:
        raise UserError(f"{'/'.join(key[:2])}: before calibration the Brier score is {own[key]:.5f} here and "
                        f"{theirs[key]:.5f} in the published results, which are of other predictions.")
    ours = pd.concat([ours, published[published.calibrator != PUBLISHED_BASE]])
  values = ours.pivot(index=KEY, columns="calibrator", values=[*METRICS, "accuracy"]).dropna()
  if values.empty:
    raise UserError(f"no experiment has results of all of {', '.join(ours.calibrator.unique())}.")
  return values


def win_rates(values: pd.DataFrame) -> pd.DataFrame:
  """The share of the other calibrators with a higher value, by experiment and calibrator; a tie is no win."""
  number = values.shape[1]
  return (number - values.rank(axis=1, method="max")) / max(number - 1, 1)


def blocks(datasets: Sequence[str]) -> np.ndarray:
  """What is resampled and ranked: the index of each experiment's dataset, or of the experiment itself."""
  names, index = np.unique(np.asarray(datasets, str), return_inverse=True)
  return index if len(names) >= ENOUGH_DATASETS else np.arange(len(datasets))


def interval(rates: np.ndarray, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """95% bootstrap limits of the mean of ``rates`` ``[experiments, calibrators]`` over experiments, by blocks."""
  counts = np.bincount(block)
  sums = np.stack([np.bincount(block, column) for column in np.asarray(rates).T], axis=1)
  drawn = np.random.default_rng(0).integers(0, len(counts), (RESAMPLES, len(counts)))
  means = sums[drawn].sum(1) / counts[drawn].sum(1)[:, None]
  low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
  return low, high


def comparison(values: pd.DataFrame, ours: set[str]) -> tuple[str, pd.Series, float]:
  """Returns what a benchmark shows of its calibrators.

  Args:
    values: the scores of ``joined``.
    ours: the calibrators of calib_jax.

  Returns:
    The Markdown page, the mean rank of each calibrator by Brier score, and the critical difference of these ranks.
  """
  block = blocks(values.index.get_level_values("dataset"))
  before = {metric: values[metric][BASE] for metric in (*METRICS, "accuracy")}
  rates = {metric: win_rates(values[metric]) for metric in METRICS}
  limits = {metric: interval(rates[metric], block) for metric in METRICS}
  names = values["brier"].columns
  excess = values["brier"].sub(before["brier"], axis=0)
  ranks = ranking.ranks(excess.groupby(block).mean().to_numpy())
  mean_ranks = pd.Series(ranks.mean, names)
  lines = []
  for name in rates["brier"].mean().sort_values(ascending=False, kind="stable").index:
    j, cells = names.get_loc(name), [f"`{name}`" if name in ours else name]
    cells += [f"{rates[m][name].mean():.3f} [{limits[m][0][j]:.3f}, {limits[m][1][j]:.3f}]" for m in METRICS]
    for metric in METRICS:
      gain = before[metric] - values[metric][name]
      relative = (gain / before[metric])[before[metric] > 0].mean() if (before[metric] > 0).any() else 0.0
      cells.append(f"{1000 * gain.mean():+.2f} ({100 * relative:+.1f}%)")
    cells += [f"{1000 * (values['accuracy'][name] - before['accuracy']).mean():+.2f}", f"{mean_ranks[name]:.2f}"]
    lines.append(cells)
  headings = ("calibrator", "win rate, Brier", "log loss", "ECE-15", "PHI, Brier", "log loss", "ECE-15", "accuracy",
              "mean rank, Brier")
  number, num_ours = block.max() + 1, len(ours & {*names})
  page = (f"{len(names)} calibrators, {num_ours} of calib_jax (in code type) and {len(names) - num_ours} as published "
          f"by CalArena, on {len(values)} experiments. Win rates are by each score, with 95% intervals; improvements "
          "(PHI) are in thousandths, and relative to the score before calibration in percent.\n\n"
          f"{markdown.table(headings, lines)}\n\n"
          f"Mean ranks over {number} {'datasets' if number < len(block) else 'experiments'}: the Friedman test's "
          f"p-value is {ranks.p_value:.2g}, and ranks that differ by less than {ranks.critical:.2f} are not told apart "
          "(Nemenyi, 95%).\n")
  return page, mean_ranks, ranks.critical


def dots(axis, names: Sequence[str], middle: Sequence[float], ends: Sequence[Sequence[float]], is_ours: Sequence[bool]
         ) -> None:
  """Draws a value and its interval for each name, the first at the top; blue is this package."""
  for place, (value, (low, high), own) in enumerate(zip(middle, ends, is_ours, strict=True)):
    color = "#0072B2" if own else "#888888"
    axis.plot([low, high], [place, place], color=color, lw=1.5)
    axis.plot(value, place, "o", color=color, ms=4)
  axis.set_yticks(range(len(names)), names, fontsize=7)
  axis.invert_yaxis()
  axis.tick_params(axis="x", labelsize=7)
  axis.grid(axis="x", lw=0.4)


def figure(mean_ranks: pd.Series, ours: set[str], difference: float, path: pathlib.Path) -> None:
  """Draws mean ranks, the best at the top; bars that do not overlap are more than a critical difference apart."""
  from matplotlib.figure import Figure

  mean_ranks = mean_ranks.sort_values()
  drawn = Figure(figsize=(6.4, 0.24 * len(mean_ranks) + 1.1), layout="constrained")
  axis = drawn.subplots()
  ends = np.add.outer(mean_ranks.to_numpy(), [-difference / 2, difference / 2])
  dots(axis, mean_ranks.index.str.replace("_", " "), mean_ranks, ends, mean_ranks.index.isin(ours))
  axis.set_xlabel(f"mean rank by Brier score, ± half the critical difference of {difference:.2f}", fontsize=8)
  axis.set_title("blue: calib_jax; grey: as published by CalArena", fontsize=8)
  drawn.savefig(path, dpi=150)


def write(folder: pathlib.Path, published: pathlib.Path | None) -> None:
  """Writes the page and the figure of a benchmark beside the folder of its CSV files.

  Raises:
    UserError: if ``published`` is no folder of CSV files, or cannot be compared.
  """
  ours, theirs = load(folder), load(published) if published else None
  if published and theirs is None:
    raise UserError(f"{published} has no CSV files of published results.")
  names = {*ours.calibrator}
  page, mean_ranks, difference = comparison(joined(ours, theirs), names)
  write_text(folder.with_name(f"{folder.name}.md"), page)
  figure(mean_ranks, names, difference, folder.with_name(f"{folder.name}.png"))
