"""Arrays sharded over a mesh with Explicit axes give what the same arrays give on one device."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np
import pytest

from calib_jax import calibrators, losses, metrics
from tests.calibrators.data import synthetic

pytestmark = pytest.mark.xdist_group("sharding")
LOGITS, LABELS = synthetic(64, 5)
ROWS = np.arange(64)


def _top(metric):
  return lambda probs, labels: metric(*metrics.top_label(probs, labels))


def _histogram(probs, labels):
  return metrics.CalibrationHistogram.from_model_output(probs=probs, labels=labels).compute()


METRICS = {
  **{name: getattr(metrics, name) for name in ("expected_calibration_error", "adaptive_calibration_error", "nll",
                                               "classwise_losses", "kde_calibration_error")},
  **{f"classwise {binning}": functools.partial(metrics.classwise_calibration_error, binning=binning)
     for binning in ("equal_width", "equal_mass")},
  **{name: _top(getattr(metrics, name)) for name in ("ks_calibration_error", "sweep_calibration_error",
                                                     "smooth_calibration_error", "aurc", "auroc")},
  "histogram": _histogram,
  "bootstrap": lambda p, y: metrics.bootstrap(metrics.accuracy, p, y, key=jax.random.key(0), num_resamples=10),
}
# Fits by sums, products of matrices, sorts, gathers, and on the host.
FITS = ["temperature_scaling", "matrix_scaling", "ensemble_temperature_scaling", "parameterized_temperature_scaling",
        "histogram_binning", "classwise_loss_scaling", "isotonic"]
QUICK = ("expected_calibration_error", "temperature_scaling")


def _quick(names):
  return [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in names]


def _loss(name):
  options = {"avuc": {"threshold": 0.5}, "adaptive_focal": losses.init_adaptive_focal()._asdict()}.get(name, {})
  loss = losses.get(name, **options)
  step = jax.value_and_grad(lambda logits, labels: jnp.sum(loss(logits, labels)))
  return step if name == "cross_entropy" else jax.jit(step)


def _agree(function, scores):
  mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
  plain = function(jnp.asarray(scores), jnp.asarray(LABELS))
  with jax.set_mesh(mesh):
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    found = function(jax.device_put(scores, sharding), jax.device_put(LABELS, sharding))
  for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(found), strict=True):
    # Sums of 64 terms in another order.
    np.testing.assert_allclose(other, one, rtol=64 * np.finfo(np.float32).eps, atol=64 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("name", _quick(METRICS))
def test_metrics(name):
  # Outside jit, where values are checked, each operation is compiled by itself: only a few are called there.
  is_eager = name in ("bootstrap", "expected_calibration_error")
  _agree(METRICS[name] if is_eager else jax.jit(METRICS[name]), jax.nn.softmax(LOGITS))


@pytest.mark.parametrize("name", _quick(["cross_entropy", "adaptive_focal", "pairwise_constraints", "properized_focal",
                                         *losses.PER_BATCH]))
def test_losses(name):
  _agree(_loss(name), LOGITS)


@pytest.mark.parametrize("name", _quick(FITS))
def test_fits(name):
  calibrator = calibrators.get(name)
  with jax.set_mesh(mesh := jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))):
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    params = calibrator.fit(jax.device_put(LOGITS, sharding), jax.device_put(LABELS, sharding))
  expected = calibrator.fit(LOGITS, LABELS)
  nll, expected_nll = (-np.mean(np.asarray(calibrator.apply(jax.tree.map(np.asarray, found), LOGITS))[ROWS, LABELS])
                       for found in (params, expected))
  np.testing.assert_allclose(nll, expected_nll, rtol=1e-3)  # The fits end within tolerance of an optimum.
