"""Fixtures: runs write neither event files nor, on request, figures, and what a module registers ends with it."""

import importlib.util
import sys

import pytest

# A program of its own, which would be looked through for doctests: that imports TensorFlow, four seconds a worker.
collect_ignore = ["write_tfds.py"]


@pytest.fixture(scope="session", autouse=True)
def _no_events():
  """Runs in this process write no event files, because TensorFlow takes seconds to import."""
  with pytest.MonkeyPatch.context() as patch:
    if importlib.util.find_spec("flax"):
      patch.setattr("calib_jax.training.run_log.metric_log.EVENTS", False)
    yield


@pytest.fixture(scope="module")
def no_figures():
  """Runs in this process write no figures and no page: these are those of any run, and take longer than short runs."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr("calib_jax.evaluation.reports.outputs.missing_for_figures", lambda: ["matplotlib"])
    yield


@pytest.fixture(scope="module", autouse=True)
def _own_registries():
  """Functions that a test registers under an import path are not there for the tests of other modules."""
  yield
  registries = []
  if losses := sys.modules.get("calib_jax.losses"):
    registries += [losses.PER_EXAMPLE, losses.PER_BATCH]
  if own_code := sys.modules.get("calib_jax.training.config.imports"):
    registries += own_code.REGISTRIES.values()
  for registry in registries:
    for name in [name for name in registry if ":" in name]:
      del registry[name]
