import numpy as np

from calib_jax.evaluation.sections.severity import by_severity


def test_the_error_of_a_severity_is_the_mean_over_corruptions_of_rows_that_have_all_of_them():
  a, b, short = ("m", "none"), ("m", "TS"), ("m", "VS")
  errors = {"test": {a: 0.1, b: 0.2, short: 0.3}, "fog_1": {a: 0.2, b: 0.1, short: 0.1}, "snow_1": {a: 0.6, b: 0.3},
            "fog_3": {a: 0.5, b: 0.5}, "other": {a: 9, b: 9}}
  levels = by_severity(errors, "test")
  assert set(levels) == {a, b} and [levels[row][0].mean for row in (a, b)] == [0.1, 0.2]
  np.testing.assert_allclose([levels[row][1].mean for row in (a, b)], [0.4, 0.2], rtol=1e-6)
  # Differences 0.1 and 0.3: half of their standard error, as two rows share it.
  np.testing.assert_allclose([levels[row][1].within_subject_sem for row in (a, b)], np.std([0.1, 0.3], ddof=1) / 2,
                             rtol=1e-5)
  assert list(levels[a]) == [0, 1, 3] and levels[a][1].num_corruptions == 2
  assert np.isnan(levels[b][3].within_subject_sem) and levels[b][3].mean == 0.5
  assert by_severity({"test": errors["test"]}, "test") == {}
