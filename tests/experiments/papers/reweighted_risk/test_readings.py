"""The readings of the selective-risk loss differ in what they are named for, and committed rows are theirs."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models
from calib_jax.training import loss_state
from experiments.common import rows, sweep
from experiments.common.commands import RESULTS
from experiments.papers.reweighted_risk import readings

ROWS = RESULTS / "reweighted_risk_readings_laptop.csv"


@pytest.mark.parametrize(("name", "variant"), [
  ("no gradient", "stopped"), ("printed", "printed"), ("clamped", "clamped"), ("released", "released"),
  ("released, no decay", "released")])
def test_each_reading_trains_the_loss_that_it_names(name, variant):
  options = sweep.parse(readings.EXPERIMENT, ["--scale=tiny"])
  found = [method.config().loss.primary for method in readings.methods(options) if method.name == name]
  assert len(found) == (3 if name in readings.ON_SMALL else 1)
  assert {loss.variant for loss in found} == {variant}


def test_the_small_networks_differ_in_batch_norm_alone():
  shapes = []
  for network in (models.SimpleCNN(), readings.PlainCNN()):
    variables = jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
    kernels = jax.tree.map(lambda x: x.shape, {name: layer["kernel"] for name, layer in variables["params"].items()
                                               if "kernel" in layer})
    shapes.append(kernels)
    assert ("batch_stats" in variables) == isinstance(network, models.SimpleCNN)
  assert shapes[0] == shapes[1] and len(shapes[0]) == 2


def test_the_committed_rows_are_those_of_their_configs():
  found = {(row["task"], row["method"]): row["declared"] for row in rows.read(ROWS)}
  methods = readings.methods(sweep.parse(readings.EXPERIMENT, ["--images=cifar10_jpeg.npz"]))
  assert {(job.method.task, job.method.name): job.declared for job in sweep.jobs(methods)} == found


def test_what_the_page_says_of_the_recipe_is_in_the_committed_rows():
  every = rows.read(ROWS)
  page = pathlib.Path("docs/selective_risk.md").read_text(encoding="utf-8").partition("## The authors' recipe")[2]
  lines = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line][1:]
  numbers = [f"{100 * float(row['accuracy']):.1f} | {float(row['nll']):.3f} | {100 * float(row['ece']):.1f} |"
             for row in every]
  assert len(set(numbers)) == len(lines) == 15  # The clamp changes nothing of what is printed, nor does the last epoch.
  assert all(any(line.endswith(f"| {number}") for line in lines) for number in numbers)


LEADERBOARDS = {"Fashion-MNIST, MLP": "fashion_mnist_mlp", "Fashion-MNIST, ResNet-8": "fashion_mnist_resnet8",
                "CIFAR-10, ResNet-8": "cifar10_jpeg_resnet8"}
WEIGHTS = {"no gradient": "selective risk", "gradient, clamped": "selective risk, clamped gradient",
           "gradient of the released code": "selective risk, released"}


def test_what_the_page_says_of_the_leaderboards_is_in_their_rows():
  lines = [[cell.strip() for cell in line.split("|")[1:-1]]
           for line in pathlib.Path("docs/selective_risk.md").read_text(encoding="utf-8").splitlines()
           if line.startswith(tuple(f"| {network} |" for network in LEADERBOARDS))]
  assert len(lines) == len(LEADERBOARDS) * len(WEIGHTS)
  for network, stem in LEADERBOARDS.items():
    every = rows.read(RESULTS / f"leaderboard_{stem}.csv")
    trials = {(row["fields"], f"{100 * float(row['accuracy']):.1f}")
              for row in rows.read(RESULTS / f"leaderboard_{stem}_trials.csv")}
    if not set(WEIGHTS.values()) <= {row["method"] for row in every}:
      continue  # Rows from before the readings with a gradient.
    for _, weights, accuracies, coverage, *printed in (line for line in lines if line[0] == network):
      own = [row for row in every if row["method"] == WEIGHTS[weights]]
      assert {json.loads(row["chosen"])["loss.primary.low_confidence_coverage"] for row in own} == {float(coverage)}
      means = {(calibrator, name): np.nanmean([float(row[name]) for row in own if row["calibrator"] == calibrator])
               for calibrator in ("none", "TS") for name in ("accuracy", "nll", "ece")}
      assert printed == [f"{100 * means['none', 'accuracy']:.1f}", f"{means['none', 'nll']:.3f}",
                         f"{100 * means['none', 'ece']:.1f}", f"{means['TS', 'nll']:.3f}",
                         f"{100 * means['TS', 'ece']:.1f}"], (network, weights)
      for value, accuracy in zip((0.25, 0.5, 0.9), accuracies.split(" / "), strict=True):
        assert (json.dumps({"loss.primary.low_confidence_coverage": value}), accuracy) in trials, (network, weights)


def test_the_variants_with_a_gradient_and_scores_of_p_have_a_caution():
  assert "lost accuracy in nearly all settings" in loss_state.score_counts(10, variant="printed").caution
  assert loss_state.score_counts(10, variant="clamped").caution
  assert not loss_state.score_counts(10).caution and not loss_state.score_counts(10, variant="released").caution
