"""The readings of the selective-risk loss differ in what they are named for, and committed rows are theirs."""

import pytest

from experiments.common import rows, sweep
from experiments.common.commands import RESULTS
from experiments.papers.reweighted_risk import readings

ROWS = RESULTS / "reweighted_risk_readings_laptop.csv"


@pytest.mark.parametrize(("name", "stop_gradient", "clamp", "threshold_gradient"), [
  ("no gradient", True, True, False), ("printed", False, False, False), ("clamped", False, True, False),
  ("released", False, True, True), ("released, no decay", False, True, True)])
def test_each_reading_trains_the_loss_that_it_names(name, stop_gradient, clamp, threshold_gradient):
  options = sweep.parse(readings.EXPERIMENT, ["--scale=tiny"])
  method, = (method for method in readings.methods(options) if method.name == name)
  loss = method.config().loss.primary
  assert (loss.stop_gradient, loss.clamp, loss.threshold_gradient) == (stop_gradient, clamp, threshold_gradient)


def test_the_committed_rows_are_those_of_their_configs():
  found = {row["method"]: row["declared"] for row in rows.read(ROWS)}
  methods = readings.methods(sweep.parse(readings.EXPERIMENT, ["--images=cifar10_jpeg.npz"]))
  wanted = [method for method in methods if method.name in found]
  assert {job.method.name: job.declared for job in sweep.jobs(wanted)} == found
