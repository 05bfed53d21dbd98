"""The table of classifier_level.py: means, and differences to the plain network paired by seed.

Run: python -m experiments.papers.mac_cal.classifier_level_table RESULTS.csv
"""

from collections.abc import Sequence
import pathlib

import numpy as np

from experiments.common import commands, comparison
from experiments.common.rows import read

MEASURED = {"accuracy": ("accuracy %", 2), "nll": ("NLL", 3), "ece": ("ECE %", 2),
            "adaptive_ece": ("adaptive ECE %", 2), "mce": ("MCE %", 1),
            "overconfidence": ("confidence minus accuracy", 2), "auroc": ("AUROC %", 2), "fpr95": ("FPR95 %", 2)}


def _by_seed(rows: list[dict]) -> dict[str, dict]:
  return {row["seed"]: row for row in rows}


def _line(label: str, rows: list[dict], plain: dict[str, dict]) -> str:
  """Returns a row of the table; ``plain`` holds the rows that differences are taken to, by seed."""
  own, cells = _by_seed(rows), []
  for name, (_, digits) in MEASURED.items():
    cell = f"{np.mean([float(row[name]) for row in rows]):.{digits}f}"
    apart = comparison.paired(*({seed: float(row[name]) for seed, row in side.items()} for side in (own, plain)))
    if plain and (apart.mean or apart.low):  # Not of the plain network itself.
      cell += f" ({apart.mean:+.{digits}f} ± {apart.high - apart.mean:.{digits}f})"
    cells.append(cell)
  q = [float(row["q"]) for row in rows if row["q"]]
  temperature = np.mean([float(row["temperature"]) for row in rows])
  return "| " + " | ".join([label, *cells, f"{np.mean(q):.2f}" if q else "", f"{temperature:.2f}"]) + " |"


def table(rows: list[dict], command: str = "") -> str:
  """Returns the Markdown tables of rows of the CSV file, without and with temperature scaling, and what made them."""
  groups: dict[tuple[str, str, str], list[dict]] = {}
  for row in rows:
    groups.setdefault((row["calibrated"], row["first"], row["second"]), []).append(row)
  seeds = len({row["seed"] for row in rows})
  lines = [f"Means over {seeds} seeds. In brackets: the difference to the same network with its own head, or of "
           "networks without a second stage to vanilla, paired by seed, with its 95% t interval over seeds, on "
           "the same test images. q is that after the last epoch, T the temperature that validation images give."]
  lines += ["", f"Made by `{command}`."] if command else []
  for calibrated, title in (("none", "As trained"), ("temperature", "After temperature scaling")):
    lines += ["", f"{title}:", "", "| method | " + " | ".join(name for name, _ in MEASURED.values()) + " | q | T |",
              "|" + "---|" * (len(MEASURED) + 3)]
    lines += [_line(first if not second else second if first == "vanilla" else f"{first}, {second}", group,
                    _by_seed(groups.get((calibrated, first if second else "vanilla", ""), [])))
              for (kind, first, second), group in groups.items() if kind == calibrated]
  return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
  """Prints the table of a file of results."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("results", type=pathlib.Path, metavar="RESULTS.csv")
  print(table(read(parser.parse_args(arguments).results)))


if __name__ == "__main__":
  main()
