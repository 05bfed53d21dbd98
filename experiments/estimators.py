"""Bias and spread of calibration-error estimators against the truth, by sample size.

Run: python -m experiments.estimators   (writes docs/figures/estimators.png and prints the table)

The data have two classes: x is from N(-1, 1) or N(1, 1) with equal chance, and the posterior is sigmoid(2x). The model
predicts sigmoid(2ax), which is calibrated for a = 1 and overconfident for a = 1.6. Each estimator is compared with its
limit for infinitely many examples, which is computed by quadrature.
"""

import argparse
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import metrics

SIZES = (100, 300, 1000, 3000, 10_000, 30_000)
REPEATS = 200
SHARPNESS = {"calibrated": 1.0, "overconfident": 1.6}
FIGURE = pathlib.Path(__file__).parent.parent / "docs" / "figures" / "estimators.png"

# Each estimator, and which truth it estimates.
ESTIMATORS = {
  "ECE, 15 equal-width bins": (metrics.calibration_error, "l1"),
  "ECE, 15 equal-mass bins": (functools.partial(metrics.calibration_error, binning="equal_mass"), "l1"),
  "equal mass, norm 2": (functools.partial(metrics.calibration_error, binning="equal_mass", norm=2), "l2"),
  "equal mass, norm 2, debiased": (
    functools.partial(metrics.calibration_error, binning="equal_mass", norm=2, debias=True), "l2"),
  "sweep, norm 2": (metrics.sweep_calibration_error, "l2"),
  "KS": (metrics.ks_calibration_error, "ks"),
  "smooth (smECE)": (metrics.smooth_calibration_error, "smooth"),
}


def sample(key, shape, sharpness: float):
  """Top-label confidences and correctness."""
  draws = jax.random.split(key, 3)
  x = jax.random.normal(draws[0], shape) + jnp.where(jax.random.bernoulli(draws[1], 0.5, shape), 1, -1)
  odds = jnp.abs(2 * x)
  return jax.nn.sigmoid(sharpness * odds), jax.random.uniform(draws[2], shape) < jax.nn.sigmoid(odds)


@functools.cache
def truth(sharpness: float) -> dict[str, float]:
  """What the estimators tend to, by quadrature in float64 (the smooth error from its own definition on a fine grid)."""
  x = np.linspace(-9, 9, 400_001)
  density = (np.exp(-(x - 1)**2 / 2) + np.exp(-(x + 1)**2 / 2)) / np.sqrt(8 * np.pi)
  odds = np.abs(2 * x)
  confidence, accuracy = (1 / (1 + np.exp(-a * odds)) for a in (sharpness, 1.0))
  return true_errors(confidence, accuracy, density * (x[1] - x[0]))


def true_errors(confidence: np.ndarray, accuracy: np.ndarray, weight: np.ndarray) -> dict[str, float]:
  """Errors of predictions with known accuracies; ``weight`` is how likely each is."""
  gap = accuracy - confidence
  order = np.argsort(confidence)
  edges = np.linspace(0, 1, 1001)  # Cells far narrower than the kernel.
  mass = np.histogram(confidence, edges, weights=weight * gap)[0]
  middle = (edges[1:] + edges[:-1]) / 2

  def smoothed(sigma):
    total = sum(np.exp(-(middle[:, None] - at[None, :])**2 / (2 * sigma**2)) @ mass
                for at in (middle, -middle, 2 - middle))
    return np.abs(total / (sigma * np.sqrt(2 * np.pi))).mean()

  low, high = 1e-4, 1.0
  for _ in range(20 if gap.any() else 0):
    sigma = (low + high) / 2
    low, high = (sigma, high) if smoothed(sigma) > sigma else (low, sigma)
  return {"l1": float(np.sum(weight * np.abs(gap))), "l2": float(np.sqrt(np.sum(weight * gap**2))),
          "ks": float(np.abs(np.cumsum((weight * gap)[order])).max()), "smooth": float(low if gap.any() else 0)}


def simulate(estimator, size: int, sharpness: float, repeats: int = REPEATS, seed: int = 0) -> np.ndarray:
  """The estimate of each of ``repeats`` samples of ``size``."""
  return np.asarray(_estimates(estimator, jax.random.key(seed), repeats, size, sharpness))


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _estimates(estimator, key, repeats: int, size: int, sharpness):
  return jax.lax.map(lambda pair: estimator(*pair), sample(key, (repeats, size), sharpness))


def main(arguments=None) -> None:
  """Simulates, prints and draws."""
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(arguments)
  from matplotlib.figure import Figure

  figure = Figure(figsize=(10.5, 7.5), layout="constrained")
  panels = figure.subplots(2, 2, sharex=True, sharey="row")
  for (above, below), (name, sharpness) in zip(panels.T, SHARPNESS.items(), strict=True):
    exact = truth(sharpness)
    print(f"\n{name}: the truth is " + ", ".join(f"{k} {100 * v:.2f}%" for k, v in exact.items()))
    print("\n| bias ± standard deviation, in % | " + " | ".join(f"N = {n:,}" for n in SIZES) + " |")
    print("|---" * (len(SIZES) + 1) + "|")
    for label, (estimator, target) in ESTIMATORS.items():
      found = np.stack([100 * (simulate(estimator, n, sharpness) - exact[target]) for n in SIZES])
      mean, spread = found.mean(1), found.std(1)
      print(f"| {label} | " + " | ".join(f"{m:+.2f} ± {s:.2f}" for m, s in zip(mean, spread, strict=True)) + " |",
            flush=True)
      above.plot(SIZES, mean, marker="o", markersize=4, label=label)
      below.plot(SIZES, np.sqrt((found**2).mean(1)), marker="o", markersize=4)
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
  FIGURE.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(FIGURE, dpi=130)
  print(f"\nwrote {FIGURE.relative_to(FIGURE.parent.parent.parent)}, of {REPEATS} samples of each size")


if __name__ == "__main__":
  main()
