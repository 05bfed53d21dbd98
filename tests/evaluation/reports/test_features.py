"""Figures of logits, angles and q: what is drawn is what was given."""

import matplotlib
from matplotlib.figure import Figure
import numpy as np

from calib_jax.evaluation import reports


def test_angles_of_a_simplex_and_of_parallel_vectors():
  simplex = np.eye(6) - 1 / 6
  angles = reports.class_angles(7 * simplex)
  wanted = np.degrees(np.arccos(-1 / 5))
  np.testing.assert_allclose(angles[~np.eye(6, dtype=bool)], wanted, rtol=1e-12)
  np.testing.assert_allclose(np.diag(angles), 0, atol=1e-6)
  np.testing.assert_allclose(reports.class_angles(np.array([[1.0, 2.0], [-2.0, -4.0]]))[0, 1], 180, rtol=1e-12)
  assert np.isnan(reports.class_angles(np.array([[1.0, 2.0], [0.0, 0.0]]))[0, 1])


def test_small_angles_keep_their_digits():
  tiny = 1e-9
  angle = reports.class_angles(np.array([[1.0, 0.0], [np.cos(tiny), np.sin(tiny)]]))[0, 1]
  np.testing.assert_allclose(np.radians(angle), tiny, rtol=1e-6)


def test_the_matrix_shows_distances_from_the_mean_angle():
  prototypes = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
  axes = reports.angle_matrix(Figure().subplots(), prototypes, class_names=("a", "b", "c"))
  shown = np.ma.filled(axes.images[0].get_array(), np.nan)
  mean = (90 + 90 + 45) / 3
  wanted = np.abs(np.array([[np.nan, 90, 90], [90, np.nan, 45], [90, 45, np.nan]]) - mean)
  np.testing.assert_allclose(shown, wanted, rtol=1e-6)
  assert axes.get_title().startswith("75.0 ± 21.2")
  assert [t.get_text() for t in axes.get_xticklabels()] == ["a", "b", "c"]


def test_the_map_has_a_colour_for_each_class_that_fades_with_entropy():
  labels = np.arange(40) % 2
  sure = np.arange(40) < 20
  logits = np.where(sure[:, None], 30.0, 0.0) * np.eye(2)[labels] + 0.01 * np.random.default_rng(0).normal(size=(40, 2))
  axes = reports.logit_map(Figure().subplots(), logits, labels, class_names=("cat", "dog"), seed=3, num_points=30)
  order = np.random.default_rng(3).permutation(40)[:30]
  assert axes.collections[0].get_offsets().shape == (30, 2)
  colours = axes.collections[0].get_facecolors()[:, :3]
  base = np.array(matplotlib.colormaps["tab10"].colors)[:2]
  np.testing.assert_allclose(colours[sure[order]], base[labels[order][sure[order]]], atol=1e-6)
  np.testing.assert_allclose(colours[~sure[order]], 0.15 * base[labels[order][~sure[order]]] + 0.85, atol=1e-3)
  assert [text.get_text() for text in axes.get_legend().get_texts()] == ["cat", "dog"]


def test_q_is_a_line_of_means_over_seeds():
  values = np.array([[0.5, 0.6, 0.7], [0.5, 0.4, 0.3]])
  axes = reports.keep_over_epochs(Figure().subplots(), {"MaC-Cal": values, "fixed": np.full(3, 0.5)})
  line, fixed = axes.lines
  np.testing.assert_allclose(line.get_xydata(), [[0, 0.5], [1, 0.5], [2, 0.5]])
  np.testing.assert_allclose(fixed.get_ydata(), 0.5)
  assert np.max(axes.collections[0].get_paths()[0].vertices[:, 1]) == 0.7
