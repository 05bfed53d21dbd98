"""Figures 3 and 4 of Jung et al. 2023: class-wise losses and calibration error while a calibrator is fitted.

Run: python -m experiments.papers.classwise_loss_scaling.class_losses [--workdir=experiments/results]

Figure 3, of WRN-28: a linear layer over the logits, at first the identity, learns from the three classes of the largest
losses alone, by 1,000 gradient steps (rate 0.001; the paper prints neither). A and B have the same total loss, and
panel (e) says which part of it the three classes have.
Figure 4, of ResNet-110: temperature scaling with each objective, by the paper's own steps. The paper has CIFAR-10; here
are its authors' logits of CIFAR-10-LT. The class-wise losses are those of the validation images, which are fitted, and
the ECE (15 equal-width bins) is that of the test images. The curves are written to `classwise_loss_scaling_curves.csv`,
and a page and the figure beside it. It takes half a minute.
"""

from collections.abc import Sequence
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from calib_jax import losses
from calib_jax._system import files
from calib_jax.reports import style
from experiments.common import commands, markdown, rows
from experiments.papers.classwise_loss_scaling import fits, table2

Array = jax.Array
NAME = "classwise_loss_scaling_curves"
LAYER, STEPPED = "wide_resnet28", "resnet110"  # The networks of the two figures.
RATE, STEPS, TOP = 0.001, 1000, 3
EVERY = 10  # Steps between the points of a curve.
CURVES = {"layer": "linear layer, three classes", **{name: f"TS, {name}" for name in fits.STEPS}}


@functools.partial(jax.jit, static_argnums=0)
def _measured(log_probs, params, validation, test) -> tuple[Array, Array]:
  """The class-wise losses ``[P, K]`` of the validation split, and the ECE ``[P]`` in percent of the test split."""
  def at(params):
    return class_losses(log_probs(params, validation[0]), validation[1]), table2.ece(
      *table2.top_of(log_probs(params, test[0]), test[1]))

  return jax.lax.map(at, params)


def class_losses(log_probs: Array, labels: Array) -> Array:
  """The mean NLL of each class, ``[K]`` (Eq. 3 as released)."""
  counts = jnp.bincount(labels, length=log_probs.shape[1]).astype(log_probs.dtype)
  return jnp.zeros_like(counts).at[labels].add(losses.cross_entropy(log_probs, labels)) / counts


def _layer(params: dict, logits: Array) -> Array:
  return jax.nn.log_softmax(jnp.dot(logits, params["kernel"], precision="highest") + params["bias"][None, :])


@jax.jit
def learned(logits: Array, labels: Array) -> dict:
  """The linear layer at the start and after every step, as it learns the classes of the largest losses (Eq. 2)."""
  num_classes = logits.shape[1]
  start = {"kernel": jnp.eye(num_classes), "bias": jnp.zeros(num_classes)}
  learns = jnp.argsort(class_losses(_layer(start, logits), labels))[-TOP:]

  def step(params, _):
    gradient = jax.grad(lambda p: jnp.sum(class_losses(_layer(p, logits), labels)[learns]))(params)
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
  return [{"curve": name, "step": str(step), "total": f"{x.sum():.5f}", "deviation": f"{x.std(ddof=1):.5f}",
           "ece": f"{error:.4f}", **{f"class_{i}": f"{loss:.5f}" for i, loss in enumerate(x)}}
          for step, x, error in zip(steps, by_class, np.asarray(ece), strict=True)]


def of_curve(results: pd.DataFrame, name: str) -> dict[str, np.ndarray]:
  """Returns the columns of a curve."""
  part = results[results["curve"] == name].drop(columns="curve")
  return {key: part[key].to_numpy(float) for key in part}


def equal_totals(total: np.ndarray) -> tuple[int, int]:
  """Returns two points of a curve that falls and then rises with the same total: the last possible, and its twin.

  >>> equal_totals(np.array([3.0, 2.0, 1.0, 2.1, 4.0]))
  (1, 3)
  """
  lowest = int(total.argmin())
  after = int(np.flatnonzero(total <= total[0])[-1])
  return int(np.abs(total[:lowest + 1] - total[after]).argmin()), after


def shares(layer: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
  """Returns the parts of the total loss that the three learned classes and the others have, at each point.

  >>> one, others = shares({"class_0": np.array([1.0]), **{f"class_{i}": np.array([2.0]) for i in (1, 2, 3)}})
  >>> float(one[0]), float(others[0])
  (6.0, 1.0)
  """
  by_class = np.array([layer[key] for key in layer if key.startswith("class_")])
  learns = np.isin(np.arange(len(by_class)), np.argsort(by_class[:, 0])[-TOP:])
  return by_class[learns].sum(0), by_class[~learns].sum(0)


def page(results: pd.DataFrame) -> str:
  """Returns the page in Markdown."""
  layer, curves = of_curve(results, "layer"), {name: of_curve(results, name) for name in fits.STEPS}
  learned_loss, other_loss = shares(layer)
  points = [[point, f"{layer['step'][i]:.0f}", f"{layer['total'][i]:.3f}", f"{learned_loss[i]:.3f}",
             f"{other_loss[i]:.3f}", f"{layer['deviation'][i]:.3f}", f"{layer['ece'][i]:.2f}"]
            for point, i in zip("AB", equal_totals(layer["total"]), strict=True)]
  deviation, total = (_correlation(layer, key) for key in ("deviation", "total"))
  objectives = [[name, f"{x['step'][-1]:.0f}",
                 *(f"{x[key][0]:.2f}, {x[key].min():.2f}, {x[key][-1]:.2f}" for key in ("total", "deviation", "ece")),
                 _correlation(x, "deviation"), _correlation(x, "total")] for name, x in curves.items()]
  return "\n".join([
    "# Class-wise losses and calibration error, after Figures 3 and 4 of Jung et al. 2023", "",
    *markdown.wrapped("`python -m experiments.papers.classwise_loss_scaling.class_losses` wrote this page from the "
                      "authors' logits of CIFAR-10-LT. Losses are those of validation images in nats: their total and "
                      "standard deviation over classes. ECE is that of test images in percent."), "",
    f"![Total loss, deviation of class-wise losses and ECE by the steps of four objectives]({NAME}.png)", "",
    "Figure 3, a linear layer that learns three classes of WRN-28:", "",
    markdown.table(["point", "step", "total loss", "of the three", "of the others", "deviation", "ECE"], points), "",
    *markdown.wrapped(f"""Over all steps the correlation of the ECE with the deviation is {deviation}, and with the
      total loss {total}. The paper says that the total does not decide the ECE, and that the deviation is highly
      correlated with it."""), "", "Figure 4, TS of ResNet-110 by the paper's steps:", "",
    markdown.table(["objective", "steps", "total: start, lowest, end", "deviation: start, lowest, end",
                    "ECE: start, lowest, end", "correlation of ECE with deviation", "with total"], objectives)]) + "\n"


def _correlation(x: dict[str, np.ndarray], key: str) -> str:
  return f"{np.corrcoef(x[key], x['ece'])[0, 1]:.2f}"


@style.styled
def draw(results: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws both figures in one PNG, a row each."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(10, 4.4), layout="constrained")
  panels = figure.subplots(2, 5, width_ratios=(1, 1, 1, 1, 0.8))
  layer = of_curve(results, "layer")
  points = equal_totals(layer["total"])
  by_class = [layer[key] for key in layer if key.startswith("class_")]
  learns = np.argsort([x[0] for x in by_class])[-TOP:]
  for i, x in enumerate(by_class):
    panels[0, 1].plot(layer["step"], x, color=style.COLOURS[1] if i in learns else style.PALE, lw=0.9)
  panels[0, 1].set_title("(b) class-wise losses, nats")
  for axes, key in zip(panels[0, [0, 2, 3]], ("total", "deviation", "ece"), strict=True):
    axes.plot(layer["step"], layer[key], color=style.COLOURS[0], lw=1.2)
    for point, i, offset in zip("AB", points, ((4, 3), (-8, 4)), strict=True):
      axes.plot(layer["step"][i], layer[key][i], "o", color=style.INK, ms=3)
      axes.annotate(point, (layer["step"][i], layer[key][i]), offset, textcoords="offset points")
  learned_loss, other_loss = (x[list(points)] for x in shares(layer))
  for heights, bottom, colour, text in ((learned_loss, 0, style.COLOURS[1], "three, learned"),
                                        (other_loss, learned_loss, style.PALE, "the others")):
    panels[0, 4].bar(("A", "B"), heights, 0.6, bottom=bottom, color=colour, label=text)
  panels[0, 4].set(title="(e) loss by classes, nats", ylim=(0, 1.35 * layer["total"][points[0]]))
  panels[0, 4].legend(frameon=False, fontsize=7, loc="upper left")
  for i, name in enumerate(fits.STEPS):
    x = of_curve(results, name)
    for axes, key in zip(panels[1, :3], ("total", "deviation", "ece"), strict=True):
      axes.plot(x["step"], x[key], color=style.COLOURS[i], lw=1.2, label=name)
    panels[1, 3].plot(x["deviation"], x["ece"], color=style.COLOURS[i], lw=1.2)
  titles = {"total": "total loss, nats", "deviation": "deviation of losses, nats", "ece": "ECE, %"}
  for axes, letter, key in zip(panels[0, [0, 2, 3]], "acd", titles, strict=True):
    axes.set(title=f"({letter}) {titles[key]}")
  for axes, letter, key in zip(panels[1, :3], "abc", titles, strict=True):
    axes.set(title=f"({letter}) {titles[key]}")
  for axes in (*panels[0, :4], *panels[1, :3]):
    axes.set(xlabel="step")
  panels[1, 3].set(title="ECE, % against deviation", xlabel="deviation of losses, nats")
  panels[1, 4].legend(*panels[1, 0].get_legend_handles_labels(), frameon=False, loc="center left")
  panels[1, 4].set_axis_off()
  panels[0, 0].set_ylabel("Figure 3: WRN-28, three classes")
  panels[1, 0].set_ylabel("Figure 4: ResNet-110, TS")
  files.write(path, lambda file: figure.savefig(file, format="png", dpi=160))


def main(arguments: Sequence[str] | None = None) -> None:
  """Computes the curves, and writes them, the page and the figure."""
  parser = commands.parser(__spec__.name, __doc__, results=True)
  options = parser.parse_args(arguments)
  results = []
  for name, title in CURVES.items():
    results += curve(name)
    print(f"{title}: ECE {results[-1]['ece']}% after {results[-1]['step']} steps", flush=True)
  path = options.workdir / f"{NAME}.csv"
  rows.write(path, results)
  table = rows.frame(path)
  files.write_text(path.with_suffix(".md"), page(table))
  draw(table, path.with_suffix(".png"))


if __name__ == "__main__":
  main()
