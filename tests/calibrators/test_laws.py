"""What every calibrator keeps to: at the edges, masked, compiled, mapped, and on disk."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from scipy import special

from calib_jax import calibrators
from tests.calibrators.data import synthetic

BASES = ("ensemble_temperature_scaling", "class_temperature_scaling")  # The other two in test_methods.
CASES = {
  "identity": {}, "temperature_scaling": {}, "vector_scaling": {}, "matrix_scaling": {}, "dirichlet": {},
  "ensemble_temperature_scaling": {}, "parameterized_temperature_scaling": {}, "class_temperature_scaling": {},
  "focal_calibration": {"gamma": -0.5}, "focal_temperature_scaling": {"search": "line"},
  "meta_calibration": {"target": 0.1}, "isotonic": {}, "histogram_binning": {}, "platt": {},
  "classwise_loss_scaling": {},
}
VARIANTS = {
  **{name: (name, options) for name, options in CASES.items()},
  "focal gradient": ("focal_temperature_scaling", {"search": "gradient"}),
  "metaacc": ("meta_calibration", {"constraint": "accuracy", "target": 0.9}),
  **{f"top {name}": (name, {"top_label": True}) for name in ("isotonic", "histogram_binning", "platt")},
  **{f"classwise {base}": ("classwise_loss_scaling", {"base": base}) for base in BASES},
}
KEEP_ACCURACY = ("temperature_scaling", "ensemble_temperature_scaling", "parameterized_temperature_scaling",
                 "focal_calibration", "focal_temperature_scaling", "focal gradient", "classwise_loss_scaling",
                 "classwise ensemble_temperature_scaling")
ON_HOST = ("meta_calibration", "metaacc", "isotonic", "top isotonic")


@functools.cache
def _calibrator(variant):
  name, options = VARIANTS[variant]
  return calibrators.get(name, **options)


def _looseness(variant):
  """Of probabilities, for rounding; a network's optimum is not its only one, nor sharp."""
  return 0.1 if "parameterized" in variant else 3e-3


def _size(variant):
  """Examples enough for the optimum that is found not to turn on a rounding."""
  return 400 if "parameterized" in variant else 24


def test_every_calibrator_is_here():
  assert CASES.keys() == calibrators.CALIBRATORS.keys()


def _edges():
  logits, labels = synthetic(24, 3)
  every = np.ones(24, bool)  # One program for all.
  yield "plain", logits, labels, every
  yield "all right", logits, logits.argmax(1), every
  yield "all wrong", logits, logits.argmin(1), every
  yield "constant", np.zeros_like(logits), labels, every
  yield "thousandfold", 1000 * logits, labels, every
  yield "thousandth", logits / 1000, labels, every
  yield "ties", np.round(logits / 3), labels, every
  yield "a class absent", logits, np.minimum(labels, 1), every
  yield "ten thousand", np.where(logits > 0, 1e4, -1e4).astype(np.float32), labels, every
  yield "one counts", logits, labels, np.arange(24) == 5
  yield "none counts", logits, labels, np.zeros(24, bool)
  yield "masked rows hold nan", np.where(np.arange(24)[:, None] < 12, logits, np.nan), labels, np.arange(24) < 12


@pytest.mark.parametrize("variant", VARIANTS)
def test_at_the_edges_params_are_finite_and_output_is_normalised(variant):
  calibrator = _calibrator(variant)
  test, _ = synthetic(24, 3, seed=1)
  for edge, logits, labels, where in _edges():
    params = calibrator.fit(logits.astype(np.float32), labels.astype(np.int32), where=where)
    for path, leaf in jax.tree.leaves_with_path(params):
      finite = np.isfinite(np.asarray(leaf, np.float64)).all()
      assert finite or "threshold" in str(path), (edge, path, leaf)
      if "temperature" in str(path):
        assert np.all(np.asarray(leaf) > 0), (edge, path, leaf)
    for scores in (test, 1000 * test, np.where(np.isnan(logits), 0, logits).astype(np.float32)):
      log_probs = np.asarray(calibrator.apply(params, scores), np.float64)
      assert not np.isnan(log_probs).any() and (log_probs <= 1e-6).all(), edge
      np.testing.assert_allclose(special.logsumexp(log_probs, axis=1), 0, atol=2e-5, err_msg=edge)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_example_of_two_classes_is_enough_to_end_finite(variant):
  logits, labels = synthetic(1, 2)
  params = _calibrator(variant).fit(logits, labels)
  log_probs = np.asarray(_calibrator(variant).apply(params, synthetic(9, 2, seed=2)[0]))
  assert not np.isnan(log_probs).any()
  np.testing.assert_allclose(special.logsumexp(log_probs.astype(np.float64), axis=1), 0, atol=2e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_masking_equals_slicing(variant):
  size = _size(variant)
  logits, labels = synthetic(size, 3)
  kept = np.arange(size) < size - 5
  calibrator = _calibrator(variant)
  masked, sliced = calibrator.fit(logits, labels, where=kept), calibrator.fit(logits[kept], labels[kept])
  other = calibrator.fit(np.where(kept[:, None], logits, np.nan), np.where(kept, labels, 0), where=kept)
  for a, b in zip(jax.tree.leaves(masked), jax.tree.leaves(other), strict=True):
    np.testing.assert_array_equal(a, b)
  test, _ = synthetic(50, 3, seed=1)
  np.testing.assert_allclose(np.exp(calibrator.apply(masked, test)), np.exp(calibrator.apply(sliced, test)),
                             atol=_looseness(variant))


@pytest.mark.parametrize("variant", KEEP_ACCURACY)
def test_accuracy_is_kept_exactly(variant):
  calibrator = _calibrator(variant)
  logits, labels = synthetic(24, 3)
  tests = [synthetic(500, 3, seed=1)[0], np.round(synthetic(500, 3, seed=2)[0]),
           # Neighbouring numbers, that a division or a softmax could make equal.
           np.nextafter(np.float32(1), np.float32(2)) ** np.random.default_rng(0).integers(0, 3, (500, 3)),
           1e-6 * synthetic(500, 3, seed=3)[0]]
  for wrong in (labels, logits.argmin(1)):  # The second sends temperatures to their bound.
    params = calibrator.fit(logits, wrong.astype(np.int32))
    for test in tests:
      test = test.astype(np.float32)
      np.testing.assert_array_equal(np.argmax(calibrator.apply(params, test), axis=1), np.argmax(test, axis=1))


@pytest.mark.parametrize("variant", VARIANTS)
def test_apply_is_pure_and_fits_map_over_resamples(variant):
  calibrator = _calibrator(variant)
  size = _size(variant)
  logits, labels = synthetic(size, 3)
  index = np.random.default_rng(0).integers(0, size, (2, size))
  singles = [calibrator.fit(logits[i], labels[i]) for i in index]
  test, _ = synthetic(30, 3, seed=1)
  expected = np.stack([np.exp(calibrator.apply(p, test)) for p in singles])
  np.testing.assert_allclose(np.exp(jax.jit(calibrator.apply)(singles[0], test)), expected[0], atol=1e-5)
  if variant in ON_HOST or not singles[0]:
    return
  params = jax.vmap(calibrator.fit)(logits[index], labels[index])
  mapped = jax.vmap(calibrator.apply, in_axes=(0, None))(params, jnp.asarray(test))
  np.testing.assert_allclose(np.exp(mapped), expected, atol=_looseness(variant))


@pytest.mark.parametrize("variant", VARIANTS)
def test_params_come_back_from_disk(variant, tmp_path):
  logits, labels = synthetic(24, 3)
  params = _calibrator(variant).fit(logits, labels)
  calibrators.save(tmp_path / "params.npz", params)
  if not params:
    assert calibrators.load(tmp_path / "params.npz") == {}
    return
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(tmp_path / "orbax", params)
    checkpointer.wait_until_finished()
    restored = checkpointer.restore(tmp_path / "orbax", params)
  for found in (calibrators.load(tmp_path / "params.npz"), restored):
    assert jax.tree.structure(found) == jax.tree.structure(params)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(params), strict=True):
      np.testing.assert_array_equal(a, b)
      assert a.dtype == b.dtype


def test_params_files_hold_no_code(tmp_path):
  np.savez(tmp_path / "bad.npz", temperature=np.array([{"a": 1}], dtype=object))
  with pytest.raises(ValueError, match="allow_pickle=False"):
    calibrators.load(tmp_path / "bad.npz")
  with pytest.raises(ValueError, match="without '/'"):
    calibrators.save(tmp_path / "x.npz", {"a/b": np.zeros(1)})


@pytest.mark.parametrize(("make", "error", "match"), [
  (lambda: calibrators.get("temperture_scaling"), ValueError, "Did you mean 'temperature_scaling'"),
  (lambda: calibrators.focal_calibration(-1.0), ValueError, "gamma must be in"),
  (lambda: calibrators.focal_temperature_scaling(search="random"), ValueError, "search must be one of"),
  (lambda: calibrators.focal_temperature_scaling(objective="brier"), ValueError, "objective must be one of"),
  (lambda: calibrators.ensemble_temperature_scaling(space="odds"), ValueError, "space must be one of"),
  (lambda: calibrators.meta_calibration("coverage", target=0.1), ValueError, "constraint must be one of"),
  (lambda: calibrators.meta_calibration(target=0.0), ValueError, "target must be in"),
  (lambda: calibrators.histogram_binning(0), ValueError, "num_bins must be in"),
  (lambda: calibrators.matrix_scaling(l2=-1.0), ValueError, "l2 must be in"),
  (lambda: calibrators.classwise_loss_scaling("platt"), ValueError, "base must be one of"),
  (lambda: calibrators.classwise_loss_scaling(calibrators.platt()), ValueError, "base must be fitted by a mean NLL"),
  (lambda: calibrators.classwise_loss_scaling(normalization="none"), ValueError, "normalization must be one of"),
  (lambda: calibrators.vector_scaling().fit(np.zeros((3, 2), int), np.zeros(3, int)), TypeError, "floating point"),
  (lambda: calibrators.platt().fit(np.zeros((3, 2)), np.zeros(2, int)), ValueError, "labels must have the shape"),
])
def test_mistakes_are_named(make, error, match):
  with pytest.raises(error, match=match):
    make()
