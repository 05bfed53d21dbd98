"""The calibration errors of a perfectly calibrated model, by the number of examples.

Run: python -m experiments.estimators.noise_floor   (two minutes on CPU)

It writes docs/figures/noise_floor.png and prints the table.

``metrics.consistency_interval`` redraws the outcomes from the confidences. The confidences are those of the calibrated
model of simulation.py, and on the right of the figure those of models that are surer or less sure: the posterior of two
classes is sigmoid(2dx) for x from N(-d, 1) or N(d, 1).
"""


import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import metrics
from experiments.common import commands
from experiments.estimators.simulation import ESTIMATORS

SIZES = (100, 300, 1000, 3000, 10_000, 30_000)
DISTANCES = (0.25, 0.6, 1.0, 1.6)
RESAMPLES = 300


def confidences(size: int, distance: float) -> jax.Array:
  """Top-label confidences of a calibrated model whose classes' means are ``2 distance`` standard deviations apart."""
  x = jax.random.normal(jax.random.key(0), (size,)) + distance
  return jax.nn.sigmoid(jnp.abs(2 * distance * x))


def floors(metric, distance: float) -> np.ndarray:
  """Mean, low and high of the metric in percent for each size: ``[3, sizes]``."""
  intervals = [metrics.consistency_interval(metric, confidences(size, distance), key=jax.random.key(1),
                                            num_resamples=RESAMPLES) for size in SIZES]
  return 100 * np.array(intervals).T


def main(arguments=None) -> None:
  """Computes, prints and draws."""
  commands.parser(__spec__.name, __doc__).parse_args(arguments)
  from matplotlib.figure import Figure

  figure = Figure(figsize=(11, 5.2), layout="constrained")
  left, right = figure.subplots(1, 2, sharey=True)

  def draw(axes, label, values):
    mean, low, high = values
    line, = axes.plot(SIZES, mean, marker="o", markersize=4, label=label)
    axes.fill_between(SIZES, low, high, color=line.get_color(), alpha=0.12)

  print("| mean [95% interval], in % | " + " | ".join(f"N = {n:,}" for n in SIZES) + " |")
  print("|---" * (len(SIZES) + 1) + "|")
  for name, (metric, _) in ESTIMATORS.items():
    values = floors(metric, 1.0)
    print(f"| {name} | " + " | ".join(f"{m:.2f} [{a:.2f}, {b:.2f}]" for m, a, b in values.T) + " |", flush=True)
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
  commands.save_for_docs(figure, "noise_floor.png", f"of {RESAMPLES} redraws of the outcomes")


if __name__ == "__main__":
  main()
