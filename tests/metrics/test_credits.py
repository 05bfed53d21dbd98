"""``correct`` of every function: bools, zeros and ones, and credits, against float64; all else is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses, metrics, thresholds
from calib_jax.evaluation import reports

RNG = np.random.default_rng(0)
N = 1003
CONFIDENCE = np.round(RNG.uniform(size=N), 2).astype(np.float32)  # With ties.
CREDIT = np.round(np.clip(CONFIDENCE + 0.3 * RNG.normal(size=N), 0, 1), 2).astype(np.float32)
RIGHT = RNG.uniform(size=N) < CONFIDENCE


def _rows(c, num_bins):
  """The rows of each bin (lo, hi], whose edges have the precision of the data."""
  index = np.searchsorted((np.arange(1, num_bins) / num_bins).astype(np.float32), c)
  return [np.flatnonzero(index == b) for b in range(num_bins)]


def _binned(c, y, num_bins, binning, norm, debias=False):
  """Bins of the definition, in float64; rows of a tie that an edge divides count as the mean of the tie."""
  order = np.argsort(c, kind="stable")
  c, y = c[order], y[order]
  squares = y**2
  if binning == "equal_width":
    groups = _rows(c, num_bins)
  else:
    groups = np.array_split(np.arange(len(c)), num_bins)
    y, squares = (np.array([x[c == value].mean() for value in c]) for x in (y, squares))
  total = 0.0
  for rows in filter(len, groups):
    gap, size = abs(y[rows].mean() - c[rows].mean()), len(rows)
    if debias:
      if size > 1:
        total += size / len(c) * (gap**2 - (squares[rows].mean() - y[rows].mean()**2) / (size - 1))
    else:
      total += size / len(c) * gap**norm
  return max(total, 0) ** (1 / norm)


def _sweep(c, y, binning):
  last = 1
  for m in range(2, len(c) + 1):
    order = np.argsort(c, kind="stable")
    ties = np.array([y[c == value].mean() for value in c])[order]
    groups = np.array_split(np.arange(len(c)), m) if binning == "equal_mass" else _rows(c[order], m)
    means = [ties[rows].mean() for rows in groups if len(rows)]
    if (np.diff(means) < -1e-6).any():
      break
    last = m
  return _binned(c, y, last, binning, 2)


def _ks(c, y):
  order = np.argsort(c, kind="stable")
  sums = np.cumsum((c - y)[order])
  return np.abs(sums[np.append(np.diff(c[order]) > 0, True)]).max() / len(c)


def _aurc(c, y):
  total = 0.0
  for value in np.unique(c):  # Each of the tied examples adds the mean risk of the tie.
    above, tie = (1 - y)[c > value], (1 - y)[c == value]
    total += sum((above.sum() + j * tie.mean()) / (len(above) + j) for j in range(1, len(tie) + 1))
  return total / len(c)


EQUAL = {  # Metrics, and what they are of float64 pairs.
  **{f"{binning} norm {norm}": (functools.partial(metrics.calibration_error, num_bins=7, binning=binning, norm=norm),
                                functools.partial(_binned, num_bins=7, binning=binning, norm=norm))
     for binning in ("equal_width", "equal_mass") for norm in (1, 2)},
  **{f"debiased {binning}": (functools.partial(metrics.calibration_error, num_bins=20, binning=binning, norm=2,
                                               debias=True),
                             functools.partial(_binned, num_bins=20, binning=binning, norm=2, debias=True))
     for binning in ("equal_width", "equal_mass")},
  "ks": (metrics.ks_calibration_error, _ks),
  "netcal": (metrics.CONVENTIONS["netcal"], functools.partial(_binned, num_bins=10, binning="equal_width", norm=1)),
}


@pytest.mark.parametrize(("name", "kind"), [
  *((name, kind) for name in EQUAL for kind in ("bools", "zeros and ones", "credits")),
  *(("ks", kind) for kind in ("integers", "credits in float64"))])
def test_errors_of_bools_and_credits_are_those_of_float64(name, kind):
  metric, reference = EQUAL[name]
  correct = {"bools": RIGHT, "zeros and ones": RIGHT.astype(np.float32), "integers": RIGHT.astype(int),
             "credits": CREDIT, "credits in float64": CREDIT.astype(np.float64)}[kind]
  c = np.clip(CONFIDENCE + np.float32(1e-4), 0, 1) if name == "netcal" else CONFIDENCE  # Its edges close elsewhere.
  expected = reference(c.astype(np.float64), correct.astype(np.float64))
  np.testing.assert_allclose(metric(c, correct), expected, rtol=2e-5, atol=2e-7)
  np.testing.assert_allclose(metric(c.tolist(), correct.tolist()), expected, rtol=2e-5, atol=2e-7)
  if kind == "credits":
    np.testing.assert_allclose(jax.jit(metric)(c, correct), expected, rtol=2e-5, atol=2e-7)


@pytest.mark.parametrize("binning", ["equal_mass", "equal_width"])
@pytest.mark.parametrize("correct", [RIGHT, RIGHT.astype(np.float32), CREDIT], ids=["bools", "floats", "credits"])
def test_sweep_and_scores_by_rank_are_those_of_float64(correct, binning):
  c, y = CONFIDENCE[:120], correct[:120]
  wide = c.astype(np.float64), y.astype(np.float64)
  np.testing.assert_allclose(metrics.sweep_calibration_error(c, y, binning=binning), _sweep(*wide, binning), rtol=2e-5)
  np.testing.assert_allclose(metrics.aurc(c, y), _aurc(*wide), rtol=2e-5)
  np.testing.assert_allclose(metrics.aurc(c, y), metrics.aurc(c, risk=1 - y.astype(np.float32)), rtol=1e-6)
  np.testing.assert_allclose(metrics.excess_aurc(c, y), metrics.excess_aurc(c, risk=1 - y.astype(np.float32)),
                             atol=1e-6)
  curve, other = metrics.risk_coverage_curve(c, y), metrics.risk_coverage_curve(c, risk=1 - y.astype(np.float32))
  np.testing.assert_allclose(curve.risk, other.risk, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("metric", [
  metrics.calibration_error, functools.partial(metrics.calibration_error, binning="equal_mass", norm=2),
  metrics.ks_calibration_error, metrics.smooth_calibration_error, metrics.sweep_calibration_error, metrics.aurc])
def test_a_credit_is_the_mean_of_outcomes_that_share_a_confidence(metric):
  """Ten outcomes of one confidence are ten credits of their mean, whatever the metric, with masks and weights."""
  c = np.repeat(np.linspace(0.03, 0.97, 60).astype(np.float32), 10)
  y = RNG.uniform(size=600) < c**2
  credit = np.repeat(y.reshape(60, 10).mean(1), 10).astype(np.float32)
  np.testing.assert_allclose(metric(c, credit), metric(c, y), rtol=2e-5, atol=1e-6)
  if metric not in (metrics.calibration_error, metrics.aurc):  # The others read masks and weights as these do.
    return
  where = RNG.uniform(size=600) < 0.7
  hidden = np.where(where, credit, np.nan).astype(np.float32)
  np.testing.assert_allclose(metric(c, hidden, where=where), metric(c[where], credit[where]), rtol=2e-5, atol=1e-6)
  weights = RNG.integers(0, 3, 600)
  np.testing.assert_allclose(metric(c, credit, weights=weights), metric(
    np.repeat(c, weights), np.repeat(credit, weights)), rtol=5e-5, atol=1e-6)


def test_bins_and_diagrams_show_mean_credits():
  table = metrics.reliability(CONFIDENCE, CREDIT, num_bins=10)
  index = np.ceil(CONFIDENCE.astype(np.float64) * 10 - 1e-6).clip(1).astype(int) - 1
  wanted = [CREDIT[index == b].astype(np.float64).mean() for b in range(10)]
  np.testing.assert_allclose(table.accuracy, wanted, rtol=1e-5)
  axes = reports.reliability_diagram(CONFIDENCE, CREDIT, num_bins=10)
  drawn = next(line.get_ydata() for line in axes.lines if line.get_label().startswith("bin, "))
  np.testing.assert_allclose(drawn, wanted, rtol=1e-5)
  np.testing.assert_array_equal(table.counts, np.bincount(index, minlength=10))


@pytest.mark.parametrize("metric", [metrics.calibration_error, metrics.ks_calibration_error])
def test_intervals_hold_the_error_of_credits(metric):
  """Of confidences that are 0.1 above the mean credit; of 40 intervals of 95%, 7 miss with a probability of 0.3%."""
  misses, truth = 0, 0.1
  for seed in range(40):
    rng = np.random.default_rng(seed)
    c = rng.uniform(0.3, 1, 400).astype(np.float32)
    credit = (c - 0.1 + 0.1 * rng.choice([-1, 1], 400)).astype(np.float32).clip(0)
    _, low, high = metrics.bootstrap(metric, c, credit, key=jax.random.key(seed), num_resamples=200,
                                            method="bias_corrected")
    misses += not low <= truth <= high
  assert misses <= 7


@pytest.mark.parametrize("call", [
  lambda y: metrics.calibration_error(CONFIDENCE, y), lambda y: metrics.reliability(CONFIDENCE, y),
  lambda y: metrics.ks_calibration_error(CONFIDENCE, y), lambda y: metrics.smooth_calibration_error(CONFIDENCE, y),
  lambda y: metrics.sweep_calibration_error(CONFIDENCE, y), lambda y: metrics.aurc(CONFIDENCE, y),
  lambda y: metrics.CONVENTIONS["relplot"](CONFIDENCE, y), lambda y: reports.reliability_diagram(CONFIDENCE, y),
  lambda y: metrics.bootstrap(metrics.calibration_error, CONFIDENCE, y, key=jax.random.key(0)),
  lambda y: metrics.calibration_test(metrics.calibration_error, CONFIDENCE, y, key=jax.random.key(0)),
  lambda y: metrics.assess(metrics.calibration_error, CONFIDENCE, y, key=jax.random.key(0)),
  lambda y: metrics.paired_difference(metrics.calibration_error, [CONFIDENCE, RIGHT], [CONFIDENCE, y],
                                      key=jax.random.key(0)),
  lambda y: losses.update_adaptive_focal(losses.init_adaptive_focal(), CONFIDENCE, y),
  lambda y: thresholds.selective_threshold(CONFIDENCE, y), lambda y: thresholds.check_threshold(0.5, CONFIDENCE, y)])
@pytest.mark.parametrize(("values", "first"), [(3, "3"), (-1, "-1"), (np.nan, "nan"), (1.5, "1.5")])
def test_what_is_no_credit_is_refused_with_its_row(call, values, first):
  y = np.where(np.arange(N) == 17, values, RIGHT)
  with pytest.raises(ValueError, match=rf"correct must be .*the first, row 17, holds {first}"):
    call(y)


@pytest.mark.parametrize("metric", [metrics.calibration_error, metrics.ks_calibration_error, metrics.aurc,
                                    metrics.smooth_calibration_error, metrics.sweep_calibration_error])
def test_what_is_no_credit_is_nan_where_it_cannot_be_read(metric):
  assert jnp.isnan(jax.jit(metric)(CONFIDENCE, RNG.integers(0, 10, N)))


def test_credits_have_no_noise_floor_and_no_p_value():
  for call in (metrics.calibration_test, metrics.assess):
    with pytest.raises(ValueError, match="credits between them vary if a model is calibrated is not known"):
      call(metrics.calibration_error, CONFIDENCE, CREDIT, key=jax.random.key(0))
  with pytest.raises(ValueError, match="hoeffding_bentkus"):
    thresholds.selective_threshold(CONFIDENCE, CREDIT)
  assert thresholds.selective_threshold(CONFIDENCE, CREDIT, risk=0.4, method="hoeffding_bentkus").cut > 0
