"""Which ways to train and to calibrate are recommended, computed from the rows of the three leaderboards.

Run: python -m experiments.recommendations   (seconds; it writes the tables of experiments/results/recommendations.md)

For each need the methods are compared by one column of the rows. On each set the mean over seeds of every method is
compared with that of the lowest, by the differences of the same seeds (``comparison.paired``). The lowest is chosen by
the same rows, so that any pair could have been compared: Bonferroni's correction is for all pairs. A method is
recommended if it is shown to be better than cross entropy on every set that decides, which has five seeds or more, and
told apart from the lowest on none; of these, the table shows those of the lowest mean rank. Without a calibrator none
is recommended that fits a part of its head to validation images. Ensembles, whose predictions cost as much as those of
their members together, are not ranked with single networks: the table shows the one of the lowest mean rank among them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from calib_jax.intervals.calibration_tests import holm
from experiments.common import commands, comparison, markdown, ranking, rows, studies
from experiments.leaderboard import conditions, page

PAGE = commands.RESULTS / "recommendations.md"
SETS = {"Fashion-MNIST, MLP": "leaderboard_fashion_mnist_mlp", "Fashion-MNIST, ResNet-8":
        "leaderboard_fashion_mnist_resnet8", "CIFAR-10, ResNet-8": "leaderboard_cifar10_jpeg_resnet8"}
SHOWN, MOST_LOST = 3, 0.01
DECIDING = 5  # Seeds of a set, from which on it decides.
CALIBRATED = {"MaC-Cal", "MaC-Cal, printed"}  # They fit their q to validation images.
BASELINE = "cross entropy"


class Need(NamedTuple):
  """What somebody wants, the column that says it, after which calibrator, and whether accuracy has to stay."""

  text: str
  column: str
  calibrator: str
  keeps_accuracy: bool = False


NEEDS = (Need("the lowest log loss after temperature scaling: NLL", "nll", "TS"),
         Need("a low calibration error without a calibrator, for less than a point of accuracy: ECE %", "ece", "none",
              True),
         Need("to abstain on uncertain examples: AURC %", "aurc", "none"),
         Need("inputs that will be corrupted, after temperature scaling: NLL on corrupted images", "nll_shifted", "TS"))


def places(table_rows: pd.DataFrame, need: Need, methods: set[str]) -> pd.DataFrame:
  """Returns each method's mean on a set, its rank, and whether it is above the lowest; none for one that diverged."""
  values = {name: x for name, x in ranking.of_methods(table_rows, need.column, need.calibrator).items()
            if name in methods and x.is_finite}
  if need.keeps_accuracy:
    accuracy = ranking.means(table_rows, "accuracy", "none")
    values = {name: x for name, x in values.items() if accuracy[name] > accuracy[BASELINE] - MOST_LOST}
  order = sorted(values, key=lambda name: values[name].mean)
  return pd.DataFrame({"mean": [values[name].mean for name in order], "rank": range(1, len(order) + 1),
                       "is_worse": ranking.worse_than_first(values, order)}, index=order)


def better_than_cross_entropy(tables: Sequence[pd.DataFrame], need: Need, methods: set[str]) -> list[str]:
  """Returns the methods that are better than cross entropy, which is fixed before, on all sets, by Holm's method."""
  counts = dict.fromkeys(sorted(methods - {BASELINE}), 0)
  for table_rows in tables:
    values = ranking.of_methods(table_rows, need.column, need.calibrator)
    changes = {name: comparison.paired(values[name], values[BASELINE]) for name in counts}
    p_values = holm([x.p_value for x in changes.values()])
    ranked = places(table_rows, need, methods).index  # Without those that lose accuracy that has to stay.
    for (name, change), p_value in zip(changes.items(), p_values, strict=True):
      counts[name] += name in ranked and change.mean < 0 and p_value < 1 - comparison.LEVEL
  return [name for name, count in counts.items() if count == len(tables)]


def recommended(by_set: Mapping[str, pd.DataFrame]) -> list[str]:
  """Returns the methods that are told apart from the lowest on no set, those of the lowest mean rank first."""
  return [name for name in by_mean_rank(by_set)
          if all(name in x.index and not x.is_worse[name] for x in by_set.values())]


def by_mean_rank(by_set: Mapping[str, pd.DataFrame]) -> list[str]:
  """Returns the methods in the order of their mean rank; one without a place on a set ranks behind all others there."""
  ranks = pd.concat([x["rank"] for x in by_set.values()], axis=1, sort=False)
  return [*ranks.fillna(len(ranks)).mean(axis=1).sort_values(kind="stable").index]


def table() -> str:
  """Returns the Markdown of the ways to train."""
  by_set = {text: rows.texts(commands.RESULTS / f"{name}.csv") for text, name in SETS.items()}
  everywhere = set.intersection(*(set(table_rows["method"]) for table_rows in by_set.values()))
  ensembles = {name for name in everywhere if page.RECIPES[name].members > 1}
  single = everywhere - ensembles
  fields, lines = [page.chosen_settings(table_rows) for table_rows in by_set.values()], []
  deciding = [text for text, table_rows in by_set.items() if table_rows["seed"].nunique() >= DECIDING]
  better = {}
  for need in NEEDS:
    methods = single - CALIBRATED if need.calibrator == "none" and need.keeps_accuracy else single
    alone, pooled = ({text: places(table_rows, need, names) for text, table_rows in by_set.items()}
                     for names in (methods, ensembles))
    better[need.text] = better_than_cross_entropy([by_set[text] for text in deciding], need, methods)
    best = [name for name in recommended({text: alone[text] for text in deciding}) if name in better[need.text]]
    more = f"(and {len(best) - SHOWN} more that are not told apart)" if len(best) > SHOWN else ""
    shown = [(want, "", name, alone) for want, name in zip([need.text, "", more], best[:SHOWN], strict=False)]
    if not best:
      lines.append([need.text, "none is shown to be better than cross entropy", *[""] * (1 + len(by_set))])
    shown += [("", "*for comparison:* ", BASELINE, alone)]
    shown += [("", "*among ensembles:* ", name, pooled) for name in by_mean_rank(pooled)[:1]]
    for want, remark, name, of_set in shown:
      times = sorted({", ".join(page.cost(name, chosen[name])) for chosen in fields})
      lines.append([want, f"{remark}{name}", " or ".join(times),
                    *(_cell(x, name, need.column, text in deciding) for text, x in of_set.items())])
    if need.keeps_accuracy:  # Nothing is fitted afterwards, so that the rank as trained on other inputs matters.
      shifted = [places(x, Need("", "nll_shifted", "none"), single) for x in by_set.values()]
      warning = "; ".join(f"{name} {', '.join(str(x['rank'][name]) for x in shifted)}" for name in best[:SHOWN])
  return markdown.filled(
    "recommendations.md.jinja", number=len(single), sets=list(by_set), lines=lines, warning=warning, deciding=deciding,
    others={text: table_rows["seed"].nunique() for text, table_rows in by_set.items() if text not in deciding},
    better=better)


def _cell(places_of_set: pd.DataFrame, name: str, column: str, decides: bool) -> str:
  if name not in places_of_set.index:
    return "loses accuracy"
  mean, rank, is_worse = places_of_set.loc[name]
  scale, digits = (1, 3) if column.startswith("nll") else (100, 2)
  return f"{scale * mean:.{digits}f} ({rank} of {len(places_of_set)}{', worse' if is_worse and decides else ''})"


def calibrators() -> str:
  """Returns the Markdown of the NLL of two calibrators minus that of temperature scaling, by the examples to fit to."""
  every = [rows.texts(commands.RESULTS / f"{name}.csv") for name in SETS.values()]
  means = [conditions.by_size(table_rows) for table_rows in every]
  lines = [["2,000" if number == "all" else f"{int(number):,}", f"{label} scaling",
            *(f"{comparison.paired(nll[label][number], nll['TS'][number]).text(0, 1000)}, "
              f"{_by_method(table_rows, label, number)}"
              for nll, table_rows in zip(means, every, strict=True))]
           for number in means[0]["TS"] for label in ("structured vector", "structured matrix")]
  return markdown.table(["Examples", "Calibrator", *SETS], lines) + "\n"


def _by_method(table_rows: pd.DataFrame, label: str, number: str) -> str:
  """The median over methods of the NLL of a calibrator minus that of temperature scaling, and how many are lower."""
  end = "" if number == "all" else f", n = {number}"
  own, other = (ranking.means(ranking.trained(table_rows), "nll", calibrator + end) for calibrator in (label, "TS"))
  changes = pd.Series(own) - pd.Series(other)
  return f"median {1000 * changes.median():+.0f}, lower for {100 * (changes < 0).mean():.0f}%"


def main(arguments: list[str] | None = None) -> None:
  """Writes the tables."""
  commands.parser(__spec__.name, __doc__).parse_args(arguments)
  studies.write(PAGE, "experiments.recommendations", table(), calibrators())


if __name__ == "__main__":
  main()
