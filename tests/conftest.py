"""Fixtures of tests that train: runs write neither event files nor, on request, figures."""

import importlib.util

import pytest

# A program of its own, which would be looked through for doctests: that imports TensorFlow, four seconds a worker.
collect_ignore = ["write_tfds.py"]


@pytest.fixture(scope="session", autouse=True)
def _no_events():
  """Runs in this process write no event files, because TensorFlow takes seconds to import."""
  with pytest.MonkeyPatch.context() as patch:
    if importlib.util.find_spec("flax"):
      patch.setattr("calib_jax.training.metric_log.EVENTS", False)
    yield


@pytest.fixture(scope="module")
def no_figures():
  """Runs in this process write no figures and no page: these are those of any run, and take longer than short runs."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr("calib_jax.report_files.missing_for_figures", lambda: ["matplotlib"])
    yield
