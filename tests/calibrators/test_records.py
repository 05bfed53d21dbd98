"""Calibration of records against its definition in float64: the ends, what drives the fit, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from calib_jax import calibrators
from calib_jax.calibrators import records

pytestmark = pytest.mark.xdist_group("records")  # One worker compiles what these tests share.
RNG = np.random.default_rng(0)
ROUNDED = np.round(RNG.beta(5, 2, 400), 1)
CONFIDENCES = {
  "tenths": ROUNDED, "ties at both ends": np.where(RNG.random(400) < 0.4, RNG.integers(0, 2, 400), ROUNDED),
  "continuous": RNG.beta(2, 2, 400), "all at 1": np.ones(400), "one at 1": np.append(np.full(399, 0.3), 1),
  "near 1": np.where(np.arange(400) < 3, 1 - 1e-7, ROUNDED), "one value": np.full(400, 0.8)}
CORRECT = (RNG.random(400) < 0.2 + 0.6 * ROUNDED).astype(np.int32)


def _logits(confidence):
  """Logarithms with -inf, as a user has them."""
  with np.errstate(divide="ignore"):
    return np.log(np.stack([1 - confidence, confidence], axis=-1)).astype(np.float32)


def _ends(confidence):
  """The lower and the upper end by their definition, in plain Python."""
  ends = []
  for distances in (confidence, 1 - confidence):
    number, nearest = 0, 1.0
    for distance in map(float, distances):
      if distance <= 1e-6:
        number += 1
      else:
        nearest = min(nearest, distance)
    ends.append(min(0.5 / max(number, 1), nearest / 2))
  return ends[0], 1 - ends[1]


@pytest.mark.parametrize("kind", CONFIDENCES)
def test_ends_are_half_a_count_of_their_ties_and_cross_no_other_confidence(kind):
  confidence = CONFIDENCES[kind]
  params = calibrators.record_calibration("platt").fit(_logits(confidence), CORRECT)
  ends = [float(special.expit(params[name])) for name in ("least", "most")]
  np.testing.assert_allclose(ends, _ends(confidence), rtol=1e-5)
  inside = confidence[(confidence > 1e-6) & (confidence < 1 - 1e-6)]
  assert 0 < ends[0] < ends[1] < 1 and (not inside.size or ends[0] < inside.min() <= inside.max() < ends[1])
  # Applied to confidences beyond, they are the ends.
  probs = np.exp(calibrators.record_calibration("platt").apply(params, _logits(np.array(
    [0.0, 1e-9, ends[0] / 2, ends[0], ends[1], (1 + ends[1]) / 2, 1 - 1e-7, 1.0]))))[:, 1]
  np.testing.assert_allclose(probs, probs[[3, 3, 3, 3, 4, 4, 4, 4]], rtol=1e-5)


@pytest.mark.parametrize(("kind", "truth", "share"), [
  ("tenths", lambda c: c**2, 0), ("U-shaped", lambda c: 0.15 + 0.7 * c, 0.4)])
def test_platt_is_the_logistic_regression_of_what_was_drawn_in(kind, truth, share):
  rng = np.random.default_rng(3)
  confidence = np.round(rng.beta(0.4, 0.3, 400), 2) if kind == "U-shaped" else ROUNDED
  correct = (rng.random(400) < truth(confidence)).astype(np.int32)

  def fit(share):
    odds = special.logit((1 - share) * np.clip(confidence, *_ends(confidence)) + share / 2)
    best = optimize.minimize(lambda at: np.mean(
      np.logaddexp(0, at[0] * odds + at[1]) - correct * (at[0] * odds + at[1])), (1.0, 0.0))
    return best.fun, special.expit(best.x[0] * odds + best.x[1])

  params = (calibrator := calibrators.record_calibration()).fit(_logits(confidence), correct)
  best = min(records.CHANCE_SHARES, key=lambda s: fit(s)[0])
  np.testing.assert_allclose([params["chance_share"], best], share, rtol=1e-6)
  np.testing.assert_allclose(np.exp(calibrator.apply(params, _logits(confidence)))[:, 1], fit(best)[1], atol=1e-4)


def test_confidences_of_1_do_not_drive_the_temperature():
  confidence = np.where(ROUNDED > 0.8, 1, ROUNDED)
  logits = np.maximum(_logits(confidence), np.log(np.finfo(np.float32).tiny))
  bare = calibrators.temperature_scaling().fit(logits, CORRECT)["temperature"]
  params = calibrators.record_calibration("temperature_scaling").fit(logits, CORRECT)
  assert bare > 30 and params["temperature"] < 10 and params["converged"] and not params["at_bound"]


def test_rows_that_do_not_count_have_no_say_and_integer_weights_are_repeated_rows():
  calibrator, confidence = calibrators.record_calibration("platt"), CONFIDENCES["ties at both ends"]
  where, logits = np.arange(400) < 300, _logits(confidence)
  masked = calibrator.fit(np.where(where[:, None], logits, np.nan), CORRECT, where=where)
  weighted = calibrator.fit(logits, CORRECT, weights=2.0 * where)
  halves = (np.tile(x[:200], (2,) + (1,) * (x.ndim - 1)) for x in (logits, CORRECT))  # Of one shape for all fits.
  repeated, twice = calibrator.fit(*halves), calibrator.fit(logits, CORRECT, weights=2.0 * (np.arange(400) < 200))
  for params, rows in ((masked, confidence[:300]), (weighted, np.tile(confidence[:300], 2))):
    ends = [special.expit(float(params[name])) for name in ("least", "most")]
    np.testing.assert_allclose(ends, _ends(rows), rtol=1e-5)
  for name in repeated:
    np.testing.assert_allclose(twice[name], repeated[name], rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("base", [pytest.param(base, marks=[pytest.mark.slow] * (
  base in ("beta_calibration", "quadratic_scaling", "spline_calibration", "structured_vector_scaling")))
  for base in records.BASES])
def test_files_and_rising_order_hold_for_every_base(base, tmp_path):
  confidence, calibrator = CONFIDENCES["ties at both ends"], calibrators.record_calibration(base)
  params = calibrator.fit(_logits(confidence), CORRECT)
  calibrators.save(tmp_path / "c.npz", params, calibrator)
  stored = calibrators.load(tmp_path / "c.npz")
  assert stored.calibrator == calibrator and stored.calibrator.records
  new = _logits(np.linspace(0, 1, 400))
  probs = np.exp(stored(new))[:, 1]
  np.testing.assert_allclose(probs, np.exp(calibrator.apply(params, new))[:, 1], rtol=1e-6)
  assert np.isfinite(probs).all() and probs.min() > 0 and probs.max() < 1
  if base not in ("histogram_binning", "quadratic_scaling", "spline_calibration"):
    assert np.diff(probs).min() >= -1e-6


def test_fit_and_apply_are_traced_and_mapped():
  calibrator, logits = calibrators.record_calibration("platt"), _logits(CONFIDENCES["tenths"])
  params = calibrator.fit(logits, CORRECT)
  traced = jax.eval_shape(calibrator.fit, logits, CORRECT)
  assert jax.tree.map(lambda x: x.shape, traced) == jax.tree.map(jnp.shape, params)
  log_probs = jax.vmap(lambda z: calibrator.apply(params, z))(jnp.asarray(logits).reshape(20, 20, 2))
  np.testing.assert_allclose(log_probs.reshape(400, 2), calibrator.apply(params, logits), rtol=1e-5)


def test_what_has_classes_is_refused():
  assert calibrators.record_calibration(calibrators.record_calibration("platt")).options["base"] == calibrators.platt()
  for base in (calibrators.platt(top_label=True), calibrators.meta_calibration(target=0.1), calibrators.label_shift()):
    with pytest.raises(ValueError, match="records have a confidence and no classes"):
      calibrators.record_calibration(base)
  with pytest.raises(TypeError, match="options belong to a base chosen by name: got top_label"):
    calibrators.record_calibration(calibrators.platt(), top_label=False)
  with pytest.raises(ValueError, match=r"two columns, of a wrong and of a right answer: got logits \(4, 3\)"):
    calibrators.record_calibration().fit(np.zeros((4, 3), np.float32), np.zeros(4, np.int32))
  with pytest.raises(ValueError, match="at least one example"):
    calibrators.record_calibration().fit(np.zeros((0, 2), np.float32), np.zeros(0, np.int32))
