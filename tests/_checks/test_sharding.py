"""Arrays sharded over a mesh give what the same arrays give on one device: auto, explicit and manual axes.

``jax.make_mesh`` makes explicit axes by default, and a user may call ``jax.set_mesh`` or not. Losses have a test of
their own, ``tests/losses/test_matrix.py``.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np
import pytest

from calib_jax import calibrators, losses, metrics
from tests.calibrators.data import synthetic

pytestmark = pytest.mark.xdist_group("sharding")
LOGITS, LABELS = synthetic(64, 6)
PROBS, WHERE = np.asarray(jax.nn.softmax(LOGITS)), np.arange(64) % 5 > 0
ROUNDING = 64 * np.finfo(np.float32).eps  # Sums of 64 terms in another order.
ROWS = PartitionSpec("batch")
KEY = jax.random.key(0)


def _top(metric, **options):
  return lambda probs, labels: metric(*metrics.top_label(probs, labels), **options)


# Each way by which arrays reach a formula; sorts and bins need all rows.
METRICS = {
  **{name: getattr(metrics, name) for name in ("classwise_losses", "adaptive_calibration_error", "top_label")},
  **{name: _top(getattr(metrics, name)) for name in ("sweep_calibration_error", "auroc")},
  "class_groups": lambda p, y: metrics.class_group_scores(p, y, jnp.arange(6)),
  "histogram": lambda p, y: metrics.CalibrationHistogram.from_model_output(probs=p, labels=y).compute(),
  "bootstrap": lambda p, y: metrics.bootstrap(metrics.accuracy, p, y, key=KEY, num_resamples=10),
  "assess": _top(functools.partial(metrics.assess, metrics.calibration_error), key=KEY, num_resamples=10),
  "consistency_interval": lambda p, y: metrics.consistency_interval(
    metrics.calibration_error, metrics.top_label(p, y)[0], key=KEY, num_resamples=10),
}
# Fits by sums, products of matrices, sorts, and on the host.
FITS = ["temperature_scaling", "matrix_scaling", "histogram_binning", "isotonic"]
APPLIED = {"temperature_scaling": {"temperature": jnp.float32(2)},
           **{name: calibrators.get(name).fit(LOGITS, LABELS) for name in ("histogram_binning", "isotonic")}}
QUICK = ("adaptive_calibration_error", "temperature_scaling")


def _quick(names):
  return [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in names]


def _case(name):
  """The function of a metric or a loss, and its first argument."""
  if name in METRICS:
    return jax.jit(METRICS[name]), PROBS
  loss = losses.get(name, **({"threshold": 0.5} if name == "avuc" else {}))
  return jax.jit(jax.value_and_grad(lambda logits, labels: jnp.sum(loss(logits, labels)))), LOGITS


def _mesh(axes="Explicit", shape=(8,)):
  return jax.make_mesh(shape, ("batch", "model")[:len(shape)], axis_types=(getattr(AxisType, axes),) * len(shape))


def _agree(function, *arrays, mesh=None, is_set=False, specs=None):
  """Arrays on a mesh give what they give without one; an array whose entry in ``specs`` is None is on no mesh."""
  mesh, specs = mesh or _mesh(), specs or [ROWS] * len(arrays)
  plain = function(*map(jnp.asarray, arrays))
  with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
    actual = function(*(jnp.asarray(x) if spec is None else jax.device_put(x, NamedSharding(mesh, spec))
                        for x, spec in zip(arrays, specs, strict=True)))
  for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(actual), strict=True):
    np.testing.assert_allclose(b, a, rtol=ROUNDING, atol=ROUNDING)
  return actual


@pytest.mark.parametrize("name", _quick(METRICS))
def test_default_mesh(name):
  function, scores = _case(name)
  _agree(function, scores, LABELS)


def test_outside_jit():
  # There, values are checked. Each operation is compiled by itself.
  _agree(METRICS["classwise_losses"], PROBS, LABELS)


@pytest.mark.parametrize(("name", "axes", "is_set"), [
  ("soft_avuc", "Explicit", True), ("soft_avuc", "Auto", False), pytest.param("assess", "Auto", True,
                                                                             marks=pytest.mark.slow)])
def test_axes(name, axes, is_set):
  function, scores = _case(name)
  _agree(function, scores, LABELS, mesh=_mesh(axes), is_set=is_set)


@pytest.mark.parametrize(("sharded", "is_set"), [(0, True), (1, False), (2, False)])
def test_only_one_array_is_sharded(sharded, is_set):
  def values(logits, labels, where):
    square = jnp.where(where, losses.square(logits, labels), 0)
    return square, metrics.top_label(jax.nn.softmax(logits), labels), losses.avuc(
      logits, labels, threshold=0.5, where=where)

  specs = [ROWS if i == sharded else None for i in range(3)]
  if is_set:  # JAX itself refuses ``jnp.where`` of a mask that is sharded alone.
    specs[2] = specs[0]
  _agree(jax.jit(values), LOGITS, LABELS, WHERE, is_set=is_set, specs=specs)


@pytest.mark.parametrize("name", ["square", pytest.param("top_label", marks=pytest.mark.slow)])
def test_sharded_classes(name):
  function, scores = _case(name)
  _agree(function, scores, LABELS, mesh=_mesh(shape=(4, 2)), specs=[PartitionSpec("batch", "model"), ROWS])


@pytest.mark.parametrize(("name", "check_vma"), [("avuc", True), ("avuc", False), pytest.param(
  "sweep_calibration_error", True, marks=pytest.mark.slow)])
def test_manual_axes(name, check_vma):
  """Each device of ``jax.shard_map`` has rows of its own, and computes what they give."""
  function, scores = _case(name)
  mesh = jax.make_mesh((2,), ("batch",), devices=jax.devices()[:2])
  stacked = jax.jit(jax.shard_map(lambda *arrays: jax.tree.map(lambda x: x[None], function(*arrays)), mesh=mesh,
                                  in_specs=ROWS, out_specs=ROWS, check_vma=check_vma))
  actual = stacked(*(jax.device_put(np.concatenate([x, x]), NamedSharding(mesh, ROWS)) for x in (scores, LABELS)))
  for a, b in zip(jax.tree.leaves(function(scores, LABELS)), jax.tree.leaves(actual), strict=True):
    np.testing.assert_allclose(b, np.stack([a, a]), rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("name", _quick(FITS))
def test_fits(name):
  calibrator, mesh = calibrators.get(name), _mesh()
  with jax.set_mesh(mesh):
    params = calibrator.fit(*(jax.device_put(x, NamedSharding(mesh, ROWS)) for x in (LOGITS, LABELS)))
  nll, expected = (-np.mean(np.asarray(calibrator.apply(jax.tree.map(np.asarray, x), LOGITS))[np.arange(64), LABELS])
                   for x in (params, calibrator.fit(LOGITS, LABELS)))
  np.testing.assert_allclose(nll, expected, rtol=1e-3)  # The fits end within tolerance of an optimum.


@pytest.mark.parametrize("name", APPLIED)
def test_apply(name):
  for spec in (ROWS, PartitionSpec("batch", "model")):
    actual = _agree(jax.jit(functools.partial(calibrators.get(name).apply, APPLIED[name])), LOGITS,
                    mesh=_mesh(shape=(4, 2)), is_set=True, specs=[spec])
    assert jax.typeof(actual).sharding.spec[0] == "batch"
