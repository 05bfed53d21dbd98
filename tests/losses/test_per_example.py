"""Every loss per example against its float64 reference, by the laws that all share; one compilation a formula."""

import numpy as np
import pytest

from calib_jax import losses
from tests.losses import cases


@pytest.fixture
def step(name, options):
  """The step of a case, whose program is compiled once for all laws."""
  return cases.step(name, options)


@pytest.mark.parametrize(("name", "options"), cases.cases(cases.PER_EXAMPLE))
class TestLossesPerExample:
  def test_values_and_gradients_equal_the_reference(self, step, name, options):
    cases.check_examples(name, options, step, *cases.data(64, 3))

  def test_extremes_are_finite_and_right(self, step, name, options):
    logits, labels = (np.concatenate(x) for x in zip(*cases.EXTREMES.values(), strict=True))
    values, gradients = step(logits, labels)
    assert np.isfinite(values).all() and np.isfinite(gradients).all()
    np.testing.assert_allclose(values, cases.reference(name, logits, labels, options), rtol=5e-5, atol=1e-6)

  def test_what_is_not_finite_is_not_hidden_and_stays_in_its_row(self, step, name, options):
    logits, labels = cases.data(4, 3)
    expected = step(logits, labels)[0]
    for bad in (np.nan, np.inf):
      for place in (labels[2], (labels[2] + 1) % 3):
        spoilt = logits.copy()
        spoilt[2, place] = bad
        values = step(spoilt, labels)[0]
        assert not np.isfinite(values[2])
        # Rows share at most the number of iterations of the inverse focal map.
        np.testing.assert_allclose(np.delete(values, 2), np.delete(expected, 2), rtol=1e-6)

  def test_rows_that_are_ignored_are_0_whatever_they_hold(self, step, name, options):
    logits, labels = cases.data(12, 3)
    where = np.arange(12) % 3 != 1
    expected = step(logits[where], labels[where])
    for bad in (np.nan, np.inf, -np.inf):
      actual = step(np.where(where[:, None], logits, bad), np.where(where, labels, -100), where)
      for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one[where], other, rtol=1e-6)
    assert not any(x.any() for x in step(np.full((4, 3), np.nan), labels[:4], np.zeros(4, bool)))

  def test_a_traced_label_out_of_range_is_nan_in_its_row(self, step, name, options):
    logits, labels = cases.data(4, 3)
    expected = step(logits, labels)[0]
    for bad in (-100, -1, 3):
      values, gradients = step(logits, np.where(np.arange(4) == 2, bad, labels))
      assert np.isnan(values[2]) and np.isfinite(gradients).all()
      np.testing.assert_allclose(np.delete(values, 2), np.delete(expected, 2), rtol=1e-6)

  def test_a_masked_class_has_probability_0(self, step, name, options):
    logits, labels = cases.data(12, 3)
    mask = cases.other_class(labels, 3)
    mask[5] = np.arange(3) != labels[5]  # The label alone is left.
    values, gradients = step(cases.masked(logits, mask), labels)
    if name in cases.EVERY_CLASS or options.get("label_smoothing"):
      if name != "pairwise_constraints":  # The pair of the two masked classes is NaN, any other inf.
        assert (values == np.inf).all()
      assert not np.isfinite(values).any()
      return

    lowered = cases.masked(logits.astype(np.float64), mask, -1e4)
    np.testing.assert_allclose(values, cases.reference(name, lowered, labels, options), rtol=2e-5, atol=1e-7)
    assert np.isfinite(gradients).all() and not gradients[mask].any()
    direction = np.random.default_rng(0).normal(size=logits.shape) * ~mask
    expected = cases.slope(lambda z: cases.reference(name, z, labels, options, lowered), lowered, direction)
    np.testing.assert_allclose(np.sum(gradients * direction, axis=1), expected, rtol=2e-3, atol=2e-5)

  def test_a_masked_label_is_infinite_and_moves_nothing(self, step, name, options):
    logits, labels = cases.data(12, 3)
    at_label = np.arange(3) == labels[:, None]
    at_label[7] = True  # Nothing is left to predict.
    values, gradients = step(cases.masked(logits, at_label), labels)
    if name in cases.EVERY_CLASS:
      assert not np.isfinite(values).any()
    elif name in cases.BOUNDED:
      expected = cases.reference(name, cases.masked(logits, at_label, -1e4), labels, options)
      np.testing.assert_allclose(np.delete(values, 7), np.delete(expected, 7), rtol=2e-5)
      assert np.isnan(values[7]) and np.isfinite(np.delete(gradients, 7, axis=0)).all()
    else:
      assert (np.delete(values, 7) == np.inf).all() and np.isnan(values[7])
      assert not np.delete(gradients, 7, axis=0).any()


@pytest.mark.parametrize(("name", "options"),
                         [p for p in cases.cases(cases.PER_EXAMPLE) if p.values[0] in cases.SOFT])
def test_losses_of_distributions_equal_the_reference(step, name, options):
  logits, soft = cases.data(64, 3)[0], np.random.default_rng(1).dirichlet(np.ones(3), 64).astype(np.float32)
  cases.check_examples(name, options, step, logits, soft)


SOFT = np.array([[0.5, 0.5, 0], [0.5, 0, 0.5], [1e-30, 0.5, 0.5], [0.2, 0.2, 0.6]], np.float32)
MASKED = np.array([[1.0, 2.0, 0.5], [1.0, -np.inf, 0.0], [-np.inf, 1.0, 0.0], [0.5, 0.0, 0.0]], np.float32)


@pytest.mark.parametrize(("name", "options"), [p for p in cases.cases(cases.PER_EXAMPLE, every=False)
                                               if p.values[0] in cases.SOFT])
def test_masked_classes_of_distributions(step, name, options):
  values, gradients = step(MASKED, SOFT)
  expected = cases.reference(name, cases.masked(MASKED, np.isinf(MASKED), -1e4), SOFT, options)
  expected[2] = expected[2] if name in cases.BOUNDED else np.inf
  np.testing.assert_allclose(values, expected, rtol=2e-5)
  assert np.isfinite(gradients).all() and not gradients[np.isinf(MASKED)].any()


@pytest.mark.parametrize(("name", "options"), [
  *((name, cases.FIRST[name]) for name in cases.EVERY_CLASS), ("cross_entropy", {"label_smoothing": 0.1})])
def test_a_masked_class_that_means_nothing_is_refused(name, options):
  reason = f"{name} depends on the logit of every class"
  reason = "label_smoothing gives every class a part" if name == "cross_entropy" else reason
  with pytest.raises(ValueError, match=f"{reason}.*a logit of -inf, has no meaning: 2 of 4 rows hold one; .* is row 1"):
    losses.get(name, **options)(MASKED, cases.INTS)
