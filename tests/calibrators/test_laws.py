"""Laws of every calibrator: at the edges, with rows that do not count, classes that rows lack, and weights."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from calib_jax import _checks as checks
from calib_jax import calibrators
from tests.calibrators.data import CASES, SHAPE, VARIANTS, grouped, made, synthetic

KEEP_ACCURACY = ("temperature_scaling", "ensemble_temperature_scaling", "parameterized_temperature_scaling",
                 "smart", "focal_calibration", "focal_temperature_scaling", "classwise_loss_scaling")


@pytest.fixture(scope="module", params=grouped(VARIANTS))
def variant(request):
  """A name of ``VARIANTS``; all tests of one follow each other, and so compile it once."""
  return request.param


def only(*names):
  """Of some names of ``VARIANTS`` alone, which cover how all treat what the test is of."""
  return pytest.mark.parametrize("variant", grouped(names), indirect=True, scope="module")


def _made(variant):
  name, options = VARIANTS[variant]
  return made(name, **options)


def _made_by_name(variant):
  name, options = VARIANTS[variant]
  return calibrators.get(name, **options)


def _looseness(variant):
  """Of probabilities, for rounding; a network's optimum is not its only one, nor sharp."""
  return 0.1 if "parameterized" in variant or variant == "smart" else 3e-3


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
    if variant == "cross venn_abers" and where.sum() < 5:
      with pytest.raises(ValueError, match="cross-validation in 5 folds needs at least 5 examples"):
        calibrator.fit(logits.astype(np.float32), labels.astype(np.int32), where=where)
      continue
    params = calibrator.fit(logits.astype(np.float32), labels.astype(np.int32), where=where)
    for path, leaf in jax.tree.leaves_with_path(params):
      finite = np.isfinite(np.asarray(leaf, np.float64)).all()
      assert finite or "threshold" in str(path), (edge, path, leaf)
      if "temperature" in str(path) and "log_temperature" not in str(path):
        assert np.all(np.asarray(leaf) > 0), (edge, path, leaf)
    _check_normalised(calibrator.apply(params, _scores(logits)), f"{variant}: {edge}")


def test_only_rows_that_count_are_fitted(variant):
  calibrator = _made(variant)
  logits, labels = synthetic(*SHAPE)
  counted = np.arange(SHAPE[0]) < SHAPE[0] // 2
  masked = calibrator.fit(logits, labels, where=counted)
  blank = calibrator.fit(np.where(counted[:, None], logits, np.nan), np.where(counted, labels, 0), where=counted)
  jax.tree.map(np.testing.assert_array_equal, masked, blank)
  # But for a random split of the rows, local optima, and what counts the rows: penalties of structured scaling, and the
  # one example that Venn-Abers adds.
  if any(name in variant for name in ("meta", "parameterized", "structured", "venn_abers")):
    return
  # Fits see means: twice the half that counts is fitted as the half alone.
  twice = calibrator.fit(*(np.tile(x[counted], (2,) + (1,) * (x.ndim - 1)) for x in (logits, labels)),
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
  params = calibrator.fit(masked, labels, where=rows >= 0)
  log_probs = np.asarray(calibrator.apply(params, masked), np.float64)
  assert (np.isneginf(log_probs) == absent).all() and (log_probs[rows[:5], labels[:5]] == 0).all()
  np.testing.assert_allclose(special.logsumexp(log_probs, axis=1), 0, atol=1e-5)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
  # A row of one class is no example, as it has probability 1 whatever the params.
  of_infinite = calibrator.fit(np.where(absent, -np.inf, logits), labels, where=rows >= 5)
  if variant == "label_shift":  # Its class frequencies are those of all rows.
    params, of_infinite = params["base"], of_infinite["base"]
  jax.tree.map(np.testing.assert_array_equal, params, of_infinite)


# Those with a fit or an apply of their own; all others share ``fit_by`` and ``by_row``.
@only("temperature_scaling", "identity", "meta_calibration", "isotonic", "label_shift", "probability_floor")
def test_leading_axes_are_flattened_and_a_fitted_calibrator_is_its_apply(variant):
  calibrator = _made_by_name(variant)
  logits, labels = synthetic(*SHAPE)
  where, leading = np.arange(SHAPE[0]) % 7 > 0, (20, SHAPE[0] // 20)
  params = calibrator.fit(logits, labels, where=where)
  fitted = calibrator.fitted(logits.reshape(*leading, SHAPE[1]), labels.reshape(leading), where=where.reshape(leading))
  assert fitted.calibrator is calibrator
  jax.tree.map(np.testing.assert_array_equal, fitted.params, params)
  restored = pickle.loads(pickle.dumps(fitted))
  some, leading, single = jax.jit(lambda restored, params, logits: (
    calibrator.apply(params, logits), restored(logits.reshape(3, 2, -1)), restored(logits[3])))(
      restored, params, logits[:6])
  np.testing.assert_allclose(leading, some.reshape(3, 2, -1), rtol=1e-6, atol=1e-7)
  assert single.shape == some[3].shape
  if variant != "label_shift":  # It counts the classes of all rows.
    np.testing.assert_allclose(single, some[3], rtol=1e-4, atol=1e-5)


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


# Those that treat counts and numbers apart, or count examples; all others get weights whose sum is 1 in any case.
@only("temperature_scaling", "platt", "isotonic", "venn_abers", "histogram_binning", "label_shift", "probability_floor",
      "classwise_loss_scaling", "structured_matrix_scaling", "TS by binned error")
def test_integer_weights_are_repeated_rows(variant):
  """Rows of weight 0 may hold anything, and ``where`` counts beside the weights."""
  calibrator = _made(variant)
  logits, labels = synthetic(*SHAPE)
  rows = np.arange(SHAPE[0])
  weights = np.random.default_rng(0).integers(0, 4, SHAPE[0]) * (rows < 400)
  repeated = np.repeat(rows, weights)[:SHAPE[0]]  # Of the shape that is compiled already.
  weights = np.bincount(repeated, minlength=SHAPE[0])
  weights[550:], counted = 3, rows < 550
  every = np.arange(SHAPE[0]) < len(repeated)
  repeated = np.pad(repeated, (0, SHAPE[0] - len(repeated)))
  blank = np.where((weights > 0)[:, None], logits, np.nan)
  weighted = calibrator.fit(blank, np.where(weights > 0, labels, -1), where=counted, weights=weights)
  expected = calibrator.fit(logits[repeated], labels[repeated], where=every)
  test = _scores(logits)
  np.testing.assert_allclose(np.exp(calibrator.apply(weighted, test)), np.exp(calibrator.apply(expected, test)),
                             atol=_looseness(variant))


@only("meta_calibration", "cross venn_abers")
def test_fits_that_divide_the_examples_take_no_weights(variant):
  logits, labels = synthetic(*SHAPE)
  with pytest.raises(ValueError, match=r" takes no weights: it .*\.$"):
    _made(variant).fit(logits, labels, weights=np.ones(SHAPE[0]))


@only(*KEEP_ACCURACY)
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


@pytest.mark.slow
@only(*CASES)
def test_one_example_of_two_classes_is_enough_to_end_finite(variant):
  params = _made(variant).fit(*synthetic(1, 2))
  _check_normalised(_made(variant).apply(params, synthetic(9, 2, seed=2)[0]), variant)


@pytest.mark.parametrize("variant", [pytest.param(v, marks=[pytest.mark.slow] * (v != "temperature_scaling"))
                                     for v in ("temperature_scaling", "vector_scaling", "platt")], indirect=True)
def test_fits_and_apply_map_over_resamples(variant):
  calibrator, (logits, labels) = _made_by_name(variant), synthetic(*SHAPE)
  index = np.random.default_rng(0).integers(0, SHAPE[0], (2, SHAPE[0]))
  resampled = logits[index], labels[index], np.ones(index.shape, bool)
  params = jax.vmap(jax.jit(lambda z, y, w: calibrator.fit(z, y, where=w)))(*resampled)
  test, _ = synthetic(*SHAPE, seed=1)
  mapped = jax.vmap(calibrator.apply, in_axes=(0, None))(params, jnp.asarray(test))
  expected = [np.exp(_made(variant).apply(_made(variant).fit(z, y, where=w), test))
              for z, y, w in zip(*resampled, strict=True)]
  np.testing.assert_allclose(np.exp(mapped), expected, atol=_looseness(variant))
  # Outside jit as within.
  plain = np.exp(calibrator.apply(jax.tree.map(lambda x: x[0], params), test))
  np.testing.assert_allclose(plain, np.exp(mapped[0]), atol=1e-5)
