"""Which calibrator is best for how many calibration examples, and does cross-validation find it?

Run: python -m experiments.calibrators.set_size PREDICTIONS.npz … [--workdir=experiments/results]

Each file holds `labels` and `logits` or `probs`. For every seed the rows are divided anew: one half tests, and the
first n rows of the other half fit each calibrator, for n = 100, 500, 2,000, 5,000, or for those of `--sizes`. `select`
is the choice of `calibrators.select` among its default candidates; `--methods` takes other calibrators with options,
too, such as temperature_scaling:objective=ece. The page and the figure have the NLL above that of temperature scaling,
with standard errors over seeds, and how far `select` is from the best of its candidates. Ten seeds of four networks,
three of 10 classes and one of 100, take six minutes of a processor core.
"""

from collections.abc import Sequence
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from calib_jax import calibrators, metrics
from calib_jax._system.errors import UserError
from calib_jax.cli import inputs
from calib_jax.evaluation.predictions.loading import load
from experiments.common import commands, figures, markdown, studies

SIZES = (100, 500, 2000, 5000)
CANDIDATES = (*calibrators.selection.CANDIDATES, "structured_matrix_scaling")
METHODS = ("identity", *CANDIDATES, "select", "TS-SB-ECE", "vector_scaling", "beta_calibration", "isotonic",
           "histogram_binning")
TEXTS = {"TS-SB-ECE": "temperature_scaling:objective=soft_binned_ece"}  # Of methods with a name of their own.
SHOWN = ("select", "temperature_scaling", "structured_matrix_scaling")
KEY, SCORES = ("predictions", "method", "size", "seed"), ("nll", "brier", "ece", "accuracy")


@jax.jit
def measured(log_probs, labels) -> dict:
  """NLL in nats, Brier score, and ECE (15 equal-mass bins) and accuracy in percent."""
  probs = jnp.exp(log_probs)
  return {"nll": metrics.nll(probs, labels), "brier": metrics.brier_score(probs, labels),
          "ece": 100 * metrics.adaptive_calibration_error(probs, labels),
          "accuracy": 100 * metrics.accuracy(probs, labels)}


def fitted(method: str, logits, labels, size: int) -> tuple[calibrators.Calibrator, dict, str]:
  """Returns a calibrator, its params of the first ``size`` rows, and the name of the calibrator."""
  if method == "select":
    chosen = calibrators.select(logits[:size], labels[:size])
    return chosen.calibrator, chosen.params, chosen.name
  calibrator = inputs.calibrator(TEXTS.get(method, method))
  # Rows that do not count keep the shape, so that every fit is compiled once.
  return calibrator, calibrator.fit(logits, labels, where=np.arange(len(labels)) < size), method


def excess(rows: pd.DataFrame) -> pd.DataFrame:
  """Returns the NLL above that of temperature scaling in 1/1000 nat: its mean and standard error over seeds."""
  nll = rows.pivot(index=["predictions", "size", "seed"], columns="method", values="nll")
  above = 1000 * nll.sub(nll.temperature_scaling, axis=0)
  return above.stack().dropna().groupby(["predictions", "method", "size"]).agg(["mean", "sem"])


def tables(rows: pd.DataFrame) -> list[str]:
  """Returns a Markdown table for each network: NLL above temperature scaling's, in thousandths of a nat."""
  above = excess(rows)
  lowest = above["mean"].drop("select", level="method", errors="ignore").groupby(["predictions", "size"]).min()
  cells = above.apply(lambda x: f"{x['mean']:+.1f}" + ("" if np.isnan(x["sem"]) else f" ± {x['sem']:.1f}"), axis=1)
  cells = cells.where(above["mean"] != lowest.reindex(above.droplevel("method").index).to_numpy(), "**" + cells + "**")
  cells = cells.unstack().fillna("")
  return [markdown.table([name, *(f"n = {size:,}" for size in cells)],
                         cells.loc[name].loc[part.method.unique()].itertuples())
          for name, part in rows.groupby("predictions", sort=False)]


def choices(rows: pd.DataFrame) -> str:
  """Returns the Markdown table of what ``select`` chose, and of its NLL above that of the best of its candidates."""
  nll = 1000 * rows.pivot(index=["predictions", "size", "seed"], columns="method", values="nll")
  above = nll.sub(nll[[name for name in CANDIDATES if name in nll]].min(axis=1), axis=0).reindex(columns=[*METHODS])
  lines = []
  selected = rows[rows.method == "select"].sort_values("size", kind="stable")
  for (name, size), part in selected.groupby(["predictions", "size"], sort=False):
    regrets, counts = above.loc[name, size], part.chosen.value_counts()
    own, temperature, matrix = regrets[[*SHOWN]].mean().round(1) + 0.0  # No "-0.0".
    error = f" ± {regrets['select'].sem():.1f}" if len(part) > 1 else ""
    lines.append([name, f"{size:,}", ", ".join(f"{method} {counts[method]}" for method in METHODS if method in counts),
                  f"{own:.1f}{error} ({temperature:.1f}, {matrix:.1f})"])
  return markdown.table(["predictions", "n", "chosen", "above the best"], lines)


def by_method(rows: pd.DataFrame) -> str:
  """Returns the Markdown table of the NLL, and of the ECE with its standard error over seeds, of one size."""
  scores = rows.groupby(["method", "predictions"], sort=False)[["nll", "ece"]].agg(["mean", "sem"])
  cells = scores.apply(lambda x: f"{x['nll', 'mean']:.3f}, {x['ece', 'mean']:.2f} ± {x['ece', 'sem']:.2f}", axis=1)
  cells = cells.unstack().loc[rows.method.unique(), rows.predictions.unique()]
  return markdown.table(["NLL, ECE %", *cells], cells.itertuples())


def page(rows: pd.DataFrame) -> str:
  """Returns the page in Markdown."""
  return markdown.filled("calibrators/set_size.md.jinja", tables=tables(rows), choices=choices(rows))


def figure(rows: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws `excess` against the number of examples, a panel a file; lines that lose more than two nats leave it."""
  above, names, sizes = excess(rows) / 1000, rows.predictions.unique(), sorted(rows["size"].unique())
  shown = {"identity": "#000000", "structured_vector_scaling": "#0072B2", "structured_matrix_scaling": "#D55E00",
           "select": "#777777", "vector_scaling": "#56B4E9", "beta_calibration": "#009E73", "isotonic": "#CC79A7",
           "TS-SB-ECE": "#E69F00"}
  strong = ("structured_vector_scaling", "structured_matrix_scaling", "select")
  columns = min(len(names), 2)
  lines = -(-len(names) // columns)
  ticks = (-0.05, -0.02, -0.01, -0.005, 0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
  with figures.png(path, 4.6 * columns, 3.2 * lines + 0.7, rc={}, dpi=150) as drawn:
    axes = drawn.subplots(lines, columns, squeeze=False, sharey=True)
    for axis, name in zip(axes.flat, names, strict=False):
      axis.axhline(0, color="0.4", lw=1, ls=":", label="temperature scaling")
      for i, (method, color) in enumerate(shown.items()):
        own = above.query("predictions == @name and method == @method").reset_index()
        # Methods stand beside each other, so that their error bars can be told apart.
        axis.errorbar(own["size"] * 1.04 ** (i - len(shown) / 2), own["mean"], own["sem"].fillna(0), color=color,
                      lw=1.8 if method in strong else 0.9, marker="o", ms=3.5 if method in strong else 2.5, capsize=2,
                      label=method.replace("_", " "), ls="--" if method == "select" else "-",
                      zorder=3 if method in strong else 2)
      axis.set_xscale("log")
      axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
      axis.minorticks_off()
      axis.set_yscale("symlog", linthresh=0.01, linscale=1.5)
      axis.set_ylim(-0.06, 2)
      axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
      axis.grid(axis="y", color="0.92", lw=0.6)
      axis.set_title(name.replace("_", " "), fontsize=9)
      axis.tick_params(labelsize=7, labelleft=True)
    for axis in axes.flat[len(names):]:
      axis.set_visible(False)
    drawn.supxlabel("calibration examples", fontsize=9)
    drawn.supylabel("NLL above temperature scaling's (nats)", fontsize=9)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside upper center", ncols=5, fontsize=7, frameon=False)


def study(files: Sequence[pathlib.Path], seeds: int, sizes: Sequence[int], methods: Sequence[str], folder: pathlib.Path
          ) -> studies.Study:
  """Returns what is run on files of predictions."""
  predictions = {file.stem: load(file) for file in files}
  methods = dict.fromkeys([*methods, "temperature_scaling"])  # The others are compared with it.
  for method in methods.keys() - {"select"}:
    inputs.calibrator(TEXTS.get(method, method))  # Before anything is fitted.

  def rows(name: str, method: str, size: int, seed: int) -> list[dict[str, str]]:
    whole = predictions[name]
    test, fit = np.array_split(np.random.default_rng(seed).permutation(len(whole.labels)), 2)
    calibrator, params, chosen = fitted(method, whole.logits[fit][:max(sizes)], whole.labels[fit][:max(sizes)], size)
    values = measured(calibrator.apply(params, whole.logits[test]), whole.labels[test])
    return [{name: f"{float(values[name]):.6g}" for name in SCORES} | {"chosen": chosen}]

  return studies.Study("calibration_set_size", KEY, [
    (name, method, size, seed) for name, whole in predictions.items() for seed in range(seeds) for size in sizes
    for method in methods if size <= len(whole.labels) // 2], rows, page, folder, figure)


def main(arguments=None) -> None:
  """Fits what has no row yet, and writes the tables and the figure."""
  parser = commands.parser(__spec__.name, __doc__, results=True)
  parser.add_argument("predictions", nargs="+", type=pathlib.Path)
  commands.add_numbers(parser, {"num_seeds": 5})
  parser.add_argument("--sizes", nargs="+", type=commands.count, default=SIZES)
  parser.add_argument("--methods", nargs="+", metavar="NAME[:OPTION=VALUE,…]", default=METHODS)
  options = parser.parse_args(arguments)
  try:
    study(options.predictions, options.num_seeds, options.sizes, options.methods, options.workdir).publish()
  except UserError as error:
    raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
  main()
