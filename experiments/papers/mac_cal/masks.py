"""Figure 1 of Ni et al.: what random masks in the classifier of a trained network do to confidence and accuracy.

Run: python -m experiments.papers.mac_cal.masks --data=IMAGES.npz [--model=mlp] [--workdir=experiments/results]

The networks are those of classifier_level.py. "Masked inference" sets a share of the weights of the last layer to 0 at
prediction, with a new mask for every 100 test images; "masked retraining" fits a new last layer on the frozen features,
with a new mask in every step, and predicts with all weights, as the first row of Table 5 does. Ten seeds of the MLP
take about five minutes.
"""

from collections.abc import Iterator, Sequence
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from calib_jax import metrics
from calib_jax.evaluation.reports import style
from experiments.common import markdown, studies
from experiments.common.figures import png
from experiments.papers.mac_cal import classifier_level as experiment

RATIOS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
SHOWN = 0.5  # The ratio of the histogram.
FORWARD = 100  # Images of one mask.
BINS = 20
COLUMNS = {"accuracy": "accuracy, %", "confidence": "confidence, %", "ece": "ECE, %"}
METHODS = ("masked inference", "masked retraining")


@jax.jit
def masked_logits(features: jax.Array, kernel: jax.Array, bias: jax.Array, ratio: float, key: jax.Array) -> jax.Array:
  """The logits ``[N, K]`` of a layer that leaves out each weight, but no bias, with probability ``ratio``.

  There is a mask for every ``FORWARD`` of the features ``[N, D]``, N a multiple of it.

  >>> masked_logits(jnp.ones((100, 2)), jnp.ones((2, 3)), jnp.zeros(3), 1.0, jax.random.key(0)).max()
  Array(0., dtype=float32)
  """
  passes = features.reshape(-1, FORWARD, features.shape[1])
  kept = jax.random.bernoulli(key, 1 - ratio, (len(passes), *kernel.shape))
  logits = jnp.einsum("pnd,pdk->pnk", passes, jnp.where(kept, kernel[None], 0), precision="highest")
  return logits.reshape(len(features), -1) + bias[None, :]


def measured(logits: np.ndarray, labels: np.ndarray) -> dict[str, str]:
  """Returns accuracy, mean confidence and ECE in percent, and the shares of test images by confidence."""
  probs = jax.nn.softmax(jnp.asarray(logits))
  confidence, correct = metrics.top_label(probs, labels)
  shares = np.histogram(np.asarray(confidence), BINS, (0, 1))[0] / len(labels)
  values = {"accuracy": 100 * jnp.mean(correct), "confidence": 100 * jnp.mean(confidence),
            "ece": 100 * metrics.expected_calibration_error(probs, labels)}
  return {**{name: f"{float(value):.4f}" for name, value in values.items()},
          **{f"bin_{i}": f"{share:.4f}" for i, share in enumerate(shares)}}


def page(results: pd.DataFrame, command: str, name: str) -> str:
  """Returns the page in Markdown: means over seeds."""
  means = results.groupby(["method", "ratio"], sort=False)[list(COLUMNS)].agg(lambda x: np.mean(x.to_numpy()))
  return markdown.filled("papers/mac_cal/masks.md.jinja", command=command, name=name, means=means,
                         num_seeds=results["seed"].nunique())


def draw(results: pd.DataFrame, path: pathlib.Path) -> None:
  """Draws the histogram of confidences, and accuracy and confidence against the share of masked weights."""
  cells = results.drop(columns="seed").groupby(["method", "ratio"], sort=False)
  means, errors = cells.mean(), cells.sem()
  with png(path, 8.6, 2.7) as figure:
    histogram, *panels = figure.subplots(1, 3)
    curves = (("as trained", METHODS[0], 0.0), *((f"{method}, {SHOWN:g}", method, SHOWN) for method in METHODS))
    for i, (label, method, ratio) in enumerate(curves):
      shares = [100 * means.loc[(method, ratio), f"bin_{j}"] for j in range(BINS)]
      histogram.stairs(shares, np.linspace(0, 1, BINS + 1), color=style.COLOURS[i], lw=1.4, label=label)
    histogram.set(xlabel="confidence", ylabel="test images, %", title="(a) confidence", xlim=(0, 1), yscale="log",
                  ylim=(0.01, 130))
    histogram.legend(frameon=False, fontsize=7, loc="upper left")
    for axes, letter, column in zip(panels, "bc", ("accuracy", "confidence"), strict=True):
      for i, method in enumerate(METHODS):
        mean, error = means.loc[method, column], errors.loc[method, column]
        axes.errorbar(mean.index, mean, error.fillna(0), marker=style.MARKERS[i], ms=4, lw=1.2,
                      color=style.COLOURS[i + 1], label=method)
      axes.set(xlabel="share of weights masked", title=f"({letter}) {COLUMNS[column]}")
    panels[0].legend(frameon=False, fontsize=7, loc="lower left")


def main(arguments: Sequence[str] | None = None) -> None:
  """Trains the networks and the new last layers, and writes the rows, the page and the figure."""
  options = experiment.parser(__spec__.name, __doc__).parse_args(arguments)
  splits = experiment.load(options)
  labels = splits[0].test.labels[:len(splits[0].test.labels) // FORWARD * FORWARD]
  variables, _, features = experiment.first_stage(options, splits)
  head = variables["params"]["head"]

  def masked(method: str, ratio: str) -> Iterator[dict[str, object]]:
    if method == METHODS[0]:
      logits = [masked_logits(part.test.images[:len(labels), 0, 0], head["kernel"][seed], head["bias"][seed],
                              float(ratio), jax.random.key(seed)) for seed, part in enumerate(features)]
    else:
      second = experiment.second_config(options, "masked retraining", f"head.keep={1 - float(ratio):g}")
      _, trained = experiment.train(second, features, True, f"{method}, {ratio}")
      logits = [of_seed["test"]["logits"][:len(labels)] for of_seed in trained.predictions]
    yield from ({"seed": seed, **measured(x, labels)} for seed, x in enumerate(logits))

  stem = f"mac_cal_masks_{pathlib.Path(options.data).stem}_{options.model}"
  studies.Study(stem, ("method", "ratio"), [(method, f"{ratio:g}") for method in METHODS for ratio in RATIOS], masked,
                lambda table: page(table, experiment.command(options, "masks"), stem), options.workdir, draw).publish()


if __name__ == "__main__":
  main()
