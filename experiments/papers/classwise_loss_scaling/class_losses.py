"""Figures 3 and 4 of Jung et al. 2023: class-wise losses and calibration error while a calibrator is fitted.

Run: python -m experiments.papers.classwise_loss_scaling.class_losses [--workdir=experiments/results]

Figure 3, of WRN-28: a linear layer over the logits, at first the identity, learns from the three classes of the largest
losses alone, by 1,000 gradient steps (rate 0.001; the paper prints neither). A and B have the same total loss, and
panel (e) says which part of it the three classes have. Figure 4, of ResNet-110: temperature scaling with each
objective, by the paper's own steps. The paper has CIFAR-10; here are its authors' logits of CIFAR-10-LT. The class-wise
losses are those of the validation images, which are fitted, and the ECE (15 equal-width bins) is that of the test
images. It takes half a minute.
"""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from calib_jax.evaluation.reports import style
from experiments.common import markdown, rows, studies
from experiments.common.figures import png
from experiments.papers.classwise_loss_scaling import fits, table2

Array = jax.Array
NAME = "classwise_loss_scaling_curves"
LAYER, STEPPED = "wide_resnet28", "resnet110"  # The networks of the two figures.
RATE, STEPS, TOP = 0.001, 1000, 3
EVERY = 10  # Steps between the points of a curve.


@functools.partial(jax.jit, static_argnums=0)
def _measured(log_probs, params, validation, test) -> tuple[Array, Array]:
  """The class-wise losses ``[P, K]`` of the validation split, and the ECE ``[P]`` in percent of the test split."""
  def at(params):
    return fits.class_losses(log_probs(params, validation[0]), validation[1]), table2.ece(
      *table2.top_of(log_probs(params, test[0]), test[1]))

  return jax.lax.map(at, params)


def _layer(params: dict, logits: Array) -> Array:
  return jax.nn.log_softmax(jnp.dot(logits, params["kernel"], precision="highest") + params["bias"][None, :])


@jax.jit
def learned(logits: Array, labels: Array) -> dict:
  """The linear layer at the start and after every step, as it learns the classes of the largest losses (Eq. 2)."""
  num_classes = logits.shape[1]
  start = {"kernel": jnp.eye(num_classes), "bias": jnp.zeros(num_classes)}
  learns = jnp.argsort(fits.class_losses(_layer(start, logits), labels))[-TOP:]

  def step(params, _):
    gradient = jax.grad(lambda p: jnp.sum(fits.class_losses(_layer(p, logits), labels)[learns]))(params)
    return jax.tree.map(lambda p, g: p - RATE * g, params, gradient), params

  return jax.lax.scan(step, start, length=STEPS + 1)[1]


def curve(name: str) -> list[rows.Row]:
  """Returns a row for every tenth step: the total, the deviation and each of the class-wise losses, and the ECE."""
  network = LAYER if name == "layer" else STEPPED
  validation, test = (table2.split(network, part) for part in ("validation", "test"))
  if name == "layer":
    log_probs, params = _layer, learned(*validation)
  else:
    fitted, log_probs = fits.stepped("TS", name, *validation), fits.BASES["TS"].apply
    path = [np.asarray(at_rate)[:taken] for at_rate, taken in zip(fitted["path"], fitted["steps"], strict=True)]
    params = {"temperature": jnp.concatenate([jnp.ones(1), *path])}
  steps = np.arange(0, len(jax.tree.leaves(params)[0]), EVERY)
  by_class, ece = _measured(log_probs, jax.tree.map(lambda x: x[steps], params), validation, test)
  by_class = np.asarray(by_class, np.float64)
  return [{"step": str(step), "total": f"{x.sum():.5f}", "deviation": f"{x.std(ddof=1):.5f}", "ece": f"{error:.4f}",
           **{f"class_{i}": f"{loss:.5f}" for i, loss in enumerate(x)}}
          for step, x, error in zip(steps, by_class, np.asarray(ece), strict=True)]


def of_curve(results: pd.DataFrame, name: str) -> pd.DataFrame:
  """Returns the rows of a curve, with the loss of the three classes of the largest first losses, and of the others."""
  part = results[results["curve"] == name].reset_index(drop=True)
  by_class = part.filter(like="class_")
  learned_loss = by_class[by_class.iloc[0].nlargest(TOP).index].sum(axis=1)
  return part.assign(learned=learned_loss, others=by_class.sum(axis=1) - learned_loss)


def equal_totals(total: np.ndarray) -> list[int]:
  """Returns two points of a curve that falls and then rises with the same total: the last possible, and its twin.

  >>> equal_totals(np.array([3.0, 2.0, 1.0, 2.1, 4.0]))
  [1, 3]
  """
  after = int(np.flatnonzero(total <= total[0])[-1])
  return [int(np.abs(total[:int(total.argmin()) + 1] - total[after]).argmin()), after]


def _points(layer: pd.DataFrame) -> pd.DataFrame:
  return layer.iloc[equal_totals(layer["total"].to_numpy())].assign(point=["A", "B"])


def page(results: pd.DataFrame) -> str:
  """Returns the page in Markdown."""
  layer = of_curve(results, "layer")
  return markdown.filled("papers/classwise_loss_scaling/class_losses.md.jinja", layer=layer, points=_points(layer),
                         curves={name: of_curve(results, name) for name in fits.STEPS})


def draw(results: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws both figures in one PNG, a row each."""
  layer, titles = of_curve(results, "layer"), ("total loss, nats", "deviation of losses, nats", "ECE, %")
  points, by_class = _points(layer), layer.filter(like="class_")
  with png(path, 10, 4.4) as figure:
    upper, lower = figure.subplots(2, 5, width_ratios=(1, 1, 1, 1, 0.8))
    three = by_class.iloc[0].nlargest(TOP).index
    for name in by_class:
      upper[1].plot(layer["step"], by_class[name], color=style.COLOURS[1] if name in three else style.PALE, lw=0.9)
    upper[1].set_title("(b) class-wise losses, nats")
    for axes, key in zip(upper[[0, 2, 3]], ("total", "deviation", "ece"), strict=True):
      axes.plot(layer["step"], layer[key], color=style.COLOURS[0], lw=1.2)
      for x, offset in zip(points.to_dict("records"), ((4, 3), (-8, 4)), strict=True):
        axes.plot(x["step"], x[key], "o", color=style.INK, ms=3)
        axes.annotate(x["point"], (x["step"], x[key]), offset, textcoords="offset points")
    upper[4].bar(("A", "B"), points["learned"], 0.6, color=style.COLOURS[1], label="three, learned")
    upper[4].bar(("A", "B"), points["others"], 0.6, bottom=points["learned"], color=style.PALE, label="the others")
    upper[4].set(title="(e) loss by classes, nats", ylim=(0, 1.35 * points["total"].iloc[0]))
    upper[4].legend(frameon=False, fontsize=7, loc="upper left")
    for name, colour in zip(fits.STEPS, style.COLOURS, strict=False):
      x = of_curve(results, name)
      for axes, key in zip(lower, ("total", "deviation", "ece"), strict=False):
        axes.plot(x["step"], x[key], color=colour, lw=1.2, label=name)
      lower[3].plot(x["deviation"], x["ece"], color=colour, lw=1.2)
    for panels, letters in ((upper[[0, 2, 3]], "acd"), (lower[:3], "abc")):
      for axes, letter, title in zip(panels, letters, titles, strict=True):
        axes.set(title=f"({letter}) {title}")
    for axes in (*upper[:4], *lower[:3]):
      axes.set(xlabel="step")
    lower[3].set(title="ECE, % against deviation", xlabel="deviation of losses, nats")
    lower[4].legend(*lower[0].get_legend_handles_labels(), frameon=False, loc="center left")
    lower[4].set_axis_off()
    upper[0].set_ylabel("Figure 3: WRN-28, three classes")
    lower[0].set_ylabel("Figure 4: ResNet-110, TS")


STUDY = studies.Study(NAME, ("curve",), tuple((name,) for name in ("layer", *fits.STEPS)), curve, page, draw=draw)

if __name__ == "__main__":
  studies.main(__spec__.name, __doc__, STUDY)
