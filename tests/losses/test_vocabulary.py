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
FROM_SUMS = ("cross_entropy", "brier", "focal", "soft_binned_ece", "avuc", "soft_avuc")


def _layer(scale=1.0, dtype=np.float32, seed=0):
  rng = np.random.default_rng(seed)
  features, kernel, bias = rng.normal(size=(N, D)), scale * rng.normal(size=(D, K)), rng.normal(size=K)
  labels = np.where(rng.uniform(size=N) < 0.5, (features @ kernel + bias).argmax(1), rng.integers(0, K, N))
  return [jnp.asarray(x, dtype) for x in (features, kernel, bias)], labels.astype(np.int32)


def _both(loss, arrays, labels):
  """``(value, gradients)`` of the dense loss and of the one from features, in one program."""
  factors = jnp.asarray(np.random.default_rng(1).normal(size=len(labels)), jnp.float32)

  def reduced(values):
    return values if values.ndim == 0 else jnp.vdot(factors, values)

  def dense(features, kernel, bias):
    logits = jnp.dot(features, kernel, preferred_element_type=jnp.float32) + bias.astype(jnp.float32)[None, :]
    return reduced(loss(logits, labels))

  def chunked(features, kernel, bias):
    return reduced(losses.from_features(loss, features, kernel, labels, bias=bias, chunk=CHUNK))

  return jax.jit(lambda *x: [jax.value_and_grad(f, argnums=(0, 1, 2))(*x) for f in (dense, chunked)])(*arrays)


def _check(both, eps=2e-6, gradient_eps=None):
  (expected, slopes), (actual, gradients) = both
  np.testing.assert_allclose(actual, expected, rtol=10 * eps, atol=10 * eps)
  for slope, gradient in zip(slopes, gradients, strict=True):
    slope, gradient = (np.asarray(x, np.float64) for x in (slope, gradient))
    atol = (gradient_eps or 10 * eps) * max(np.abs(slope).max(), 1e-3)
    np.testing.assert_allclose(gradient, slope, rtol=0, atol=atol)


# Losses of sums over the classes and of the label's probability, and two that are computed from blocks of rows.
COMPUTED = (*FROM_SUMS, "inverse_focal", "sample_dependent_focal", "adaptive_focal", "dual_focal",
            "pairwise_constraints")


@pytest.mark.parametrize(("name", "options"), [
  ("cross_entropy", {"label_smoothing": 0.1}), ("soft_binned_ece", {"form": "bin"}),
  *((name, cases.FIRST[name]) for name in COMPUTED)])
def test_value_and_gradient_are_those_of_dense_logits(name, options):
  arrays, labels = _layer()
  _check(_both(losses.get(name, **options), arrays, labels))


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


@pytest.mark.parametrize("name", ["brier", "focal", "soft_avuc"])
def test_extreme_logits_keep_values_finite_and_equal(name):
  rows, labels = _extremes()
  both = _both(losses.get(name), [jnp.asarray(rows), jnp.eye(K), jnp.zeros(K)], labels)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(both))
  _check(both, gradient_eps=1e-4 if name == "soft_avuc" else None)


@pytest.mark.parametrize("name", ["brier", "soft_avuc"])
def test_a_masked_class_has_no_probability_and_no_gradient(name):
  arrays, labels = _layer()
  arrays[2] = arrays[2].at[jnp.array([3, 30])].set(-jnp.inf)
  both = _both(losses.get(name), arrays, np.where(np.isin(labels, (3, 30)), 0, labels))
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


@pytest.mark.parametrize("name", ["cross_entropy", "soft_avuc"])
def test_sixteen_bits_give_float32_logits_and_gradients_of_sixteen_bits(name):
  arrays, labels = _layer(dtype=jnp.bfloat16)
  both = _both(losses.get(name), arrays, labels)
  assert both[1][0].dtype == jnp.float32 and all(x.dtype == jnp.bfloat16 for x in both[1][1])
  # Each chunk's part of the gradient is rounded to bfloat16, of eps 2^-8.
  _check(both, gradient_eps=8 * 2**-8)
  mixed = _both(losses.get(name), [arrays[0].astype(jnp.float32), *arrays[1:]], labels) if name == "soft_avuc" else both
  np.testing.assert_allclose(mixed[1][0], both[1][0], rtol=1e-4)


def _of_ones_own(logits, labels):
  """A loss that is NaN, and has a NaN in its gradient, for a label out of range."""
  return jnp.max(logits, axis=-1) * jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]


def test_rows_that_are_ignored_may_hold_anything():
  (features, kernel, bias), labels = _layer()
  where, names = np.arange(N) % 3 > 0, ("focal", _of_ones_own, "soft_binned_ece", "soft_avuc")
  blank = jnp.where(where[:, None], features, jnp.nan)

  def values(features, kernel, labels, where):
    return losses.from_features(names, features, kernel, labels, bias=bias, chunk=CHUNK, where=where)

  def total(*args):
    each = values(*args)
    return sum(jnp.sum(x) for x in each), each[:2]

  step = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)
  actual, nothing, expected = jax.jit(lambda: (
    step(blank, kernel, np.where(where, labels, -100), where), step(blank, kernel, np.full(N, -100), np.zeros(N, bool)),
    step(features[where], kernel, labels[where], None)))()
  np.testing.assert_allclose(actual[0][0], expected[0][0], rtol=1e-5)
  assert not any(np.any(x[~where]) for x in (*actual[0][1], actual[1][0]))
  assert not any(np.any(x) for x in jax.tree.leaves(nothing))
  np.testing.assert_allclose(actual[1][0][where], expected[1][0], atol=1e-6)
  np.testing.assert_allclose(actual[1][1], expected[1][1], atol=1e-5)


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


def test_leading_axes_weights_and_a_loss_of_ones_own():
  (features, kernel, bias), labels = _layer()
  weights = np.arange(N) % 3
  split = [x.reshape(4, 6, *x.shape[1:]) for x in (features, labels, weights)]
  kernel = {"kernel": kernel, "bias": bias, "chunk": CHUNK}

  def mine(logits, labels):
    return jnp.max(logits, axis=-1) - jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]

  @jax.jit
  def values(features, labels, weights):
    chunked = functools.partial(losses.from_features, features=features, labels=labels, **kernel)
    logits = features @ kernel["kernel"] + bias[None, None, :]
    return ((chunked(mine), chunked("focal"), chunked("soft_avuc", weights=weights)),
            (mine(logits.reshape(N, K), labels.reshape(N)).reshape(labels.shape), losses.focal(logits, labels),
             losses.soft_avuc(logits, labels, weights=weights)))

  for actual, expected in zip(*values(*split), strict=True):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_devices_give_the_value_and_gradient_of_the_global_batch():
  arrays, labels = _layer()
  devices, shares, same = jax.devices()[:2], PartitionSpec("batch"), PartitionSpec()
  mesh = jax.make_mesh((2,), ("batch",), devices=devices)
  names = ("cross_entropy", "soft_binned_ece", "soft_avuc")

  def value(kernel, bias, features, labels, axis_name=None):
    each, *batch = losses.from_features(names, features, kernel, labels, bias=bias, chunk=CHUNK, axis_name=axis_name)
    mean = jnp.mean(each) if axis_name is None else jax.lax.pmean(jnp.mean(each), axis_name)
    return mean + sum(batch)

  expected = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))(*arrays[1:], arrays[0], labels)

  def step(*args, averaged):
    actual, gradients = jax.value_and_grad(value, argnums=(0, 1))(*args, "batch")
    return actual, jax.lax.pmean(gradients, "batch") if averaged else gradients

  specs = (same, same, shares, shares)
  split = arrays[0].reshape(2, -1, D), labels.reshape(2, -1)
  mapped = jax.pmap(functools.partial(step, averaged=True), axis_name="batch", in_axes=(None, None, 0, 0),
                    out_axes=None, devices=devices)
  put = [jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))
         for x, spec in zip((*arrays[1:], arrays[0], labels), specs, strict=True)]
  ways = {"pmap": mapped(*arrays[1:], *split),
          "jit over explicit axes": jax.jit(jax.value_and_grad(value, argnums=(0, 1)))(*put)}
  for check in (True, False):
    sharded = jax.shard_map(functools.partial(step, averaged=not check), mesh=mesh, in_specs=specs, out_specs=same,
                            check_vma=check)
    ways[f"shard_map, check_vma={check}"] = jax.jit(sharded)(*put)
  for way, actual in ways.items():
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=way)


def test_memory_is_that_of_the_chunk():
  n, d, k, chunk = 256, 8, 4096, 128
  arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((n, d), (d, k))]
  labels = np.zeros(n, np.int32)
  for name in ("cross_entropy", "soft_avuc", "dual_focal"):
    step = jax.jit(jax.grad(lambda f, w, name=name: jnp.mean(losses.from_features(name, f, w, labels, chunk=chunk)),
                            argnums=(0, 1)))
    used = step.lower(*arrays).compile().memory_analysis().temp_size_in_bytes
    assert used < 12 * 4 * n * chunk < 4 * n * k, f"{name} takes {used} bytes"


def test_top_labels_are_those_of_dense_probabilities():
  arrays, labels = _layer()
  rows, extreme_labels = _extremes()
  actual = [metrics.top_label_from_features(arrays[0], arrays[1], labels, bias=arrays[2], chunk=CHUNK),
            metrics.top_label_from_features(rows, jnp.eye(K), extreme_labels, chunk=CHUNK)]
  expected = [metrics.top_label(jax.nn.softmax(arrays[0] @ arrays[1] + arrays[2][None, :]), labels),
              metrics.top_label(jax.nn.softmax(rows), extreme_labels)]
  for (confidence, correct), (dense_confidence, dense_correct) in zip(actual, expected, strict=True):
    np.testing.assert_allclose(confidence, dense_confidence, rtol=1e-5)
    np.testing.assert_array_equal(correct, dense_correct)


def test_mistakes_are_named():
  (features, kernel, bias), labels = _layer()
  call = functools.partial(losses.from_features, "focal", features, kernel, labels)
  with pytest.raises(ValueError, match=r"mdca needs the logits of all rows and classes: call it with features"):
    losses.from_features("mdca", features, kernel, labels)
  with pytest.raises(ValueError, match=r"weights and axis_name are for losses per batch"):
    call(axis_name="batch")
  with pytest.raises(ValueError, match=r"kernel must be \[D, K\] for features \[\.\.\., D\]"):
    losses.from_features("focal", features, kernel.T, labels)
  with pytest.raises(ValueError, match=r"bias must have shape \(37,\)"):
    call(bias=bias[1:])
  with pytest.raises(TypeError, match=r"labels must be integers in \[0, 37\), because distributions would be as large"):
    losses.from_features("focal", features, kernel, jax.nn.one_hot(labels, K))
  with pytest.raises(ValueError, match=r"labels must have the shape of features without its last axis"):
    losses.from_features("focal", features, kernel, labels[1:])
  with pytest.raises(ValueError, match=r"chunk must be in \[2, inf\): got 1"):
    call(chunk=1)
  with pytest.raises(TypeError, match=r"kernel must be floating point"):
    losses.from_features("focal", features, kernel.astype(int), labels)
  with pytest.raises(ValueError, match=r"loss must return one value per example"):
    losses.from_features(lambda logits, labels: jnp.sum(logits), features, kernel, labels, chunk=CHUNK)
