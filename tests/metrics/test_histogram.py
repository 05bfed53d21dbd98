"""Streams: any split in any order gives what one pass over all examples gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics
from calib_jax.metrics.cells import HALF, cell_of, lowest
from tests.metrics import references
from tests.metrics.data import batch, predictions

State = metrics.CalibrationHistogram
SIZE = 3000  # Most samples are padded to this, so that one program serves them all.


@jax.jit
def of(probs, labels, where=None):
  return State.from_model_output(probs=probs, labels=labels, where=where)


merge, compute = jax.jit(State.merge), State.compute


def _padded(probs, labels):
  """The data at random places of ``SIZE`` rows, of which the others hold NaN and do not count."""
  return [x[0] for x in batch([(probs, labels)], SIZE)]


def _binary(n, seed=0, concentration=1.0):
  """Two-class probabilities, calibrated but for a bend, spread over their range."""
  rng = np.random.default_rng(seed)
  odds = concentration * rng.logistic(size=n) + 1
  p = 1 / (1 + np.exp(-odds))
  labels = (rng.uniform(size=n) < 1 / (1 + np.exp(-0.7 * odds))).astype(np.int32)
  return np.stack([1 - p, p], 1).astype(np.float32), labels


def _expected(probs, labels):
  """The metrics of one pass over all examples, from the references in float64."""
  confidence, correct = probs.max(1), probs.argmax(1) == labels
  error = functools.partial(references.calibration_error, confidence, correct)
  return {"accuracy": correct.mean(), "mean_confidence": confidence.mean(dtype=np.float64), "count": len(labels),
          "expected_calibration_error": error(), "maximum_calibration_error": error(norm="max"),
          "adaptive_calibration_error": error(binning="equal_mass"),
          "ks_calibration_error": references.ks_calibration_error(confidence, correct)}


TOLERANCE = {"adaptive_calibration_error": 1e-4, "ks_calibration_error": 1e-4}


def _check(actual, expected):
  assert actual.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(actual[name], value, atol=TOLERANCE.get(name, 2e-6), err_msg=name)


@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.slow), SIZE])
def test_any_split_in_any_order_is_one_pass(n):
  probs, labels, where = _padded(*_binary(n))
  state, part = of(probs, labels, where), np.random.default_rng(1).integers(0, 4, SIZE)
  assert state.counts.sum() == n
  whole, parts = compute(state), [of(probs, labels, where & (part == j)) for j in range(4)]
  _check(whole, _expected(*_binary(n)))
  for merged in (functools.reduce(merge, parts), functools.reduce(merge, reversed(parts), State.empty()),
                 jax.jit(State.reduce)(jax.tree.map(lambda *x: np.stack(x), *parts)),
                 jax.tree.map(lambda *x: sum(x), *parts)):  # As ``jax.lax.psum`` does.
    for name, value in compute(merged).items():
      np.testing.assert_allclose(value, whole[name], atol=1e-6, err_msg=name)


def test_merged_sums_keep_what_rounding_loses():
  total, state = State.empty()._replace(bin_confidence=np.full(15, 2**24, np.float32)), State.empty()
  for _ in range(3):
    total = merge(total, state._replace(bin_confidence=np.ones(15, np.float32)))
  np.testing.assert_array_equal((total.bin_confidence - 2**24) + total.bin_remainder, 3)


@pytest.mark.slow
def test_a_million_examples_in_constant_memory():
  probs, labels = _binary(1_000_000, concentration=0.3)
  state = State.empty()
  update = jax.jit(lambda state, probs, labels: state.merge(State.from_model_output(probs=probs, labels=labels)))
  for start in range(0, len(labels), 100_000):
    state = update(state, probs[start:start + 100_000], labels[start:start + 100_000])
  assert [x.shape for x in state] == [x.shape for x in State.empty()]
  _check(compute(state), _expected(probs, labels))


# Two of each confidence's digits, and ties: cells that hold many.
@pytest.mark.parametrize("digits", [2, pytest.param(14, marks=pytest.mark.slow)])
def test_the_documented_bounds_hold_in_any_order(digits):
  for seed in range(2):
    p = np.round(np.sort(_binary(2000, seed)[0].max(1)), digits).astype(np.float32)
    # In each cell the wrong come first: the order that the state forgets.
    labels = (np.random.default_rng(seed).uniform(size=2000) < p).astype(np.int32)
    labels = labels[np.lexsort((labels, p))]
    probs = np.stack([1 - p, p], 1)
    state, expected = of(*_padded(probs, labels)), _expected(probs, labels)
    counts = np.asarray(state.counts)
    cut = np.searchsorted(np.cumsum(counts), np.cumsum([len(g) for g in np.array_split(p, 15)])[:-1], side="right")
    actual = compute(state)
    off = {name: abs(float(actual[name]) - float(expected[name])) for name in TOLERANCE}
    assert off["adaptive_calibration_error"] <= 2 * counts[cut].sum() / 2000 + 1e-6
    assert off["ks_calibration_error"] <= counts.max() / 2000 + 1e-6


@pytest.mark.parametrize("n", [30, SIZE, pytest.param(30_000, marks=pytest.mark.slow)])
def test_the_order_within_cells_is_known_to_a_ten_thousandth(n):
  for seed in range(3):  # If cells shared what edges cut evenly, several of these would be off by 1 / N.
    probs, labels = _binary(n, seed + 100, concentration=(0.3, 1.0, 3.0)[seed])
    _check(compute(of(*_padded(probs, labels)) if n <= SIZE else of(probs, labels)), _expected(probs, labels))


@pytest.mark.parametrize("right_first", [False, True])
def test_two_neighbours_in_a_cell_keep_their_order(right_first):
  # 15 groups of two, each within one cell or the next: every edge falls between cells but for the shift by one.
  p = np.repeat(np.linspace(0.6, 0.95, 16, dtype=np.float32), 2)[1:-1]
  p[::2] += np.float32(1.2e-7)
  labels = (np.arange(len(p)) % 2 == right_first).astype(np.int32)
  probs = np.stack([1 - p, p], 1)
  state = of(*_padded(probs, labels))
  assert (np.asarray(state.counts) == 2).sum() == 14
  _check(compute(state), _expected(probs, labels))


def test_logits_masks_and_leading_axes():
  probs, labels = predictions(120, 5)
  where = np.arange(120) % 3 > 0
  masked = np.where(where[:, None], np.log(probs + 1e-30), np.nan).reshape(4, 30, 5)
  from_logits = jax.jit(lambda z, y, w: State.from_model_output(logits=z, labels=y, where=w))
  actual = compute(from_logits(masked, labels.reshape(4, 30), where.reshape(4, 30)))
  _check(actual, _expected(probs[where], labels[where]))


def test_all_right_all_wrong_certain_and_none():
  sure = np.eye(2, dtype=np.float32)[np.zeros(50, int)]
  for label, error in ((0, 0.0), (1, 1.0)):
    actual = compute(of(*_padded(sure, np.full(50, label))))
    for name in ("expected_calibration_error", "adaptive_calibration_error", "maximum_calibration_error",
                 "ks_calibration_error"):
      np.testing.assert_allclose(actual[name], error, atol=1e-6, err_msg=name)
  assert all(value == 0 for value in compute(State.empty()).values())


def test_every_confidence_lies_in_its_cell():
  edge = np.float32(2.0) ** -np.arange(0, 40, dtype=np.float32)
  values = np.concatenate([edge, 1 - edge, np.linspace(0, 1, 10_001, dtype=np.float32)])
  values = np.sort(values.astype(np.float32))
  cells = np.asarray(jax.jit(cell_of)(values))
  assert (np.diff(cells) >= 0).all() and cells[0] == 0 and cells[-1] == 2 * HALF - 1
  distance = np.abs(values - np.asarray(lowest())[cells])
  assert (distance <= np.maximum(np.minimum(values, 1 - values) * 2.0**-14, 2.0**-24)).all()


def test_sweep_of_a_stream():
  sweep = jax.jit(State.sweep_calibration_error)
  for n in (30, SIZE):
    probs, labels = _binary(n)
    expected = references.sweep_calibration_error(probs.max(1), probs.argmax(1) == labels)
    np.testing.assert_allclose(sweep(of(*_padded(probs, labels))), expected, atol=1e-4)


@pytest.mark.slow
def test_in_a_clu_collection():
  probs, labels = predictions(64, 4)
  collection = metrics.collection()
  state = collection.empty()
  add = jax.jit(lambda state, p, y: state.merge(collection.single_from_model_output(probs=p, labels=y, loss=0.5)))
  for i in range(0, 64, 16):
    state = add(state, probs[i:i + 16], labels[i:i + 16])
  actual = state.compute()["calibration"]
  expected = compute(of(probs, labels))
  assert {k: float(v) for k, v in actual.items()} == pytest.approx({k: float(v) for k, v in expected.items()}, abs=1e-6)
  gathered = jax.pmap(lambda p, y: collection.gather_from_model_output(axis_name="batch", probs=p, labels=y),
                      axis_name="batch", out_axes=None)(probs.reshape(2, 32, 4), labels.reshape(2, 32))
  assert gathered.compute()["calibration"]["count"] == 64


def test_mistakes_are_named():
  with pytest.raises(TypeError, match="takes either probs or logits"):
    State.from_model_output(labels=np.zeros(3, int))


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_an_empty_state_can_be_donated():
  """Of a histogram, of a collection of clu, and of a train state that a scan of steps carries."""
  probs, labels = jax.nn.softmax(jax.random.normal(jax.random.key(0), (64, 5))), jnp.arange(64) % 5
  histogram, collection = metrics.CalibrationHistogram, metrics.collection()
  expected = histogram.from_model_output(probs=probs, labels=labels).compute()
  for empty, of_batch in ((histogram.empty, histogram.from_model_output),
                          (collection.empty, collection.single_from_model_output)):
    assert len({id(x) for x in jax.tree.leaves(empty())}) == len(jax.tree.leaves(empty()))
    step = jax.jit(lambda state, of_batch=of_batch: state.merge(of_batch(probs=probs, labels=labels)),
                   donate_argnums=0)
    computed = step(empty()).compute()
    assert computed.get("calibration", computed) == expected

  def steps(state):
    return jax.lax.scan(lambda s, x: (s.merge(histogram.from_model_output(probs=x[0], labels=x[1])), None),
                        state["metrics"], (probs.reshape(4, 16, 5), labels.reshape(4, 16)))[0]

  merged = jax.jit(steps, donate_argnums=0)({"metrics": histogram.empty()}).compute()
  np.testing.assert_allclose(list(merged.values()), list(expected.values()), rtol=1e-6)


def test_a_table_of_bins_runs_where_nan_is_an_error():
  with jax.debug_nans(True):
    table = metrics.reliability(np.array([0.9, 0.7, 0.2], np.float32), np.array([True, False, False]), num_bins=4)
  assert np.isnan(table.accuracy).tolist() == [False, True, False, False] and isinstance(table.accuracy, jax.Array)
  assert np.isnan(jax.jit(lambda c: metrics.reliability(c, c > 0.5, num_bins=4).accuracy)(jnp.array([0.9])))[1]
