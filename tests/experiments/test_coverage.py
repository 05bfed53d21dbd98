"""The simulation of coverage: its data have the posteriors that they say."""

import jax
import numpy as np
import pytest
from scipy import special

from calib_jax.metrics.decomposition import of_examples
from experiments.common.commands import RESULTS
from experiments.estimators import decomposition, simulation


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shifted class"])
def test_recalibrations_that_undo_a_distortion_remove_the_true_part(name, monkeypatch):
  monkeypatch.setattr(decomposition, "POINTS", 30_000)
  recalibration = "structured_vector_scaling"
  labels, _, log_probs = decomposition.sample(np.random.default_rng(2), 30_000, 2, name)
  removed = of_examples(np.exp(log_probs), labels, np.ones(30_000, np.float32), recalibration=recalibration)
  for loss, (mean, true_part, part) in decomposition.truth(2, name, recalibration).items():
    assert true_part == part > 0.003
    # Five standard errors, of two samples; a fit to so many examples misses less than 2e-4 of the best.
    spread = 7 * np.std(removed[loss], axis=0) / np.sqrt(30_000)
    assert np.all(np.abs(np.mean(removed[loss], axis=0) - np.array([mean, part, part])) < spread + 2e-4)


@pytest.mark.slow
def test_true_values_are_those_of_quadrature():
  actual = simulation.limits(simulation.gaussian_mixture, (1.6, 1.6), num_points=100_000)
  x = np.linspace(-9, 9, 20_001)
  weight = np.exp(-(x - 1) ** 2 / 2) / np.sqrt(2 * np.pi) * (x[1] - x[0])  # By symmetry, of the class at 1 alone.
  nll = np.sum(weight * -special.log_expit(3.2 * x))
  brier = np.sum(weight * 2 * special.expit(-3.2 * x) ** 2)
  # Means of 100,000 numbers whose standard deviations are below 1: five standard errors.
  np.testing.assert_allclose([actual["nll"], actual["brier"]], [nll, brier], atol=5 / np.sqrt(100_000))
  for name, expected in simulation.truth(1.6).items():
    np.testing.assert_allclose(actual[name], expected, rtol=0.01)
  # The risk at coverage u is the mean of 1 - σ(|2x|) where |x| is largest.
  order = np.argsort(-np.abs(x))
  both = (weight + weight[::-1])[order] / 2
  risk = np.cumsum(both * special.expit(-np.abs(2 * x[order]))) / np.cumsum(both)
  np.testing.assert_allclose(actual["aurc"], np.sum(both * risk), rtol=0.02)


@pytest.mark.slow
def test_samples_have_the_distribution_of_the_posterior_and_the_model():
  for posterior, exponents in ((simulation.gaussian_mixture, (1.6, 0.7)), (simulation.dirichlet, (1.6, 0.7, 0.7))):
    drawn = simulation.sample(jax.random.key(0), (100_000,), posterior, exponents)
    truth = simulation.limits(posterior, exponents, num_points=100_000)
    for name in ("nll", "brier"):
      spread = np.std(np.asarray(drawn[name])) / np.sqrt(100_000)
      np.testing.assert_allclose(np.mean(drawn[name]), truth[name], atol=7 * spread)  # Of two samples.


def test_the_page_of_estimators_has_what_they_give():
  errors = 100 * simulation.simulate(simulation.ESTIMATORS["KS"][0], 100, 1.0)  # The truth is 0.
  page = (RESULTS / "estimators.md").read_text(encoding="utf-8")
  assert f"| KS | {errors.mean():+.2f} ± {errors.std():.2f} |" in page
