"""What factories and fits refuse, by the message that says why; and probabilities in place of logits are warned of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import calibrators
from calib_jax._checks.values import LOOKED_AT
from tests.calibrators.data import SHAPE, synthetic


def _fit_with_weights(weights, where=None):
  where = None if where is None else np.array(where)
  return calibrators.temperature_scaling().fit(9 * np.eye(3), np.arange(3), where=where, weights=np.array(weights))


@pytest.mark.parametrize(("make", "error", "match"), [
  (lambda: calibrators.get("temperture_scaling"), ValueError, "Did you mean 'temperature_scaling'"),
  (lambda: calibrators.temperature_scaling("nlll"), ValueError, "objective must be one of 'nll', .*Did you mean 'nll'"),
  (lambda: calibrators.temperature_scaling(num_bins=3), TypeError, "'nll' has no option 'num_bins'; it has none"),
  (lambda: calibrators.temperature_scaling("ece", form="bin"), TypeError, "has no option 'form'; it has num_b"),
  (lambda: calibrators.temperature_scaling("ece", num_bins=0), ValueError, "num_bins must be in"),
  (lambda: calibrators.temperature_scaling().fit(np.ones((3, 2)), np.zeros(3)), TypeError, "labels must be integers"),
  (lambda: calibrators.temperature_scaling().fit(np.ones((3, 1)), np.zeros(3, int)), ValueError, "logits must"),
  (lambda: calibrators.focal_calibration(-1.0), ValueError, "gamma must be in"),
  (lambda: calibrators.focal_temperature_scaling(search="random"), ValueError, "search must be one of"),
  (lambda: calibrators.focal_temperature_scaling(objective="brier"), ValueError, "objective must be one of"),
  (lambda: calibrators.ensemble_temperature_scaling(space="odds"), ValueError, "space must be one of"),
  (lambda: calibrators.ensemble_temperature_scaling(objective="ece"), ValueError, "objective must be one of"),
  (lambda: calibrators.meta_calibration("coverage", target=0.1), ValueError, "constraint must be one of"),
  (lambda: calibrators.meta_calibration(target=0.0), ValueError, "target must be in"),
  (lambda: calibrators.histogram_binning(0), ValueError, "num_bins must be in"),
  (lambda: calibrators.matrix_scaling(l2=-1.0), ValueError, "l2 must be in"),
  (lambda: calibrators.structured_vector_scaling(diagonal=True), TypeError, "diagonal must be"),
  (lambda: calibrators.structured_vector_scaling(diagonal=[1.0]), TypeError, "diagonal must be"),
  (lambda: calibrators.spline_calibration(top_label="yes"), ValueError, "top_label must be one of"),
  (lambda: calibrators.classwise_loss_scaling("platt"), ValueError, "base must be one of"),
  (lambda: calibrators.classwise_loss_scaling(calibrators.platt()), ValueError, "base must be fitted by a mean NLL"),
  (lambda: calibrators.classwise_loss_scaling(normalization="none"), ValueError, "normalization must be one of"),
  (lambda: calibrators.classwise_loss_scaling(class_loss="max"), ValueError, "class_loss must be one of"),
  (lambda: calibrators.venn_abers("crossed"), ValueError, "kind must be one of 'inductive', 'cross'.*you mean 'cross'"),
  (lambda: calibrators.venn_abers("cross", folds=1), ValueError, "folds must be in"),
  (lambda: calibrators.venn_abers("cross").fit(*synthetic(3, 2)), ValueError, "5 folds needs at least 5 examples"),
  (lambda: calibrators.label_shift("vector_scalin"), ValueError, "Did you mean 'vector_scaling'"),
  (lambda: calibrators.label_shift(calibrators.identity(), top_label=True), TypeError, "to a base chosen by name"),
  (lambda: calibrators.vector_scaling().fit(np.zeros((3, 2), int), np.zeros(3, int)), TypeError, "floating point"),
  (lambda: calibrators.platt().fit(np.zeros((3, 2)), np.zeros(2, int)), ValueError, "labels must have the shape"),
  (lambda: calibrators.identity().apply({}, np.float32(0)), ValueError, "must have the shape .* of at least one class"),
  (lambda: calibrators.identity().apply({}, np.zeros((3, 0))), ValueError, "must have the shape .* of at least one cl"),
  (lambda: _fit_with_weights([1.0, -2.0, 1.0]), ValueError, "finite and at least 0: .* row 1, is -2"),
  (lambda: _fit_with_weights([1.0, 2.0, np.nan]), ValueError, "finite and at least 0: .* row 2, is nan"),
  (lambda: _fit_with_weights([1.0, 2.0]), ValueError, r"weights must have shape \(3,\)"),
  (lambda: _fit_with_weights([True, False, True]), TypeError, "weights must be real numbers: got dtype bool"),
  (lambda: _fit_with_weights([0.0, 0.0, 0.0]), ValueError, "at least one example to fit"),
  (lambda: _fit_with_weights([0, 1, 0], [True, False, True]), ValueError, "at least one example to fit"),
  (lambda: calibrators.identity().fit(np.eye(3) * 9, np.arange(3), weights=np.array([1, 2, -1])), ValueError, "row 2"),
  (lambda: jax.jit(calibrators.isotonic().fit)(np.eye(3), np.arange(3)), TypeError, "isotonic is fitted on the host"),
  (lambda: jax.vmap(calibrators.get("meta_calibration", target=0.1).fit)(np.ones((2, 3, 2)), np.ones((2, 3), int)),
   TypeError, "meta_calibration is fitted on the host"),
])
def test_mistakes_are_named(make, error, match):
  with pytest.raises(error, match=match):
    make()


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(f"fit {name}"))
                                  for name in ("temperature_scaling", "isotonic", "probability_floor")])
def test_probabilities_in_place_of_logits_are_warned_of_once_a_call(name):
  """``fit`` and ``apply`` say what to write instead, and are silent about logarithms, on the host too."""
  logits, labels = synthetic(*SHAPE)
  log_probs = np.asarray(jax.nn.log_softmax(logits))
  calibrator, every = calibrators.get(name), np.ones(len(labels), bool)
  params = calibrator.fit(log_probs, labels, where=every)  # A warning would be an error.
  with pytest.warns(UserWarning, match=r"logits look like probabilities .* pass jnp\.log\(probs\) instead") as warned:
    calibrator.fit(np.exp(log_probs), labels, where=every)
  assert len(warned) == 1 and warned[0].filename == __file__
  with pytest.warns(UserWarning, match="logits look like probabilities") as warned:
    calibrator.apply(params, np.exp(log_probs))
  assert len(warned) == 1 and warned[0].filename == __file__


def test_only_rows_that_count_and_are_not_traced_are_taken_for_probabilities():
  logits, labels = synthetic(100, 3)
  probs, where = np.asarray(jax.nn.softmax(logits)), np.arange(100) >= 50
  calibrator = calibrators.identity()
  calibrator.fit(np.where(where[:, None], logits, probs), labels, where=where)
  with pytest.warns(UserWarning, match="look like probabilities"):
    calibrator.fit(np.where(where[:, None], probs, logits), labels, where=where)
  calibrator.apply({}, np.where(np.arange(100)[:, None] < 99, probs, 2 * probs))  # The last row has another sum.
  jax.eval_shape(lambda z: calibrator.apply(calibrator.fit(z, labels), z), probs)
  mesh = jax.sharding.Mesh(jax.devices()[:4], "batch")
  placed = jax.device_put(probs, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch")))
  for rows in (jnp.asarray(probs).reshape(2, 5, 10, 3), np.full((LOOKED_AT, 3), 1 / 3, np.float32), placed):
    with pytest.warns(UserWarning, match="look like probabilities"):
      calibrator.apply({}, rows)
