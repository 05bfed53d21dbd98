"""Bias and spread of calibration-error estimators against the truth, by sample size.

Run: python -m experiments.estimators   (writes docs/figures/estimators.png and prints the table)

The data and the truth are those of simulation.py.
"""

import numpy as np

from experiments.common import commands
from experiments.estimators.simulation import ESTIMATORS, REPEATS, SHARPNESS, simulate, truth

SIZES = (100, 300, 1000, 3000, 10_000, 30_000)


def main(arguments=None) -> None:
  """Simulates, prints and draws."""
  commands.parser(__spec__.name, __doc__).parse_args(arguments)
  from matplotlib.figure import Figure

  figure = Figure(figsize=(10.5, 7.5), layout="constrained")
  panels = figure.subplots(2, 2, sharex=True, sharey="row")
  for (above, below), (name, sharpness) in zip(panels.T, SHARPNESS.items(), strict=True):
    exact = truth(sharpness)
    print(f"\n{name}: the truth is " + ", ".join(f"{k} {100 * v:.2f}%" for k, v in exact.items()))
    print("\n| bias ± standard deviation, in % | " + " | ".join(f"N = {n:,}" for n in SIZES) + " |")
    print("|---" * (len(SIZES) + 1) + "|")
    for label, (estimator, target) in ESTIMATORS.items():
      errors = np.stack([100 * (simulate(estimator, n, sharpness) - exact[target]) for n in SIZES])
      mean, spread = errors.mean(1), errors.std(1)
      print(f"| {label} | " + " | ".join(f"{m:+.2f} ± {s:.2f}" for m, s in zip(mean, spread, strict=True)) + " |",
            flush=True)
      above.plot(SIZES, mean, marker="o", markersize=4, label=label)
      below.plot(SIZES, np.sqrt((errors**2).mean(1)), marker="o", markersize=4)
    above.axhline(0, color="black", linewidth=0.8)
    above.set_yscale("symlog", linthresh=0.3)
    above.set_yticks([-1, -0.3, 0, 0.3, 1, 3, 10], ["-1", "-0.3", "0", "0.3", "1", "3", "10"])
    above.set_yticks([], minor=True)
    above.set_title(f"{name} model: true L1 error {100 * exact['l1']:.1f}%")
    below.set_yscale("log")
    below.set_yticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
    below.set_yticks([], minor=True)
    below.set_xscale("log")
    below.set_xlabel("examples")
    for axes in (above, below):
      axes.grid(alpha=0.25)
  panels[0, 0].set_ylabel("bias: mean estimate less truth, in %")
  panels[1, 0].set_ylabel("root mean squared error, in %")
  figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
  commands.save_for_docs(figure, "estimators.png", f"of {REPEATS} samples of each size")


if __name__ == "__main__":
  main()
