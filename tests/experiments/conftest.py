"""What tests of experiments share."""

import pytest

from calib_jax.training import config as run_config


@pytest.fixture
def unchecked(monkeypatch):
  """Configs are made without a check, which builds the network of each."""
  monkeypatch.setattr(run_config, "check", lambda config, num_devices: None)
