"""The tables of classifier_level.py: means, and differences to the plain network paired by seed.

Run: python -m experiments.papers.mac_cal.classifier_level_table

It writes the table of the readings of MaC-Cal in experiments/results/new_heads.md, from the committed results.
"""

from collections.abc import Sequence
import pathlib

import pandas as pd

from experiments.common import commands, comparison, markdown, rows, studies

MEASURED = {"accuracy": ("accuracy %", 2), "nll": ("NLL", 3), "ece": ("ECE %", 2),
            "adaptive_ece": ("adaptive ECE %", 2), "mce": ("MCE %", 1),
            "overconfidence": ("confidence minus accuracy", 2), "auroc": ("AUROC %", 2), "fpr95": ("FPR95 %", 2)}


# The networks and the second stages of the table in new_heads.md.
NETWORKS = {"Fashion-MNIST, MLP": "classifier_level_fashion_mnist_mlp", "CIFAR-10, MLP":
            "classifier_level_cifar10_jpeg_mlp", "CIFAR-10, ResNet-8": "classifier_level_cifar10_jpeg_resnet8"}
READINGS = {
  "the network with its own head": "", "MaC-Cal": "MaC-Cal", "stored weights set to 0": "MaC-Cal, stored",
  "measured on training images, gamma 0.92": "MaC-Cal, measured on training images, gamma 0.92",
  "stored weights, training images, gamma 0.92": "MaC-Cal, stored, measured on training images, gamma 0.92",
  "40 epochs": "MaC-Cal, 40 epochs", "no decay": "MaC-Cal, no decay", "divided by q in training": "MaC-Cal, rescaled",
  "no masks: the bottleneck": "bottleneck",
  "no masks, the epoch of the lowest validation loss": "bottleneck, best epoch",
  "as printed": "MaC-Cal, printed", "as printed, no decay": "printed, no decay",
  "as printed, 440 epochs": "printed, 440 epochs",
  "as printed, measured on validation images": "printed, measured on validation images",
  "TST, as Ni et al.": "TST", "TST, Adam": "TST, Adam", "V-TST, as Ni et al.": "V-TST", "V-TST, Adam": "V-TST, Adam"}
PAGE = commands.RESULTS / "new_heads.md"


def read(path: pathlib.Path) -> pd.DataFrame:
  """Returns the rows of classifier_level.py; the second stage "" is none."""
  return rows.frame(path, text=["second"]).fillna({"second": ""})


def readings() -> str:
  """Returns the table of new_heads.md: accuracy, ECE and NLL, and the ECE after temperature scaling."""
  headings, columns = [], []
  for name, stem in NETWORKS.items():
    table = read((commands.RESULTS / stem).with_suffix(".csv"))
    headings.append(f"{name} ({table['seed'].nunique()} seeds)")
    means = table[table["first"] == "vanilla"].groupby(["second", "calibrated"])[["accuracy", "ece", "nll"]].mean()
    columns.append(["{:.1f} / {:.1f} / {:.3f}; {:.1f}".format(
      *means.loc[second, "none"], means.loc[(second, "temperature"), "ece"]) if second in means.index else ""
      for second in READINGS.values()])
  return markdown.table(["second stage", *headings], zip(READINGS, *columns, strict=True)) + "\n"


def _cells(part: pd.DataFrame, reference: pd.DataFrame | None) -> list[str]:
  """Returns the cells of a row of the table; ``reference`` holds the rows that differences are taken to."""
  cells, by_seed = [], part.set_index("seed")
  for name, (_, digits) in MEASURED.items():
    cell = f"{part[name].mean():.{digits}f}"
    if reference is not None:
      change = comparison.paired(dict(by_seed[name]), dict(reference.set_index("seed")[name]))
      if change.mean or change.low:  # Not of the plain network itself.
        cell += f" ({change.mean:+.{digits}f} ± {change.high - change.mean:.{digits}f})"
    cells.append(cell)
  return [*cells, f"{part['q'].mean():.2f}" if part["q"].notna().any() else "", f"{part['temperature'].mean():.2f}"]


def page(table: pd.DataFrame, network: str, command: str = "") -> str:
  """Returns the page of rows of the CSV file: tables without and with temperature scaling, and what made them."""
  parts = dict(iter(table.groupby(["calibrated", "first", "second"], sort=False)))
  cells = {calibrated: [[first if not second else second if first == "vanilla" else f"{first}, {second}",
                         *_cells(part, parts.get((calibrated, first if second else "vanilla", "")))]
                        for (kind, first, second), part in parts.items() if kind == calibrated]
           for calibrated in ("none", "temperature")}
  return markdown.filled(
    "papers/mac_cal/classifier_level.md.jinja", network=network, command=command, cells=cells,
    has_others=(table["first"] != "vanilla").any(), num_seeds=table["seed"].nunique(),
    headings=["method", *(name for name, _ in MEASURED.values()), "q", "T"])


def main(arguments: Sequence[str] | None = None) -> None:
  """Writes the table of new_heads.md."""
  commands.parser(__spec__.name, __doc__).parse_args(arguments)
  studies.write(PAGE, "experiments.papers.mac_cal.classifier_level_table", readings())


if __name__ == "__main__":
  main()
