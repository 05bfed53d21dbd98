"""Figures of the papers that show what a loss is: Karandikar et al. 2021, 3, 4; Zhou et al. 2025, 1, 2, 5, A1, A2.

Run: python -m experiments.papers.loss_figures [--workdir=DIR]

The first four panels are formulas: soft bins and the soft threshold of the entropy; the focal and the inverse focal
loss, whose weights are divided by their largest; and the smoothed distribution function of the selective-risk loss. The
next one shows networks: the rows of the leaderboards, with the scores of the selective-risk loss. The last three are
the first figures of the appendix of Zhou et al., which numbers them from 1 again: the gradients of the focal and the
inverse focal loss by the probability of the label (of the latter the text prints one sign wrongly), and the dual focal
loss of two classes, with the weight as printed and as in its released code, which forgets the rival of a misclassified
example.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy import special

from calib_jax import losses
from calib_jax._numerics import binning
from calib_jax.evaluation.reports import style
from experiments.common import commands, ranking, rows, scales
from experiments.common.figures import png

NAME = "loss_figures"
GAMMA = 2.0
DUAL = {"strongest": "as printed", "strongest_below": "released code"}  # By the competitor of ``losses.dual_focal``.

# Rows of the leaderboards, by the label of their score.
SCORES = {"cross entropy": "cross entropy", "stopped, negative entropy": "selective risk",
          "released, msp": "selective risk, released, msp", "released, margin": "selective risk, released, margin"}
LEADERBOARDS = ("fashion_mnist_mlp", "fashion_mnist_resnet8", "cifar10_jpeg_resnet8")


def soft_threshold(entropy: np.ndarray, threshold: float, temperature: float) -> np.ndarray:
  """t_{κ,T}(h*) of soft AvUC (Karandikar et al. 2021, 4.2), with the entropy h* in units of log K.

  >>> soft_threshold(np.array([0.0, 0.25, 0.5, 1.0]), 0.25, 1.0)
  array([0.  , 0.5 , 0.75, 1.  ])
  """
  return special.expit((special.logit(entropy) - special.logit(threshold)) / temperature).round(6)


def smoothed_distribution(scores: np.ndarray, at: np.ndarray, smoothing: float, num_bins: int = 64) -> np.ndarray:
  """Ĝ_ν of selective risk (Zhou et al. 2025, Eq. 14): the mean over scores of σ((g - c)/ν), c the centres of bins.

  >>> smoothed_distribution(np.array([0.5]), np.array([0.0, 0.5, 1.0]), 0.01, num_bins=1)
  array([0. , 0.5, 1. ])
  """
  counts, edges = np.histogram(scores, num_bins, (0, 1))
  centres = (edges[1:] + edges[:-1]) / 2
  steps = special.expit((at[:, None] - centres[None, :]) / smoothing)
  return ((steps * counts).sum(1) / counts.sum()).round(6)


def slope(loss: Callable[..., jax.Array], p: np.ndarray, **options: object) -> jax.Array:
  """Returns the derivative of a loss of two classes by the probability p of the label.

  >>> slope(losses.cross_entropy, np.array([0.25, 0.5])).round(3)
  Array([-4., -2.], dtype=float32)
  """
  of_one = jax.grad(lambda q: loss(jnp.log(jnp.stack([q, 1 - q])), jnp.array(0), **options))
  return jax.jit(jax.vmap(of_one))(jnp.asarray(p, jnp.float32))


def draw(results: Mapping[str, pd.DataFrame], path: pathlib.Path) -> None:
  """Draws the eight panels in one PNG; ``results`` are the rows of leaderboards by the name of their network."""
  with png(path, 12.6, 6.6) as drawn:
    panels = (_bins, _thresholds, _weights, _distributions, functools.partial(_scores, results=results), _gradients,
              _dual_weights, _dual_gradients)
    for panel, axes in zip(panels, drawn.subplots(2, 4).ravel(), strict=True):
      panel(axes)
      axes.legend(frameon=False, fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.17))  # Off the data.


def _bins(axes) -> None:
  confidence = jnp.linspace(0, 1, 501)
  for temperature, line in ((0.003, "-"), (0.03, "--")):
    member = binning.soft_membership(confidence, 5, temperature)
    for j in range(5):
      axes.plot(confidence, member[:, j], line, color=style.COLOURS[j], lw=1.2,
                label=f"T = {temperature}" if j == 0 else None)
  axes.set(xlabel="confidence", ylabel="membership in 5 bins", title="Soft bins (Karandikar et al., Figure 3)")


def _thresholds(axes) -> None:
  entropy = np.linspace(0, 1, 501)
  for i, (threshold, temperature) in enumerate(((0.3, 0.3), (0.3, 1.0), (0.7, 0.3), (0.7, 1.0))):
    axes.plot(entropy, soft_threshold(entropy, threshold, temperature), "-" if temperature < 1 else "--",
              color=style.COLOURS[i // 2], lw=1.2, label=rf"$\kappa$ = {threshold}, T = {temperature}")
  axes.set(xlabel="entropy, fraction of log K", ylabel="soft uncertainty",
           title="Soft threshold (Karandikar et al., Figure 4)")


def _weights(axes) -> None:
  p = np.linspace(0.005, 0.995, 397)
  logits, labels = np.log(np.stack([p, 1 - p], axis=1)), np.zeros(len(p), int)
  entropy = losses.cross_entropy(logits, labels)
  axes.plot(p, entropy, color=style.INK, lw=1.2, label="cross entropy")
  for i, (name, loss) in enumerate((("focal", losses.focal), ("inverse focal", losses.inverse_focal))):
    values = loss(logits, labels, gamma=GAMMA)
    axes.plot(p, values / jnp.max(values / entropy), color=style.COLOURS[i], lw=1.2,
              label=rf"{name}, $\gamma$ = {GAMMA:g}")
  axes.set(xlabel="probability of the label", ylabel="loss, nats, weights at most 1", ylim=(0, 4),
           title="Opposite weights (Zhou et al., Figure 1)")


def _distributions(axes) -> None:
  scores, at = np.random.default_rng(0).beta(4, 1, 2000), np.linspace(0, 1, 401)
  axes.plot(np.sort(scores), np.arange(1, 2001) / 2000, color=style.PALE, lw=4, label="2,000 scores")
  for i, smoothing in enumerate((0.01, 0.1, 1.0)):
    axes.plot(at, smoothed_distribution(scores, at, smoothing), color=style.COLOURS[i], lw=1.2,
              label=rf"$\nu$ = {smoothing}")
  axes.set(xlabel="confidence score", ylabel="distribution function", title="Smoothing (Zhou et al., Figure 5)")


def _scores(axes, results: Mapping[str, pd.DataFrame]) -> None:
  means = [ranking.means(x, "ece", "none") for x in results.values()]
  for i, (label, method) in enumerate(SCORES.items()):
    axes.bar(np.arange(len(results)) + 0.2 * (i - 1.5), [100 * by_method.get(method, np.nan) for by_method in means],
             0.19, color=style.COLOURS[i], label=label)
  axes.set_xticks(range(len(results)), [name.replace(", ", "\n") for name in results], fontsize="small")
  axes.set(ylabel="test ECE, %", title="Scores (Zhou et al., Figure 2)")


def _gradients(axes) -> None:
  p = np.linspace(0.01, 0.99, 393)
  for loss, name, line in ((losses.focal, "focal", "-"), (losses.inverse_focal, "inverse", "--")):
    for i, gamma in enumerate((1.0, 2.0, 5.0)):
      axes.plot(p, slope(loss, p, gamma=gamma), line, color=style.COLOURS[i], lw=1.2,
                label=rf"{name}, $\gamma$ = {gamma:g}")
  axes.axhline(0, color=style.INK, lw=0.8)
  axes.set(xlabel="probability of the label", ylabel="gradient of the loss, nats", ylim=(-16, 8),
           title="Gradients (Zhou et al., Figure A1)")


def _dual_weights(axes) -> None:
  p = np.linspace(0.005, 0.995, 397)
  logits, labels = np.log(np.stack([p, 1 - p], axis=1)), np.zeros(len(p), int)
  _dual(axes, p, lambda competitor: losses.dual_focal(logits, labels, gamma=GAMMA, competitor=competitor) / -np.log(p))
  axes.set(ylabel=rf"weight, $\gamma$ = {GAMMA:g}", title="Dual focal loss (Zhou et al., Figure A2)")


def _dual_gradients(axes) -> None:
  p = np.linspace(0.02, 0.98, 385)
  _dual(axes, p, lambda competitor: slope(losses.dual_focal, p, gamma=GAMMA, competitor=competitor))
  axes.set(ylabel=rf"gradient, nats, $\gamma$ = {GAMMA:g}", ylim=(-40, 4),
           title="Its gradient (Zhou et al., Figure A2)")


def _dual(axes, p: np.ndarray, values: Callable[[str], jax.Array]) -> None:
  for (competitor, name), colour in zip(DUAL.items(), style.COLOURS, strict=False):
    axes.plot(p, np.where(np.isclose(p, 0.5), np.nan, values(competitor)), color=colour, lw=1.2, label=name)
  axes.set(xlabel="probability of the label")


def main(arguments: Sequence[str] | None = None) -> None:
  """Draws the figure."""
  path = commands.parser(__spec__.name, __doc__, results=True).parse_args(arguments).workdir / f"{NAME}.png"
  draw({scales.described(end): rows.texts(commands.RESULTS / f"leaderboard_{end}.csv") for end in LEADERBOARDS}, path)
  print(f"{path} holds the figure.")


if __name__ == "__main__":
  main()
