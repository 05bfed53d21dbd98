"""The figure of classifier_level.py: logits, angles between classes, and q (Ni et al., Figures 2 and 8).

Run: python -m experiments.papers.mac_cal.classifier_level_figure --data=IMAGES.npz [--q RESULTS_q.csv] [--output PNG]

Trains one network, as that experiment does, and MaC-Cal on its features, and draws the logits of test images by t-SNE
and the angles between the classes' weights in the last layer, before and after. With `--q`, the file of that experiment
that holds q, it also draws q over the epochs.
"""

import pathlib

import numpy as np

from calib_jax.evaluation import reports
from experiments.common import rows
from experiments.common.figures import png
from experiments.papers.mac_cal import classifier_level as experiment

# More curves of q than these lie on each other.
SHOWN = ("MaC-Cal", "MaC-Cal, stored", "MaC-Cal, width 512", "MaC-Cal, printed", "+ static adaptive sparsity",
         "printed, gamma 0.5", "printed, gamma 1")


def curves(path: pathlib.Path, first: str = "vanilla") -> dict[str, np.ndarray]:
  """Returns q ``[S, T + 1]`` by the name of the second stage, for those of ``SHOWN`` in which it changes."""
  table = rows.frame(path)
  table = table[(table["first"] == first) & table["second"].isin(SHOWN)]
  values = {name: part.pivot(index="seed", columns="epoch", values="q").to_numpy()
            for name, part in table.groupby("second", sort=False)}
  return {name: x for name, x in values.items() if np.ptp(x) > 0}


def draw(panels: list, q: dict[str, np.ndarray], class_names: list[str], path: pathlib.Path) -> None:
  """Draws ``(title, logits, labels, class vectors)``, a row of panels each, and a third row of curves of q."""
  num_rows = len(panels) + bool(q)
  with png(path, 9, 3.6 * num_rows, rc={}, dpi=130) as figure:
    grid = figure.subplots(num_rows, 2, squeeze=False)
    for (left, right), (title, logits, labels, vectors) in zip(grid, panels, strict=False):
      reports.logit_map(left, logits, labels, class_names=class_names)
      left.set_title(title, fontsize=9)
      reports.angle_matrix(right, vectors, class_names=class_names)
    if q:
      grid[-1, 1].remove()
      reports.keep_over_epochs(grid[-1, 0], q).legend(frameon=False, fontsize=7, loc="upper left",
                                                      bbox_to_anchor=(1, 1))


def main() -> None:
  """Trains the two stages of one seed, and draws."""
  parser = experiment.parser(__spec__.name, __doc__)
  parser.set_defaults(num_seeds=1)
  parser.add_argument("--q", type=pathlib.Path, help="the file of q over epochs")
  parser.add_argument("--output", type=pathlib.Path, default="classifier_level.png")
  options = parser.parse_args()
  splits = experiment.load(options)
  variables, before, features = experiment.first_stage(options, splits)
  second, after = experiment.train(experiment.second_config(options, "MaC-Cal"), features, True, "MaC-Cal")
  with np.load(options.data, allow_pickle=False) as file:
    names = list(map(str, file["class_names"])) if "class_names" in file else []
  panels = [(title, part.predictions[0]["test"]["logits"], splits[0].test.labels, kernel[0].T)
            for title, part, kernel in (("vanilla", before, variables["params"]["head"]["kernel"]),
                                        ("MaC-Cal", after, second["params"]["head"]["logits"]["kernel"]))]
  draw(panels, curves(options.q) if options.q else {}, names, options.output)
  print(f"{options.output} holds the figure.")


if __name__ == "__main__":
  main()
