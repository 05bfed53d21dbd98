"""Losses from features and a last layer equal those of the dense logits, in value and in gradient."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest

from calib_jax import losses, metrics
from tests.losses import cases

N, D, K, CHUNK = 24, 6, 37, 8  # The chunks are of 5, 8, 8, 8 and 8 classes.
# Losses by what they are computed from: the label's probability and sums over the classes, or blocks of rows.
GROUPS = {
  "the label": [*((name, cases.FIRST[name]) for name in ("cross_entropy", "focal", "inverse_focal",
                                                         "sample_dependent_focal", "adaptive_focal")),
                ("soft_binned_ece", {}), ("soft_binned_ece", {"form": "bin"})],
  "squares": [("brier", {})], "entropy": [("avuc", {"threshold": 0.5}), ("soft_avuc", {})],
  "blocks": [("cross_entropy", {"label_smoothing": 0.1}), ("dual_focal", {}), ("pairwise_constraints", {})]}


RNG = np.random.default_rng(0)
FEATURES, KERNEL, BIAS = (RNG.normal(size=shape).astype(np.float32) for shape in ((N, D), (D, K), K))
LABELS = np.where(RNG.uniform(size=N) < 0.5, (FEATURES @ KERNEL + BIAS).argmax(1), RNG.integers(0, K, N))


def _layer(dtype=np.float32):
  return [jnp.asarray(x, dtype) for x in (FEATURES, KERNEL, BIAS)], LABELS.astype(np.int32)


def _both(each, arrays, labels):
  """``(values, gradients)`` of dense losses and of those from features, in one program; gradients are of a sum."""
  factors = np.random.default_rng(1).normal(size=(len(each), len(labels))).astype(np.float32)

  def total(values):
    return sum(jnp.sum(x * (f if x.ndim else f[0])) for f, x in zip(factors, values, strict=True)), values

  def dense(features, kernel, bias):
    logits = jnp.dot(features, kernel, preferred_element_type=jnp.float32) + bias.astype(jnp.float32)[None, :]
    return total(tuple(loss(logits, labels) for loss in each))

  def chunked(features, kernel, bias):
    return total(losses.from_features(tuple(each), features, kernel, labels, bias=bias, chunk=CHUNK))

  steps = [jax.value_and_grad(f, argnums=(0, 1, 2), has_aux=True) for f in (dense, chunked)]
  return [(values, gradients) for (_, values), gradients in jax.jit(lambda *x: [f(*x) for f in steps])(*arrays)]


def _check(both, eps=2e-6, gradient_eps=None):
  (expected, slopes), (actual, gradients) = both
  for value, x in zip(actual, expected, strict=True):
    np.testing.assert_allclose(value, x, rtol=10 * eps, atol=10 * eps)
  for slope, gradient in zip(slopes, gradients, strict=True):
    slope, gradient = (np.asarray(x, np.float64) for x in (slope, gradient))
    atol = (gradient_eps or 10 * eps) * max(np.abs(slope).max(), 1e-3)
    np.testing.assert_allclose(gradient, slope, rtol=0, atol=atol)


@pytest.mark.parametrize("group", GROUPS)
def test_values_and_gradients_are_those_of_dense_logits(group):
  arrays, labels = _layer()
  _check(_both([losses.get(name, **options) for name, options in GROUPS[group]], arrays, labels))


def _extremes():
  """Rows of 37 logits at the ends of what is allowed, and in the order of the chunks 0-4, 5-12, …, 29-36."""
  rows = np.full((8, K), -3.0)
  rows[0, [4, 5]] = 1e4, -1e4  # One class alone; its neighbour, in the next chunk, is far below.
  rows[1, [4, 5, 36]] = 1e4  # A tie across chunks.
  rows[2] = 0  # All equal.
  rows[3] = -1e4
  rows[3, 20] = 1e4
  rows[4, 36] = 60  # The last class of the last chunk; 1 - p underflows to 1e-27.
  rows[5] = np.linspace(1e4, -1e4, K)
  rows[6] = np.linspace(-1e-4, 1e-4, K)
  rows[7, [12, 13]] = 88, 87.5
  return rows.astype(np.float32), np.array([4, 36, 0, 3, 36, 36, 7, 13], np.int32)


def test_extreme_logits_keep_values_finite_and_equal():
  rows, labels = _extremes()
  both = _both([losses.brier, losses.focal, losses.soft_avuc], [rows, np.eye(K, dtype=np.float32), rows[2]], labels)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(both))
  _check(both, gradient_eps=1e-4)


def test_a_masked_class_has_no_probability_and_no_gradient():
  arrays, labels = _layer()
  arrays[2] = arrays[2].at[jnp.array([3, 30])].set(-jnp.inf)
  both = _both([losses.brier, losses.soft_avuc], arrays, np.where(np.isin(labels, (3, 30)), 0, labels))
  _check(both)
  assert not np.any(both[1][1][1][:, [3, 30]])


def test_a_masked_label_has_an_infinite_loss_and_no_gradient():
  (features, kernel, bias), labels = _layer()
  labels = np.where(labels == 3, 0, labels)
  labels[0], bias = 3, bias.at[3].set(-jnp.inf)
  loss = functools.partial(losses.from_features, "focal", kernel=kernel, labels=labels, bias=bias, chunk=CHUNK)
  values, pullback = jax.vjp(jax.jit(lambda features: loss(features)), features)
  gradient, = pullback(jnp.ones_like(values))
  assert np.isinf(values[0]) and np.isfinite(values[1:]).all() and np.isfinite(gradient).all()
  assert not np.any(gradient[0])


@pytest.mark.slow
def test_sixteen_bits_give_float32_logits_and_gradients_of_sixteen_bits():
  arrays, labels = _layer(dtype=jnp.bfloat16)
  both = _both([losses.cross_entropy, losses.soft_avuc], arrays, labels)
  assert both[1][0][0].dtype == jnp.float32 and all(x.dtype == jnp.bfloat16 for x in both[1][1])
  # Each chunk's part of the gradient is rounded to bfloat16, of eps 2^-8.
  _check(both, gradient_eps=8 * 2**-8)
  mixed = jax.jit(lambda features, kernel, bias: losses.from_features(
    "soft_avuc", features, kernel, labels, bias=bias, chunk=CHUNK))(arrays[0].astype(jnp.float32), *arrays[1:])
  np.testing.assert_allclose(mixed, both[1][0][1], rtol=1e-4)


def _of_ones_own(logits, labels):
  """A loss that is NaN, and has a NaN in its gradient, for a label out of range."""
  return jnp.max(logits, axis=-1) * jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]


def test_rows_that_are_ignored_may_hold_anything():
  (features, kernel, bias), labels = _layer()
  where = np.arange(N) % 3 > 0

  @jax.jit
  def step(features, kernel, labels, where):
    def total(*layer):
      values = losses.from_features(("focal", _of_ones_own, "soft_avuc"), *layer, labels, bias=bias, chunk=CHUNK,
                                    where=where)
      return sum(jnp.sum(x) for x in values), values

    return jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(features, kernel)

  expected = step(features, kernel, labels, where)
  blank = jnp.where(where[:, None], features, jnp.nan)
  jax.tree.map(np.testing.assert_array_equal, step(blank, kernel, np.where(where, labels, -100), where), expected)
  (_, values), (of_features, _) = expected
  assert not any(np.any(x[~where]) for x in (*values[:2], of_features))
  logits = (FEATURES @ KERNEL + BIAS)[where]
  focal = cases.reference("focal", logits, labels[where], {})
  np.testing.assert_allclose(values[0][where], focal, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(values[2], cases.reference("soft_avuc", logits, labels[where], {}), rtol=1e-5)
  assert not any(np.any(x) for x in jax.tree.leaves(step(blank, kernel, np.full(N, -100), np.zeros(N, bool))))


def test_a_label_out_of_range_is_an_error_or_nan():
  (features, kernel, _), labels = _layer()
  labels[5] = K
  with pytest.raises(ValueError, match=r"labels must be in \[0, 37\): 1 of 24 rows is not; the first, row 5, holds 37"):
    losses.from_features("focal", features, kernel, labels)

  @jax.jit
  def traced(labels):
    of_rows = jax.value_and_grad(lambda w: jnp.nansum(losses.from_features("focal", features, w, labels, chunk=CHUNK)))
    return (losses.from_features("focal", features, kernel, labels, chunk=CHUNK), of_rows(kernel)[1],
            losses.from_features("soft_avuc", features, kernel, labels, chunk=CHUNK),
            metrics.top_label_from_features(features, kernel, labels, chunk=CHUNK))

  values, gradient, of_batch, (confidence, correct) = traced(labels)
  assert np.isnan(values[5]) and np.isfinite(np.delete(values, 5)).all() and np.isfinite(gradient).all()
  assert np.isnan(of_batch) and np.isnan(confidence[5]) and not correct[5]


def test_leading_axes_and_weights():
  arrays, labels = _layer()
  weights = np.arange(N) % 3
  features, labels, split = (np.asarray(x).reshape(4, 6, *x.shape[1:]) for x in (arrays[0], labels, weights))
  focal, soft_avuc = jax.jit(lambda features, labels, weights: [
    losses.from_features(loss, features, arrays[1], labels, bias=arrays[2], chunk=CHUNK, **given)
    for loss, given in (("focal", {}), ("soft_avuc", {"weights": weights}))])(features, labels, split)
  logits = FEATURES @ KERNEL + BIAS
  expected = cases.reference("focal", logits, LABELS, {})
  np.testing.assert_allclose(focal, expected.reshape(4, 6), rtol=1e-5, atol=1e-6)
  repeated = (np.repeat(x, weights, axis=0) for x in (logits, LABELS))
  np.testing.assert_allclose(soft_avuc, cases.reference("soft_avuc", *repeated, {}), rtol=1e-5)


def test_devices_give_the_value_and_gradient_of_the_global_batch():
  arrays, labels = _layer()
  devices, shares, same = jax.devices()[:2], PartitionSpec("batch"), PartitionSpec()
  mesh = jax.make_mesh((2,), ("batch",), devices=devices)
  names = ("cross_entropy", "soft_avuc")

  def value(kernel, bias, features, labels, axis_name=None):
    each, of_batch = losses.from_features(names, features, kernel, labels, bias=bias, chunk=CHUNK, axis_name=axis_name)
    return (jnp.mean(each) if axis_name is None else jax.lax.pmean(jnp.mean(each), axis_name)) + of_batch

  whole = jax.value_and_grad(value, argnums=(0, 1))

  def averaged(*args):
    actual, gradients = whole(*args, "batch")
    return actual, jax.lax.pmean(gradients, "batch")

  batch, specs = (*arrays[1:], arrays[0], labels), (same, same, shares, shares)
  put = [jax.device_put(x, jax.sharding.NamedSharding(mesh, spec)) for x, spec in zip(batch, specs, strict=True)]
  sharded = jax.shard_map(lambda *args: whole(*args, "batch"), mesh=mesh, in_specs=specs, out_specs=same)
  mapped = jax.pmap(averaged, axis_name="batch", in_axes=(None, None, 0, 0), out_axes=None, devices=devices)
  ways = {"pmap": mapped(*batch[:2], arrays[0].reshape(2, -1, D), labels.reshape(2, -1)),
          "jit over explicit axes": jax.jit(whole)(*put), "shard_map": jax.jit(sharded)(*put)}
  expected = jax.jit(whole)(*batch)
  for way, actual in ways.items():
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=way)


def test_memory_is_that_of_the_chunk():
  n, d, k, chunk = 256, 8, 4096, 128
  arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((n, d), (d, k))]
  labels = np.zeros(n, np.int32)
  for name in ("soft_avuc", "dual_focal"):
    step = jax.jit(jax.grad(lambda f, w, name=name: jnp.mean(losses.from_features(name, f, w, labels, chunk=chunk)),
                            argnums=(0, 1)))
    used = step.lower(*arrays).compile().memory_analysis().temp_size_in_bytes
    assert used < 12 * 4 * n * chunk < 4 * n * k, f"{name} takes {used} bytes"


def test_top_labels_are_those_of_dense_probabilities():
  rows, labels = _extremes()
  actual, expected = jax.jit(lambda z: (
    metrics.top_label_from_features(z, jnp.eye(K), labels, bias=jnp.zeros(K), chunk=CHUNK),
    metrics.top_label(jax.nn.softmax(z), labels)))(rows)
  np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5)
  np.testing.assert_array_equal(actual[1], expected[1])


@pytest.mark.parametrize(("changes", "error", "message"), [
  ({"loss": "mdca"}, ValueError, r"mdca needs the logits of all rows and classes: call it with features"),
  ({"axis_name": "batch"}, ValueError, r"weights and axis_name are for losses per batch"),
  ({"kernel": KERNEL.T}, ValueError, r"kernel must be \[D, K\] for features \[\.\.\., D\]"),
  ({"bias": BIAS[1:]}, ValueError, r"bias must have shape \(37,\)"),
  ({"labels": np.eye(K)[LABELS]}, TypeError, r"labels must be integers in \[0, 37\), because distributions would"),
  ({"labels": LABELS[1:]}, ValueError, r"labels must have the shape of features without its last axis"),
  ({"chunk": 1}, ValueError, r"chunk must be in \[2, inf\): got 1"),
  ({"kernel": KERNEL.astype(int)}, TypeError, r"kernel must be floating point"),
  ({"loss": lambda z, y: jnp.sum(z), "chunk": CHUNK}, ValueError, r"loss must return one value per example")])
def test_mistakes_are_named(changes, error, message):
  with pytest.raises(error, match=message):
    jax.eval_shape(lambda x: losses.from_features(**{"loss": "focal", "features": x, "kernel": KERNEL,
                                                     "labels": LABELS, **changes}), FEATURES)
