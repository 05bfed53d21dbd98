"""The figures of the losses: their curves by hand, and what they average."""

from matplotlib.figure import Figure
import numpy as np
import pandas as pd

from calib_jax import losses
from experiments.leaderboard import methods
from experiments.papers import loss_figures


def test_curves_are_those_of_the_formulas():
  t = loss_figures.soft_threshold(np.array([0.2, 0.6]), 0.4, 0.5)
  odds = np.array([0.2 / 0.8, 0.6 / 0.4]) * (0.6 / 0.4)
  np.testing.assert_allclose(t, odds**2 / (1 + odds**2), atol=1e-5)
  scores, at = np.array([0.1, 0.3, 0.35, 0.9]), np.array([0.0, 0.4, 1.0])
  centres = np.array([0.125, 0.375, 0.375, 0.875])
  expected = np.mean(1 / (1 + np.exp(-(at[:, None] - centres) / 0.1)), axis=1)
  np.testing.assert_allclose(loss_figures.smoothed_distribution(scores, at, 0.1, num_bins=4), expected, atol=1e-5)


def test_gradients_are_those_of_the_appendix():
  p, gamma = np.array([0.1, 0.4, 0.7, 0.95]), 3.0
  focal = gamma * (1 - p)**(gamma - 1) * np.log(p) - (1 - p)**gamma / p
  inverse = -gamma * (1 + p)**(gamma - 1) * np.log(p) - (1 + p)**gamma / p  # The paper prints its first sign as +.
  np.testing.assert_allclose(loss_figures.slope(losses.focal, p, gamma=gamma), focal, rtol=2e-5)
  np.testing.assert_allclose(loss_figures.slope(losses.inverse_focal, p, gamma=gamma), inverse, rtol=2e-5)


def test_the_scores_are_compared_by_the_mean_ece_of_the_seeds_of_each_leaderboard():
  name = "selective risk, released, msp"
  rows = pd.DataFrame([{"task": "", "method": method, "calibrator": calibrator, "seed": seed, "ece": ece}
                       for method, calibrator, seed, ece in (
                         (name, "none", "0", "0.01"), (name, "none", "1", "0.03"), (name, "TS", "0", "0.5"),
                         ("cross entropy", "none", "0", "0.07"))])
  axes = Figure().subplots()
  loss_figures._scores(axes, {"MLP": rows})
  np.testing.assert_allclose([bar.get_height() for bar in axes.patches], [7, np.nan, 2, np.nan], rtol=1e-12)


def test_the_rows_of_the_scores_are_methods_of_the_leaderboard():
  assert set(loss_figures.SCORES.values()) <= set(methods.METHODS)
