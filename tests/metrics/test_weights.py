"""Weights of all metrics: whole ones are repeated examples, and others follow the definitions, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from calib_jax import metrics
from calib_jax._numerics.weighted_ranks import ranked
from tests.metrics.data import KINDS, pairs, predictions

pytestmark = pytest.mark.xdist_group("weights")  # One worker compiles what most of these tests share.
N, K, REPEATED = 60, 3, 120
TRAIN_COUNTS = np.array([9, 5, 1])
BINNED = [
  {}, {"norm": 2}, {"norm": "max"}, {"form": "label"}, {"form": "label", "norm": "max"}, {"norm": 2, "debias": True},
  {"closed": "left"}, {"sign": "over"}, {"num_bins": 90}, *({"binning": "equal_mass", **more} for more in (
    {}, {"norm": 2, "num_bins": 7}, {"form": "label", "norm": 2}, {"form": "label", "norm": "max"}, {"num_bins": 90},
    {"ties": "order"}, {"ties": "order", "form": "label"}, {"norm": 2, "debias": True}, {"num_bins": 1}))]
OF_PAIRS = {
  **{f"calibration_error {o}": functools.partial(metrics.calibration_error, **o) for o in BINNED},
  **{f"{name} {o}": functools.partial(getattr(metrics, name), **o) for name, options in {
    "ks_calibration_error": [{}, {"ties": "order"}], "smooth_calibration_error": [{}],
    "sweep_calibration_error": [{}, {"binning": "equal_width"}, {"ties": "order"}],
    "reliability": [{}, {"binning": "equal_mass", "num_bins": 7}]}.items() for o in options},
}
OF_RANKS = {name: getattr(metrics, name) for name in ("aurc", "excess_aurc", "auroc", "fpr_at_tpr")}
OF_CLASSES = {
  **{name: getattr(metrics, name) for name in (
    "accuracy", "nll", "brier_score", "mean_entropy", "classwise_losses", "expected_calibration_error",
    "maximum_calibration_error", "adaptive_calibration_error")},
  **{f"classwise {o}": functools.partial(metrics.classwise_calibration_error, **o) for o in (
    {}, {"norm": 2}, {"binning": "equal_mass"})},
  "kernel": functools.partial(metrics.kde_calibration_error, bandwidth=0.1),
  "groups": functools.partial(metrics.class_group_scores, train_counts=TRAIN_COUNTS),
}


_compiled = functools.cache(jax.jit)


def _values(pair, classes, risk, counts):
  """Every metric, by name, each in a program: one program of them all would take longer to compile."""
  confidence, correct = pair
  values = {name: _compiled(metric)(confidence, correct, **counts) for name, metric in OF_PAIRS.items()}
  for name, metric in OF_RANKS.items():
    values[name] = _compiled(metric)(confidence, correct if "aurc" in name else ~correct, **counts)
  values |= {f"{name} of losses": _compiled(OF_RANKS[name])(confidence, risk=risk, **counts)
             for name in ("aurc", "excess_aurc")}
  return values | {name: _compiled(metric)(*classes, **counts) for name, metric in OF_CLASSES.items()}


def _data(kind, n=N, seed=0):
  rng = np.random.default_rng(seed)
  return pairs(n, kind, seed), predictions(n, K, seed), rng.exponential(size=n).astype(np.float32)


def _assert_close(actual, expected, atol=3e-6, **options):
  for name in expected:
    for a, b in zip(jax.tree.leaves(actual[name]), jax.tree.leaves(expected[name]), strict=True):
      np.testing.assert_allclose(a, b, rtol=2e-5, atol=atol, err_msg=name, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_weights_are_repeated_examples_and_0_is_a_mask(kind):
  """Rows of weight 0 may hold anything."""
  data = _data(kind)
  weights = np.random.default_rng(1).integers(0, 4, N)
  repeated = np.repeat(np.arange(N), weights)[:REPEATED]
  weights = np.bincount(repeated, minlength=N)
  padded = np.pad(repeated, (0, REPEATED - len(repeated)))
  expected = _values(*jax.tree.map(lambda x: x[padded], data), {"where": np.arange(REPEATED) < len(repeated)})
  none = weights == 0
  blank = jax.tree.map(lambda x: np.where(none.reshape(-1, *[1] * (x.ndim - 1)), np.nan, x)
                       if x.dtype == np.float32 else x, data)
  _assert_close(_values(*blank, {"weights": weights.astype(np.float32)}), expected)
  # Beside a mask, and of ones.
  where = np.arange(N) % 3 > 0
  _assert_close(_values(*data, {"weights": np.where(where, 1.0, 0.0).astype(np.float32)}),
                _values(*jax.tree.map(lambda x: np.pad(x, [(0, REPEATED - N)] + [(0, 0)] * (x.ndim - 1)), data),
                        {"where": np.pad(where, (0, REPEATED - N))}))


def _curve(curve):
  return np.asarray(curve.coverage), np.asarray(curve.risk)


@pytest.mark.parametrize("kind", ["mixed", "ties"])
def test_the_weighted_curve_is_that_of_repeated_examples_where_one_ends(kind):
  (confidence, correct), _, _ = _data(kind, 40)
  weights = np.random.default_rng(0).integers(0, 4, 40)
  order = np.argsort(-confidence, kind="stable")
  ends = np.cumsum(weights[order])[weights[order] > 0] - 1
  repeated = np.repeat(np.arange(40), weights)
  actual = _curve(metrics.risk_coverage_curve(confidence, correct, weights=weights))
  expected = _curve(metrics.risk_coverage_curve(confidence[repeated], correct[repeated]))
  for a, b in zip(actual, expected, strict=True):
    if kind == "mixed":
      np.testing.assert_allclose(a[:len(ends)], b[ends], rtol=1e-5)
    else:  # Within a tie examples have no order, but it ends alike.
      tie_ends = np.flatnonzero(np.diff(confidence[order][weights[order] > 0], append=np.inf))
      np.testing.assert_allclose(a[tie_ends], b[ends[tie_ends]], rtol=1e-5)
    assert np.isnan(a[len(ends):]).all()


# What real weights mean, from the definitions, in float64.


def _rows(confidence, correct, weights, ties):
  """In ascending order: confidences, correctness (the mean of a tie that shares), weights, and where each rank ends."""
  order = np.argsort(confidence, kind="stable")
  c, a, w = (x[order].astype(np.float64) for x in (confidence, correct, weights))
  if ties == "share":
    a = np.array([w[c == x] @ a[c == x] / w[c == x].sum() for x in c])
  return c, a, w, np.cumsum(w)


def _memberships(confidence, correct, weights, num_bins, binning, closed="right", ties="share"):
  """Confidences, correctness, and how much of each example's weight is in each bin ``[N, M]``."""
  if binning == "equal_mass":
    c, a, w, ends = _rows(confidence, correct, weights, ties)
    edges = ends[-1] * np.arange(num_bins + 1) / num_bins
    inside = np.minimum(ends[:, None], edges[1:]) - np.maximum((ends - w)[:, None], edges[:-1])
    return c, a, np.maximum(inside, 0)
  edges = (np.arange(num_bins + 1) / num_bins).astype(np.float32)
  index = np.searchsorted(edges[1:-1], confidence, side="left" if closed == "right" else "right")
  return (confidence.astype(np.float64), correct.astype(np.float64),
          weights.astype(np.float64)[:, None] * (index[:, None] == np.arange(num_bins)))


def _binned(confidence, correct, weights, num_bins=15, binning="equal_width", norm=1, form="bin", debias=False,
            closed="right", ties="share", sign="both"):
  c, a, parts = _memberships(confidence, correct, weights, num_bins, binning, closed, ties)
  gaps, masses = [], []
  for part in parts.T[parts.sum(0) > 0]:
    mass, accuracy = part.sum(), part @ a / part.sum()
    if debias:
      if mass >= 2:
        gaps.append((accuracy - part @ c / mass) ** 2 - accuracy * (1 - accuracy) / (mass - 1))
        masses.append(mass)
      continue
    for gap, share in zip(*(((part @ c / mass - accuracy,), (mass,)) if form == "bin" else (c - accuracy, part)),
                          strict=True):
      if share > 1e-4:
        gaps.append(max(gap, 0) if sign == "over" else abs(gap))
        masses.append(share)
  gaps, masses, total = np.array(gaps), np.array(masses), weights.sum(dtype=np.float64)
  if debias:
    return np.sqrt(max(gaps @ masses / total, 0))
  return gaps.max() if norm == "max" else (gaps**norm @ masses / total) ** (1 / norm)


def _sweep(confidence, correct, weights, binning="equal_mass", ties="share"):
  actual = 1
  while actual < len(weights):
    _, a, parts = _memberships(confidence, correct, weights, actual + 1, binning, ties=ties)
    parts = parts[:, parts.sum(0) > 0]
    if (np.diff(a @ parts / parts.sum(0)) < -1e-6).any():
      break
    actual += 1
  return _binned(confidence, correct, weights, actual, binning, 2, ties=ties)


def _ks(confidence, correct, weights, ties="share"):
  c, a, w, _ = _rows(confidence, correct, weights, ties)
  return np.abs(np.cumsum(w * (a - c))).max() / w.sum()


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


def _auroc(scores, positives, weights):
  w = weights.astype(np.float64)
  pair_weights = w[positives][:, None] * w[~positives][None]
  above, below = scores[positives][:, None], scores[~positives][None]
  return (pair_weights * ((above > below) + 0.5 * (above == below))).sum() / pair_weights.sum()


def _fpr(scores, positives, weights, tpr=0.95):
  rates = [[np.average(scores[kind] >= t, weights=weights[kind]) for kind in (positives, ~positives)]
           for t in np.unique(scores)[::-1]]
  return next(false for true, false in rates if true >= tpr)


def _mean_losses(probs, labels, weights):
  p, y = probs.astype(np.float64), labels
  losses = -np.log(p[np.arange(len(y)), y])
  with np.errstate(invalid="ignore"):
    of_class = np.array([(weights * losses)[y == k].sum() / weights[y == k].sum(dtype=np.float64) for k in range(K)])
  return {"accuracy": p.argmax(1) == y, "nll": losses, "brier_score": ((p - np.eye(K)[y]) ** 2).sum(1),
          "mean_entropy": -special.xlogy(p, p).sum(1)}, of_class


@pytest.mark.parametrize(("kind", "scale"), [("mixed", 0.01), ("ties", 1.0), ("mixed", 50.0)])
def test_real_weights_follow_the_definitions(kind, scale):
  (confidence, correct), (probs, labels), risk = data = _data(kind)
  weights = (scale * np.random.default_rng(2).exponential(size=N)).astype(np.float32)
  pair, classes = (confidence, correct, weights), (probs, labels, weights)
  means, of_class = _mean_losses(*classes)
  expected = {f"calibration_error {o}": _binned(*pair, **o) for o in BINNED}
  for o in ({}, {"ties": "order"}):
    expected |= {f"ks_calibration_error {o}": _ks(*pair, **o), f"sweep_calibration_error {o}": _sweep(*pair, **o)}
  expected[f"sweep_calibration_error {({'binning': 'equal_width'})}"] = _sweep(*pair, "equal_width")
  expected |= {name: np.average(x, weights=weights) for name, x in means.items()} | {"classwise_losses": of_class}
  expected |= {"aurc": _aurc(confidence, ~correct, weights), "aurc of losses": _aurc(confidence, risk, weights)}
  expected |= {"excess_aurc of losses": expected["aurc of losses"] - _aurc(-risk, risk, weights),
               "auroc": _auroc(confidence, ~correct, weights), "fpr_at_tpr": _fpr(confidence, ~correct, weights)}
  top = probs.max(1), probs.argmax(1) == labels, weights
  expected |= {"expected_calibration_error": _binned(*top), "maximum_calibration_error": _binned(*top, norm="max"),
               "adaptive_calibration_error": _binned(*top, binning="equal_mass")}
  for o in ({}, {"norm": 2}, {"binning": "equal_mass"}):
    errors = [_binned(probs[:, k], labels == k, weights, **o) for k in range(K)]
    expected[f"classwise {o}"] = np.mean(np.array(errors) ** o.get("norm", 1)) ** (1 / o.get("norm", 1))
  actual = _values(*data, {"weights": weights})
  _assert_close(actual, expected, atol=1e-5)
  # The smooth error has no closed form: it is that of examples repeated a thousand times their weight.
  times = np.round(1000 * weights / weights.max()).astype(int)
  rows = np.repeat(np.arange(N), times)
  np.testing.assert_allclose(metrics.smooth_calibration_error(confidence[rows], correct[rows]),
                             actual["smooth_calibration_error {}"], atol=1e-3)
  c, a, parts = _memberships(*pair, 7, "equal_mass")
  diagram = actual[f"reliability {({'binning': 'equal_mass', 'num_bins': 7})}"]
  for values, reference in zip(diagram[1:], (parts.sum(0), c @ parts / parts.sum(0), a @ parts / parts.sum(0)),
                               strict=True):
    np.testing.assert_allclose(values, reference, rtol=1e-4)


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
  np.testing.assert_allclose(metrics.kde_calibration_error(probs, labels, weights=times),
                             metrics.kde_calibration_error(probs[rows], labels[rows]), rtol=1e-3)
  with pytest.raises(ValueError, match="weights of a kernel error must be 0 or at least 1: .* has weight 0.5"):
    metrics.kde_calibration_error(probs, labels, bandwidth=0.07, weights=np.full(25, 0.5))


def test_gradients_of_whole_weights_are_those_of_repeated_examples():
  (confidence, correct), (probs, labels), risk = _data("mixed")
  weights = np.random.default_rng(1).integers(0, 4, N)
  rows = np.repeat(np.arange(N), weights)

  @functools.partial(jax.jit, static_argnums=0)
  def gradients(repeated, confidence, probs, risk):
    def values(confidence, probs, risk):
      c, a, p, y, r = (x[rows] if repeated else x for x in (confidence, correct, probs, labels, risk))
      counts = {} if repeated else {"weights": weights}
      binned = [metrics.calibration_error(c, a, **o, **counts) for o in BINNED if "binning" not in o]
      scores = [getattr(metrics, name)(p, y, **counts) for name in (
        "nll", "brier_score", "mean_entropy", "classwise_calibration_error", "expected_calibration_error")]
      return jnp.stack([*binned, *scores, metrics.aurc(c, risk=r, **counts)])

    return jax.jacrev(values, argnums=(0, 1, 2))(confidence, probs, risk)

  arrays = [jnp.asarray(x) for x in (confidence, probs, risk)]
  for a, b in zip(gradients(False, *arrays), gradients(True, *arrays), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert jnp.abs(b).max() > 0


@pytest.mark.slow
def test_equal_real_weights_are_no_weights_where_groups_have_equally_many():
  data = _data("mixed")
  largest = functools.partial(metrics.calibration_error, binning="equal_mass", form="label", norm="max")
  for weight in (0.1, 0.3, 0.7, 0.9):  # Sums of them are rounded, and may fall short of an edge or beyond it.
    actual = largest(*data[0], weights=np.full(N, weight, np.float32))
    np.testing.assert_allclose(actual, largest(*data[0]), rtol=1e-5)
    order = jnp.asarray(np.sort(data[0][0])), jnp.zeros(N), jnp.full(N, weight)
    assert (jnp.sum(ranked(*order, "share").cut(15)[2] > 0)) == N
    assert metrics.fpr_at_tpr(*_of_twenty(), weights=np.full(21, weight, np.float32)) == 0


def _of_twenty():
  positives = np.arange(21) < 20
  return np.where(positives, np.arange(21, 0, -1), 2.5).astype(np.float32), positives  # The 19th is exactly 95%.


def test_large_weights_keep_their_digits():
  (confidence, correct), _, risk = _data("mixed", 1000)
  weights = (1e5 * np.random.default_rng(0).exponential(size=1000)).astype(np.float32)
  np.testing.assert_allclose(metrics.aurc(confidence, risk=risk, weights=weights), _aurc(confidence, risk, weights),
                             rtol=1e-5)
  np.testing.assert_allclose(metrics.ks_calibration_error(confidence, correct, weights=weights),
                             _ks(confidence, correct, weights), atol=1e-6)


def test_images_are_flattened_or_have_a_value_each():
  probs, labels = predictions(2 * 3 * 4, K)
  weights, where = np.arange(24) % 4, np.arange(24) % 5 > 0
  probs, labels, weights, where = (x.reshape(2, 3, 4, *x.shape[1:]) for x in (probs, labels, weights, where))
  for metric in (metrics.expected_calibration_error, metrics.nll,
                 lambda p, y, **counts: metrics.aurc(*metrics.top_label(p, y), **counts)):
    flat = metric(probs.reshape(24, K), labels.reshape(24), where=where.reshape(24), weights=weights.reshape(24))
    np.testing.assert_allclose(metric(probs, labels, where=where, weights=weights), flat, rtol=1e-6)
    each = jax.vmap(lambda p, y, m, w, metric=metric: metric(p, y, where=m, weights=w))(probs, labels, where, weights)
    np.testing.assert_allclose(each, [metric(*(x[i] for x in (probs, labels)), where=where[i], weights=weights[i])
                                      for i in range(2)], rtol=1e-6)


def test_nothing_that_counts_is_0_and_traced_weights_below_0_are_nan():
  data = _data("mixed")
  nothing = _values(*data, {"weights": np.zeros(N, np.float32)})
  for name in (*OF_PAIRS, "aurc", "accuracy", "nll", "expected_calibration_error", "classwise {}"):
    if "reliability" not in name:
      assert nothing[name] == 0, name
  wrong = _values(*data, {"weights": np.where(np.arange(N) == 7, -1, 1).astype(np.float32)})
  for name in ("calibration_error {}", "ks_calibration_error {}", "aurc", "auroc", "accuracy", "classwise {}"):
    assert np.isnan(wrong[name]), name


@pytest.mark.parametrize(("weights", "error", "message"), [
  (np.array([1.0, -1.0]), ValueError, "finite and at least 0: the first that is not, of row 1, is -1"),
  (np.ones(3), ValueError, r"weights must have shape \(2,\), one value per example: got shape \(3,\)"),
  (np.ones(2, bool), TypeError, "weights must be real numbers: got dtype bool"),
])
def test_mistakes_are_named(weights, error, message):
  probs, labels = np.full((2, 2), 0.5, np.float32), np.zeros(2, int)
  for call in (lambda: metrics.nll(probs, labels, weights=weights),
               lambda: metrics.auroc(probs[:, 0], labels == 0, weights=weights)):
    with pytest.raises(error, match=message):
      call()


def test_a_histogram_counts_whole_weights_and_refuses_others():
  probs, labels = predictions(100, K)
  weights = np.arange(100) % 4
  rows = np.repeat(np.arange(100), weights)
  of = metrics.CalibrationHistogram.from_model_output
  blank = np.where(weights[:, None] == 0, np.nan, probs)
  weighted, repeated = of(probs=blank, labels=labels, weights=weights), of(probs=probs[rows], labels=labels[rows])
  np.testing.assert_array_equal(weighted.counts, repeated.counts)
  actual, expected = weighted.compute(), repeated.compute()
  assert all(np.isclose(actual[name], expected[name], rtol=1e-5) for name in expected)
  with pytest.raises(TypeError, match="weights of a CalibrationHistogram must be integers, .* got dtype float"):
    of(probs=probs, labels=labels, weights=np.ones(100, np.float32))
