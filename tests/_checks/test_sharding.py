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
TO_FIT = synthetic(64, 5)  # On these, parameterized temperature scaling does not end in another optimum by rounding.
PROBS, WHERE = np.asarray(jax.nn.softmax(LOGITS)), np.arange(64) % 5 > 0
ROUNDING = 64 * np.finfo(np.float32).eps  # Sums of 64 terms in another order.
ROWS = PartitionSpec("batch")
KEY = jax.random.key(0)


def _top(metric, **options):
  return lambda probs, labels: metric(*metrics.top_label(probs, labels), **options)


def _histogram(probs, labels):
  return metrics.CalibrationHistogram.from_model_output(probs=probs, labels=labels).compute()


METRICS = {
  **{name: getattr(metrics, name) for name in ("expected_calibration_error", "adaptive_calibration_error",
                                               "top_label", "classwise_losses", "kde_calibration_error")},
  "classwise equal_mass": functools.partial(metrics.classwise_calibration_error, binning="equal_mass"),
  **{name: _top(getattr(metrics, name)) for name in ("ks_calibration_error", "sweep_calibration_error",
                                                     "smooth_calibration_error", "excess_aurc", "auroc",
                                                     "reliability")},
  "class_groups": lambda p, y: metrics.class_group_scores(p, y, jnp.arange(6)),
  "histogram": _histogram,
  "bootstrap": lambda p, y: metrics.bootstrap(metrics.accuracy, p, y, key=KEY, num_resamples=10),
  "assess": _top(functools.partial(metrics.assess, metrics.calibration_error), key=KEY, num_resamples=10),
  "consistency_interval": lambda p, y: metrics.consistency_interval(
    metrics.calibration_error, metrics.top_label(p, y)[0], key=KEY, num_resamples=10),
}
OPTIONS = {"avuc": {"threshold": 0.5}}
# Fits by sums, products of matrices, sorts, gathers, and on the host.
FITS = ["temperature_scaling", "matrix_scaling", "ensemble_temperature_scaling", "parameterized_temperature_scaling",
        "histogram_binning", "classwise_loss_scaling", "isotonic", "spline_calibration"]
APPLIED = {"temperature_scaling": {"temperature": jnp.float32(2)},
           **{name: calibrators.get(name).fit(LOGITS, LABELS) for name in ("histogram_binning", "isotonic")}}
QUICK = ("expected_calibration_error", "adaptive_calibration_error", "temperature_scaling")


def _quick(names):
  return [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in names]


def _loss(name):
  loss = losses.get(name, **OPTIONS.get(name, {}))
  return jax.jit(jax.value_and_grad(lambda logits, labels: jnp.sum(loss(logits, labels))))


def _case(name):
  """The function of a metric or a loss, and its first argument."""
  return (jax.jit(METRICS[name]), PROBS) if name in METRICS else (_loss(name), LOGITS)


def _entered(mesh, is_set):
  return jax.set_mesh(mesh) if is_set else contextlib.nullcontext()


def _mesh(axes="Explicit", shape=(8,)):
  return jax.make_mesh(shape, ("batch", "model")[:len(shape)], axis_types=(getattr(AxisType, axes),) * len(shape))


def _agree(function, *arrays, mesh=None, is_set=False, specs=None):
  """Arrays on a mesh give what they give without one; an array whose entry in ``specs`` is None is on no mesh."""
  mesh, specs = mesh or _mesh(), specs or [ROWS] * len(arrays)
  plain = function(*map(jnp.asarray, arrays))
  with _entered(mesh, is_set):
    actual = function(*(jnp.asarray(x) if spec is None else jax.device_put(x, NamedSharding(mesh, spec))
                        for x, spec in zip(arrays, specs, strict=True)))
  for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(actual), strict=True):
    np.testing.assert_allclose(other, one, rtol=ROUNDING, atol=ROUNDING)
  return actual


@pytest.mark.parametrize("name", _quick(METRICS))
def test_default_mesh(name):
  function, scores = _case(name)
  _agree(function, scores, LABELS)


def test_outside_jit():
  # There, values are checked. Each operation is compiled by itself.
  _agree(METRICS["expected_calibration_error"], PROBS, LABELS)


@pytest.mark.parametrize(("name", "axes", "is_set"), [
  ("soft_avuc", "Explicit", True), ("soft_avuc", "Auto", False), ("soft_avuc", "Auto", True),
  pytest.param("assess", "Auto", True, marks=pytest.mark.slow)])
def test_axes(name, axes, is_set):
  function, scores = _case(name)
  _agree(function, scores, LABELS, mesh=_mesh(axes), is_set=is_set)


@pytest.mark.parametrize(("sharded", "is_set"), [(0, True), (1, True), (1, False), (2, False)])
def test_only_one_array_is_sharded(sharded, is_set):
  def values(logits, labels, where):
    square = jnp.where(where, losses.square(logits, labels), 0)
    return square, metrics.top_label(jax.nn.softmax(logits), labels), losses.avuc(
      logits, labels, threshold=0.5, where=where)

  specs = [ROWS if i == sharded else None for i in range(3)]
  if is_set:  # JAX itself refuses ``jnp.where`` of a mask that is sharded alone.
    specs[2] = specs[0]
  _agree(jax.jit(values), LOGITS, LABELS, WHERE, is_set=is_set, specs=specs)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "square")) for name in (
  "square", "pairwise_constraints", "top_label")])
def test_sharded_classes(name):
  function, scores = _case(name)
  _agree(function, scores, LABELS, mesh=_mesh(shape=(4, 2)), specs=[PartitionSpec("batch", "model"), ROWS])


@pytest.mark.parametrize(("name", "check_vma"), [("avuc", True), ("avuc", False), *(
  pytest.param(name, True, marks=pytest.mark.slow) for name in ("aurc", "sweep_calibration_error"))])
def test_manual_axes(name, check_vma):
  """Each device of ``jax.shard_map`` has rows of its own, and computes what they give."""
  function, scores = _case(name)
  mesh = jax.make_mesh((2,), ("batch",), devices=jax.devices()[:2])
  stacked = jax.jit(jax.shard_map(lambda *arrays: jax.tree.map(lambda x: x[None], function(*arrays)), mesh=mesh,
                                  in_specs=ROWS, out_specs=ROWS, check_vma=check_vma))
  actual = stacked(*(jax.device_put(np.concatenate([x, x]), NamedSharding(mesh, ROWS)) for x in (scores, LABELS)))
  for one, other in zip(jax.tree.leaves(function(scores, LABELS)), jax.tree.leaves(actual), strict=True):
    np.testing.assert_allclose(other, np.stack([one, one]), rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("name", _quick(FITS))
def test_fits(name):
  # With the default penalty the network has several optima near the path of the fit, and rounding decides between them.
  options = {"weight_decay": 0.1} if name == "parameterized_temperature_scaling" else {}
  calibrator, mesh = calibrators.get(name, **options), _mesh()
  with jax.set_mesh(mesh):
    logits, labels = (jax.device_put(x, NamedSharding(mesh, ROWS)) for x in TO_FIT)
    params = calibrator.fit(logits, labels)
  expected = calibrator.fit(*TO_FIT)
  nll, expected_nll = (-np.mean(np.asarray(calibrator.apply(jax.tree.map(np.asarray, actual), TO_FIT[0]))[
    np.arange(64), TO_FIT[1]]) for actual in (params, expected))
  np.testing.assert_allclose(nll, expected_nll, rtol=1e-3)  # The fits end within tolerance of an optimum.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["beta_calibration", "label_shift", "platt", "smart", "structured_vector_scaling"])
def test_other_fits(name):
  calibrator = calibrators.get(name)

  def nll(logits, labels):
    return losses.cross_entropy(calibrator.apply(calibrator.fit(logits, labels), logits), labels).mean()

  actual = nll(*(jax.device_put(x, NamedSharding(_mesh(), ROWS)) for x in (LOGITS, LABELS)))
  # The calibration error of a few examples leaves the NLL free: rounding leads SMART to another optimum.
  np.testing.assert_allclose(actual, nll(LOGITS, LABELS), rtol=0.3 if name == "smart" else 1e-3)


@pytest.mark.parametrize("name", APPLIED)
def test_apply(name):
  for spec in (ROWS, PartitionSpec("batch", "model")):
    actual = _agree(jax.jit(functools.partial(calibrators.get(name).apply, APPLIED[name])), LOGITS,
                    mesh=_mesh(shape=(4, 2)), is_set=True, specs=[spec])
    assert jax.typeof(actual).sharding.spec[0] == "batch"
