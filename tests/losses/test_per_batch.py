"""Every loss per batch against its float64 reference, by the laws that all share; one compilation a formula."""

import numpy as np
import pytest

from tests.losses import cases, references


@pytest.fixture
def step(name, options):
  """The step of a case, whose program is compiled once for all laws."""
  return cases.step(name, options)


@pytest.mark.parametrize(("name", "options"), cases.cases(cases.PER_BATCH))
class TestLossesPerBatch:
  def test_values_and_gradients_equal_the_reference(self, step, name, options):
    for n in cases.SIZES:
      cases.check_batch(name, options, step, *cases.data(n, 3, seed=n))

  def test_extremes_are_finite_and_right(self, step, name, options):
    for edge, (logits, labels) in cases.EXTREMES.items():
      value, gradient = step(logits, labels)
      assert np.isfinite(value) and np.isfinite(gradient).all(), edge
      if name == "selective_risk":  # A tie of two classes lies on an edge of its bins.
        keep = references.away_from_jumps(name, logits.astype(np.float64), options)
        logits, labels = logits[keep], labels[keep]
        value, gradient = step(logits, labels)
      expected = cases.reference(name, logits, labels, options)
      np.testing.assert_allclose(value, expected, rtol=5e-5, atol=1e-6, err_msg=edge)

  def test_where_equals_slicing_also_over_nan_and_labels_out_of_range(self, step, name, options):
    logits, labels = cases.data(12, 3)
    where = np.arange(12) % 3 != 1
    cases.check_batch(name, options, step, logits, labels, where)
    spoilt, spoilt_labels = np.where(where[:, None], logits, np.nan), np.where(where, labels, -7)
    for together, sliced in zip(step(spoilt, spoilt_labels, where), step(logits, labels, where), strict=True):
      np.testing.assert_array_equal(together, sliced)  # Whatever masked rows hold.
    value, gradient = step(logits[where], labels[where])
    np.testing.assert_allclose(step(logits, labels, where)[0], value, rtol=1e-6)
    np.testing.assert_allclose(step(logits, labels, where)[1][where], gradient, rtol=1e-4, atol=1e-7)
    value, gradient = step(spoilt, labels, np.zeros(12, bool))
    assert value == 0 and not np.any(gradient)

  def test_what_is_not_finite_is_not_hidden(self, step, name, options):
    logits, labels = cases.data(4, 3)
    for bad in (np.nan, np.inf):
      spoilt = logits.copy()
      spoilt[2, 1] = bad
      assert not np.isfinite(step(spoilt, labels)[0])

  def test_a_traced_label_out_of_range_is_nan(self, step, name, options):
    logits, labels = cases.data(4, 3)
    for bad in (-100, -1, 3):
      assert np.isnan(step(logits, np.where(np.arange(4) == 2, bad, labels))[0])

  def test_a_masked_class_has_probability_0(self, step, name, options):
    logits, drawn = cases.data(30, 3)
    last = np.broadcast_to(np.arange(3) == 2, logits.shape)
    for mask, labels in ((cases.other_class(drawn, 3), drawn), (last, drawn % 2)):
      lowered = cases.masked(logits.astype(np.float64), mask, -1e4)
      keep = references.away_from_jumps(name, lowered, options)
      value, gradient = step(np.where(mask, -np.inf, logits), labels, keep)
      expected = cases.reference(name, lowered[keep], labels[keep], options)
      # Rounding weighs up to ten times as much as elsewhere: selective risk divides that of its scores by ν.
      np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)
      assert np.isfinite(gradient).all() and not gradient[mask].any()
      direction = np.random.default_rng(0).normal(size=logits.shape) * ~mask * keep[:, None]
      slope = cases.slope(lambda z, y=labels[keep], keep=keep, lowered=lowered: cases.reference(
        name, z[keep], y, options, lowered[keep]), lowered, direction)
      np.testing.assert_allclose(np.sum(gradient * direction, dtype=np.float64), slope, rtol=2e-3, atol=2e-4)

  def test_a_masked_label_is_infinite_or_as_in_the_limit(self, step, name, options):
    logits, labels = cases.data(30, 3)
    mask = (np.arange(3) == labels[:, None]) & (np.arange(30) % 4 == 0)[:, None]
    lowered = cases.masked(logits.astype(np.float64), mask, -1e4)
    keep = references.away_from_jumps(name, lowered, options)
    value, gradient = step(cases.masked(logits, mask), labels, keep)
    assert np.isfinite(gradient).all() and not gradient[mask].any()
    if name in ("aurc", "selective_risk", "generative_cross_entropy") and options.get("loss") != "brier":
      assert value == np.inf
    else:
      expected = cases.reference(name, lowered[keep], labels[keep], options)
      np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)
    assert np.isnan(step(np.where(np.arange(30)[:, None] == 3, -np.inf, logits), labels)[0])  # All classes masked.
