"""Every loss by ``vmap``, and each that exchanges rows or loops in every program: each gives what one flat batch gives.

Rows ``[B, T]`` of losses per batch have weights. One device holds padding alone. Few losses stand for all in the fast
tests, but each is compiled there by itself, and each per batch over devices, too.
"""

import functools
import itertools

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
SHAPES = {"[N, K]": (16,), "[B, T, K]": (8, 2)}
# Two losses that carry arrays through loops, whose types shard_map checks; two that sort all rows; and sums.
FEW = ("properized_focal", "pairwise_constraints", "selective_risk", "mmce", "composite")


def _batch(shape):
  """Logits, labels, where, and weights or None, of that shape."""
  logits, labels = cases.data(16, 3)
  where = np.arange(16) < 11  # The last device holds none of them.
  weights = np.resize(np.array([1, 2.5, 1, 0, 3], np.float32), 16)
  flat = np.where(where[:, None], logits, np.nan), np.where(where, labels, 255), where
  arrays = tuple(x.reshape(shape + x.shape[1:]) for x in flat)
  return (*arrays, weights.reshape(shape) if len(shape) == 2 else None)


@functools.cache
def _value(name):
  """``(scale [K], logits, labels, where, weights, axis_name) -> scalar``, whose gradient is that in the scale."""
  name, options = LOSSES[name]
  loss = losses.composite("focal", "mmce") if name == "composite" else losses.get(name, **options)

  def value(scale, logits, labels, where, weights, axis_name=None):
    logits = scale.reshape((1,) * (logits.ndim - 1) + (-1,)) * logits
    if name in cases.PER_EXAMPLE:
      total = jnp.sum(loss(logits, labels, where=where))
      return total if axis_name is None else jax.lax.psum(total, axis_name)
    actual = loss(logits, labels, where=where, weights=weights, axis_name=axis_name)
    return actual[0] if name == "composite" else actual

  return value


@functools.cache
def _compiled(name):
  return jax.jit(jax.value_and_grad(_value(name)))


def _by_devices(name, averaged):
  """The value and gradient on each device, for its share of the batch."""
  def step(scale, *batch):
    value, gradient = jax.value_and_grad(_value(name))(scale, *batch, AXIS)
    return value, jax.lax.pmean(gradient, AXIS) if averaged else gradient

  return step


def _mesh(axes):
  return jax.make_mesh((DEVICES,), (AXIS,), devices=jax.devices()[:DEVICES], axis_types=(getattr(AxisType, axes),))


def _on(mesh, batch):
  return jax.device_put(batch, NamedSharding(mesh, SHARES))


def _jit(name, scale, batch):
  return _compiled(name)(scale, *batch)


def _vmap(name, scale, batch):
  """Two seeds, of which one has another scale."""
  seeds = jax.jit(jax.vmap(jax.value_and_grad(_value(name)), (0, *(None,) * len(batch))))
  return tuple(x[1] for x in seeds(np.stack([scale + 1, scale]), *batch))


def _pmap(name, scale, batch):
  batch = jax.tree.map(lambda x: x.reshape(DEVICES, -1, *x.shape[1:]), batch)
  return jax.pmap(_by_devices(name, True), AXIS, in_axes=(None, *(0,) * len(batch)), out_axes=None,
                  devices=jax.devices()[:DEVICES])(scale, *batch)


def _shard_map(name, scale, batch, check_vma=True):
  """With ``check_vma``, JAX itself adds up the gradients of what is the same on all devices."""
  mesh = _mesh("Auto")
  step = jax.shard_map(_by_devices(name, not check_vma), mesh=mesh, out_specs=PartitionSpec(), check_vma=check_vma,
                       in_specs=(PartitionSpec(), *jax.tree.map(lambda x: SHARES, batch, is_leaf=lambda x: x is None)))
  return jax.jit(step)(jax.device_put(scale, NamedSharding(mesh, PartitionSpec())), *_on(mesh, batch))


def _explicit(name, scale, batch):
  return _jit(name, scale, _on(_mesh("Explicit"), batch))


# Each with the shape of its batch; ``[B, T, K]`` has weights.
PROGRAMS = {"jit": (_jit, "[B, T, K]"), "vmap": (_vmap, "[N, K]"), "pmap": (_pmap, "[N, K]"),
            "shard_map": (_shard_map, "[B, T, K]"),
            "shard_map unchecked": (functools.partial(_shard_map, check_vma=False), "[B, T, K]"),
            "explicit mesh": (_explicit, "[N, K]")}  # Of auto axes, XLA divides what ``jit`` traces.


@functools.cache
def _expected(name, shape):
  """The value and gradient of the flat batch, which other tests compare with references and with repeated rows."""
  logits, labels, where, weights = _batch(SHAPES[shape])
  flat = [x.reshape(16, *x.shape[len(SHAPES[shape]):]) for x in (logits, labels, where)]
  flat.append(None if weights is None or name in cases.PER_EXAMPLE else weights.reshape(-1))
  return _jit(name, np.array([1.0, 0.9, 1.2], np.float32), flat)


def _matrix():
  for name, program in itertools.product(LOSSES, PROGRAMS):
    # Rows of a loss per example do not know of each other, and have a test of leading axes; two of them loop.
    if (name in cases.PER_EXAMPLE and (program == "jit" or (name not in FEW and program != "vmap"))) or (
        program == "shard_map unchecked" and name not in FEW):
      continue
    slow = name in EXCHANGES if program in ("jit", "vmap", "pmap") else name not in FEW
    yield pytest.param(name, program, id=f"{name}-{program}",
                       marks=[pytest.mark.xdist_group(f"matrix {name}"), *[pytest.mark.slow] * slow])


@pytest.mark.parametrize(("name", "program"), list(_matrix()))
def test_every_program_gives_the_value_and_gradient_of_one_flat_batch(name, program):
  run, shape = PROGRAMS[program]
  value, gradient = run(name, np.array([1.0, 0.9, 1.2], np.float32), _batch(SHAPES[shape]))
  expected, slope = _expected(name, shape)
  assert np.isfinite(expected) and np.any(slope)
  np.testing.assert_allclose(value, expected, rtol=2e-5, atol=1e-7)
  np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", cases.PER_EXAMPLE)
def test_losses_per_example_keep_leading_axes(name):
  (logits, labels), loss = cases.data(12, 3), losses.get(name, **cases.FIRST[name])
  flat, leading = jax.jit(lambda: (loss(logits, labels), loss(logits.reshape(2, 3, 2, 3), labels.reshape(2, 3, 2))))()
  np.testing.assert_allclose(leading, flat.reshape(2, 3, 2), rtol=1e-6)


@pytest.mark.parametrize("check_vma", [True, False])
def test_counts_are_those_of_the_global_batch(check_vma):
  logits, _, where, weights = _batch((8, 2))

  def update(*batch, axis_name=None):
    logits, where, weights = batch
    return losses.update_selective_risk(losses.init_selective_risk(num_bins=8), logits, where=where, weights=weights,
                                        axis_name=axis_name).counts

  mesh = _mesh("Auto")
  sharded = jax.jit(jax.shard_map(functools.partial(update, axis_name=AXIS), mesh=mesh, in_specs=SHARES,
                                  out_specs=PartitionSpec(), check_vma=check_vma))
  counts = sharded(*_on(mesh, (logits, where, weights)))
  np.testing.assert_array_equal(counts, jax.jit(update)(logits, where, weights))
  assert counts.sum() == weights[where].sum()
