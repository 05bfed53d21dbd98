"""The readings of the selective-risk loss differ in what they are named for, and committed rows are theirs."""

import jax
import jax.numpy as jnp
import pytest

from calib_jax.training import loss_state, models
from experiments.common import rows
from experiments.common.commands import RESULTS
from experiments.papers.reweighted_risk import readings

ROWS = RESULTS / "reweighted_risk_readings_laptop.csv"


def test_the_small_networks_differ_in_batch_norm_alone():
  shapes = []
  for network in (models.SimpleCNN(), readings.PlainCNN()):
    variables = jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
    kernels = jax.tree.map(lambda x: x.shape, {name: layer["kernel"] for name, layer in variables["params"].items()
                                               if "kernel" in layer})
    shapes.append(kernels)
    assert ("batch_stats" in variables) == isinstance(network, models.SimpleCNN)
  assert shapes[0] == shapes[1] and len(shapes[0]) == 2


def _cells(first):
  """The cells of the lines of the page whose first cell begins with one of the words ``first``."""
  lines = (RESULTS / "selective_risk.md").read_text(encoding="utf-8").splitlines()
  return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if line.startswith(first)]


def test_what_the_page_says_of_the_recipe_is_in_the_committed_rows():
  of_readings = {f"{100 * float(row['accuracy']):.1f} / {float(row['nll']):.3f} / {100 * float(row['ece']):.1f}"
                 for row in rows.read(ROWS)}
  assert {cell for line in _cells("| [f]") for cell in line[1:] if cell} <= of_readings
  page = (RESULTS / "selective_risk.md").read_text(encoding="utf-8")
  assert not [text for text in of_readings if text not in page]


def _measured(own):
  """The means of some rows as the page prints them: accuracy, NLL and ECE as trained, and NLL after TS."""
  means = own.groupby("calibrator")[["accuracy", "nll", "ece"]].mean()
  accuracy, nll, ece = means.loc["none"]
  return f"{100 * accuracy:.1f} / {nll:.3f} / {100 * ece:.1f} / {means.loc['TS', 'nll']:.3f}"


@pytest.mark.parametrize(("first", "name", "column", "methods"), [
  ("| [h]", "preresnet56_cifar10", "loss", ("cross_entropy", "selective_risk, released, msp")),
  ("| [b]", "tables_fashion_mnist_mlp", "method", (
    "cross_entropy", "selective_risk", "selective_risk_no_gradient", "selective_risk_clamped"))])
def test_what_the_page_says_of_other_runs_is_in_the_committed_rows(first, name, column, methods):
  every = rows.frame(RESULTS / f"reweighted_risk_{name}.csv")
  (_, *printed), = _cells(first)
  for method, cell in zip(methods, printed, strict=False):
    own = every[every[column] == method]
    assert cell == (_measured(own) if len(own) else "")


def test_the_variants_with_a_gradient_and_scores_of_p_have_a_caution():
  assert "lost accuracy on every network" in loss_state.score_counts(10, variant="printed").caution
  assert loss_state.score_counts(10, variant="clamped").caution
  assert not loss_state.score_counts(10).caution and not loss_state.score_counts(10, variant="released").caution
