"""What every calibrator keeps to: at the edges, masked, compiled, mapped, and on disk."""

import dataclasses
import json
import pickle

import jax
from jax import export
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from scipy import special

from calib_jax import _checks as checks
from calib_jax import calibrators
from calib_jax._checks.values import LOOKED_AT
from tests.calibrators.data import CASES, SHAPE, made, synthetic

VARIANTS = {
  **{name: (name, options) for name, options in CASES.items()},
  "TS by soft-binned error": ("temperature_scaling", {"objective": "soft_binned_ece"}),
  "TS by binned error": ("temperature_scaling", {"objective": "ece"}),
  "focal gradient": ("focal_temperature_scaling", {"search": "gradient", "objective": "nll"}),
  "metaacc": ("meta_calibration", {"constraint": "accuracy", "target": 0.9}),
  **{f"top {name}": (name, {"top_label": True})
     for name in ("isotonic", "histogram_binning", "platt", "beta_calibration", "spline_calibration")},
  "cross venn_abers": ("venn_abers", {"kind": "cross", "top_label": True}),
  "equal widths": ("histogram_binning", {"binning": "equal_width"}),
  **{f"classwise {base}": ("classwise_loss_scaling", {"base": base})  # The fourth base is in test_methods.
     for base in ("ensemble_temperature_scaling", "class_temperature_scaling")},
}
KEEP_ACCURACY = ("temperature_scaling", "ensemble_temperature_scaling", "parameterized_temperature_scaling",
                 "smart", "focal_calibration", "focal_temperature_scaling", "focal gradient", "classwise_loss_scaling",
                 "classwise ensemble_temperature_scaling", "TS by soft-binned error", "TS by binned error")
# Their fits compile longest, or repeat the search of another variant.
LATER = ("focal gradient", "classwise ensemble_temperature_scaling", "classwise class_temperature_scaling", "top platt",
         "TS by soft-binned error", "structured_vector_scaling", "top beta_calibration", "top spline_calibration",
         "equal widths", "dirichlet", "smart", "TS by binned error")


@pytest.fixture(scope="module", params=[
  pytest.param(v, marks=[pytest.mark.xdist_group(f"fit {v}"), *[pytest.mark.slow] * (v in LATER)]) for v in VARIANTS])
def variant(request):
  """A name of ``VARIANTS``; all tests of one follow each other, and so compile it once."""
  return request.param


# Tests of what options do not change.
each_name = pytest.mark.parametrize("variant", [
  pytest.param(v, marks=[pytest.mark.xdist_group(f"fit {v}"), *[pytest.mark.slow] * (v in LATER)]) for v in CASES],
  indirect=True, scope="module")


def _made(variant):
  name, options = VARIANTS[variant]
  return made(name, **options)


def _made_by_name(variant):
  name, options = VARIANTS[variant]
  return calibrators.get(name, **options)


def _looseness(variant):
  """Of probabilities, for rounding; a network's optimum is not its only one, nor sharp."""
  return 0.1 if "parameterized" in variant or variant == "smart" else 3e-3


def test_every_calibrator_is_here():
  # That of records, which takes two columns alone, is in test_records.
  assert CASES.keys() | {"record_calibration"} == {name for name in calibrators.CALIBRATORS if ":" not in name}


def _edges():
  logits, labels = synthetic(*SHAPE)
  rows = np.arange(len(labels))
  every = rows >= 0
  yield "plain", logits, labels, every
  yield "all right", logits, logits.argmax(1), every
  yield "all wrong", logits, logits.argmin(1), every
  yield "constant", np.zeros_like(logits), labels, every
  yield "three hundredfold", 300 * logits, labels, every
  yield "thousandth", logits / 1000, labels, every
  yield "ties", np.round(logits / 3), labels, every
  yield "a class absent", logits, np.minimum(labels, 8), every
  yield "ten thousand", np.where(logits > 0, 1e4, 1), labels, every
  yield "one counts", logits, labels, rows == 5
  yield "none counts", logits, labels, rows < 0
  yield "masked rows hold nan", np.where(rows[:, None] < 24, logits, np.nan), labels, rows < 24


def _scores(logits):
  """Test logits ``SHAPE``: others, three hundred times those, and some of those of the fit."""
  test = synthetic(SHAPE[0] // 3, SHAPE[1], seed=1)[0]
  return np.concatenate([test, 300 * test, np.nan_to_num(logits[:SHAPE[0] // 3])]).astype(np.float32)


def _check_normalised(log_probs, name):
  log_probs = np.asarray(log_probs, np.float64)
  eps = np.finfo(np.float32).eps
  # Unoptimised, XLA may compute a product of logits twice, once with a fused multiply-add: an eps of what it is apart.
  products = name.startswith(("vector", "class_temperature", "classwise class"))
  slack = 4 * eps * (np.abs(log_probs).max(axis=1) if products else np.ones(len(log_probs)))
  assert not np.isnan(log_probs).any() and (log_probs.max(axis=1) <= slack).all(), name
  assert (np.abs(special.logsumexp(log_probs, axis=1)) <= slack + 100 * eps).all(), name


@pytest.fixture
def unchecked():
  checks.check_values(False)
  yield
  checks.check_values(True)


@pytest.mark.slow
def test_at_the_edges_params_are_finite_and_output_is_normalised(variant, unchecked):
  calibrator = _made(variant)
  for edge, logits, labels, where in _edges():
    if variant == "cross venn_abers" and np.sum(np.ones(len(labels), bool) if where is None else where) < 5:
      with pytest.raises(ValueError, match="cross-validation in 5 folds needs at least 5 examples"):
        calibrator.fit(logits.astype(np.float32), labels.astype(np.int32), where=where)
      continue
    params = calibrator.fit(logits.astype(np.float32), labels.astype(np.int32), where=where)
    for path, leaf in jax.tree.leaves_with_path(params):
      finite = np.isfinite(np.asarray(leaf, np.float64)).all()
      assert finite or "threshold" in str(path), (edge, path, leaf)
      if "temperature" in str(path):
        assert np.all(np.asarray(leaf) > 0), (edge, path, leaf)
    _check_normalised(calibrator.apply(params, _scores(logits)), f"{variant}: {edge}")


def test_only_rows_that_count_are_fitted(variant):
  calibrator = _made(variant)
  logits, labels = synthetic(*SHAPE)
  kept = np.arange(SHAPE[0]) < SHAPE[0] // 2
  masked = calibrator.fit(logits, labels, where=kept)
  other = calibrator.fit(np.where(kept[:, None], logits, np.nan), np.where(kept, labels, 0), where=kept)
  for a, b in zip(jax.tree.leaves(masked), jax.tree.leaves(other), strict=True):
    np.testing.assert_array_equal(a, b)
  # A random split of the rows, and local optima, are sliced below; penalties of structured scaling, and the one example
  # that Venn-Abers adds, count the rows.
  if any(name in variant for name in ("meta", "parameterized", "structured", "venn_abers")):
    return
  # Fits see means: twice the half that counts is fitted as the half alone.
  twice = calibrator.fit(*(np.tile(x[kept], (2,) + (1,) * (x.ndim - 1)) for x in (logits, labels)),
                         where=np.ones(len(labels), bool))
  test = _scores(logits)
  np.testing.assert_allclose(np.exp(calibrator.apply(masked, test)), np.exp(calibrator.apply(twice, test)),
                             atol=_looseness(variant))


def test_a_class_that_a_row_does_not_have_is_left_out_whatever_its_mask(variant):
  calibrator = _made(variant)
  logits, labels = synthetic(*SHAPE)
  rng, rows = np.random.default_rng(0), np.arange(SHAPE[0])
  absent = (rng.random(SHAPE) < 0.3) | (rows < 5)[:, None]  # The first five rows have one class each.
  absent[rows, labels] = False
  masks = np.array([-1e4, -1e9, -1e20, -1e30, np.finfo(np.float32).min, -np.inf])[rng.integers(0, 6, SHAPE)]
  masks += np.where(masks == -1e4, logits.max(axis=1, where=~absent, initial=-np.inf, keepdims=True), 0)
  masked = np.where(absent, masks.astype(np.float32), logits)
  expected = np.where(absent, -np.inf, logits)
  params = calibrator.fit(masked, labels, where=rows >= 0)
  log_probs = np.asarray(calibrator.apply(params, masked), np.float64)
  assert (np.isneginf(log_probs) == absent).all() and (log_probs[rows[:5], labels[:5]] == 0).all()
  np.testing.assert_allclose(special.logsumexp(log_probs, axis=1), 0, atol=1e-5)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
  # A row of one class is no example, as it has probability 1 whatever the params.
  of_infinite = calibrator.fit(expected, labels, where=rows >= 5)
  if variant == "label_shift":  # Its class frequencies are those of all rows.
    params, of_infinite = params["base"], of_infinite["base"]
  jax.tree.map(np.testing.assert_array_equal, params, of_infinite)


@each_name
def test_leading_axes_are_flattened_and_a_fitted_calibrator_is_its_apply(variant):
  calibrator = _made_by_name(variant)
  logits, labels = synthetic(*SHAPE)
  where, leading = np.arange(SHAPE[0]) % 7 > 0, (20, SHAPE[0] // 20)
  params = calibrator.fit(logits, labels, where=where)
  fitted = calibrator.fitted(logits.reshape(*leading, SHAPE[1]), labels.reshape(leading), where=where.reshape(leading))
  assert fitted.calibrator is calibrator
  jax.tree.map(np.testing.assert_array_equal, fitted.params, params)
  restored = pickle.loads(pickle.dumps(fitted))
  some, leading, one = jax.jit(lambda restored, params, logits: (
    calibrator.apply(params, logits), restored(logits.reshape(3, 2, -1)), restored(logits[3])))(
      restored, params, logits[:6])
  np.testing.assert_allclose(leading, some.reshape(3, 2, -1), rtol=1e-6, atol=1e-7)
  assert one.shape == some[3].shape
  if variant != "label_shift":  # It counts the classes of all rows.
    np.testing.assert_allclose(one, some[3], rtol=1e-4, atol=1e-5)


def test_weights_have_the_leading_axes_of_their_labels():
  calibrator = calibrators.temperature_scaling()
  logits, labels = synthetic(60, 4)
  weights, leading = np.arange(60) % 3, (3, 4, 5)
  fitted = calibrator.fitted(logits.reshape(*leading, 4), labels.reshape(leading), weights=weights.reshape(leading))
  expected = calibrator.fit(logits, labels, weights=weights)
  jax.tree.map(np.testing.assert_array_equal, fitted.params, expected)
  with pytest.raises(ValueError, match="of row 59, is -1"):
    calibrator.fit(logits.reshape(*leading, 4), labels.reshape(leading), weights=(58 - np.arange(60)).clip(-1)
                   .reshape(leading))
  for wrong in ({"where": np.ones(60, bool)}, {"weights": weights}):
    with pytest.raises(ValueError, match=r"must have shape \(3, 4, 5\), one value per example: got shape \(60,\)"):
      calibrator.fit(logits.reshape(*leading, 4), labels.reshape(leading), **wrong)
  own = calibrators.Calibrator(lambda logits, labels: jnp.ones(()), lambda params, logits: params * logits)
  np.testing.assert_array_equal(own.fitted(logits, labels)(logits), logits)


TAKES_NO_WEIGHTS = ("meta_calibration", "metaacc", "cross venn_abers")


def test_integer_weights_are_repeated_rows(variant):
  """Rows of weight 0 may hold anything, and ``where`` counts beside the weights."""
  calibrator = _made(variant)
  logits, labels = synthetic(*SHAPE)
  rows = np.arange(SHAPE[0])
  weights = np.random.default_rng(0).integers(0, 4, SHAPE[0]) * (rows < 400)
  if variant in TAKES_NO_WEIGHTS:
    with pytest.raises(ValueError, match=r" takes no weights: it|its .*\.$"):
      calibrator.fit(logits, labels, weights=weights)
    return
  repeated = np.repeat(rows, weights)[:SHAPE[0]]  # Of the shape that is compiled already.
  weights = np.bincount(repeated, minlength=SHAPE[0])
  weights[550:], kept = 3, rows < 550
  every = np.arange(SHAPE[0]) < len(repeated)
  repeated = np.pad(repeated, (0, SHAPE[0] - len(repeated)))
  blank = np.where((weights > 0)[:, None], logits, np.nan)
  weighted = calibrator.fit(blank, np.where(weights > 0, labels, -1), where=kept, weights=weights)
  expected = calibrator.fit(logits[repeated], labels[repeated], where=every)
  if "parameterized" in variant:  # Its layers end in a local optimum; the rest is compared.
    for name in ("temperature", "centre", "unit"):
      np.testing.assert_allclose(weighted[name], expected[name], rtol=1e-4)
    return
  test = _scores(logits)
  np.testing.assert_allclose(np.exp(calibrator.apply(weighted, test)), np.exp(calibrator.apply(expected, test)),
                             atol=_looseness(variant))


@pytest.mark.parametrize("variant", [v for v in KEEP_ACCURACY if v not in LATER] + [
  pytest.param(v, marks=pytest.mark.slow) for v in LATER if v in KEEP_ACCURACY], indirect=True)
def test_accuracy_is_kept_exactly(variant):
  calibrator = _made(variant)
  logits, labels = synthetic(*SHAPE)
  tests = [synthetic(*SHAPE, seed=1)[0], np.round(synthetic(*SHAPE, seed=2)[0]),
           # Neighbouring numbers, that a division or a softmax could make equal.
           np.nextafter(np.float32(1), np.float32(2)) ** np.random.default_rng(0).integers(0, 3, SHAPE),
           1e-6 * synthetic(*SHAPE, seed=3)[0]]
  for wrong in (labels, logits.argmin(1)):  # The second sends temperatures to their bound.
    params = calibrator.fit(logits, wrong.astype(np.int32), where=np.ones(len(wrong), bool))
    for test in tests:
      test = test.astype(np.float32)
      np.testing.assert_array_equal(np.argmax(calibrator.apply(params, test), axis=1), np.argmax(test, axis=1))


@each_name
def test_params_come_back_from_disk(variant, tmp_path):
  logits, labels = synthetic(*SHAPE)
  params = _made(variant).fit(logits, labels, where=np.ones(len(labels), bool))
  calibrators.save(tmp_path / "params.npz", params, _made_by_name(variant))
  restored = calibrators.load(tmp_path / "params.npz")
  assert restored.calibrator == _made_by_name(variant)
  assert pickle.loads(pickle.dumps(restored.calibrator)) == restored.calibrator
  # The same function, because a compiled one may round a score to the other side of a step.
  np.testing.assert_allclose(restored.apply(logits), restored.calibrator.apply(params, logits), rtol=1e-6, atol=1e-6)
  calibrators.save(tmp_path / "params.npz", params)
  if not params:
    assert calibrators.load(tmp_path / "params.npz") == {}
    return
  restored = [calibrators.load(tmp_path / "params.npz")]
  if variant in ("parameterized_temperature_scaling", "isotonic"):  # Nested params, and those made on the host.
    with ocp.StandardCheckpointer() as checkpointer:
      checkpointer.save(tmp_path / "orbax", params)
      checkpointer.wait_until_finished()
      restored.append(checkpointer.restore(tmp_path / "orbax", params))
  for actual in restored:
    assert jax.tree.structure(actual) == jax.tree.structure(params)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(params), strict=True):
      np.testing.assert_array_equal(a, b)
      assert a.dtype == b.dtype


@pytest.mark.parametrize("make", [
  lambda: calibrators.classwise_loss_scaling("parameterized_temperature_scaling", hidden=3),
  lambda: calibrators.classwise_loss_scaling(calibrators.parameterized_temperature_scaling(hidden=3),
                                             normalization="minmax")])
def test_calibrators_around_a_base_with_options_come_back_from_disk(make, tmp_path):
  calibrator, params = make(), {"temperature": jnp.ones(())}
  calibrators.save(tmp_path / "calibrator.npz", params, calibrator)
  restored = calibrators.load(tmp_path / "calibrator.npz").calibrator
  logits = jnp.zeros((5, 4))
  labels = jnp.zeros(5, jnp.int32)
  expected = jax.eval_shape(calibrator.fit, logits, labels)
  assert expected["layer_0"]["kernel"].shape == (4, 3)  # The base's option counts.
  for actual in (restored, pickle.loads(pickle.dumps(calibrator)), eval(repr(calibrator), vars(calibrators))):
    assert actual == calibrator != calibrators.classwise_loss_scaling()
    assert jax.eval_shape(actual.fit, logits, labels) == expected


def test_a_calibrator_is_a_value():
  """Equal calls make equal calibrators, which are made by their repr; functions of one's own are compared as such."""
  for name, options in CASES.items():
    calibrator = calibrators.get(name, **options)
    assert calibrator == calibrators.get(name, **options) and hash(calibrator) == hash(calibrators.get(name, **options))
    assert eval(repr(calibrator), vars(calibrators)) == calibrator and calibrator.name == name
  assert len({calibrators.get(name, **options) for name, options in CASES.items()}) == len(CASES)
  own = [calibrators.Calibrator(calibrators.identity().fit, apply) for apply in (np.negative, np.positive)]
  assert own[0].name == "" and own[0] != own[1] and own[0] == dataclasses.replace(own[0])
  assert calibrators.platt() != "platt" and repr(own[0]).startswith("Calibrator(<function")
  with pytest.raises(dataclasses.FrozenInstanceError):
    own[0].name = "platt"


@pytest.mark.parametrize("variant", ["temperature_scaling", "isotonic", "classwise_loss_scaling", "label_shift"],
                         indirect=True)
def test_probabilities_in_place_of_logits_are_warned_of_once_a_call(variant):
  """``fit`` and ``apply`` say what to write instead, and are silent about logarithms, on the host too."""
  logits, labels = synthetic(*SHAPE)
  log_probs = np.asarray(jax.nn.log_softmax(logits))
  calibrator, every = _made_by_name(variant), np.ones(len(labels), bool)
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
  with pytest.warns(UserWarning, match="look like probabilities"):
    calibrator.apply({}, jnp.asarray(probs).reshape(2, 5, 10, 3))
  calibrator.apply({}, np.where(np.arange(100)[:, None] < 99, probs, 2 * probs))  # The last row has another sum.
  jax.jit(lambda z: calibrator.apply(calibrator.fit(z, labels), z))(probs)
  large = np.full((LOOKED_AT, 3), 1 / 3, np.float32)
  with pytest.warns(UserWarning, match="look like probabilities"):
    calibrator.apply({}, large)
  mesh = jax.sharding.Mesh(jax.devices()[:4], "batch")
  placed = jax.device_put(probs, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch")))
  with pytest.warns(UserWarning, match="look like probabilities"):
    calibrator.apply({}, placed)


@pytest.mark.slow
@each_name
def test_a_fitted_calibrator_is_exported_for_any_number_of_rows(variant):
  logits, labels = synthetic(*SHAPE)
  fitted = _made(variant).fitted(logits, labels, where=np.ones(len(labels), bool))
  rows, = export.symbolic_shape("n")
  exported = export.export(jax.jit(fitted))(jax.ShapeDtypeStruct((rows, SHAPE[1]), jnp.float32))
  served = export.deserialize(exported.serialize()).call(logits[:7])
  np.testing.assert_allclose(served, fitted(logits[:7]), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@each_name
def test_one_example_of_two_classes_is_enough_to_end_finite(variant):
  params = _made(variant).fit(*synthetic(1, 2))
  _check_normalised(_made(variant).apply(params, synthetic(9, 2, seed=2)[0]), variant)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["meta_calibration", "metaacc", "parameterized_temperature_scaling"], indirect=True)
def test_masking_equals_slicing(variant):
  """Of those that the test of rows that count leaves out."""
  logits, labels = synthetic(400, 3)
  kept = np.arange(400) < 380
  calibrator = _made(variant)
  masked, sliced = calibrator.fit(logits, labels, where=kept), calibrator.fit(logits[kept], labels[kept])
  test, _ = synthetic(400, 3, seed=1)
  np.testing.assert_allclose(np.exp(calibrator.apply(masked, test)), np.exp(calibrator.apply(sliced, test)),
                             atol=_looseness(variant))


MAPPED = ("temperature_scaling", "vector_scaling", "ensemble_temperature_scaling", "platt", "histogram_binning",
          "classwise_loss_scaling", "TS by binned error")
TRACED = ("matrix_scaling", "parameterized_temperature_scaling", "class_temperature_scaling", "focal gradient",
          "focal_temperature_scaling", "top histogram_binning", "top platt", "TS by soft-binned error")


def _resampled():
  logits, labels = synthetic(*SHAPE)
  index = np.random.default_rng(0).integers(0, SHAPE[0], (2, SHAPE[0]))
  return logits[index], labels[index], np.ones(index.shape, bool)


def _mapped(variant):
  fit = jax.jit(calibrators.get(VARIANTS[variant][0], **VARIANTS[variant][1]).fit)
  return jax.vmap(lambda z, y, w: fit(z, y, where=w))


@pytest.mark.parametrize("variant", [pytest.param(v, marks=[pytest.mark.slow] * (v != "temperature_scaling"))
                                     for v in MAPPED], indirect=True)
def test_fits_and_apply_map_over_resamples(variant):
  calibrator = calibrators.get(VARIANTS[variant][0], **VARIANTS[variant][1])
  params = _mapped(variant)(*_resampled())
  test, _ = synthetic(*SHAPE, seed=1)
  mapped = jax.vmap(calibrator.apply, in_axes=(0, None))(params, jnp.asarray(test))
  expected = [np.exp(_made(variant).apply(_made(variant).fit(z, y, where=w), test))
              for z, y, w in zip(*_resampled(), strict=True)]
  np.testing.assert_allclose(np.exp(mapped), expected, atol=_looseness(variant))
  # Outside jit as within.
  plain = np.exp(calibrator.apply(jax.tree.map(lambda x: x[0], params), test))
  np.testing.assert_allclose(plain, np.exp(mapped[0]), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("variant", TRACED, indirect=True)
def test_fits_that_share_a_solver_with_those_can_be_mapped(variant):
  mapped = jax.eval_shape(_mapped(variant), *_resampled())
  params = jax.eval_shape(lambda z, y, w: _made(variant).fit(z, y, where=w), *(x[0] for x in _resampled()))
  assert jax.tree.map(lambda x: (2, *x.shape), params) == jax.tree.map(lambda x: x.shape, mapped)


def test_params_files_hold_no_code(tmp_path):
  np.savez(tmp_path / "bad.npz", temperature=np.array([{"a": 1}], dtype=object))
  with pytest.raises(ValueError, match="holds Python objects, which are not read"):
    calibrators.load(tmp_path / "bad.npz")
  with pytest.raises(ValueError, match="without '/'"):
    calibrators.save(tmp_path / "x.npz", {"a/b": np.zeros(1)})


@pytest.mark.parametrize("names", [("logits", "labels"), ("probs",), ("train_images", "train_labels"), ("y_true", "x")])
def test_a_file_of_predictions_or_data_is_no_calibrator(names, tmp_path):
  np.savez(tmp_path / "test.npz", **{name: np.ones((2, 2)) for name in names})
  with pytest.raises(ValueError, match=f"test.npz must hold a calibrator, .* holds the arrays {', '.join(names)}: "):
    calibrators.load(tmp_path / "test.npz")


@pytest.mark.parametrize(("described", "match"), [
  ({"name": "temprature_scaling", "options": {}}, "Did you mean 'temperature_scaling'"),
  ({"name": "temperature_scaling", "options": {"objectiv": "nll"}}, "does not describe a calibrator"),
  ({"options": {}}, "does not describe a calibrator"), ([], "does not describe a calibrator")])
def test_a_file_that_describes_no_calibrator_is_refused(described, match, tmp_path):
  made = np.frombuffer(json.dumps(described).encode(), np.uint8)
  np.savez(tmp_path / "bad.npz", temperature=np.ones(()), **{"calibrator.json": made})
  with pytest.raises(ValueError, match=match):
    calibrators.load(tmp_path / "bad.npz")


def test_numbers_of_params_are_of_either_byte_order_and_at_most_64_bits(tmp_path):
  np.savez(tmp_path / "x.npz", **{"a/b": np.array([1.5, 2], ">f8"), "c": np.array(3, ">i4")})
  actual = calibrators.load(tmp_path / "x.npz")
  assert actual["a"]["b"].tolist() == [1.5, 2] and actual["c"].tolist() == 3
  for name, value, match in (("x", np.ones(2, np.longdouble), "numbers of at most 64 bits"),
                             ("a/" * 20 + "b", np.ones(2), "more than 8 levels"), ("a/b/c", np.ones(2), "both an"),
                             ("a", np.ones(2), "both an array")):
    np.savez(tmp_path / "x.npz", **{"a/b": np.ones(2), name: value})
    with pytest.raises(ValueError, match=match):
      calibrators.load(tmp_path / "x.npz")
  for described in (b"[" * 100_000, b'{"name": "temperature_scaling", "name": "identity", "options": {}}', b"\xff"):
    np.savez(tmp_path / "x.npz", temperature=np.ones(()), **{"calibrator.json": np.frombuffer(described, np.uint8)})
    with pytest.raises(ValueError, match="does not describe a calibrator"):
      calibrators.load(tmp_path / "x.npz")


def test_calibrators_that_a_file_cannot_hold_are_refused(tmp_path):
  for calibrator in (calibrators.temperature_scaling(lambda logits, labels, **_: 0.0),
                     calibrators.Calibrator(calibrators.identity().fit, np.negative)):
    with pytest.raises(ValueError, match="save the params alone|save the params"):
      calibrators.save(tmp_path / "x.npz", {}, calibrator)


def _fit_with_weights(weights, where=None):
  where = None if where is None else np.array(where)
  return calibrators.temperature_scaling().fit(9 * np.eye(3), np.arange(3), where=where, weights=np.array(weights))


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
  (lambda: calibrators.classwise_loss_scaling(class_loss="max"), ValueError, "class_loss must be one of"),
  (lambda: calibrators.vector_scaling().fit(np.zeros((3, 2), int), np.zeros(3, int)), TypeError, "floating point"),
  (lambda: calibrators.platt().fit(np.zeros((3, 2)), np.zeros(2, int)), ValueError, "labels must have the shape"),
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


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_logits_beyond_the_range_of_float32_are_not_finite():
  logits = 1e40 * np.eye(3)  # Finite in float64, but fits are in float32.
  with pytest.raises(ValueError, match=r"finite or -inf: 3 of 3 rows are not; the first, row 0, holds 1e\+40"):
    calibrators.vector_scaling().fit(logits, np.arange(3))
