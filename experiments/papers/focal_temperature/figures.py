"""The figures of theory.py, after Figures 1 to 3 (two classes) and 4 to 7 (three) of Komisarenko & Kull 2024."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pandas as pd

from calib_jax import losses
from calib_jax.evaluation.reports.style import COLOURS
from calib_jax.focal_map import binary_focal_calibration_map, focal_calibration_map
from experiments.common.figures import png
from experiments.papers.focal_temperature import theory

PERCENTILES = (3, 12, 20)
OF_CLASSES = dict(zip((2, 3, 4), COLOURS, strict=False))
OF_GAMMAS = {0.5: COLOURS[0], 3.0: COLOURS[1]}
# From the simplex to the plane: the corners are the bottom left, the bottom right and the top.
CORNERS = np.array([[0, 0], [1, 0], [0.5, 3**0.5 / 2]])
PLAIN = {"rc": {}, "dpi": 120}


def draw(results: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws all figures, beside the path."""
  two_classes(results, path.with_stem(f"{path.stem}_two"))
  three_classes(results, path.with_stem(f"{path.stem}_three"))
  risk(path.with_stem(f"{path.stem}_risk"))


def two_classes(results: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws the proper part of the focal loss, the map, its closest temperatures and the bounds on 1/T."""
  with png(path, 11, 6.4, **PLAIN) as figure:
    (of_losses, of_map, of_lines), (of_scaling, of_bounds, of_widths) = axes = figure.subplots(2, 3)
    _losses(of_losses)
    q = jnp.linspace(0, 1, 401)
    gammas = (-0.5, 0.0, 0.5, 1.0, 3.0, 7.0)
    for gamma, color in zip(gammas, matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(gammas))), strict=True):
      of_map.plot(q, binary_focal_calibration_map(q, gamma), color=color, lw=1.4, label=rf"$\gamma$ = {gamma:g}")
    of_map.set(title="Focal calibration map", xlabel="q, a probability", ylabel="probability")
    _lines(of_lines, results, (2, 3, 4))
    logit = jnp.linspace(-6, 6, 401)
    for gamma, color in OF_GAMMAS.items():
      inverse = theory.inverse_temperature(results, 2, gamma)
      of_scaling.plot(logit, binary_focal_calibration_map(jax.nn.sigmoid(logit), gamma), color=color, lw=3, alpha=0.4,
                      label=rf"$\gamma$ = {gamma:g}")
      of_scaling.plot(logit, jax.nn.sigmoid(inverse * logit), color=color, lw=1.2, ls="--",
                      label=f"T = {1 / inverse:.2f}")
    of_scaling.set(title="The map and the closest temperature", xlabel="logit, nats", ylabel="probability")
    part = theory.of_classes(results, 2)
    for name, color, label in (("bound", COLOURS[0], "Proposition 3"),
                               ("tightest", COLOURS[1], "tightest, logits in ±20")):
      least, most = 1 / part[f"{name}_high"], 1 / part[f"{name}_low"]
      of_bounds.fill_between(part["gamma"], least, most, color=color, alpha=0.5, lw=0, label=label)
      of_widths.plot(part["gamma"], most - least, color=color, label=label)
    of_bounds.set(title="Bounds on T", xlabel=r"$\gamma$", ylabel="T", yscale="log")
    of_widths.set(title="Width of the bounds", xlabel=r"$\gamma$", ylabel="T")
    _finish(axes.flat)


def _losses(axis) -> None:
  p = jnp.linspace(0.01, 0.999, 400)
  logits, labels = jnp.stack([jnp.log(p), jnp.log1p(-p)], axis=-1), jnp.zeros(400, jnp.int32)
  axis.plot(p, -jnp.log(p), color="k", lw=1.2, label="cross entropy")
  for gamma, color in OF_GAMMAS.items():
    axis.plot(p, losses.focal(logits, labels, gamma=gamma), color=color, lw=1.2, label=rf"focal, $\gamma$ = {gamma:g}")
    axis.plot(p, losses.properized_focal(logits, labels, gamma=gamma), color=color, lw=1.2, ls="--",
              label=rf"its proper part, $\gamma$ = {gamma:g}")
  axis.set(title="Losses of the true class", xlabel="its probability", ylabel="loss, nats", ylim=(0, 3))


def _lines(axis, results: pd.DataFrame, classes) -> None:
  for num_classes in classes:
    part, (slope, intercept) = theory.of_classes(results, num_classes), theory.PUBLISHED[num_classes]
    gamma, color = part["gamma"], OF_CLASSES[num_classes]
    axis.plot(gamma, part["inverse_temperature"], color=color, lw=1.4, label=f"{num_classes} classes")
    axis.plot(gamma, slope * gamma + intercept, color=color, lw=1, ls=":",
              label=rf"published, {slope}$\gamma$ + {intercept}")
  axis.set(title="1/T of the closest temperature", xlabel=r"$\gamma$", ylabel="1/T")


def three_classes(results: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws the map and the closest temperature scaling as arrows in the simplex, their difference and the errors."""
  with png(path, 13.5, 6.6, **PLAIN) as figure:
    axes = figure.subplots(2, 4)
    for gamma, (upper, lower) in zip((1.0, 3.0), axes[:, :2].T, strict=True):
      inverse = theory.inverse_temperature(results, 3, gamma)
      probs = theory.simplex_grid(3, 15)
      _arrows(upper, probs, focal_calibration_map(probs, gamma), rf"focal calibration, $\gamma$ = {gamma:g}")
      _arrows(lower, probs, jax.nn.softmax(inverse * jnp.log(probs)), f"temperature scaling, T = {1 / inverse:.2f}")
    for gamma, axis in zip(OF_GAMMAS, axes[:, 2], strict=True):
      inverse, probs = theory.inverse_temperature(results, 3, gamma), theory.simplex_grid(3, 120)
      difference = focal_calibration_map(probs, gamma) - jax.nn.softmax(inverse * jnp.log(probs))
      shown = axis.tripcolor(*(np.asarray(probs) @ CORNERS).T, np.abs(difference).max(-1), shading="gouraud",
                             cmap="viridis")
      figure.colorbar(shown, cax=axis.inset_axes([0.88, 0.4, 0.04, 0.55])).ax.tick_params(labelsize=7)
      _without_frame(axis, rf"largest difference, $\gamma$ = {gamma:g}, T = {1 / inverse:.2f}")
    _lines(axes[0, 3], results, (3,))
    for num_classes, color in OF_CLASSES.items():
      part = theory.of_classes(results, num_classes)
      axes[1, 3].plot(part["gamma"], part["error"], color=color, label=f"{num_classes} classes")
    axes[1, 3].set(title="Largest difference of a probability", xlabel=r"$\gamma$", ylabel="probability")
    _finish(axes[:, 3])


def risk(path: pathlib.Path) -> None:
  """Draws Figure 4: lines of equal risk E_p[loss(q)] of four proper losses, which say what else than p they prefer."""
  truth, probs = np.array([0.55, 0.3, 0.15]), theory.simplex_grid(3, 200)
  proper = {"Brier score": losses.brier, "cross entropy": losses.cross_entropy,
            **{rf"properized focal, $\gamma$ = {gamma}": functools.partial(losses.properized_focal, gamma=gamma)
               for gamma in (1.0, 3.0)}}
  x, y = (np.asarray(probs) @ CORNERS).T
  with png(path, 13, 3.4, **PLAIN) as figure:
    for axis, (name, loss) in zip(figure.subplots(1, 4), proper.items(), strict=True):
      of_class = [np.asarray(loss(jnp.log(probs), jnp.full(len(probs), k))) for k in range(3)]
      risks = truth @ np.array(of_class)
      axis.plot(*CORNERS[[0, 1, 2, 0]].T, color="0.6", lw=0.8)
      axis.tricontour(x, y, risks, np.percentile(risks, PERCENTILES), colors=np.array(COLOURS)[[0, 2, 1]])
      axis.plot(*truth @ CORNERS, "k+", ms=8)
      _without_frame(axis, name)
    figure.suptitle("Risk at the percentiles 3, 12 and 20% of all predictions; + is the true probability", fontsize=9)


def _arrows(axis, start, end, title: str) -> None:
  x, y = (np.asarray(start) @ CORNERS).T
  dx, dy = ((np.asarray(end) - np.asarray(start)) @ CORNERS).T
  axis.plot(*CORNERS[[0, 1, 2, 0]].T, color="0.6", lw=0.8)
  axis.quiver(x, y, dx, dy, angles="xy", scale_units="xy", scale=1, width=0.004, color=COLOURS[0])
  _without_frame(axis, title)


def _without_frame(axis, title: str) -> None:
  axis.set_title(title, fontsize=9)
  axis.set_aspect("equal")
  axis.set_axis_off()


def _finish(axes) -> None:
  for axis in axes:
    axis.title.set_fontsize(9)
    axis.tick_params(labelsize=7)
    axis.grid(lw=0.3)
    axis.legend(fontsize=6, frameon=False)
