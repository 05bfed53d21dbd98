"""Every loss against its float64 reference, by the laws that all share, and at the edges; one compilation a case."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import _checks as checks
from calib_jax import losses
from calib_jax._numerics import binning
from tests.losses import cases, references

EXTREMES = {
  "huge": ([[1e4, -1e4, 0], [-1e4, 1e4, 0], [0, 0, 1e4], [1e4, 1e4, -1e4]], [0, 0, 2, 1]),
  "ties": (np.zeros((4, 3)), [0, 1, 2, 0]),
  "one example": ([[2.0, 1.0, 0.0]], [1]),
  "all correct": (np.eye(4, 3) * 50 + np.eye(4, 3, -1), [0, 1, 2, 2]),
  "all wrong": (np.eye(4, 3) * 50 + np.eye(4, 3, -1), [1, 2, 0, 0]),
  "saturated": (np.eye(4, 3) * 88 + np.array([[0, -88, 0]]), [0, 0, 0, 1]),
}
EXTREMES = {edge: (np.array(logits, np.float32), np.array(labels)) for edge, (logits, labels) in EXTREMES.items()}
CLASSES = np.array([2, 0, 1])  # The classes in another order.


@pytest.fixture(scope="class")
def step(name, options):
  """A case's compiled step, for all of its laws."""
  return cases.step(name, options)


@pytest.mark.parametrize(("name", "options"), cases.cases(cases.PER_EXAMPLE), scope="class")
class TestLossesPerExample:
  def test_values_and_gradients_equal_the_reference(self, step, name, options):
    cases.check_examples(name, options, step, *cases.data(64, 3))

  def test_extremes_are_finite_and_right(self, step, name, options):
    logits, labels = (np.concatenate(x) for x in zip(*EXTREMES.values(), strict=True))
    values, gradients = step(logits, labels)
    assert np.isfinite(values).all() and np.isfinite(gradients).all()
    np.testing.assert_allclose(values, cases.example_reference(name, logits, labels, options), rtol=5e-5, atol=1e-6)

  def test_names_of_classes_do_not_matter(self, step, name, options):
    logits, labels = cases.data(64, 3)
    values, gradients = step(logits, labels)
    renamed, renamed_gradients = step(logits[:, CLASSES], np.argsort(CLASSES)[labels])
    np.testing.assert_allclose(renamed, values, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(renamed_gradients, gradients[:, CLASSES], rtol=1e-4, atol=1e-6)

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

    held = cases.masked(logits.astype(np.float64), mask, -1e4)
    np.testing.assert_allclose(values, cases.example_reference(name, held, labels, options), rtol=2e-5, atol=1e-7)
    assert np.isfinite(gradients).all() and not gradients[mask].any()
    direction = np.random.default_rng(0).normal(size=logits.shape) * ~mask
    expected = cases.slope(lambda z: cases.example_reference(name, z, labels, options, held), held, direction)
    np.testing.assert_allclose(np.sum(gradients * direction, axis=1), expected, rtol=2e-3, atol=2e-5)

  def test_a_masked_label_is_infinite_and_moves_nothing(self, step, name, options):
    logits, labels = cases.data(12, 3)
    at_label = np.arange(3) == labels[:, None]
    at_label[7] = True  # Nothing is left to predict.
    values, gradients = step(cases.masked(logits, at_label), labels)
    if name in cases.EVERY_CLASS:
      assert not np.isfinite(values).any()
    elif name in cases.BOUNDED:
      expected = cases.example_reference(name, cases.masked(logits, at_label, -1e4), labels, options)
      np.testing.assert_allclose(np.delete(values, 7), np.delete(expected, 7), rtol=2e-5)
      assert np.isnan(values[7]) and np.isfinite(np.delete(gradients, 7, axis=0)).all()
    else:
      assert (np.delete(values, 7) == np.inf).all() and np.isnan(values[7])
      assert not np.delete(gradients, 7, axis=0).any()


@pytest.mark.parametrize(("name", "options"), cases.cases(cases.PER_BATCH), scope="class")
class TestLossesPerBatch:
  def test_values_and_gradients_equal_the_reference(self, step, name, options):
    for n in cases.SIZES:
      cases.check_batch(name, options, step, *cases.data(n, 3, seed=n))

  def test_extremes_are_finite_and_right(self, step, name, options):
    for edge, (logits, labels) in EXTREMES.items():
      value, gradient = step(logits, labels)
      assert np.isfinite(value) and np.isfinite(gradient).all(), edge
      if name == "selective_risk":  # A tie of two classes lies on an edge of its bins.
        keep = references.away_from_jumps(name, logits.astype(np.float64), options)
        logits, labels = logits[keep], labels[keep]
        value, gradient = step(logits, labels)
      expected = cases.batch_reference(name, logits, labels, options)
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

  def test_order_of_examples_and_names_of_classes_do_not_matter(self, step, name, options):
    logits, labels = cases.data(30, 3)
    rows = np.random.default_rng(3).permutation(30)
    expected, _ = step(logits, labels)
    np.testing.assert_allclose(step(logits[rows], labels[rows])[0], expected, rtol=1e-5)
    np.testing.assert_allclose(step(logits[:, CLASSES], np.argsort(CLASSES)[labels])[0], expected, rtol=1e-5)

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
      held = cases.masked(logits.astype(np.float64), mask, -1e4)
      keep = references.away_from_jumps(name, held, options)
      value, gradient = step(np.where(mask, -np.inf, logits), labels, keep)
      expected = cases.batch_reference(name, held[keep], labels[keep], options)
      # Rounding weighs up to ten times as much as elsewhere: selective risk divides that of its scores by ν.
      np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)
      assert np.isfinite(gradient).all() and not gradient[mask].any()
      direction = np.random.default_rng(0).normal(size=logits.shape) * ~mask * keep[:, None]
      slope = cases.slope(lambda z, y=labels[keep], keep=keep, held=held: cases.batch_reference(
        name, z[keep], y, options, held[keep]), held, direction)
      np.testing.assert_allclose(np.sum(gradient * direction, dtype=np.float64), slope, rtol=2e-3, atol=2e-4)

  def test_a_masked_label_is_infinite_or_as_in_the_limit(self, step, name, options):
    logits, labels = cases.data(30, 3)
    mask = (np.arange(3) == labels[:, None]) & (np.arange(30) % 4 == 0)[:, None]
    held = cases.masked(logits.astype(np.float64), mask, -1e4)
    keep = references.away_from_jumps(name, held, options)
    value, gradient = step(cases.masked(logits, mask), labels, keep)
    assert np.isfinite(gradient).all() and not gradient[mask].any()
    if name in ("aurc", "selective_risk") and options.get("loss") != "brier":
      assert value == np.inf
    else:
      expected = cases.batch_reference(name, held[keep], labels[keep], options)
      np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)
    assert np.isnan(step(np.where(np.arange(30)[:, None] == 3, -np.inf, logits), labels)[0])  # All classes masked.


def test_soft_bins_of_almost_no_width_are_finite_and_right_at_extremes():
  options = {"temperature": 1e-6}
  step = cases.batch_step("soft_binned_ece", options, rows=4)
  for logits, labels in EXTREMES.values():
    value, gradient = step(logits, labels)
    assert np.isfinite(gradient).all()
    expected = cases.batch_reference("soft_binned_ece", logits, labels, options)
    np.testing.assert_allclose(value, expected, rtol=5e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "options"),
                         [p for p in cases.cases(cases.PER_EXAMPLE) if p.values[0] in cases.SOFT])
def test_losses_of_distributions_equal_the_reference(name, options):
  logits, soft = cases.data(64, 10)[0], np.random.default_rng(1).dirichlet(np.ones(10), 64).astype(np.float32)
  values = jax.jit(losses.get(name, **options))(logits, soft)
  np.testing.assert_allclose(values, cases.example_reference(name, logits, soft, options), rtol=2e-5, atol=1e-7)


def test_soft_avuc_keeps_its_digits_near_uniform_and_near_one_hot():
  step = cases.batch_step("soft_avuc", {}, rows=32)
  for scale in (0.02, 10.0):
    logits, labels = cases.data(32, 10, scale)
    value, gradient = step(logits, labels)
    np.testing.assert_allclose(value, cases.batch_reference("soft_avuc", logits, labels, {}), rtol=2e-5)
    for direction in np.random.default_rng(2).normal(size=(3, 32, 10)):
      expected = cases.slope(lambda z, y=labels: cases.batch_reference("soft_avuc", z, y, {}), logits, direction)
      np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=2e-3, atol=1e-5)


def test_selective_risk_keeps_its_digits_where_all_tails_are_tiny():
  # Five bins and ν = 1e-4: scores stand up to a thousand ν above the highest centre.
  options = {"smoothing": 1e-4, "num_bins": 5, "low_confidence_coverage": 1.0}
  logits, labels = cases.data(64, 3)
  value, gradient = cases.batch_step("selective_risk", options, rows=64)(logits, labels)
  np.testing.assert_allclose(value, cases.batch_reference("selective_risk", logits, labels, options), rtol=2e-5)
  direction = np.random.default_rng(1).normal(size=logits.shape)
  expected = cases.slope(lambda z: cases.batch_reference("selective_risk", z, labels, options, logits), logits,
                         direction)
  np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=2e-3)


def test_smoothed_cross_entropy_keeps_its_digits_on_logits_shifted_by_1e4():
  logits, labels = cases.data(64, 10)
  logits += np.float32(1e4)  # Rounded to multiples of 2^-10, so that all differences of logits are exact in float32.
  for a in (0.1, 1.0):
    values = jax.jit(losses.get("cross_entropy", label_smoothing=a))(logits, labels)
    expected = cases.example_reference("cross_entropy", logits, labels, {"label_smoothing": a})
    np.testing.assert_allclose(values, expected, rtol=2e-5)


@pytest.mark.parametrize("form", ["top_label", "canonical", "marginal"])
def test_kde_ece_of_two_classes_keeps_its_digits_at_logits_of_1e4(form):
  rng = np.random.default_rng(0)
  moderate = rng.normal(size=(40, 16, 2))
  mixed, huge = moderate.copy(), 1e4 * np.sign(moderate)
  mixed[:, :2] = [[1e4, -1e4], [-1e4, 1e4]]  # The logarithms of the others' kernels at these are huge.
  logits = np.concatenate([mixed, huge, rng.uniform(-1e4, 1e4, (40, 16, 2)), moderate + 1e4]).astype(np.float32)
  labels = rng.integers(0, 2, logits.shape[:2])
  values = jax.jit(jax.vmap(losses.get("kde_ece", form=form)))(logits, labels)
  expected = [references.kde_ece(z.astype(np.float64), y, form=form) for z, y in zip(logits, labels, strict=True)]
  np.testing.assert_allclose(values, expected, rtol=2e-5)


@pytest.mark.parametrize("name", cases.FIRST)
def test_half_precision_is_computed_in_float32(name):
  logits, labels = cases.data(9, 4)
  for dtype in (jnp.bfloat16, jnp.float16):
    trace = jax.make_jaxpr(losses.get(name, **cases.FIRST[name]))(jnp.asarray(logits, dtype), labels)
    # The logits are widened before anything else is done to them: the rest is what float32 logits would meet.
    uses = [e for e in trace.eqns if any(getattr(v.aval, "dtype", None) == dtype for v in [*e.invars, *e.outvars])]
    assert [e.primitive.name for e in uses] == ["convert_element_type"]
    assert uses[0].outvars[0].aval.dtype == jnp.float32 == trace.out_avals[0].dtype


def test_float64_stays_float64():
  with jax.enable_x64(True):
    logits, labels = cases.data(8, 4)
    for name, options in cases.FIRST.items():
      loss = jax.eval_shape(losses.get(name, **options), logits.astype(np.float64), labels)
      assert loss.dtype == jnp.float64, name
    value = jax.jit(losses.soft_avuc)(logits.astype(np.float64), labels)
    np.testing.assert_allclose(value, cases.batch_reference("soft_avuc", logits, labels, {}), rtol=1e-12)


# What devices exchange differs between these forms; other options change what is done with it.
EXCHANGES = [("kde_ece", "canonical"), ("kde_ece", "marginal"), ("mmce", "weighted"), ("soft_binned_ece", "form=bin")]


def _exchanges():
  for p in cases.cases(cases.PER_BATCH):
    name, options = p.values
    fast = options is cases.FIRST[name] or any(name == n and what in p.id for n, what in EXCHANGES)
    yield p if fast else pytest.param(name, options, id=p.id, marks=[*p.marks, pytest.mark.slow])


@pytest.mark.parametrize(("name", "options"), list(_exchanges()))
def test_eight_devices_give_the_value_and_gradient_of_the_whole_batch(name, options):
  logits, labels = cases.data(64, 3)
  where = np.random.default_rng(4).uniform(size=64) < 0.7
  where[8:16] = False  # A device that holds padding alone.
  value, gradient = _mapped(losses.get(name, **options), logits, labels, where)
  expected, slopes = cases.step(name, options)(logits, labels, where)
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  np.testing.assert_allclose(gradient, np.sum(slopes * logits, axis=0), rtol=1e-4, atol=1e-6)


def test_eight_devices_give_the_composite_of_the_whole_batch():
  logits, labels = cases.data(64, 3)
  where = np.arange(64) % 8 < 5
  where[8:16] = False
  loss = losses.composite("focal", "soft_binned_ece", 0.7)
  value, gradient = _mapped(lambda *x, **keywords: loss(*x, **keywords)[0], logits, labels, where)
  focal, focal_slopes = cases.step("focal", {})(logits[where], labels[where])
  binned, binned_slopes = cases.step("soft_binned_ece", {})(logits, labels, where)
  np.testing.assert_allclose(value, focal.mean() + 0.7 * binned, rtol=1e-5)
  expected = np.mean(focal_slopes * logits[where], axis=0) + 0.7 * np.sum(binned_slopes * logits, axis=0)
  np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def _mapped(loss, logits, labels, where, devices=8):
  """The value, and the averaged gradient of a parameter that all devices share: a scale of every class's logits."""
  def value_and_gradient(scale, z, y, m):
    value, gradient = jax.value_and_grad(lambda s: loss(s[None, :] * z, y, where=m, axis_name="batch"))(scale)
    return value, jax.lax.pmean(gradient, "batch")

  split = [x.reshape(devices, -1, *x.shape[1:]) for x in (logits, labels, where)]
  return jax.pmap(value_and_gradient, axis_name="batch", in_axes=(None, 0, 0, 0), out_axes=None)(
    np.ones(logits.shape[-1], np.float32), *split)


@pytest.mark.parametrize("name", cases.FIRST)
def test_mapped_and_with_leading_axes_it_equals_single_calls(name):
  """All in one program: that eager calls give the same values is what the examples in the docstrings show."""
  loss = losses.get(name, **cases.FIRST[name])
  forms = (jax.vmap(loss), loss) if name in cases.PER_EXAMPLE else (jax.vmap(loss),)

  @jax.jit
  def values(logits, labels):
    single = jnp.stack([loss(z, y) for z, y in zip(logits, labels, strict=True)])
    return single, [form(logits, labels) for form in forms]

  expected, others = values(*(x.reshape(2, 6, *x.shape[1:]) for x in cases.data(12, 3)))
  for found in others:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("form", ["bin", "label"])
def test_soft_binning_tends_to_hard_binning(form):
  logits, labels = cases.data(200, 4)
  z = logits.astype(np.float64)
  p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
  c, a = p.max(1), p.argmax(1) == labels
  index = np.minimum((c * 10).astype(int), 9)
  accuracy = np.array([a[index == b].mean() if (index == b).any() else 0 for b in range(10)])
  mean = np.array([c[index == b].mean() if (index == b).any() else 0 for b in range(10)])
  gaps = np.abs(accuracy[index] - (mean[index] if form == "bin" else c))
  soft = jax.jit(losses.get("soft_binned_ece", num_bins=10, temperature=1e-6, form=form))
  for norm in (1.0, 2.0):
    np.testing.assert_allclose(soft(logits, labels, norm=norm), np.mean(gaps**norm)**(1 / norm), rtol=2e-3)


def test_soft_binned_ece_vanishes_for_calibrated_predictions_as_they_grow_in_number():
  rng = np.random.default_rng(0)  # Proposition 1 of the paper, for the bin form.
  logits = rng.normal(size=(1_000_000, 2)).astype(np.float32) * 2
  labels = (rng.uniform(size=1_000_000) < 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))).astype(np.int32)
  loss = jax.jit(losses.get("soft_binned_ece", form="bin"))
  values = [loss(logits, labels, where=np.arange(1_000_000) < n) for n in (100, 10_000, 1_000_000)]
  assert values[1] < 0.25 * values[0] and values[2] < 0.25 * values[1] and values[2] < 2e-3


def test_soft_avuc_prefers_certainty_where_right_and_uncertainty_where_wrong():
  gradient = jax.jit(jax.grad(losses.soft_avuc))(np.array([[1, 0], [1, 0]], np.float32), np.array([0, 1]))
  right, wrong = np.asarray(gradient) @ [1.0, -1.0]
  assert right < 0 < wrong


def test_a_tie_for_the_top_class_goes_to_the_lowest_index():
  loss = jax.jit(losses.soft_binned_ece)
  right, wrong = (loss(np.zeros((1, 3), np.float32), np.array([y])) for y in (0, 1))
  np.testing.assert_allclose([right, wrong], [2 / 3, 1 / 3], rtol=1e-4)


def test_soft_membership_rows_sum_to_one_and_peak_at_the_nearest_center():
  confidence = np.linspace(0, 1, 41, dtype=np.float32)
  member = np.asarray(jax.jit(lambda c: binning.soft_membership(c, 5, 0.01))(confidence))
  np.testing.assert_allclose(member.sum(1), 1, rtol=1e-6)
  centers = (np.arange(5) + 0.5) / 5
  nearest = np.abs(confidence[:, None] - centers).min(1)
  np.testing.assert_allclose(np.abs(confidence - centers[np.argmax(member, 1)]), nearest, atol=1e-6)


def test_composite_is_the_weighted_sum_with_its_parts():
  logits, labels = cases.data(10, 3)
  where = np.arange(10) < 7
  both = jax.jit(losses.composite("focal", losses.get("soft_binned_ece", num_bins=5), 0.3))
  total, parts = both(logits, labels, where=where)
  focal = cases.example_reference("focal", logits[:7], labels[:7], {})
  binned = cases.batch_reference("soft_binned_ece", logits[:7], labels[:7], {"num_bins": 5})
  np.testing.assert_allclose(parts["primary"], np.mean(focal), rtol=1e-5)
  np.testing.assert_allclose(parts["secondary"], binned, rtol=1e-5)
  np.testing.assert_allclose(total, parts["primary"] + np.float32(0.3) * parts["secondary"], rtol=1e-6)
  total, _ = both(np.full((10, 3), np.nan, np.float32), labels, where=np.zeros(10, bool))
  assert total == 0
  total, parts = jax.jit(losses.composite(losses.brier))(logits, labels)
  assert total == parts["primary"] and parts["secondary"] == 0


@pytest.mark.parametrize(("primary", "secondary", "message"), [
  (lambda z, y: losses.soft_avuc(z, y), None,
   r"primary must return one value per example, shape \(4,\): it returned shape \(\)"),
  (lambda z, y, where, axis_name: z, None, r"primary must return a scalar, .* it returned shape \(4, 3\)"),
  ("soft_avuc", "focal", "secondary must be a loss per batch.*a loss per example can only be the primary"),
  (lambda z, y: losses.focal(z, y)[:, None], "mmce", r"primary must return .* it returned shape \(4, 1\)"),
  ("focal", "brier", "secondary must be a loss per batch, which takes where and axis_name: got one without where and"),
])
def test_composite_refuses_losses_of_the_wrong_kind(primary, secondary, message):
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(losses.composite(primary, secondary), FLOATS, INTS, where=INTS > 0)


def test_composite_takes_one_loss_and_a_known_reduction():
  with pytest.raises(TypeError, match=r"secondary must be one loss, by name or as a function: got \['mmce', 'aurc'\]"):
    losses.composite("focal", ["mmce", "aurc"])
  with pytest.raises(ValueError, match="reduction must be one of 'mean', 'sum': got 'max'"):
    losses.composite("focal", reduction="max")


@pytest.mark.parametrize("primary", ["focal", "aurc"])
def test_a_sum_is_the_mean_times_the_number_of_rows_that_count(primary):
  logits, labels = cases.data(10, 3)
  where = np.arange(10) < 7
  (mean, _), (total, parts) = jax.jit(lambda z: [
    losses.composite(primary, "mmce", 0.5, reduction=r)(z, labels, where=where) for r in ("mean", "sum")])(logits)
  kind = cases.example_reference if primary == "focal" else cases.batch_reference
  value = np.mean(kind(primary, logits[:7], labels[:7], {}))
  error = cases.batch_reference("mmce", logits[:7], labels[:7], {})
  np.testing.assert_allclose(parts["primary"], 7 * value, rtol=1e-5)
  np.testing.assert_allclose([mean, total], [value + 0.5 * error, 7 * value + 0.5 * error], rtol=1e-5)


def test_a_loss_per_batch_may_be_the_primary_also_beside_a_secondary():
  logits, labels = cases.data(10, 3)
  where = np.arange(10) < 7
  alone, both = jax.jit(lambda z: [losses.composite("selective_risk", second, 0.3)(z, labels, where=where)
                                   for second in (None, "soft_avuc")])(logits)
  expected = [cases.batch_reference(name, logits[:7], labels[:7], {}) for name in ("selective_risk", "soft_avuc")]
  np.testing.assert_allclose(alone[0], expected[0], rtol=1e-5)
  np.testing.assert_allclose([both[1]["primary"], both[1]["secondary"]], expected, rtol=1e-5)
  np.testing.assert_allclose(both[0], expected[0] + 0.3 * expected[1], rtol=1e-5)


@pytest.mark.parametrize("loss", [losses.aurc, losses.selective_risk])
def test_selective_losses_refuse_a_loss_or_score_that_is_not_one_value_per_example(loss):
  with pytest.raises(ValueError, match=r"loss must return one value per example, shape \(4,\): it returned shape \(\)"):
    jax.eval_shape(lambda z: loss(z, INTS, loss=losses.soft_avuc), FLOATS)
  with pytest.raises(ValueError, match=r"confidence must return one value per example.* it returned shape \(4, 3\)"):
    jax.eval_shape(lambda z: loss(z, INTS, confidence=lambda p: p, score_range=(0, 1)) if loss is losses.selective_risk
                   else loss(z, INTS, confidence=lambda p: p), FLOATS)


def test_every_loss_is_registered_under_its_name_and_lists_its_options():
  registered = {**losses.PER_EXAMPLE, **losses.PER_BATCH}
  assert set(registered) == set(cases.FIRST) and all(getattr(losses, name) is f for name, f in registered.items())
  assert losses.options("brier") == {}
  assert losses.options("selective_risk")["confidence"] == "negative_entropy"
  assert losses.options("avuc") == {"threshold": inspect.Parameter.empty, "stop_gradient": False}
  for name, loss in registered.items():
    arguments = [p for p in inspect.signature(loss).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    assert [p.name for p in arguments] == ["logits", "labels"]
    assert not {"where", "axis_name"} & set(losses.options(name))
  with pytest.raises(ValueError, match="loss name must be one of"):
    losses.options("fokal")


FLOATS = np.zeros((4, 3), np.float32)
INTS = np.zeros(4, np.int32)


@pytest.mark.parametrize("name", [*cases.FIRST, "composite"])
def test_labels_out_of_range_are_refused_where_they_can_be_read(name):
  loss = losses.composite("focal", "mmce") if name == "composite" else losses.get(name, **cases.FIRST[name])
  padded = np.array([0, -100, 2, 3])
  message = (r"labels must be in \[0, 3\): 2 of 4 rows are not; the first, row 1, holds -100 \(rows to ignore are left "
             r"out by where=labels != -100, which composite, losses per batch, metrics and fits take\)\.")
  for labels in (padded, jnp.asarray(padded, jnp.int32)):  # Also within jit, where the logits alone are traced.
    with pytest.raises(ValueError, match=message):
      jax.eval_shape(lambda z, y=labels: loss(z, y), FLOATS)
  with pytest.raises(ValueError, match="1 of 4 rows is not; the first, row 3, holds 4294967297"):
    jax.eval_shape(lambda z: loss(z, np.array([0, 1, 2, 2**32 + 1])), FLOATS)  # Its lowest 32 bits are 1.
  if name not in cases.PER_EXAMPLE:
    counts = np.array([True, False, True, False])
    jax.eval_shape(lambda z: loss(z, padded, where=counts), FLOATS)
    with pytest.raises(ValueError, match="1 of 4 rows is not; the first, row 3, holds 3"):
      jax.eval_shape(lambda z: loss(z, padded, where=padded != -100), FLOATS)


def test_labels_that_are_not_checked_are_nan():
  checks.check_values(False)
  try:
    for labels in (np.array([0, -100, 2, 1]), np.array([0, 2**32 + 1, 2, 1])):
      np.testing.assert_array_equal(np.isnan(losses.brier(FLOATS, labels)), [False, True, False, False])
  finally:
    checks.check_values(True)


def test_composite_ignores_rows_whatever_they_hold():
  logits, labels = cases.data(12, 3)
  where = np.arange(12) % 3 != 1
  both = jax.jit(jax.value_and_grad(lambda z, y, w: losses.composite("focal", "soft_avuc")(z, y, where=w)[0]))
  value, gradient = both(logits, labels, where)
  sliced = [cases.step(name, {})(logits[where], labels[where]) for name in ("focal", "soft_avuc")]
  np.testing.assert_allclose(value, np.mean(sliced[0][0]) + sliced[1][0], rtol=1e-5)
  for held in (np.nan, -np.inf, np.inf):
    found = both(np.where(where[:, None], logits, held), np.where(where, labels, -100), where)
    np.testing.assert_array_equal(found[0], value)
    np.testing.assert_array_equal(found[1], gradient)
  assert np.isnan(both(logits, np.where(where, labels, -100), np.ones(12, bool))[0])


MASKED = np.array([[1.0, 2.0, 0.5], [1.0, -np.inf, 0.0], [-np.inf, 1.0, 0.0], [0.5, 0.0, 0.0]], np.float32)


@pytest.mark.parametrize(("name", "options"), [
  *((name, {}) for name in cases.EVERY_CLASS), ("cross_entropy", {"label_smoothing": 0.1})])
def test_a_masked_class_that_means_nothing_is_refused(name, options):
  reason = "label_smoothing gives every class a part" if options else f"{name} depends on the logit of every class"
  with pytest.raises(ValueError, match=f"{reason}.*a logit of -inf, has no meaning: 2 of 4 rows hold one; .* is row 1"):
    losses.get(name, **options)(MASKED, INTS)


def test_masked_classes_of_distributions():
  soft = np.array([[0.5, 0.5, 0], [0.5, 0, 0.5], [1e-30, 0.5, 0.5], [0.2, 0.2, 0.6]], np.float32)
  plain = cases.masked(MASKED.astype(np.float64), np.isinf(MASKED), -1e4)
  for name in cases.SOFT:
    loss = losses.get(name)
    values, gradients = jax.jit(lambda z, loss=loss: (loss(z, soft), jax.grad(lambda z: jnp.sum(loss(z, soft)))(z)))(
      MASKED)
    expected = cases.example_reference(name, plain, soft.astype(np.float64), {})
    expected[2] = expected[2] if name == "brier" else np.inf
    np.testing.assert_allclose(values, expected, rtol=2e-5)
    assert np.isfinite(gradients).all() and not gradients[np.isinf(MASKED)].any()


def test_masked_classes_in_calls_that_are_not_compiled():
  labels = np.array([1, 0, 1, 2])
  for name in ("cross_entropy", "soft_avuc"):
    plain = cases.masked(MASKED.astype(np.float64), np.isinf(MASKED), -1e4)
    kind = cases.example_reference if name in cases.PER_EXAMPLE else cases.batch_reference
    np.testing.assert_allclose(losses.get(name)(MASKED, labels), kind(name, plain, labels, {}), rtol=2e-5)


def test_a_loss_of_ones_own_gets_logits_of_minus_infinity():
  seen = jax.jit(lambda z: losses.aurc(z, INTS, loss=lambda z, y: jnp.sum(z == -jnp.inf, axis=1).astype(z.dtype)))
  assert seen(np.where(np.isinf(MASKED), -np.inf, 0).astype(np.float32)) > 0


@pytest.mark.parametrize(("call", "error", "message"), [
  (lambda: losses.focal(FLOATS.astype(int), INTS), TypeError, "logits must be floating point: got dtype int"),
  (lambda: losses.focal(FLOATS, INTS[:3]), ValueError, r"got logits \(4, 3\) and labels \(3,\)"),
  (lambda: losses.focal(FLOATS, FLOATS[:, :2]), ValueError, "float labels must have the shape of logits"),
  (lambda: losses.focal(FLOATS, INTS.astype(bool)), TypeError, "labels must be integers in .* got dtype bool"),
  (lambda: losses.focal(FLOATS[:, :1], INTS), ValueError, "at least 2 classes"),
  (lambda: losses.focal(FLOATS, INTS, gamma=-1), ValueError, r"gamma must be in \[0, inf\): got -1"),
  (lambda: losses.focal(FLOATS, INTS, gamma="2"), TypeError, "gamma must be a number: got '2'"),
  (lambda: losses.cross_entropy(FLOATS, INTS, label_smoothing=1.5), ValueError, "label_smoothing must be in"),
  (lambda: losses.soft_avuc(FLOATS, FLOATS), TypeError, r"labels must be integers in \[0, 3\): got dtype float32"),
  (lambda: losses.soft_avuc(FLOATS[None], INTS[None]), ValueError, r"logits must have shape \[N, K\]"),
  (lambda: losses.soft_avuc(FLOATS, INTS, threshold=1.0), ValueError, r"threshold must be in \(0, 1\): got 1"),
  (lambda: losses.soft_avuc(FLOATS, INTS, temperature=0), ValueError, "temperature must be in"),
  (lambda: losses.soft_avuc(FLOATS, INTS, where=INTS), TypeError, "where must be boolean: got dtype int32"),
  (lambda: losses.soft_avuc(FLOATS, INTS, where=INTS[:2] > 0), ValueError, r"where must have shape \(4,\)"),
  (lambda: losses.soft_binned_ece(FLOATS, INTS, num_bins=1.5), TypeError, "num_bins must be an integer"),
  (lambda: losses.soft_binned_ece(FLOATS, INTS, num_bins=0), ValueError, "num_bins must be in"),
  (lambda: losses.soft_binned_ece(FLOATS, INTS, low=1.0), ValueError, r"low must be in \[0, 1\): got 1"),
  (lambda: losses.soft_binned_ece(FLOATS, INTS, root=1), ValueError, "root must be one of True, False"),
  (lambda: losses.get("soft_ece"), ValueError, "Did you mean 'soft_binned_ece'"),
  (lambda: losses.soft_binned_ece(FLOATS, INTS, norm=0.5), ValueError, r"norm must be in \[1, inf\)"),
  (lambda: losses.soft_binned_ece(FLOATS, INTS, form="lable"), ValueError, "got 'lable'. Did you mean 'label'"),
  (lambda: losses.get("fokal"), ValueError, "must be one of .*'cross_entropy'.*Did you mean 'focal'"),
  (lambda: losses.get("focal", gama=2), TypeError, "focal has no option 'gama'; it has gamma, stop_gradient"),
])
def test_mistakes_are_named(call, error, message):
  with pytest.raises(error, match=message):
    call()
  with pytest.raises(error, match=message):
    jax.jit(call)()


def test_options_may_be_traced():
  logits, labels = cases.data(5, 3)
  gammas = np.array([0.0, 1.0, 2.5], np.float32)
  swept = jax.jit(jax.vmap(lambda gamma: losses.focal(logits, labels, gamma=gamma)))(gammas)
  expected = [cases.example_reference("focal", logits, labels, {"gamma": gamma}) for gamma in gammas]
  np.testing.assert_allclose(swept, expected, rtol=1e-5)
