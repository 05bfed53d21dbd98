"""Losses by ``vmap``, and each that exchanges rows or loops over devices: the values and gradients of one flat batch.

Rows have weights, and one device holds padding alone. One loss stands for all in ``pmap``, and few on meshes with
explicit axes, but each loss per batch runs over devices by ``shard_map``.
"""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np
import pytest

from calib_jax import losses
from tests.losses import cases

AXIS, DEVICES, SHARES = "batch", 4, PartitionSpec("batch")
# Forms that exchange other arrays than the default options do, or gradients of them.
EXCHANGES = {
  "kde_ece canonical": ("kde_ece", {"form": "canonical"}), "kde_ece marginal": ("kde_ece", {"form": "marginal"}),
  "mmce weighted": ("mmce", {"weighted": True, "variant": "released"}),
  "soft_binned_ece bin": ("soft_binned_ece", {"form": "bin"}),
  "selective_risk stopped": ("selective_risk", {"variant": "stopped", "confidence": "negative_entropy"})}
LOSSES = {"composite": ("composite", {}), **{name: (name, options) for name, options in cases.FIRST.items()},
          **EXCHANGES}
PER_BATCH = ("composite", *cases.PER_BATCH)
LOOPS = ("properized_focal", "pairwise_constraints")  # Per example; ``shard_map`` checks the types that loops carry.
FEW = ("selective_risk",)  # It gathers rows and sorts them, with gradients through both, and sums.
SCALE = np.array([1.0, 0.9, 1.2], np.float32)


def _rows():
  """Logits, labels, where, of which the last device holds none, and weights."""
  return (*cases.data(16, 3), np.arange(16) < 11, np.resize(np.array([1, 2, 1, 0, 3], np.float32), 16))


def _batch(name, shape):
  """The arrays of that shape, without weights of a loss per example; rows that are ignored hold large logits.

  Not NaN, which times a gradient of 0 would be the gradient in the scale.
  """
  logits, labels, where, weights = _rows()
  flat = np.where(where[:, None], logits, np.float32(1e4)), np.where(where, labels, 255), where, weights
  return tuple(x.reshape(shape + x.shape[1:]) for x in (flat[:3] if name in LOOPS else flat))


@functools.cache
def _expected(name):
  """The value in float64 of rows that are repeated as often as their weights say, and its gradient in the scale."""
  key, options = LOSSES[name]
  logits, labels, where, weights = _rows()
  times = where.astype(int) if name in LOOPS else where * weights.astype(int)
  logits, labels = (np.repeat(x, times, axis=0) for x in (logits, labels))

  def value(scale):
    z = scale * logits
    if name == "composite":
      return cases.reference("focal", z, labels, {}).mean() + cases.reference("mmce", z, labels, {})
    return np.sum(cases.reference(key, z, labels, options, SCALE * logits))

  return value(SCALE.astype(float)), [cases.slope(value, SCALE, e) for e in np.eye(3)]


def _value(name):
  """``(scale [K], logits, labels, where, weights=None, axis_name=None) -> scalar``."""
  key, options = LOSSES[name]
  loss = losses.composite("focal", "mmce") if name == "composite" else losses.get(key, **options)

  def value(scale, logits, labels, where, weights=None, axis_name=None):
    logits = scale.reshape((1,) * (logits.ndim - 1) + (-1,)) * logits
    if name in LOOPS:
      total = jnp.sum(loss(logits, labels, where=where))
      return total if axis_name is None else jax.lax.psum(total, axis_name)
    actual = loss(logits, labels, where=where, weights=weights, axis_name=axis_name)
    return actual[0] if name == "composite" else actual

  return value


def _by_devices(name, averaged):
  """The value and gradient on each device, for its share of the batch."""
  def step(scale, *batch):
    value, gradient = jax.value_and_grad(functools.partial(_value(name), axis_name=AXIS))(scale, *batch)
    return value, jax.lax.pmean(gradient, AXIS) if averaged else gradient

  return step


def _mesh(axes):
  return jax.make_mesh((DEVICES,), (AXIS,), devices=jax.devices()[:DEVICES], axis_types=(getattr(AxisType, axes),))


def _on(mesh, batch):
  return jax.device_put(batch, NamedSharding(mesh, SHARES))


def _vmap(name):
  """Two seeds, of which one has another scale."""
  batch = _batch(name, (16,))
  seeds = jax.jit(jax.vmap(jax.value_and_grad(_value(name)), (0, *(None,) * len(batch))))
  return tuple(x[1] for x in seeds(np.stack([SCALE + 1, SCALE]), *batch))


def _pmap(name):
  batch = _batch(name, (DEVICES, 4))
  return jax.pmap(_by_devices(name, True), AXIS, in_axes=(None, *(0,) * len(batch)), out_axes=None,
                  devices=jax.devices()[:DEVICES])(SCALE, *batch)


def _shard_map(name, check_vma=True):
  """With ``check_vma``, JAX itself adds up the gradients of what is the same on all devices."""
  mesh, batch = _mesh("Auto"), _batch(name, (8, 2))
  step = jax.shard_map(_by_devices(name, not check_vma), mesh=mesh, out_specs=PartitionSpec(), check_vma=check_vma,
                       in_specs=(PartitionSpec(), *(SHARES,) * len(batch)))
  return jax.jit(step)(jax.device_put(SCALE, NamedSharding(mesh, PartitionSpec())), *_on(mesh, batch))


def _one_device(name):
  """The axis of devices as the engine has it where there is one: no argument is mapped, and the axis has the size 1."""
  step = jax.vmap(_by_devices(name, True), in_axes=None, axis_size=1, axis_name=AXIS)
  return jax.tree.map(lambda x: x[0], jax.jit(step)(SCALE, *_batch(name, (16,))))


def _explicit(name):
  return jax.jit(jax.value_and_grad(_value(name)))(SCALE, *_on(_mesh("Explicit"), _batch(name, (16,))))


# Each with its losses, and those of the slow tests; of auto axes, XLA divides what ``jit`` traces.
PROGRAMS = {"vmap": (_vmap, PER_BATCH, ()), "pmap": (_pmap, FEW, ()),
            "one device": (_one_device, ("kde_ece", *FEW), [x for x in PER_BATCH if x not in ("kde_ece", *FEW)]),
            "shard_map": (_shard_map, (*PER_BATCH, *LOOPS), EXCHANGES),
            "shard_map unchecked": (functools.partial(_shard_map, check_vma=False), FEW, ()),
            "explicit mesh": (_explicit, (*FEW, "composite"), (*LOOPS, "kde_ece", "aurc", "soft_binned_marginal_ece"))}
MATRIX = [pytest.param(name, run, id=f"{name}-{program}",
                       marks=[pytest.mark.xdist_group(LOSSES[name][0]), *[pytest.mark.slow] * (name in slow)])
          for program, (run, fast, slow) in PROGRAMS.items() for name in (*fast, *slow)]


@pytest.mark.parametrize(("name", "run"), MATRIX)
def test_every_program_gives_the_value_and_gradient_of_one_flat_batch(name, run):
  value, gradient = run(name)
  expected, slope = _expected(name)
  assert np.isfinite(expected) and np.any(slope)
  np.testing.assert_allclose(value, expected, rtol=5e-5, atol=1e-6)
  np.testing.assert_allclose(gradient, slope, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "options"), cases.cases(cases.PER_EXAMPLE, every=False))
def test_losses_per_example_keep_leading_axes(name, options):
  (logits, labels), loss = cases.data(12, 3), losses.get(name, **options)
  mapped = jax.jit(jax.vmap(loss, in_axes=1, out_axes=1))
  actual = mapped(logits.reshape(2, 3, 2, 3), labels.reshape(2, 3, 2))  # Each has two leading axes.
  expected = cases.reference(name, logits, labels, options)
  np.testing.assert_allclose(actual, expected.reshape(2, 3, 2), rtol=2e-5, atol=1e-7)


def test_counts_are_those_of_the_global_batch():
  def update(logits, labels, where, weights, axis_name=None):
    return losses.update_selective_risk(losses.init_selective_risk(num_bins=8), logits, where=where, weights=weights,
                                        axis_name=axis_name).counts

  mesh, batch = _mesh("Auto"), _batch("selective_risk", (8, 2))
  sharded = jax.jit(jax.shard_map(functools.partial(update, axis_name=AXIS), mesh=mesh, in_specs=SHARES,
                                  out_specs=PartitionSpec()))
  counts = sharded(*_on(mesh, batch))
  np.testing.assert_array_equal(counts, jax.jit(update)(*batch))
  assert counts.sum() == batch[3][batch[2]].sum()
