"""The page and the figure of the rows of ``local``."""

from collections import Counter
from collections.abc import Sequence
import pathlib

import numpy as np

from experiments.calarena import local_table
from experiments.calarena.local_peers import same_method
from experiments.calarena.local_sets import CLASSIFIERS
from experiments.calarena.local_table import Table
from experiments.calarena.methods import LEFT_OUT, MOST_CLASSES, OURS, SELECT
from experiments.common.rows import Row

TASKS = {"binary": "two classes", "multiclass": "more than two classes"}
SCORES = {"logloss": "log loss", "brier": "Brier", "ece-15": "ECE"}
FIGURE = "calarena_local.png"
FAST_FROM = 2000  # Calibration examples from which on the aim for the time of a fit holds.
SIZES = {"n < 200": (0, 200), "n 200 to 1,999": (200, 2000), "n ≥ 2,000": (2000, np.inf)}
CLASSES = {"K = 2": (2, 2), "K 3 to 20": (3, 20), "K > 20": (21, np.inf)}


def of_task(rows: Sequence[Row], task: str) -> list[Row]:
  """The rows with two classes, or with more."""
  return [row for row in rows if (row["classes"] == "2") == (task == "binary")]


def label(method: tuple[str, str]) -> str:
  """Code type for this package's methods, and the package after the others'."""
  name, package = method
  return f"`{name}`" if package == OURS else f"{name.replace('_', ' ')}, {package}"


def page(rows: Sequence[Row]) -> str:
  """Returns the page in Markdown."""
  every = [row for row in rows if row["size"] == "all"]
  splits = len({row["split"] for row in rows})
  lines = ["# Calibrators by CalArena's protocol on data sets at hand", "",
           "`OMP_NUM_THREADS=1 XLA_FLAGS=--xla_cpu_multi_thread_eigen=false python -m experiments.calarena "
           f"--data=local --predictions=DIR` made this page. {_inventory(every)} "
           f"There are {splits} random divisions of each data set. A value of an experiment is its mean over them, "
           "that of a data set is the mean over its experiments, and all means and intervals are over data sets: "
           "networks that were tested on the same images, and classifiers that were trained on the same examples, are "
           "not independent. The data sets are few, and several of them are synthetic, as their names say.", "",
           "In `code` type are the calibrators of calib_jax with their defaults, and beside them are other packages' "
           "implementations of the same ones. Probabilities below 1.2e-7 count as that. Not fitted: "
           + ", ".join(f"`{name}` ({why})" for name, why in LEFT_OUT.items()) + "."]
  for task in TASKS:
    chosen = of_task(every, task)
    if chosen:
      lines += ["", f"## {TASKS[task].capitalize()}", "", *_task(chosen)]
  lines += ["", f"![Win rates of all calibrators by log loss, for two classes and for more]({FIGURE})"]
  lines += ["", "## The same method by other packages", "", *same_method(every)]
  lines += ["", "## Does `select` find the best?", ""]
  lines += [line for task in TASKS for line in _select(of_task(every, task), task)]
  lines += ["", "## By the number of classes and of calibration examples", "", *_cells(rows)]
  lines += ["", "## By the model", "", *_models(every)]
  return "\n".join(lines) + "\n"


def _inventory(every: Sequence[Row]) -> str:
  counts = []
  for task in TASKS:
    experiments = {(row["dataset"], row["model"]) for row in of_task(every, task)}
    names = sorted({dataset for dataset, _ in experiments})
    counts.append(f"{len(experiments)} {task} experiments on {len(names)} data sets ({', '.join(names)})")
  return f"It has {' and '.join(counts)}."


def _task(rows: Sequence[Row]) -> list[str]:
  """The table of a task."""
  found = local_table.table(rows)
  apart = {score: 1000 * local_table.excess(found.values[score], found.experiments) for score in SCORES}
  wins = {score: local_table.wins(found.values[score], found.experiments) for score in SCORES}
  ranks = local_table.mean_ranks(found.values["logloss"], found.experiments)
  lines = ["The excess is over the best method of each experiment, in thousandths. Win rates are the share of "
           "the other methods that one beats, with 95% intervals of a bootstrap over data sets; of so few they are too "
           "narrow. The mean rank is by log loss. Fits are median processor milliseconds, with fewer than "
           f"{FAST_FROM:,} calibration examples and with as many or more.", "",
           "| method | excess, log loss | Brier | ECE | mean rank | wins, log loss | Brier | ECE | fit, fewer | "
           "more |", "|---" * 10 + "|"]
  for j in np.argsort(-wins["logloss"][0], kind="stable"):
    cells = [label(found.methods[j]), *(f"{apart[score][j]:.1f}" for score in SCORES), f"{ranks[j]:.1f}"]
    cells += ["{:.2f} [{:.2f}, {:.2f}]".format(*(part[j] for part in wins[score])) for score in SCORES]
    lines.append(f"| {' | '.join(cells + _milliseconds(rows, found.methods[j]))} |")
  if found.partial:
    most = max(int(row["classes"]) for row in rows)
    limits = [f"{label(key)} up to {limit}" for key, limit in MOST_CLASSES.items()
              if limit < most and (key[0], OURS) in found.methods]
    notes = Counter(label((row["method"], row["package"])) for row in rows if not row["logloss"])
    lines += ["", "Without a result of every experiment, and so not in the table: "
              + ", ".join(label(method) for method in found.partial) + "."
              + (f" By their time some run only with few classes: {', '.join(limits)}." if limits else "")
              + (" Failed fits: " + ", ".join(f"{name} {count}" for name, count in notes.items()) + "."
                 if notes else "")]
  return lines


def _milliseconds(rows: Sequence[Row], method: tuple[str, str]) -> list[str]:
  texts = []
  for many in (False, True):
    times = [1000 * float(row["fit_seconds"]) for row in rows if (row["method"], row["package"]) == method
             and row["fit_seconds"] and (int(row["cal_size"]) >= FAST_FROM) == many]
    texts.append(f"{np.median(times):.2g}" if times else "")
  return texts


def _difference(found: Table, score: str, a: int, b: int) -> tuple[float, float]:
  """The difference of two methods in thousandths, and the half width of its interval over data sets."""
  values = 1000 * (found.values[score][:, a] - found.values[score][:, b])
  return local_table.student(local_table.by_dataset(values, found.experiments))


def _select(rows: Sequence[Row], task: str) -> list[str]:
  """What is said of ``select`` on a task."""
  if not any(row["method"] == SELECT for row in rows):
    return []
  found = local_table.table([row for row in rows if row["package"] == OURS])
  chosen = found.methods.index((SELECT, OURS))
  lines = []
  for score in ("logloss", "brier"):
    best = local_table.best_single(found, score)
    mean, half = _difference(found, score, chosen, best)
    ends = f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"
    verdict = "not told apart" if not abs(mean) > half else f"told apart, and {'lower' if mean < 0 else 'higher'}"
    lower = local_table.by_dataset(found.values[score][:, chosen] < found.values[score][:, best], found.experiments)
    lines.append(f"- {TASKS[task].capitalize()}, {SCORES[score]}: `select` less the best single method, "
                 f"{label(found.methods[best])}, is {ends} thousandths over {len(lower)} data sets (Student's t, 95%): "
                 f"{verdict}. It is lower on {np.sum(lower > 0.5)} of them, by most of their experiments.")
  counts = Counter(row["note"] for row in rows if row["method"] == SELECT)
  lines.append(f"- {TASKS[task].capitalize()}: it chose " + ", ".join(
    f"`{name}` {count} times" for name, count in counts.most_common()) + ".")
  return lines


def _cells(rows: Sequence[Row]) -> list[str]:
  """The table of log losses, less that of temperature scaling, by the numbers of classes and of examples."""
  own = [row for row in rows if row["package"] == OURS]
  columns: dict[str, dict[str, str]] = {}
  for classes, (fewest, most) in CLASSES.items():
    for size, (least, below) in SIZES.items():
      chosen = [row for row in own if fewest <= int(row["classes"]) <= most and least <= int(row["cal_size"]) < below]
      if chosen:
        columns[f"{classes}, {size}"] = _cell(local_table.table(chosen))
  lines = ["Log loss less that of `temperature_scaling`, in thousandths, ± its standard error over data sets; the "
           "lowest of a column is bold. Where more than 1,000 examples calibrate, the first 500 do as well, in the "
           "columns of fewer examples. The last row has 95% intervals over data sets (Student's t) of what `select` is "
           "above the best single method of a column, which is chosen on the same test examples.", ""]
  return lines + _side_by_side(columns)


def _models(every: Sequence[Row]) -> list[str]:
  """The same table by the kind of model, with all calibration examples."""
  own = [row for row in every if row["package"] == OURS]
  kinds = {"forests": {"forest"}, "other classifiers": set(CLASSIFIERS) - {"forest"}}
  kinds["saved networks"] = {row["model"] for row in own} - set(CLASSIFIERS)
  columns = {}
  for task in TASKS:
    for kind, models in kinds.items():
      chosen = [row for row in of_task(own, task) if row["model"] in models]
      if chosen:
        columns[f"{TASKS[task]}, {kind}"] = _cell(local_table.table(chosen))
  lines = ["Forests give many probabilities of exactly 0, which count as 1e-38, as CalArena's files have it, so that "
           "one wrong one asks for a very large temperature. Their differences are so large that they decide the means "
           "above.", ""]
  return lines + _side_by_side(columns)


def _side_by_side(columns: dict[str, dict[str, str]]) -> list[str]:
  """The lines of a table from the texts of its columns by row."""
  names = list(dict.fromkeys(name for column in columns.values() for name in column))
  return [f"| method | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"] + [
    f"| {name} | {' | '.join(column.get(name, '') for column in columns.values())} |" for name in names]


def _cell(found: Table) -> dict[str, str]:
  """The texts of a column by method, the number of its data sets first."""
  base = found.methods.index(local_table.BASE)
  values = 1000 * local_table.by_dataset(found.values["logloss"] - found.values["logloss"][:, [base]],
                                         found.experiments)
  number = len(values)
  errors = np.std(values, axis=0, ddof=1) / np.sqrt(number) if number > 1 else np.full(values.shape[1], np.nan)
  best = int(np.argmin(values.mean(0)))
  texts = {"data sets, experiments": f"{number}, {len(found.experiments)}"}
  for j, method in enumerate(found.methods):
    text = f"{values[:, j].mean():+.1f}" + (f" ± {errors[j]:.1f}" if number > 1 and j != base else "")
    texts[label(method)] = f"**{text}**" if j == best else text
  if (SELECT, OURS) in found.methods:
    single = found.methods[local_table.best_single(found)]
    mean, half = _difference(found, "logloss", found.methods.index((SELECT, OURS)), found.methods.index(single))
    texts["`select` less the best single method"] = (
      f"{mean:+.1f}" + (f" [{mean - half:+.1f}, {mean + half:+.1f}]" if number > 1 else "") + f", {label(single)}")
  return texts


def figure(rows: Sequence[Row], path: pathlib.Path) -> None:
  """Draws the win rates by log loss of both tasks, with their intervals over data sets."""
  from matplotlib.figure import Figure

  every = [row for row in rows if row["size"] == "all"]
  tables = {task: local_table.table(of_task(every, task)) for task in TASKS if of_task(every, task)}
  longest = max(len(found.methods) for found in tables.values())
  drawn = Figure(figsize=(5.2 * len(tables), 0.22 * longest + 1.2), layout="constrained")
  axes = drawn.subplots(1, len(tables), squeeze=False)[0]
  for axis, (task, found) in zip(axes, tables.items(), strict=True):
    mean, low, high = local_table.wins(found.values["logloss"], found.experiments)
    order = np.argsort(-mean, kind="stable")
    for place, j in enumerate(order):
      color = "#0072B2" if found.methods[j][1] == OURS else "#888888"
      axis.plot([low[j], high[j]], [place, place], color=color, lw=1.5)
      axis.plot(mean[j], place, "o", color=color, ms=4)
    names = [label(found.methods[j]).strip("`").replace("_", " ") for j in order]
    axis.set_yticks(range(len(order)), names, fontsize=7)
    axis.invert_yaxis()
    axis.set_xlim(0, 1)
    axis.tick_params(axis="x", labelsize=7)
    axis.set_xlabel("win rate by log loss, 95% interval over data sets", fontsize=8)
    axis.set_title(f"{TASKS[task]}\n{len(found.experiments)} experiments, "
                   f"{len({dataset for dataset, _ in found.experiments})} data sets", fontsize=8)
    axis.grid(axis="x", lw=0.4)
  drawn.suptitle("blue: calib_jax; grey: the same methods by other packages", fontsize=8)
  drawn.savefig(path, dpi=150)
