"""Fits refuse values from which nothing can be learnt; within jit they say that they have not converged."""

import jax
import numpy as np
import pytest

from calib_jax import calibrators
from tests.calibrators.data import CASES, synthetic

LOGITS, LABELS = synthetic(40, 5)
BAD = {
  "nan": (np.where(np.eye(40, 5, dtype=bool), np.nan, LOGITS), LABELS, "finite or -inf: 5 of 40 rows are not"),
  "infinite": (np.where(np.arange(40)[:, None] == 3, np.inf, LOGITS), LABELS, "1 of 40 rows is not; the first, row 3"),
  # Finite in float64, but fits are in float32.
  "too large": (np.where(np.arange(40)[:, None] == 3, np.float64(1e40), LOGITS), LABELS,
                r"finite or -inf: 1 of 40 rows is not; the first, row 3, holds 1e\+40"),
  "no class": (np.where(np.arange(40)[:, None] == 3, -np.inf, LOGITS), LABELS,
               "each row of logits must hold a finite number: 1 of 40 rows does not; the first, row 3, holds -inf"),
  "label absent": (np.where((np.arange(40)[:, None] == 3) & (np.arange(5) == LABELS[3]), -1.1e4, LOGITS), LABELS,
                   "labels must be classes that their rows have .*: 1 of 40 rows is not; the first, row 3, holds"),
  "labels from 1": (LOGITS, LABELS + 1, r"labels must be in \[0, 5\)"),
  "label -1": (LOGITS, np.where(np.arange(40) == 7, -1, LABELS), "the first, row 7, holds -1"),
  "empty": (LOGITS[:0], LABELS[:0], "at least one example to fit"),
}
WITHOUT_PARAMS = ("identity", "focal_calibration")


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("bad", BAD)
def test_bad_values_are_named(bad):
  logits, labels, message = BAD[bad]
  for name in ("temperature_scaling", "isotonic"):  # Compiled, and on the host.
    with pytest.raises(ValueError, match=message):
      calibrators.get(name).fit(logits, labels)


@pytest.mark.parametrize("name", [name for name in CASES if name not in WITHOUT_PARAMS])
def test_every_fit_refuses_bad_values_and_nothing_that_counts(name):
  calibrator, (logits, labels, message) = calibrators.get(name, **CASES[name]), BAD["nan"]
  with pytest.raises(ValueError, match=message):
    calibrator.fit(logits, labels)
  with pytest.raises(ValueError, match="at least one example to fit"):
    calibrator.fit(LOGITS, LABELS, where=np.zeros(40, bool))


@pytest.mark.parametrize("name", ["temperature_scaling", "platt"])
def test_bad_values_and_weights_within_jit_do_not_converge(name):
  fit = jax.jit(lambda logits, labels, where, weights: calibrators.get(name).fit(
    logits, labels, where=where, weights=weights)["converged"])
  every, none, ones = np.ones(40, bool), np.zeros(40, bool), np.ones(40, np.float32)
  assert fit(LOGITS, LABELS, every, ones) and fit(LOGITS, LABELS, every, 3 * ones)
  assert not fit(LOGITS, LABELS, every, 0 * ones)
  for wrong in (-1, np.nan, np.inf):
    assert not fit(LOGITS, LABELS, every, np.where(np.arange(40) == 7, np.float32(wrong), ones))
  for kind in ("nan", "infinite", "no class", "label absent", "labels from 1", "label -1"):
    logits, labels, _ = BAD[kind]
    assert not fit(logits.astype(np.float32), labels, every, ones)
  assert not fit(LOGITS, LABELS, none, ones)
  # Values of rows that do not count may be anything.
  logits, labels, _ = BAD["nan"]
  assert fit(logits.astype(np.float32), labels, ~np.isnan(logits).any(1), ones)


@pytest.mark.parametrize("name", WITHOUT_PARAMS)
def test_fits_without_parameters_refuse_labels_out_of_range(name):
  calibrator = calibrators.get(name, **CASES[name])
  labels = np.where(np.arange(40) == 7, -100, LABELS)
  with pytest.raises(ValueError, match="labels must be in .*the first, row 7, holds -100"):
    calibrator.fit(LOGITS, labels)
  assert calibrator.fit(LOGITS, labels, where=labels >= 0) == {}
