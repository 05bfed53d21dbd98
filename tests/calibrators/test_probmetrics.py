"""The log losses of probmetrics' own calibrators, to 1e-3 or ours lower; skipped where probmetrics is not installed."""

import numpy as np
import pytest
from scipy import special

from calib_jax import calibrators
from tests.calibrators.data import real, synthetic

theirs = pytest.importorskip("probmetrics.calibrators")
PEERS = {"temperature_scaling": ("TemperatureScalingCalibrator", {}),
         "ensemble_temperature_scaling": ("ETSCalibrator", {"loss": "ce"}),
         "vector_scaling": ("VectorScalingCalibrator", {}),
         "structured_vector_scaling": ("SVSCalibrator", {}),
         "structured_matrix_scaling": ("SMSCalibrator", {})}


@pytest.mark.parametrize("data", ["real", "K=10", "K=100"])
@pytest.mark.parametrize("name", PEERS)
def test_log_losses_are_those_of_probmetrics_or_lower(name, data):
  logits, labels = real() if data == "real" else synthetic(2000, int(data[2:]))
  fit, test = slice(None, None, 2), slice(1, None, 2)
  probs = special.softmax(logits.astype(np.float64), axis=1).astype(np.float32)
  kind, options = PEERS[name]
  peer = getattr(theirs, kind)(**options)
  peer.fit(probs[fit], labels[fit].astype(np.int64))
  calibrator = calibrators.get(name)
  params = calibrator.fit(logits[fit], labels[fit])
  assert params["converged"]
  # Vector scaling of the real rows has its optimum at infinity: what it says of other rows depends on where a fit ends.
  for rows in (fit,) if (name, data) == ("vector_scaling", "real") else (fit, test):
    own = np.asarray(calibrator.apply(params, logits[rows]))
    other = np.log(np.maximum(peer.predict_proba(probs[rows]), 1e-30))
    index = np.arange(len(own)), labels[rows]
    assert -own[index].mean() < -other[index].mean() + 1e-3
