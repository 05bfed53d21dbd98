"""The page and the figure of the rows: means over splits, then over experiments of a data set, then over data sets."""

import itertools
import pathlib

import numpy as np
import pandas as pd
from scipy import stats

from calib_jax.intervals.calibration_tests import holm
from experiments.calarena.data_sets import CLASSIFIERS
from experiments.calarena.methods import DIFFERS, LEFT_OUT, MOST_CLASSES, OURS, SELECT
from experiments.common import figures, markdown
from experiments.common.comparison import p_text

TASKS = {"binary": "two classes", "multiclass": "more than two classes"}
SCORES = {"logloss": "log loss", "brier": "Brier", "ece-15": "ECE"}
BASE, CHOICE = "`temperature_scaling`", f"`{SELECT}`"
LEVEL, RESAMPLES = 0.95, 1000
FAST_FROM = 2000  # Calibration examples from which on the aim for the time of a fit holds.
CLOSE, TIMES = 1e-3, 5.0  # The difference of log losses that agree, and the aim for the time of a fit.
SIZES = {"n < 200": (0, 199), "n 200 to 1,999": (200, 1999), "n ≥ 2,000": (2000, np.inf)}
MODELS = {"all models": lambda model: model != "", "without forests": lambda model: model != "forest"}
CLASSES = {"K = 2": (2, 2), "K 3 to 20": (3, 20), "K > 20": (21, np.inf)}


def label(name: str, package: str) -> str:
  """Code type for this package's methods, and the package after the others'."""
  return f"`{name}`" if package == OURS else f"{name.replace('_', ' ')}, {package}"


def labelled(rows: pd.DataFrame) -> pd.DataFrame:
  """Returns the rows with their task, whether there are many calibration examples, and the label of their method."""
  return rows.assign(task=np.where(rows.classes == 2, *TASKS), many=rows.cal_size >= FAST_FROM,
                     label=[label(*names) for names in zip(rows.method, rows.package, strict=True)])


def values(rows: pd.DataFrame, score: str = "logloss") -> pd.DataFrame:
  """Returns a score by experiment and method, of the methods that have a result of every experiment and split."""
  complete = rows[~rows.label.isin(failures(rows).index)]
  table = complete.pivot_table(index=["dataset", "model"], columns="label", values=score, sort=False)
  return table.reindex(rows.groupby(["dataset", "model"], sort=False).size().index).dropna(axis=1)


def failures(rows: pd.DataFrame) -> pd.Series:
  """Returns the number of failed fits of each method that has some."""
  return rows.label[rows.logloss.isna()].value_counts(sort=False)


def over_datasets(table: pd.DataFrame) -> pd.DataFrame:
  """Returns the means over the experiments of each data set."""
  return table.groupby("dataset").mean()


def student(differences: pd.Series) -> tuple[float, float]:
  """The mean of differences of data sets, and the half width of its 95% interval by Student's t, NaN for one."""
  return differences.mean(), stats.t.ppf((1 + LEVEL) / 2, len(differences) - 1) * differences.sem()


def best_single(table: pd.DataFrame, ours: bool = True) -> str:
  """The label of the method of the lowest mean over data sets, ``select`` left out; of ``ours``, or of any package."""
  means = over_datasets(table).mean()
  return means[[name for name in means.index if name != CHOICE and (name.startswith("`") or not ours)]].idxmin()


def page(rows: pd.DataFrame) -> str:
  """Returns the page in Markdown."""
  rows = labelled(rows)
  whole = rows[rows["size"] == "all"]
  by_task = {task: whole[whole.task == task] for task in TASKS}
  kinds = {"forests": whole.model == "forest", "other classifiers": whole.model.isin(set(CLASSIFIERS) - {"forest"}),
           "saved networks": ~whole.model.isin(CLASSIFIERS)}
  return markdown.filled(
    "calarena/page.md.jinja", splits=rows.split.nunique(), left_out=LEFT_OUT, fast_from=f"{FAST_FROM:,}",
    experiments={task: part[["dataset", "model"]].drop_duplicates() for task, part in by_task.items()},
    tasks={TASKS[task]: (_table(part), _incomplete(part)) for task, part in by_task.items() if len(part)},
    same=same_method(whole), times=f"{TIMES:.0f}",
    selection_cells=[[x["task"], x["models"], x["score"], x["best"],
                      f"{x['mean']:+.1f} [{x['mean'] - x['half']:+.1f}, {x['mean'] + x['half']:+.1f}]", x["p"],
                      ("higher" if x["mean"] > 0 else "lower") if x["shown"] else "nothing",
                      f"{x['lower']} of {x['number']}"] for x in selections(by_task)],
    chosen={TASKS[task]: part.note[part.method == SELECT].value_counts()
                                            for task, part in by_task.items() if SELECT in set(part.method)},
    by_size=_side_by_side({f"{classes}, {size}": rows[rows.classes.between(*ends) & rows.cal_size.between(*limits)]
                           for classes, ends in CLASSES.items() for size, limits in SIZES.items()}),
    by_model=_side_by_side({f"{TASKS[task]}, {kind}": whole[is_kind & (whole.task == task)] for task in TASKS
                            for kind, is_kind in kinds.items()}))


def _table(rows: pd.DataFrame) -> str:
  """The table of a task."""
  tables = {score: values(rows, score) for score in SCORES}
  cells = pd.DataFrame({f"excess, {score}": over_datasets(table.sub(table.min(axis=1), axis=0)).mean()
                        for score, table in tables.items()}).map(lambda x: f"{1000 * x:.1f}")
  cells["rank"] = over_datasets(tables["logloss"].rank(axis=1)).mean().map("{:.1f}".format)
  for score, table in tables.items():
    mean, low, high = wins(table)
    cells[score] = [f"{m:.2f} [{a:.2f}, {b:.2f}]" for m, a, b in zip(mean, low, high, strict=True)]
  seconds = rows.pivot_table(index="label", columns="many", values="fit_seconds", aggfunc="median").reindex(
    index=cells.index, columns=[False, True])
  cells[["fewer", "more"]] = (1000 * seconds).map("{:.2g}".format).replace("nan", "")
  order = wins(tables["logloss"])[0].sort_values(ascending=False, kind="stable").index
  return markdown.table(["method", "excess, log loss", "Brier", "ECE", "mean rank", "wins, log loss", "Brier", "ECE",
                         "fit, fewer", "more"], cells.loc[order].itertuples())


def _incomplete(rows: pd.DataFrame) -> str:
  """Says which methods of a task are not in its table, and why; "" if all are."""
  methods = values(rows).columns
  if partial := [name for name in rows.label.unique() if name not in methods]:
    limits = [f"{label(*names)} up to {limit}" for names, limit in MOST_CLASSES.items()
              if limit < rows.classes.max() and label(names[0], OURS) in methods]
    failed = [f"{name} {count}" for name, count in failures(rows).items()]
    return (f"Without a result of every experiment, and so not in the table: {', '.join(partial)}."
            + (f" By their time some run only with few classes: {', '.join(limits)}." if limits else "")
            + (f" Failed fits: {', '.join(failed)}." if failed else ""))
  return ""


def wins(table: pd.DataFrame) -> tuple[pd.Series, np.ndarray, np.ndarray]:
  """Win rates, the shares of other methods that a method beats (a tie is half), and 95% limits over data sets."""
  number = table.shape[1]
  rates = over_datasets((number - table.rank(axis=1)) / max(number - 1, 1))
  drawn = np.random.default_rng(0).integers(0, len(rates), (RESAMPLES, len(rates)))
  return rates.mean(), *np.quantile(rates.to_numpy()[drawn].mean(1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
  """Returns the log loss of other packages less ours, and their processor seconds over ours, of the same fits."""
  own = rows.loc[rows.package == OURS, ["dataset", "model", "split", "method", "logloss", "fit_seconds"]]
  both = rows[(rows.package != OURS) & rows.logloss.notna()].merge(own, on=["dataset", "model", "split", "method"],
                                                                   suffixes=("", "_ours"))
  return both.assign(loss=both.logloss - both.logloss_ours, times=both.fit_seconds / both.fit_seconds_ours,
                     differs=[DIFFERS.get(names, "") for names in zip(both.method, both.package, strict=True)])


def same_method(rows: pd.DataFrame) -> dict[str, object]:
  """Returns what a method by this package and by others shows, if it is the same: whether they agree and who is faster.

  That is, of ``all`` fits and of those of ``many`` examples, how many log losses agree, of how many, and how many are
  lower by this package and by the other; how many fits are ``fast``, and of how many; the methods that are ``slow`` by
  the median; and the ``table``, which has the methods that differ too.
  """
  both = pairs(rows)
  same = both[both.differs == ""]
  fast = same.times[same.many].dropna()
  medians = same[same.many].groupby(["method", "task", "package"], sort=False).times.median()

  def counts(losses: pd.Series) -> tuple[int, int, int, int]:
    return (losses.abs() <= CLOSE).sum(), len(losses), (losses > CLOSE).sum(), (losses < -CLOSE).sum()

  lines = []
  for (_, _, method, package), part in both.groupby([both.task, both.differs != "", "method", "package"], sort=False):
    low, middle, high = 1000 * np.quantile(part.loss, [0, 0.5, 1])
    by_size = [part[part.many], part[~part.many]]
    times = [x.times.dropna() for x in by_size]
    lines.append([method, package, part.task.iloc[0], *("{} of {}".format(*counts(x.loss)) for x in by_size),
                  f"{middle:+.2f} [{low:+.1f}, {high:+.1f}]",
                  *(f"{x.median():.1f} [{x.min():.1f}]" if len(x) else "" for x in times), part.differs.iloc[0]])
  lines.sort(key=lambda line: (line[2], line[-1] != ""))
  return {"all": counts(same.loss), "many": counts(same.loss[same.many]), "fast": ((fast >= TIMES).sum(), len(fast)),
          "slow": [f"{method} ({task}, {package}: {median:.1f})" for (method, task, package), median in medians.items()
                   if median < TIMES],
          "table": markdown.table(["method", "by", "task", "within 1e-3, n ≥ 2,000", "fewer", "theirs less ours",
                                   "n ≥ 2,000: times", "fewer: times", "what differs"], lines)}


def selections(by_task: dict[str, pd.DataFrame]) -> list[dict[str, object]]:
  """Returns what `select` is above the best single method; `p` is of paired t-tests over data sets, by Holm."""
  compared = []
  for (task, every), is_of, score in itertools.product(by_task.items(), MODELS.items(), ("logloss", "brier")):
    models, is_one = is_of
    rows = every[is_one(every.model)]
    if CHOICE not in (table := values(rows, score) if len(rows) else pd.DataFrame()):
      continue
    best = best_single(table, ours=False)
    differences = 1000 * over_datasets(table[CHOICE] - table[best])
    mean, half = student(differences)
    compared.append({"task": TASKS[task], "models": models, "score": SCORES[score], "best": best, "mean": mean,
                     "half": half, "number": len(differences), "lower": (differences < 0).sum(),
                     "p": stats.ttest_1samp(differences, 0).pvalue if len(differences) > 1 else np.nan})
  for line, p_value in zip(compared, holm([line["p"] for line in compared]), strict=True):
    line |= {"p": p_text(p_value) or "unknown", "shown": p_value < 1 - LEVEL}
  return compared


def _side_by_side(parts: dict[str, pd.DataFrame]) -> str:
  """The table whose columns are of parts of the rows; parts without rows of this package have none."""
  own = {heading: part[part.package == OURS] for heading, part in parts.items()}
  cells = pd.concat({heading: _column(values(part)) for heading, part in own.items() if len(part)}, axis=1).fillna("")
  return markdown.table(["method", *cells], cells.itertuples())


def _column(table: pd.DataFrame) -> pd.Series:
  """The log losses of a column by method, the number of its data sets first."""
  excess = 1000 * over_datasets(table.sub(table[BASE], axis=0))
  means, errors = excess.mean(), excess.sem()
  texts = {"data sets, experiments": f"{len(excess)}, {len(table)}"}
  for name, mean in means.items():
    text = f"{mean:+.1f}" + (f" ± {errors[name]:.1f}" if len(excess) > 1 and name != BASE else "")
    texts[name] = f"**{text}**" if name == means.idxmin() else text
  if CHOICE in table:
    best = best_single(table)
    mean, half = student(1000 * over_datasets(table[CHOICE] - table[best]))
    ends = f" [{mean - half:+.1f}, {mean + half:+.1f}]" if len(excess) > 1 else ""
    texts["`select` less the best single method"] = f"{mean:+.1f}{ends}, {best}"
  return pd.Series(texts)


def figure(rows: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws the win rates by log loss of both tasks, the best at the top, with their intervals over data sets."""
  rows = labelled(rows)
  tables = {task: values(part) for task, part in rows[rows["size"] == "all"].groupby("task")}
  longest = max(table.shape[1] for table in tables.values())
  with figures.png(path, 5.2 * len(tables), 0.22 * longest + 1.2, rc={}, dpi=150) as drawn:
    for axis, (task, table) in zip(drawn.subplots(1, len(tables), squeeze=False)[0], tables.items(), strict=True):
      mean, low, high = wins(table)
      order = np.argsort(-mean.to_numpy(), kind="stable")
      for place, i in enumerate(order):
        color = "#0072B2" if mean.index[i].startswith("`") else "#888888"
        axis.plot([low[i], high[i]], [place, place], color=color, lw=1.5)
        axis.plot(mean.iloc[i], place, "o", color=color, ms=4)
      names = mean.index[order].str.strip("`").str.replace("probability_floor:base=", "floor, ")
      axis.set_yticks(range(len(order)), names.str.replace("_", " "), fontsize=7)
      axis.invert_yaxis()
      axis.tick_params(axis="x", labelsize=7)
      axis.grid(axis="x", lw=0.4)
      axis.set_xlim(0, 1)
      axis.set_xlabel("win rate by log loss,\n95% interval over data sets", fontsize=8)
      axis.set_title(f"{TASKS[task]}\n{len(table)} experiments, "
                     f"{table.index.get_level_values('dataset').nunique()} data sets", fontsize=8)
    drawn.suptitle("blue: calib_jax; grey: the same methods by other packages", fontsize=8)
