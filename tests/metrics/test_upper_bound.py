"""The upper bound of the calibration error: its formula, and that it holds where the truth is known."""

import jax
import numpy as np
import pytest
from scipy import optimize, stats

from calib_jax import metrics, thresholds
from calib_jax.metrics import upper_bound


def reference(confidence, correct, level, m):
  """The two bounds with SciPy's binomials, a fine grid of μ, the best λ, and each example's rounding by itself."""
  number, risk = len(confidence), np.log(1 / (1 - level))
  kappa = min(0.9 / (1 + 0.5 / m), np.sqrt(8 * risk / number))
  value, away = np.rint(np.float64(confidence) * m) / m, np.abs(confidence - np.rint(np.float64(confidence) * m) / m)
  parts, gap = [], 0.0
  for b in np.unique(value):
    inside = value == b
    n, total = inside.sum(), correct[inside].sum()
    gap += abs(total - n * b)
    mu = np.unique(np.clip([*np.linspace(0, 1, 101), *(b + np.linspace(-4, 4, 401) / np.sqrt(n)), b], 0, 1))
    d = np.abs(mu - b)
    # Differences from b that repeat are counted together.
    steps, times = np.unique(np.round(away[inside], 6), return_counts=True)
    costs = -n * np.log(1 - kappa * d), -(np.log(1 - kappa * (d[:, None] + steps)) @ times)
    parts.append((n, b, mu, costs))

  def of(which, ratio):
    bound, lam = kappa * ratio * gap + risk, kappa * ratio
    for n, b, mu, costs in parts:
      if set(np.unique(correct)) <= {0, 1}:
        s = np.arange(n + 1)
        phi = stats.binom.pmf(s, n, mu[:, None]) @ np.exp(-lam * np.abs(s - n * b))
      else:  # The largest that Hoeffding's lemma allows on either side.
        phi = np.min([np.ones(len(mu)), *((1 - mu + mu * np.exp(x)) ** n * np.exp(-x * n * b) for x in (lam, -lam))], 0)
      bound += np.max(np.log(phi) + costs[which])
    return bound / (kappa * number)

  found = [optimize.minimize_scalar(lambda ratio, which=which: of(which, ratio), bounds=(1.0005, 5), method="bounded")
           for which in (0, 1)]
  return [min(1, x.fun) for x in found], gap / number


@pytest.mark.parametrize("credits", [False, True])
@pytest.mark.parametrize(("number", "level", "m"), [(1, 0.95, 20), (40, 0.9, 5), (300, 0.95, 20), (300, 0.999, 1)])
def test_it_is_the_reference_or_a_little_above(number, level, m, credits):
  rng = np.random.default_rng(number)
  confidence = rng.beta(4, 1, number)
  correct = (rng.uniform(size=number) < confidence - 0.1).astype(float)
  if credits:
    correct = np.where(rng.uniform(size=number) < 0.5, 0.5, correct)
  actual = metrics.calibration_error_upper(confidence, correct, level=level, num_values=m)
  expected, error = reference(confidence, correct, level, m)
  assert actual.error == pytest.approx(error, abs=1e-12)
  for bound, least, slack in zip(actual[:2], expected, (0, 0.2 / m**2), strict=True):  # Straight lines have slack.
    assert least - 1e-6 <= bound <= min(1, least + 0.06 / np.sqrt(number) + slack)
  assert actual.error <= actual.upper <= min(1, actual.distance + 1e-12)


def test_a_coarser_grid_of_probabilities_only_raises_the_bound(monkeypatch):
  rng = np.random.default_rng(1)
  confidence = rng.choice([0.0, 0.3, 0.7, 1.0], 300)
  correct = rng.uniform(size=300) < np.clip(confidence, 0.05, 0.95)
  bounds, largest = [], []
  for step in (0.005, 0.02, 0.1, 1.5):
    monkeypatch.setattr(upper_bound, "OFFSETS", np.arange(0, 4, step))
    bounds.append(metrics.calibration_error_upper(confidence, correct).upper)
    largest.append(upper_bound._largest(200, 0.3, 1, 0.1, ((1, 0.0), (0, 0.025)), True)[0])
  assert (np.diff(largest, axis=0) > -1e-9).all()
  assert bounds == sorted(set(bounds)) and bounds[-1] > bounds[0] + 0.01
  # Between neighbours of a coarse grid log φ is never above its cell, where its maximum is, too.
  mu, ratios = np.linspace(0.05, 0.95, 7), np.array([0.05, 0.4])
  cells, s = upper_bound._cells(30, 0.4, mu, 2.9, ratios), np.arange(31)
  for i, cell in enumerate(cells):
    chance = stats.binom.pmf(s, 30, np.linspace(mu[i], mu[i + 1], 101)[:, None])
    assert (np.log(chance @ np.exp(-np.abs(s - 12)[:, None] * ratios)).max(axis=0) <= cell + 1e-6).all()


def test_a_higher_level_and_a_larger_error_have_a_higher_bound():
  rng = np.random.default_rng(0)
  confidence = rng.uniform(0.5, 1, 400)
  correct = rng.uniform(size=400) < confidence
  levels = [metrics.calibration_error_upper(confidence, correct, level=level).upper for level in (0.5, 0.9, 0.999)]
  assert levels == sorted(set(levels))
  wrong = [metrics.calibration_error_upper(confidence, correct & (np.arange(400) >= k)).upper
           for k in (0, 40, 200, 400)]
  assert wrong == sorted(set(wrong)) and wrong[-1] > 0.75


@pytest.mark.parametrize("number", [37, 41])
def test_a_new_number_of_numpy_rows_compiles_nothing(number, caplog):
  confidence, correct = np.full(number, 0.75), np.arange(number) % 4 > 0
  with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
    metrics.calibration_error_upper(confidence, correct)
    thresholds.update_monitor(thresholds.monitor(), correct, confidence)
    assert not [x for x in caplog.messages if x.startswith("Compiling")]
    jax.jit(lambda x: x + 1)(confidence)
  assert [x for x in caplog.messages if x.startswith("Compiling")]  # It would have been seen.


def test_it_is_one_without_examples_and_what_is_no_probability_is_refused():
  assert metrics.calibration_error_upper(np.zeros(0), np.zeros(0, bool)) == (1, 1, 0)
  assert metrics.calibration_error_upper(np.ones(10), np.zeros(10, bool)).upper == 1
  for certain in (0, 1):  # N that are always right have an error below log(1 / δ) / (κ N).
    bound = metrics.calibration_error_upper(np.full(1000, float(certain)), np.full(1000, certain))
    assert 0 < bound.upper == pytest.approx(np.sqrt(np.log(20) / 8 / 1000), rel=0.01)
  with pytest.raises(ValueError, match=r"confidence must be in \[0, 1\]"):
    metrics.calibration_error_upper(np.array([0.5, 1.5]), np.array([True, False]))
  with pytest.raises(ValueError, match="correct must be bools, zeros and ones, or credits in"):
    metrics.calibration_error_upper(np.array([0.5, 0.6]), np.array([2, 0]))  # Labels, perhaps.
  with pytest.raises(ValueError, match=r"level must be in \(0, 1\)"):
    metrics.calibration_error_upper(np.array([0.5]), np.array([True]), level=1.0)


@pytest.mark.parametrize("b", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_it_holds_for_every_truth_of_one_prediction(b, level):
  """Over all numbers of correct ones among 40, exactly."""
  upper = np.array([metrics.calibration_error_upper(np.full(40, b), np.arange(40) < k, level=level).upper
                    for k in range(41)])
  mu = np.linspace(0, 1, 1001)[:, None]
  misses = np.sum(stats.binom.pmf(np.arange(41), 40, mu) * (upper < np.abs(mu - b)), axis=1)
  assert (1 - level) / 20 < misses.max() <= 1 - level


def _bumps(c):
  return np.clip(c + 0.2 * np.sign(np.sin(40 * np.pi * c)), 0, 1)  # They cancel within bins of a fifteenth.


TRUTHS = {"bumps": _bumps, "underconfident": lambda c: np.minimum(c + 0.15, 1)}


@pytest.mark.parametrize("truth", TRUTHS)
def test_it_holds_where_the_truth_is_known(truth):
  rng = np.random.default_rng(0)
  grid = np.linspace(0.5, 1, 2_000_001)
  value = np.rint(20 * grid)
  of_values = np.bincount(value.astype(int), TRUTHS[truth](grid) - value / 20)
  error = np.abs(of_values).sum() / len(grid)
  for number, draws in ((50, 100), (2000, 30)):
    bounds = []
    for _ in range(draws):
      confidence = rng.uniform(0.5, 1, number)
      bounds.append(metrics.calibration_error_upper(confidence, rng.uniform(size=number) < TRUTHS[truth](confidence)))
    assert np.mean([bound.upper < error for bound in bounds]) <= 0.05
  assert np.mean([bound.upper for bound in bounds]) < error + 0.045  # Of 2,000 examples.
