"""Weights of all metrics: whole ones are repeated examples, and others follow the definitions, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from calib_jax import metrics
from calib_jax._numerics.weighted_ranks import ranked
from tests.metrics import references
from tests.metrics.data import KINDS, pairs, predictions

pytestmark = pytest.mark.xdist_group("weights")  # One worker compiles what most of these tests share.
N, K, PADDED = 60, 3, 120
TRAIN_COUNTS = np.array([9, 5, 1])
BINNED = [
  {"form": "label", "norm": 2}, {"norm": 2, "debias": True}, {"closed": "left", "sign": "over"}, {"norm": "max"},
  *({"binning": "equal_mass", **more} for more in (
    {"norm": 2, "num_bins": 7}, {"form": "label", "norm": "max"}, {"num_bins": 90}, {"ties": "order", "form": "label"},
    {"norm": 2, "debias": True}))]
SEVEN = {"binning": "equal_mass", "num_bins": 7}
OF_PAIRS = {f"{name} {o}": functools.partial(getattr(metrics, name), **o) for name, options in {
  "ks_calibration_error": [{}, {"ties": "order"}], "smooth_calibration_error": [{}], "reliability": [SEVEN],
  "sweep_calibration_error": [{}, {"binning": "equal_width"}]}.items() for o in options}
OF_CLASSES = {
  **{name: getattr(metrics, name) for name in ("accuracy", "nll", "brier_score", "mean_entropy", "classwise_losses")},
  **{name: functools.partial(getattr(metrics, name), num_bins=4) for name in (
    "expected_calibration_error", "maximum_calibration_error", "adaptive_calibration_error")},
  **{f"classwise {o}": functools.partial(metrics.classwise_calibration_error, **o) for o in (
    {"norm": 2}, {"binning": "equal_mass"})},
  "kernel": functools.partial(metrics.kde_calibration_error, bandwidth=0.1),
  "groups": functools.partial(metrics.class_group_scores, train_counts=TRAIN_COUNTS),
}
_compiled = functools.cache(jax.jit)


@jax.jit
def _binned(confidence, correct, weights):
  """They share what sorts the examples."""
  return {f"calibration_error {o}": metrics.calibration_error(confidence, correct, weights=weights, **o)
          for o in BINNED}


def _padded(*arrays):
  """Arrays with zeros up to ``PADDED`` rows: all tests share programs of one shape."""
  return [np.pad(x, [(0, PADDED - len(x))] + [(0, 0)] * (np.ndim(x) - 1)) for x in arrays]


def _values(pair, classes, risk, weights):
  """Every metric, by name; one program of them all would take longer to compile than many."""
  confidence, correct, *classes, risk, weights = _padded(*pair, *classes, risk, weights)
  values = _binned(confidence, correct, weights)
  values |= {name: _compiled(metric)(confidence, correct, weights=weights) for name, metric in OF_PAIRS.items()}
  for name in ("auroc", "fpr_at_tpr"):
    values[name] = _compiled(getattr(metrics, name))(confidence, ~correct, weights=weights)
  for name in ("aurc", "excess_aurc", "risk_coverage_curve"):
    values[name] = _compiled(getattr(metrics, name))(confidence, risk=risk, weights=weights)
  return values | {name: _compiled(metric)(*classes, weights=weights) for name, metric in OF_CLASSES.items()}


def _data(kind, n=N, seed=0):
  rng = np.random.default_rng(seed)
  return pairs(n, kind, seed), predictions(n, K, seed), rng.exponential(size=n).astype(np.float32)


def _repeated():
  """Rows of the data, each up to three times, and how often each is among them."""
  rows = np.repeat(np.arange(N), np.random.default_rng(1).integers(0, 4, N))[:PADDED]
  return rows, np.bincount(rows, minlength=N).astype(np.float32)


def _assert_close(actual, expected, atol=3e-6):
  for name in expected:
    for a, b in zip(jax.tree.leaves(actual[name]), jax.tree.leaves(expected[name]), strict=True):
      np.testing.assert_allclose(a, b, rtol=2e-5, atol=atol, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_weights_are_repeated_examples_and_rows_of_weight_0_may_hold_anything(kind):
  data, (rows, weights) = _data(kind), _repeated()
  blank = jax.tree.map(lambda x: np.where((weights == 0).reshape(-1, *[1] * (x.ndim - 1)), np.nan, x)
                       if x.dtype == np.float32 else x, data)
  actual = _values(*blank, weights)
  expected = _values(*jax.tree.map(lambda x: x[rows], data), np.ones(len(rows), np.float32))
  # The curve has a point an example, not a copy. Within a tie, examples have no order.
  del expected["risk_coverage_curve"]
  _assert_close(actual, expected)
  (confidence, _), _, risk = data
  order = np.argsort(-confidence, kind="stable")
  order = order[weights[order] > 0]
  is_end, ends = np.diff(confidence[order], append=np.inf) != 0, np.cumsum(weights[order]).astype(int) - 1
  for values, curve in zip(actual["risk_coverage_curve"], (
      np.arange(1, len(rows) + 1) / len(rows), references.risk_coverage(confidence[rows], risk[rows])), strict=True):
    np.testing.assert_allclose(values[:len(order)][is_end], curve[ends[is_end]], rtol=2e-5)
    assert np.isnan(values[len(order):]).all()


def _aurc(confidence, risk, weights):
  """With harmonic numbers of real numbers; a tie is one example."""
  levels = np.unique(confidence)[::-1]
  w = np.array([weights[confidence == x].sum(dtype=np.float64) for x in levels])
  mean_risk = np.array([np.average(risk[confidence == x].astype(np.float64), weights=weights[confidence == x])
                        for x in levels])
  ends = np.cumsum(w)
  harmonic = special.digamma(np.append(0, ends) + 1) + np.euler_gamma
  shares = w * (harmonic[-1] + 1) - np.diff(np.append(0, ends) * harmonic)
  return shares @ mean_risk / ends[-1]


def _mean_scores(probs, labels, weights):
  return {name: np.average(x, weights=weights) for name, x in references.scores(probs, labels).items()}


@pytest.mark.parametrize(("kind", "scale"), [("mixed", 0.01), ("ties", 1.0), ("mixed", 50.0)])
def test_real_weights_follow_the_definitions(kind, scale):
  (confidence, correct), (probs, labels), risk = data = _data(kind)
  weights = (scale * np.random.default_rng(2).exponential(size=N)).astype(np.float32)
  error, sweep, ks = (functools.partial(getattr(references, f"{name}calibration_error"), weights=weights)
                      for name in ("", "sweep_", "ks_"))
  top = probs.max(1), probs.argmax(1) == labels
  expected = {f"calibration_error {o}": error(confidence, correct, **o) for o in BINNED}
  expected |= {f"ks_calibration_error {o}": ks(confidence, correct, **o) for o in ({}, {"ties": "order"})}
  expected |= {f"sweep_calibration_error {o}": sweep(confidence, correct, **o)
               for o in ({}, {"binning": "equal_width"})}
  expected |= {"aurc": _aurc(confidence, risk, weights)} | _mean_scores(probs, labels, weights)
  expected |= {"excess_aurc": expected["aurc"] - _aurc(-risk, risk, weights),
               "auroc": references.auroc(confidence, ~correct, weights),
               "fpr_at_tpr": references.fpr_at_tpr(confidence, ~correct, weights=weights)}
  expected |= {"expected_calibration_error": error(*top, 4), "maximum_calibration_error": error(*top, 4, norm="max"),
               "adaptive_calibration_error": error(*top, 4, "equal_mass")}
  expected |= {f"classwise {o}": references.classwise_calibration_error(probs, labels, weights=weights, **o)
               for o in ({"norm": 2}, {"binning": "equal_mass"})}
  groups = [[0, np.nan, np.nan, np.nan]] * K  # Of ``TRAIN_COUNTS`` the head, the medium and the tail, which has no row.
  for k in np.unique(labels):
    of_class = [x[labels == k] for x in (probs, labels, weights, *top)]
    means = _mean_scores(*of_class[:3])
    groups[k] = [of_class[2].sum(), means["accuracy"], means["nll"],
                 references.calibration_error(*of_class[3:], weights=of_class[2])]
  expected |= {"groups": list(np.transpose(groups)), "classwise_losses": np.array(groups)[:, 2]}
  actual = _values(*data, weights)
  _assert_close(actual, expected, atol=1e-5)
  c, a, w = references.rows(confidence, correct, weights)
  bins = np.array([(part.sum(), part @ c / part.sum(), part @ a / part.sum())
                   for part in references.parts(c, w, 7, "equal_mass")])
  _assert_close({"reliability": actual[f"reliability {SEVEN}"][1:]}, {"reliability": list(bins.T)}, atol=1e-4)
  expected = references.smooth_calibration_error(confidence, correct, weights)
  np.testing.assert_allclose(actual["smooth_calibration_error {}"], expected, rtol=5e-4)


def test_the_kernel_error_leaves_one_of_the_examples_out_that_a_row_stands_for():
  """Also in the choice of the bandwidth; less than one cannot be left out."""
  probs, labels = predictions(25, 2)
  weights = 1 + np.random.default_rng(0).exponential(size=25).astype(np.float32)
  c, a, w = np.clip(probs.max(1), 1e-6, 1 - 1e-6).astype(np.float64), probs.argmax(1) == labels, weights.astype(float)
  densities = stats.beta.pdf(c[:, None], c / 0.07 + 1, (1 - c) / 0.07 + 1) * (w - np.eye(25))
  expected = w @ np.abs(densities @ a / densities.sum(1) - c) / w.sum()
  actual = metrics.kde_calibration_error(probs, labels, bandwidth=0.07, weights=weights)
  np.testing.assert_allclose(actual, expected, rtol=1e-4)
  times = np.arange(25) % 3
  rows = np.repeat(np.arange(25), times)
  rows = np.pad(rows, (0, 1))  # So that one program serves both.
  np.testing.assert_allclose(
    metrics.kde_calibration_error(probs, labels, weights=times),
    metrics.kde_calibration_error(probs[rows], labels[rows], weights=(np.arange(25) < 24).astype(int)), rtol=1e-3)
  with pytest.raises(ValueError, match="weights of a kernel error must be 0 or at least 1: .* has weight 0.5"):
    metrics.kde_calibration_error(probs, labels, bandwidth=0.07, weights=np.full(25, 0.5))


def test_gradients_of_whole_weights_are_those_of_repeated_examples():
  data, (rows, weights) = _data("mixed"), _repeated()

  @jax.jit
  def gradients(confidence, correct, probs, labels, risk, weights):
    def values(confidence, probs, risk):
      binned = [metrics.calibration_error(confidence, correct, **o, weights=weights) for o in BINNED[:2]]
      scores = [getattr(metrics, name)(probs, labels, weights=weights) for name in (
        "nll", "brier_score", "mean_entropy", "classwise_calibration_error")]
      return jnp.stack([*binned, *scores, metrics.aurc(confidence, risk=risk, weights=weights)])

    return jax.jacrev(values, argnums=(0, 1, 2))(confidence, probs, risk)

  actual = gradients(*_padded(*jax.tree.leaves(data), weights))
  repeated = gradients(*_padded(*(x[rows] for x in jax.tree.leaves(data)), np.ones(len(rows), np.float32)))
  for a, b in zip(actual, repeated, strict=True):
    expected = np.zeros(a.shape)
    np.add.at(expected, (slice(None), rows), b[:, :len(rows)])  # The gradients of all copies of a row.
    np.testing.assert_allclose(a, expected, rtol=1e-4, atol=1e-6)
    assert np.abs(expected).max() > 0


@pytest.mark.slow
def test_equal_real_weights_are_no_weights_where_groups_have_equally_many():
  pair, positives = pairs(N), np.arange(21) < 20
  scores = np.where(positives, np.arange(21, 0, -1), 2.5).astype(np.float32)  # The 19th is exactly 95%.
  largest = functools.partial(metrics.calibration_error, binning="equal_mass", form="label", norm="max")

  @jax.jit
  def values(weight):
    cut = ranked(jnp.sort(pair[0]), jnp.zeros(N), jnp.full(N, weight), "share").cut(15)
    return (largest(*pair, weights=jnp.full(N, weight)), jnp.sum(cut[2] > 0),
            metrics.fpr_at_tpr(scores, positives, weights=jnp.full(21, weight)))

  for weight in (0.1, 0.3, 0.7, 0.9):  # Sums of them are rounded, and may fall short of an edge or beyond it.
    np.testing.assert_allclose(values(np.float32(weight)), [largest(*pair), N, 0], rtol=1e-5)


def test_large_weights_keep_their_digits():
  (confidence, correct), _, risk = _data("mixed", 1000)
  weights = (1e5 * np.random.default_rng(0).exponential(size=1000)).astype(np.float32)
  np.testing.assert_allclose(metrics.aurc(confidence, risk=risk, weights=weights), _aurc(confidence, risk, weights),
                             rtol=1e-5)
  np.testing.assert_allclose(metrics.ks_calibration_error(confidence, correct, weights=weights),
                             references.ks_calibration_error(confidence, correct, weights=weights), atol=1e-6)


def test_weights_of_images_are_flattened_and_where_is_a_weight_of_0():
  (confidence, correct), (probs, labels), _ = _data("mixed", 24)
  weights, where = np.arange(24) % 4, np.arange(24) % 5 > 0
  for metric, *arrays in ((metrics.nll, probs, labels), (metrics.ks_calibration_error, confidence, correct)):
    flat = metric(*arrays, where=where, weights=weights)
    np.testing.assert_allclose(metric(*arrays, where=np.ones(24, bool), weights=weights * where), flat, rtol=1e-6)
    shaped = [x.reshape(2, 3, 4, *x.shape[1:]) for x in (*arrays, where, weights)]
    np.testing.assert_allclose(metric(*shaped[:2], where=shaped[2], weights=shaped[3]), flat, rtol=1e-6)


def test_nothing_that_counts_is_0_and_weights_below_0_are_refused_or_nan_where_they_are_traced():
  nothing = _values(*_data("mixed"), np.zeros(N, np.float32))
  for name in nothing:
    if name not in (f"reliability {SEVEN}", "risk_coverage_curve", "auroc", "fpr_at_tpr", "classwise_losses", "groups"):
      assert nothing[name] == 0, name
  below = np.where(np.arange(N) == 7, -1, 1).astype(np.float32)
  pair, classes, _ = _data("mixed")
  for metric, arrays in ((metrics.auroc, pair), (metrics.nll, classes)):
    with pytest.raises(ValueError, match="finite and at least 0: the first that is not, of row 7, is -1"):
      metric(*arrays, weights=below)
  wrong = _values(*_data("mixed"), below)
  for name in ("calibration_error {'norm': 'max'}", "ks_calibration_error {}", "aurc", "auroc", "accuracy",
               "classwise {'norm': 2}"):
    assert np.isnan(wrong[name]), name


def test_a_histogram_counts_whole_weights_and_refuses_others():
  data, (rows, weights) = _data("mixed"), _repeated()
  probs, labels = data[1]
  of = jax.jit(metrics.CalibrationHistogram.from_model_output)
  weighted, repeated = (of(**dict(zip(("probs", "labels", "weights"), _padded(*arrays), strict=True))) for arrays in (
    (np.where(weights[:, None] == 0, np.nan, probs), labels, weights.astype(int)),
    (probs[rows], labels[rows], np.ones(len(rows), int))))
  np.testing.assert_array_equal(weighted.counts, repeated.counts)
  _assert_close(weighted.compute(), repeated.compute())
  with pytest.raises(TypeError, match="weights of a CalibrationHistogram must be integers, .* got dtype float"):
    metrics.CalibrationHistogram.from_model_output(probs=probs, labels=labels, weights=weights)
