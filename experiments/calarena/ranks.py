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

from calib_jax._system.errors import UserError
from calib_jax._system.files import write_text
from experiments.common import ranking
from experiments.common.rows import read

KEY = ("dataset", "model", "cal_size", "test_size")
BASE, PUBLISHED_BASE = "identity", "Base-model"
METRICS = ("brier", "logloss", "ece-15")
ENOUGH_DATASETS = 20
RESAMPLES, LEVEL = 1000, 0.95


def key(dataset: str, model: str, cal_size: int, test_size: int) -> dict:
  """The first columns of a row, which say which experiment it is of."""
  return dict(zip(KEY, (dataset, model, cal_size, test_size), strict=True))


def load(folder: pathlib.Path) -> dict[str, dict[tuple[str, ...], dict[str, float]]]:
  """Reads a folder of CSV files; returns ``{calibrator: {experiment: {metric: value}}}``."""
  tables = {}
  for path in sorted(folder.glob("*.csv")):
    tables[path.stem] = {tuple(row[name] for name in KEY): {
      column.removeprefix(f"{path.stem}_"): float(value) for column, value in row.items()
      if column.startswith(f"{path.stem}_")} for row in read(path)}
  return tables


def joined(ours: dict, published: dict) -> tuple[list[str], list[tuple[str, ...]], dict[str, np.ndarray]]:
  """Puts tables side by side.

  Args:
    ours: the tables of ``load``, among them that of no calibration.
    published: the same, or empty; its own table of no calibration must agree with ours.

  Returns:
    The names of the calibrators, the experiments that all have, and scores ``[experiments, calibrators]`` by metric.

  Raises:
    UserError: if there is no such experiment, two calibrators have one name, or the scores before calibration disagree.
  """
  for experiment, values in published.get(PUBLISHED_BASE, {}).items():
    mine = ours[BASE].get(experiment)
    if mine and abs(mine["brier"] - values["brier"]) > 1e-4:
      raise UserError(f"{'/'.join(experiment[:2])}: before calibration the Brier score is {mine['brier']:.5f} here and "
                      f"{values['brier']:.5f} in the published results, which are of other predictions.")
  both = sorted(set(ours) & set(published))
  if both:
    raise UserError(f"ours and the published results both have a calibrator called {both[0]}.")
  tables = {**ours, **{name: table for name, table in published.items() if name != PUBLISHED_BASE}}
  tables = {name: table for name, table in tables.items() if table}
  experiments = [e for e in tables.get(BASE, {}) if all(e in table for table in tables.values())]
  if not experiments:
    raise UserError(f"no experiment has results of all of {', '.join(tables)}.")
  return list(tables), experiments, {metric: np.array([[table[e][metric] for table in tables.values()]
                                                       for e in experiments]) for metric in (*METRICS, "accuracy")}


def win_rates(values: np.ndarray) -> np.ndarray:
  """The share of the other calibrators with a higher value, ``[experiments, calibrators]``; a tie is no win."""
  wins = np.sum(values[:, None, :] > values[:, :, None], axis=2)
  return wins / max(values.shape[1] - 1, 1)


def blocks(experiments: Sequence[tuple[str, ...]]) -> np.ndarray:
  """What is resampled and ranked: the index of each experiment's dataset, or of the experiment itself."""
  datasets, index = np.unique([e[0] for e in experiments], return_inverse=True)
  return index if len(datasets) >= ENOUGH_DATASETS else np.arange(len(experiments))


def interval(rates: np.ndarray, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """95% bootstrap limits of the mean of ``rates`` ``[experiments, calibrators]`` over experiments, by blocks."""
  counts = np.bincount(block)
  sums = np.stack([np.bincount(block, column) for column in rates.T], axis=1)
  drawn = np.random.default_rng(0).integers(0, len(counts), (RESAMPLES, len(counts)))
  means = sums[drawn].sum(1) / counts[drawn].sum(1)[:, None]
  low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
  return low, high


def mean_ranks(values: np.ndarray, block: np.ndarray) -> tuple[np.ndarray, float, float]:
  """Ranks ``[calibrators]`` averaged over blocks, 1 the lowest value; Friedman's p-value; the critical difference.

  Args:
    values: ``[experiments, calibrators]``, the excess over the value before calibration.
    block: the block of each experiment; the values of a block are averaged.
  """
  counts = np.bincount(block)
  averaged = np.stack([np.bincount(block, column) for column in values.T], axis=1) / counts[:, None]
  ranked = ranking.ranks(averaged)
  return ranked.mean, ranked.p_value, ranked.critical


def comparison(ours: dict, published: dict) -> tuple[str, dict[str, tuple[float, float]], float]:
  """Returns what a benchmark shows of its calibrators.

  That is the Markdown page, each calibrator's mean rank and win rate by Brier, and the critical difference of these
  ranks.
  """
  names, experiments, values = joined(ours, published)
  block, base = blocks(experiments), names.index(BASE)
  rates = {metric: win_rates(values[metric]) for metric in METRICS}
  limits = {metric: interval(rates[metric], block) for metric in METRICS}
  ranks, p_value, difference = mean_ranks(values["brier"] - values["brier"][:, [base]], block)
  gains = {metric: values[metric][:, [base]] - values[metric] for metric in METRICS}
  order = sorted(range(len(names)), key=lambda j: -rates["brier"][:, j].mean())
  lines = [f"{len(names)} calibrators, {len(ours)} of calib_jax (in code type) and {len(names) - len(ours)} as "
           f"published by CalArena, on {len(experiments)} experiments. Win rates are by each score, with 95% "
           "intervals; improvements (PHI) are in thousandths, and relative to the score before calibration in "
           "percent.", "",
           "| calibrator | win rate, Brier | log loss | ECE-15 | PHI, Brier | log loss | ECE-15 | accuracy | "
           "mean rank, Brier |", "|---" * 9 + "|"]
  for j in order:
    cells = [f"`{names[j]}`" if names[j] in ours else names[j]]
    cells += [f"{rates[m][:, j].mean():.3f} [{limits[m][0][j]:.3f}, {limits[m][1][j]:.3f}]" for m in METRICS]
    for metric in METRICS:
      gain, before = gains[metric][:, j], values[metric][:, base]
      relative = np.mean(gain[before > 0] / before[before > 0]) if np.any(before > 0) else 0.0
      cells.append(f"{1000 * gain.mean():+.2f} ({100 * relative:+.1f}%)")
    cells.append(f"{1000 * np.mean(values['accuracy'][:, j] - values['accuracy'][:, base]):+.2f}")
    lines.append(f"| {' | '.join([*cells, f'{ranks[j]:.2f}'])} |")
  kind = "datasets" if len(np.unique(block)) < len(block) else "experiments"
  lines += ["", f"Mean ranks over {len(np.unique(block))} {kind}: the Friedman test's p-value is {p_value:.2g}, and "
            f"ranks that differ by less than {difference:.2f} are not told apart (Nemenyi, 95%)."]
  return "\n".join(lines) + "\n", {names[j]: (ranks[j], rates["brier"][:, j].mean()) for j in order}, difference


def figure(ranks: dict[str, tuple[float, float]], ours: Sequence[str], difference: float, path: pathlib.Path) -> None:
  """Draws mean ranks, the best at the top; bars that do not overlap are more than a critical difference apart."""
  from matplotlib.figure import Figure

  names = sorted(ranks, key=lambda name: ranks[name][0])
  drawn = Figure(figsize=(6.4, 0.24 * len(names) + 1.1), layout="constrained")
  axis = drawn.subplots()
  for place, name in enumerate(names):
    color = "#0072B2" if name in ours else "#888888"
    axis.errorbar(ranks[name][0], place, xerr=difference / 2, color=color, marker="o", ms=4, lw=1.5)
  axis.set_yticks(range(len(names)), [name.replace("_", " ") for name in names], fontsize=8)
  axis.invert_yaxis()
  axis.set_xlabel(f"mean rank by Brier score, ± half the critical difference of {difference:.2f}", fontsize=8)
  axis.tick_params(axis="x", labelsize=8)
  axis.set_title("blue: calib_jax; grey: as published by CalArena", fontsize=8)
  axis.grid(axis="x", lw=0.4)
  drawn.savefig(path, dpi=150)


def write(folder: pathlib.Path, published: pathlib.Path | None) -> None:
  """Writes the page and the figure of a benchmark beside the folder of its CSV files.

  Raises:
    UserError: if ``published`` is no folder of CSV files, or cannot be compared.
  """
  ours, theirs = load(folder), load(published) if published else {}
  if published and not theirs:
    raise UserError(f"{published} has no CSV files of published results.")
  text, ranks, difference = comparison(ours, theirs)
  write_text(folder.parent / f"{folder.name}.md", text)
  figure(ranks, list(ours), difference, folder.parent / f"{folder.name}.png")
