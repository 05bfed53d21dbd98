"""Does the leaderboard hold with more data? Its ResNet-8 learns all images of a file, and not 4,000 of them.

Run: python -m experiments.leaderboard.more_data --data=cifar10.npz [--shrink=2] [--seeds=1] [--out=DIR]

Nothing else differs: the methods, the network, the number of epochs and the size of the images are those of the
leaderboard. Nothing is tuned anew, because a run takes minutes. Every method has the setting that was chosen on the
leaderboard of CIFAR-10 and a ResNet-8; those whose recipe was not on it when these rows were trained (``SECOND``) have
the second of the three that were tried. A tenth of the images validates and fits the calibrators.
"""

import argparse
from collections.abc import Mapping, Sequence
import functools
import sys

import pandas as pd
from scipy import stats

from experiments.common import commands, comparison, markdown, ranking, rows, scales, settings, sweep
from experiments.common.declaration import Experiment, Method
from experiments.leaderboard import page
from experiments.leaderboard.experiment import CALIBRATORS
from experiments.leaderboard.methods import METHODS

NAMES = ("cross entropy", "focal", "S-AvUC, interleaved", "SB-ECE", "selective risk", "MIT", "PLP", "MaC-Cal", "TST")
SECOND = ("MaC-Cal", "TST", "selective risk")
MANY_CLASSES = ("cross entropy", "focal", "SB-ECE", "MIT")  # Of 200 classes each run takes long.
FEW = commands.RESULTS / "leaderboard_cifar10_jpeg_resnet8.csv"
NETWORK = "resnet8"
COMPARED = (("accuracy", "none"), ("nll", "none"), ("ece", "none"), ("nll", "TS"), ("ece", "TS"), ("aurc", "none"))


def methods(options: argparse.Namespace) -> list[Method]:
  """Returns the methods with the settings of the leaderboard."""
  names = MANY_CLASSES if "imagenet" in options.data else NAMES
  fields = {"num_seeds": 1}
  if options.scale == "laptop":
    fields |= {"data.num_examples": 0, "data.shrink": options.shrink, "data.validation_fraction": 0.1}
  base = settings.changed(scales.base(options), fields)
  return [Method("", name, functools.partial(settings.changed, base, METHODS[name].at(options.scale) | chosen))
          for name, chosen in chosen_settings(names, rows.texts(FEW)).items()]


def chosen_settings(names: Sequence[str], few_rows: pd.DataFrame) -> dict[str, Mapping[str, object]]:
  """Returns the values of the tuned fields of each method."""
  chosen = comparison.chosen(few_rows)
  return {name: {key: x[1] for key, x in METHODS[name].search.items()} if name in SECOND else chosen[name]
          for name in names}


def findings(table_rows: pd.DataFrame, name: str = "") -> list[str]:
  """Returns the lines of Markdown before the table: how methods rank with all images, and with 4,000."""
  del name
  few_rows = rows.texts(FEW)
  now, few = ({pair: ranking.of_methods(part, *pair) for pair in COMPARED} for part in (table_rows, few_rows))
  names = [name for name in METHODS if name in now[COMPARED[0]]]
  headings = {pair: comparison.heading(pair[0]) + " after TS" * (pair[1] == "TS") for pair in COMPARED}
  cells = [[name, comparison.settings(chosen), *(_cell(now[pair], few[pair], name, pair[0]) for pair in COMPARED)]
           for name, chosen in chosen_settings(names, few_rows).items()]
  correlations = []
  for pair, heading in headings.items():
    both = [name for name in names if name in few[pair]]
    if len(both) > 2:
      ranks = ([by_name[pair][name].mean for name in both] for by_name in (now, few))
      correlations.append((heading, stats.spearmanr(*ranks).statistic, len(both)))
  return markdown.filled("leaderboard/more_data.md.jinja", headings=list(headings.values()), cells=cells,
                         correlations=correlations).splitlines()


def _cell(values: Mapping[str, comparison.BySeed], few: Mapping[str, comparison.BySeed], name: str, column: str) -> str:
  scale, digits = (1, 3) if column == "nll" else (100, 2)
  text = f"{scale * values[name].mean:.{digits}f}"
  if name != page.BASELINE and page.BASELINE in values:
    error = comparison.image_variance(values[name], values[page.BASELINE])[0] ** 0.5
    text += f" ± {scale * error:.{digits}f}"
  return text + (f" ({scale * few[name].mean:.{digits}f})" if name in few else "")


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the options of this experiment."""
  parser.add_argument("--data", default="", help="an .npz file of images, as docs/data_and_models.md describes it")
  parser.add_argument("--shrink", type=int, default=2, help="the side of the squares of pixels that are averaged")
  parser.set_defaults(network=NETWORK)


EXPERIMENT = Experiment(
  "leaderboard.more_data", "The leaderboard with more data", methods, CALIBRATORS,
  ("accuracy", "nll", "brier", "ece", "aurc", "ece_shifted"), shown=("none", "TS"), arguments=arguments,
  suffix=scales.suffix, cost=page.cost_of, findings=findings)

if __name__ == "__main__":
  sys.exit(sweep.main(EXPERIMENT))
