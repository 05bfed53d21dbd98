"""Bias and spread of calibration-error estimators, and the errors of a perfectly calibrated model, by sample size.

Run: python -m experiments.estimators   (five minutes of one CPU core)

It writes docs/figures/estimators.png and noise_floor.png, and their tables into results/estimators.md. The data and the
truth are those of simulation.py. For the noise floor ``metrics.consistency_interval`` redraws the outcomes from
confidences: those of the calibrated model, and on the right of the figure those of models that are surer or less sure,
whose posterior of two classes is sigmoid(2dx) for x from N(-d, 1) or N(d, 1).
"""

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure
import numpy as np

from calib_jax import metrics
from experiments.common import commands, markdown, studies
from experiments.estimators.simulation import ESTIMATORS, SHARPNESS, simulate, truth

SIZES = (100, 300, 1000, 3000, 10_000, 30_000)
DISTANCES = (0.25, 0.6, 1.0, 1.6)
RESAMPLES = 300


def _table(heading: str, lines: list[list[str]]) -> str:
  return markdown.table([heading, *(f"N = {n:,}" for n in SIZES)], lines) + "\n"


def estimators() -> tuple[Figure, str]:
  """Returns the figure of bias and root mean squared error against the truth, and its tables."""
  figure, tables = Figure(figsize=(10.5, 7.5), layout="constrained"), []
  panels = figure.subplots(2, 2, sharex=True, sharey="row")
  for (above, below), (name, sharpness) in zip(panels.T, SHARPNESS.items(), strict=True):
    exact, lines = truth(sharpness), []
    for label, (estimator, target) in ESTIMATORS.items():
      errors = np.stack([100 * (simulate(estimator, n, sharpness) - exact[target]) for n in SIZES])
      mean, spread = errors.mean(1), errors.std(1)
      lines.append([label, *(f"{m:+.2f} ± {s:.2f}" for m, s in zip(mean, spread, strict=True))])
      above.plot(SIZES, mean, marker="o", markersize=4, label=label)
      below.plot(SIZES, np.sqrt((errors**2).mean(1)), marker="o", markersize=4)
    tables += [f"{name}: the truth is " + ", ".join(f"{k} {100 * v:.2f}%" for k, v in exact.items()) + ".\n",
               _table("bias ± standard deviation, in %", lines)]
    above.axhline(0, color="black", linewidth=0.8)
    above.set_yscale("symlog", linthresh=0.3)
    above.set_title(f"{name} model: true L1 error {100 * exact['l1']:.1f}%")
    below.set_yscale("log")
    below.set_xscale("log")
    below.set_xlabel("examples")
    for axes, ticks in ((above, ("-1", "-0.3", "0", "0.3", "1", "3", "10")), (below, ("0.1", "0.3", "1", "3", "10"))):
      axes.set_yticks([float(tick) for tick in ticks], ticks)
      axes.set_yticks([], minor=True)
      axes.grid(alpha=0.25)
  panels[0, 0].set_ylabel("bias: mean estimate less truth, in %")
  panels[1, 0].set_ylabel("root mean squared error, in %")
  figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
  return figure, "\n".join(tables)


def confidences(size: int, distance: float) -> jax.Array:
  """Top-label confidences of a calibrated model whose classes' means are ``2 distance`` standard deviations apart."""
  x = jax.random.normal(jax.random.key(0), (size,)) + distance
  return jax.nn.sigmoid(jnp.abs(2 * distance * x))


def floors(metric, distance: float) -> np.ndarray:
  """Mean, low and high of the metric in percent for each size: ``[3, sizes]``."""
  intervals = [metrics.consistency_interval(metric, confidences(size, distance), key=jax.random.key(1),
                                            num_resamples=RESAMPLES) for size in SIZES]
  return 100 * np.array(intervals).T


def noise_floor() -> tuple[Figure, str]:
  """Returns the figure of the errors of calibrated models, and its table."""
  figure, lines = Figure(figsize=(11, 5.2), layout="constrained"), []
  left, right = figure.subplots(1, 2, sharey=True)

  def draw(axes, label, values):
    mean, low, high = values
    line, = axes.plot(SIZES, mean, marker="o", markersize=4, label=label)
    axes.fill_between(SIZES, low, high, color=line.get_color(), alpha=0.12)

  for name, (metric, _) in ESTIMATORS.items():
    values = floors(metric, 1.0)
    lines.append([name, *(f"{m:.2f} [{a:.2f}, {b:.2f}]" for m, a, b in values.T)])
    if "debiased" not in name and "sweep" not in name:  # Their bands reach 0, which a logarithmic axis has not.
      draw(left, name, values)
  for distance in DISTANCES:
    accuracy = float(jnp.mean(confidences(SIZES[-1], distance)))
    draw(right, f"accuracy {100 * accuracy:.0f}%", floors(metrics.calibration_error, distance))
  left.set_title("several metrics, accuracy 84%")
  right.set_title("ECE, 15 equal-width bins, several accuracies")
  for axes in (left, right):
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("examples")
    axes.grid(alpha=0.25, which="both")
    axes.legend(fontsize=9)
  left.set_yticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
  left.set_yticks([], minor=True)
  left.set_ylabel("error of a perfectly calibrated model, in %")
  return figure, _table("mean [95% interval], in %", lines)


def main(arguments=None) -> None:
  """Simulates, draws and writes."""
  commands.parser(__spec__.name, __doc__).parse_args(arguments)
  tables = []
  for draw in (estimators, noise_floor):
    figure, table = draw()
    figure.savefig(commands.ROOT / "docs" / "figures" / f"{draw.__name__}.png", dpi=130)
    tables.append(table)
  studies.write(commands.RESULTS / "estimators.md", __spec__.name.removesuffix(".__main__"), *tables)


if __name__ == "__main__":
  main()
