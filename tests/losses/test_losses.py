"""Every loss against its float64 reference, by the laws that all share, and at the edges."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import binning, losses
from tests.losses import references

PER_EXAMPLE = {
  "cross_entropy": [{}, {"label_smoothing": 0.1}, {"label_smoothing": 1.0}],
  "brier": [{}],
  "focal": [{}, {"gamma": 0.0}, {"gamma": 0.5}, {"gamma": 10.0}],
  "square": [{}, {"true_class_weight": 5.0, "true_class_target": 3.0}],
  "sample_dependent_focal": [{}, {"thresholds": (0.1, 0.5), "gammas": (7.0, 2.5, 0.0)}],
  "inverse_focal": [{}, {"gamma": 0.0}, {"gamma": 3.5}],
  "dual_focal": [{}, {"gamma": 0.5}, {"competitor": "strongest_below"},
                 {"competitor": "strongest_below", "gamma": 5.0}],
  "adaptive_focal": [{"gammas": np.array([3.0, -1.5, 0.0, 0.7], np.float32),
                      "bin_edges": np.array([0, 0.2, 0.4, 0.7, 1], np.float32)}],
  "margin_label_smoothing": [{}, {"margin": 1.0, "weight": 2.0}],
  "adaptive_conditional_label_smoothing": [{}, {"margin": 0.5, "weight": 1.0, "positive_weight": 0.3}],
  "pairwise_constraints": [{}, {"discrimination_weight": 0.5, "exclusion_weight": 3.0}],
}
SOFT = ("cross_entropy", "brier", "focal")
PER_BATCH = {
  "soft_binned_ece": [{}, {"form": "bin"}, {"norm": 1.0}, {"norm": 3.5, "num_bins": 4, "temperature": 0.1},
                      {"form": "bin", "norm": 1.0, "temperature": 0.001}],
  "soft_avuc": [{}, {"threshold": 0.1, "temperature": 0.3}, {"threshold": 0.9, "temperature": 4.0}],
  "soft_binned_marginal_ece": [{}, {"norm": 1.0, "num_bins": 5, "temperature": 0.001}],
  "avuc": [{"threshold": 0.5}, {"threshold": 1.0, "stop_gradient": True}],
  "mmce": [{}, {"weighted": True}, {"kernel_width": 0.05}],
  "kde_ece": [{}, {"form": "canonical", "norm": 2.0}, {"form": "marginal", "bandwidth": 0.3}, {"bandwidth": 0.01}],
  "aurc": [{}, {"estimator": "log", "confidence": "margin"}, {"confidence": "negative_entropy", "loss": "brier"}],
  "selective_risk": [{}, {"confidence": "negative_entropy", "smoothing": 0.02, "num_bins": 7},
                     {"confidence": "margin", "low_confidence_coverage": 0.5, "loss": "focal"},
                     {"low_confidence_coverage": 1.0}],
}
FIRST = {name: options[0] for name, options in {**PER_EXAMPLE, **PER_BATCH}.items()}
EXAMPLE_CASES = [(n, o) for n, options in PER_EXAMPLE.items() for o in options]
BATCH_CASES = [(n, o) for n, options in PER_BATCH.items() for o in options]
SIZES = [(1, 2), (64, 10)]  # The whole grid, by masks, is in test_grid.py.


def _ids(case):
  return case if isinstance(case, str | int) else ",".join(f"{k}={v}" for k, v in case.items()) or "default"


def _data(n, k, scale=2.0, seed=0):
  rng = np.random.default_rng(seed)
  logits = (scale * rng.normal(size=(n, k))).astype(np.float32)
  labels = np.where(rng.uniform(size=n) < 0.6, logits.argmax(1), rng.integers(0, k, n)).astype(np.int32)
  return logits, labels


def _rows(logits):
  return [[float(v) for v in row] for row in logits]


def _reference_example(name, logits, targets, options, frozen=None):
  """One value an example; ``frozen`` logits stand where the loss stops gradients."""
  reference, rows = getattr(references, name), _rows(logits)
  held = _rows(frozen) if frozen is not None and "frozen" in inspect.signature(reference).parameters else None
  return [reference(z, [float(v) for v in t], **options, **({"frozen": held[i]} if held else {}))
          for i, (z, t) in enumerate(zip(rows, targets, strict=True))]


def _reference_batch(name, logits, labels, options, frozen=None):
  reference = getattr(references, name)
  if frozen is not None and "frozen" in inspect.signature(reference).parameters:
    options = {**options, "frozen": _rows(frozen)}
  return reference(_rows(logits), [int(y) for y in labels], **options)


def _slopes(function, logits, directions, step=1e-5):
  """Central differences in float64 along each direction."""
  logits = logits.astype(np.float64)
  return [(function(logits + step * d) - function(logits - step * d)) / (2 * step) for d in directions]


@pytest.mark.parametrize(("name", "options"), EXAMPLE_CASES, ids=_ids)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_per_example_losses_equal_the_reference(name, options, n, k):
  logits, labels = _data(n, k)
  loss = losses.get(name, **options)
  onehot = np.eye(k)[labels]
  np.testing.assert_allclose(loss(logits, labels), _reference_example(name, logits, onehot, options), rtol=2e-5,
                             atol=1e-7)
  if name in SOFT:
    soft = np.random.default_rng(1).dirichlet(np.ones(k), n).astype(np.float32)
    expected = _reference_example(name, logits, soft, options)
    np.testing.assert_allclose(loss(logits, soft), expected, rtol=2e-5, atol=1e-7)
  directions = np.random.default_rng(2).normal(size=(3, n, k))
  gradient = np.asarray(jax.jit(jax.grad(lambda z: jnp.sum(loss(z, labels))))(logits), np.float64)
  slopes = _slopes(lambda z: sum(_reference_example(name, z, onehot, options, logits)), logits, directions)
  np.testing.assert_allclose([np.sum(gradient * d) for d in directions], slopes, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize(("name", "options"), BATCH_CASES, ids=_ids)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_per_batch_losses_equal_the_reference(name, options, n, k):
  logits, labels = _data(n, k)
  loss = losses.get(name, **options)
  value, gradient = jax.jit(jax.value_and_grad(loss))(logits, labels)
  np.testing.assert_allclose(value, _reference_batch(name, logits, labels, options), rtol=2e-5, atol=1e-6)
  directions = np.random.default_rng(2).normal(size=(3, n, k))
  slopes = _slopes(lambda z: _reference_batch(name, z, labels, options, logits), logits, directions)
  found = [np.sum(np.asarray(gradient, np.float64) * d) for d in directions]
  np.testing.assert_allclose(found, slopes, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("scale", [0.02, 10.0])
def test_soft_avuc_keeps_its_digits_near_uniform_and_near_one_hot(scale):
  logits, labels = _data(32, 10, scale)
  value, gradient = jax.value_and_grad(losses.soft_avuc)(jnp.asarray(logits), labels)
  np.testing.assert_allclose(value, _reference_batch("soft_avuc", logits, labels, {}), rtol=2e-5)
  directions = np.random.default_rng(2).normal(size=(3, 32, 10))
  slopes = _slopes(lambda z: _reference_batch("soft_avuc", z, labels, {}), logits, directions)
  np.testing.assert_allclose([np.sum(gradient * d) for d in directions], slopes, rtol=2e-3, atol=1e-5)


EXTREMES = {
  "huge": (np.array([[1e4, -1e4, 0], [-1e4, 1e4, 0], [0, 0, 1e4], [1e4, 1e4, -1e4]]), [0, 0, 2, 1]),
  "ties": (np.zeros((4, 3)), [0, 1, 2, 0]),
  "one example": (np.array([[2.0, 1.0]]), [1]),
  "all correct": (np.eye(4, 3) * 50 + np.eye(4, 3, -1), [0, 1, 2, 2]),
  "all wrong": (np.eye(4, 3) * 50 + np.eye(4, 3, -1), [1, 2, 0, 0]),
  "saturated": (np.eye(4, 3) * 88 + np.array([[0, -88, 0]]), [0, 0, 0, 1]),
}


def test_selective_risk_keeps_its_digits_where_all_tails_are_tiny():
  # Five bins and ν = 1e-4: scores stand up to a thousand ν above the highest centre.
  logits, labels = _data(64, 3)
  options = {"smoothing": 1e-4, "num_bins": 5, "low_confidence_coverage": 1.0}
  value, gradient = jax.value_and_grad(lambda z: losses.selective_risk(z, labels, **options))(logits)
  np.testing.assert_allclose(value, _reference_batch("selective_risk", logits, labels, options), rtol=2e-5)
  direction = np.random.default_rng(1).normal(size=logits.shape)
  slope, = _slopes(lambda z: _reference_batch("selective_risk", z, labels, options, logits), logits, [direction])
  np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=2e-3)


@pytest.mark.parametrize(("name", "options"), [*EXAMPLE_CASES, *BATCH_CASES,
                                               ("soft_binned_ece", {"temperature": 1e-6})], ids=_ids)
def test_extremes_are_finite_and_right(name, options):
  loss = losses.get(name, **options)
  step = jax.jit(jax.value_and_grad(lambda z, y: jnp.sum(loss(z, y))))
  for edge, (logits, labels) in EXTREMES.items():
    labels = np.asarray(labels)
    value, gradient = step(logits.astype(np.float32), labels)
    assert np.isfinite(value) and np.isfinite(gradient).all(), edge
    if name in PER_EXAMPLE:
      expected = sum(_reference_example(name, logits, np.eye(logits.shape[1])[labels], options))
    else:
      expected = _reference_batch(name, logits, labels, options)
    np.testing.assert_allclose(value, expected, rtol=5e-5, atol=1e-6, err_msg=edge)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", [*PER_EXAMPLE, *PER_BATCH])
def test_half_precision_is_computed_in_float32(name, dtype):
  logits, labels = _data(9, 4)
  logits = jnp.asarray(logits, dtype)
  loss = losses.get(name, **FIRST[name])
  value, expected = (loss(z, labels) for z in (logits, logits.astype(jnp.float32)))
  assert value.dtype == jnp.float32
  np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize(("name", "options"), BATCH_CASES, ids=_ids)
def test_where_equals_slicing_also_over_nan_and_labels_out_of_range(name, options):
  logits, labels = _data(12, 4)
  where = np.arange(12) % 3 != 1
  masked = np.where(where[:, None], logits, np.nan)
  masked_labels = np.where(where, labels, 255)
  step = jax.jit(jax.value_and_grad(losses.get(name, **options)))
  value, gradient = step(masked, masked_labels, where=where)
  expected, expected_gradient = step(logits[where], labels[where])
  np.testing.assert_allclose(value, expected, rtol=1e-6)
  np.testing.assert_allclose(gradient[where], expected_gradient, rtol=1e-4, atol=1e-7)
  np.testing.assert_array_equal(gradient[~where], 0)
  value, gradient = step(np.full((12, 4), np.nan, np.float32), masked_labels, where=np.zeros(12, bool))
  assert value == 0 and not np.any(gradient)


@pytest.mark.parametrize(("name", "options"), BATCH_CASES, ids=_ids)
def test_order_of_examples_and_names_of_classes_do_not_matter(name, options):
  logits, labels = _data(30, 5)
  rows, columns = np.random.default_rng(3).permutation(30), np.array([3, 0, 4, 1, 2])
  loss = jax.jit(losses.get(name, **options))
  expected = loss(logits, labels)
  np.testing.assert_allclose(loss(logits[rows], labels[rows]), expected, rtol=1e-5)
  np.testing.assert_allclose(loss(logits[:, columns], np.argsort(columns)[labels]), expected, rtol=1e-5)


def _mapped(loss, logits, labels, where, devices=8):
  """Value and pmean-ed gradient of a parameter that all devices share: a scale of every logit."""
  def value_and_gradient(scale, z, y, m):
    value, gradient = jax.value_and_grad(lambda s: loss(s[None, :] * z, y, where=m, axis_name="batch"))(scale)
    return value, jax.lax.pmean(gradient, "batch")

  split = [x.reshape(devices, -1, *x.shape[1:]) for x in (logits, labels, where)]
  return jax.pmap(value_and_gradient, axis_name="batch", in_axes=(None, 0, 0, 0), out_axes=None)(
    jnp.ones(logits.shape[-1]), *split)


@pytest.mark.parametrize(("name", "options"), [*BATCH_CASES, ("composite", {})], ids=_ids)
def test_eight_devices_give_the_value_and_gradient_of_the_whole_batch(name, options):
  logits, labels = _data(64, 6)
  where = np.random.default_rng(4).uniform(size=64) < 0.7
  where[8:16] = False  # A device that holds padding alone.
  if name == "composite":
    def loss(z, y, **keywords):
      return losses.composite("focal", "soft_binned_ece", 0.7)(z, y, **keywords)[0]
  else:
    loss = losses.get(name, **options)
  value, gradient = _mapped(loss, logits, labels, where)
  expected, expected_gradient = jax.jit(jax.value_and_grad(
    lambda s: loss(s[None, :] * logits, labels, where=where)))(jnp.ones(6))
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), [*EXAMPLE_CASES, *BATCH_CASES], ids=_ids)
def test_jit_and_vmap_change_nothing(name, options):
  loss = losses.get(name, **options)
  parts = [_data(6, 4, seed=s) for s in range(3)]
  logits, labels = (np.stack(x) for x in zip(*parts, strict=True))
  expected = np.stack([loss(z, y) for z, y in parts])
  np.testing.assert_allclose(jax.jit(jax.vmap(loss))(logits, labels), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", PER_EXAMPLE)
def test_leading_axes_are_batch_axes(name):
  logits, labels = _data(12, 5)
  loss = losses.get(name, **FIRST[name])
  expected = loss(logits, labels).reshape(3, 4)
  np.testing.assert_allclose(loss(logits.reshape(3, 4, 5), labels.reshape(3, 4)), expected, rtol=1e-6)


def test_focal_with_gamma_0_is_cross_entropy():
  logits, labels = _data(20, 7, 5.0)
  np.testing.assert_allclose(losses.focal(logits, labels, gamma=0.0), losses.cross_entropy(logits, labels), rtol=1e-6)


@pytest.mark.parametrize("form", ["bin", "label"])
@pytest.mark.parametrize("norm", [1.0, 2.0])
def test_soft_binning_tends_to_hard_binning(form, norm):
  logits, labels = _data(200, 4)
  z = logits.astype(np.float64)
  p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
  c, a = p.max(1), p.argmax(1) == labels
  index = np.minimum((c * 10).astype(int), 9)
  accuracy = np.array([a[index == b].mean() if (index == b).any() else 0 for b in range(10)])
  mean = np.array([c[index == b].mean() if (index == b).any() else 0 for b in range(10)])
  gaps = np.abs(accuracy[index] - (mean[index] if form == "bin" else c))
  soft = losses.soft_binned_ece(logits, labels, num_bins=10, temperature=1e-6, norm=norm, form=form)
  np.testing.assert_allclose(soft, np.mean(gaps**norm)**(1 / norm), rtol=2e-3)


def test_soft_binned_ece_vanishes_for_calibrated_predictions_as_they_grow_in_number():
  def value(n):  # Proposition 1 of the paper, for the bin form.
    rng = np.random.default_rng(n)
    logits = rng.normal(size=(n, 2)).astype(np.float32) * 2
    p = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    return float(losses.soft_binned_ece(logits, (rng.uniform(size=n) < p).astype(np.int32), form="bin"))

  values = [value(n) for n in (100, 10_000, 1_000_000)]
  assert values[1] < 0.25 * values[0] and values[2] < 0.25 * values[1] and values[2] < 2e-3


def test_soft_avuc_prefers_certainty_where_right_and_uncertainty_where_wrong():
  logits = jnp.array([[1.0, 0.0], [1.0, 0.0]])
  gradient = jax.grad(losses.soft_avuc)(logits, jnp.array([0, 1]))
  sharper = np.array([1.0, -1.0])
  assert gradient[0] @ sharper < 0 < gradient[1] @ sharper


def test_a_tie_for_the_top_class_goes_to_the_lowest_index():
  tied = jnp.zeros((1, 3))
  right, wrong = (losses.soft_binned_ece(tied, jnp.array([y])) for y in (0, 1))
  np.testing.assert_allclose([right, wrong], [2 / 3, 1 / 3], rtol=1e-4)


def test_soft_membership_rows_sum_to_one_and_peak_at_the_nearest_center():
  confidence = jnp.linspace(0, 1, 41)
  member = binning.soft_membership(confidence, 5, 0.01)
  np.testing.assert_allclose(member.sum(1), 1, rtol=1e-6)
  centers = (np.arange(5) + 0.5) / 5
  nearest = np.abs(np.asarray(confidence)[:, None] - centers).min(1)
  np.testing.assert_allclose(np.abs(confidence - centers[np.argmax(member, 1)]), nearest, atol=1e-6)


def test_composite_is_the_weighted_sum_with_its_parts():
  logits, labels = _data(10, 3)
  where = np.arange(10) < 7
  total, parts = losses.composite("focal", losses.get("soft_binned_ece", num_bins=5), 0.3)(logits, labels, where=where)
  np.testing.assert_allclose(parts["primary"], np.mean(losses.focal(logits[:7], labels[:7])), rtol=1e-6)
  np.testing.assert_allclose(parts["secondary"], losses.soft_binned_ece(logits[:7], labels[:7], num_bins=5), rtol=1e-5)
  np.testing.assert_allclose(total, parts["primary"] + 0.3 * parts["secondary"], rtol=1e-6)
  total, parts = losses.composite(losses.brier)(logits, labels)
  assert total == parts["primary"] and parts["secondary"] == 0
  total, _ = losses.composite("focal")(jnp.full((2, 3), jnp.nan), np.zeros(2, int), where=np.zeros(2, bool))
  assert total == 0


FLOATS = np.zeros((4, 3), np.float32)
INTS = np.zeros(4, np.int32)


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
  (lambda: losses.soft_binned_ece(FLOATS, INTS, norm=0.5), ValueError, r"norm must be in \[1, inf\)"),
  (lambda: losses.soft_binned_ece(FLOATS, INTS, form="lable"), ValueError, "got 'lable'. Did you mean 'label'"),
  (lambda: losses.get("fokal"), ValueError, "must be one of 'cross_entropy', .*Did you mean 'focal'"),
  (lambda: losses.get("focal", gama=2), TypeError, "focal has no option 'gama'; it has gamma"),
])
def test_mistakes_are_named(call, error, message):
  with pytest.raises(error, match=message):
    call()
  with pytest.raises(error, match=message):
    jax.jit(call)()


def test_float64_stays_float64():
  with jax.enable_x64(True):
    logits, labels = _data(8, 4)
    for name in (*PER_EXAMPLE, *PER_BATCH):
      loss = jax.eval_shape(losses.get(name, **FIRST[name]), logits.astype(np.float64), labels)
      assert loss.dtype == jnp.float64, name
    expected = _reference_batch("soft_avuc", logits, labels, {})
    np.testing.assert_allclose(losses.soft_avuc(logits.astype(np.float64), labels), expected, rtol=1e-12)


def test_options_may_be_traced():
  logits, labels = _data(5, 3)
  gammas = jnp.array([0.0, 1.0, 2.5])
  swept = jax.vmap(lambda g: losses.focal(logits, labels, gamma=g))(gammas)
  for gamma, row in zip(gammas, swept, strict=True):
    np.testing.assert_allclose(row, functools.partial(losses.focal, gamma=float(gamma))(logits, labels), rtol=1e-6)
