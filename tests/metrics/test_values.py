"""Metrics refuse values that have no meaning, where they can read them, and one switch turns this off."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import _checks as checks
from calib_jax import calibrators, losses, metrics

PROBS, LABELS = np.full((6, 2), 0.5, np.float32), np.zeros(6, np.int32)
CONFIDENCE, CORRECT = np.full(6, 0.75, np.float32), np.ones(6, bool)
OF_CLASSES = ("accuracy", "nll", "brier_score", "mean_entropy", "classwise_losses", "top_label",
              "expected_calibration_error", "maximum_calibration_error", "adaptive_calibration_error",
              "classwise_calibration_error")
OF_PAIRS = ("calibration_error", "reliability", "ks_calibration_error", "sweep_calibration_error",
            "smooth_calibration_error")
OF_SCORES = {**dict.fromkeys(("aurc", "excess_aurc", "risk_coverage_curve"), "confidence"),
             **dict.fromkeys(("auroc", "fpr_at_tpr"), "scores")}


def _with(array, row, value):
  changed = array.copy()
  changed[row] = value
  return changed


@pytest.fixture
def unchecked():
  checks.check_values(False)
  yield
  checks.check_values(True)


@pytest.mark.parametrize(("probs", "labels", "message"), [
  (_with(PROBS, 2, (np.nan, 0.5)), LABELS, "probs must be finite: 1 of 6 rows is not; the first, row 2, holds nan"),
  (_with(PROBS, 1, (np.inf, 0.5)), LABELS, "probs must be finite: 1 of 6 rows is not; the first, row 1, holds inf"),
  (_with(PROBS, 0, (-0.5, 1.5)), LABELS, "probs must be at least 0: 1 of 6 rows is not; the first, row 0, holds -0.5"),
  (_with(PROBS, 5, (0.5, 0.25)), LABELS, "sum to 1 in each row: 1 of 6 rows does not; the first, row 5, sums to 0.75"),
  (PROBS, _with(LABELS, slice(3, 5), 2), r"labels must be in \[0, 2\): 2 of 6 rows are not; the first, row 3, holds 2"),
  (PROBS, _with(LABELS, 0, -1), "holds -1"),
])
def test_wrong_predictions_are_refused_where_they_count(probs, labels, message):
  """By one metric, with the shared mask and leading axes, and by ``validate``."""
  for shape in ((6,), (2, 3)):
    metrics.validate(PROBS.reshape(*shape, 2), LABELS.reshape(shape))
    for check in (metrics.accuracy, metrics.validate):
      with pytest.raises(ValueError, match=message):
        check(probs.reshape(*shape, 2), labels.reshape(shape))
  wrong = (probs != PROBS).any(1) | (labels != LABELS)
  assert metrics.accuracy(probs, labels, where=~wrong) == 1


@pytest.mark.parametrize(("name", "arrays", "message"), [
  *((name, *case) for name in OF_CLASSES for case in (
    ((_with(PROBS, 2, (np.nan, 0.5)), LABELS), "holds nan"), ((PROBS, _with(LABELS, 0, -1)), "holds -1"))),
  *((name, *case) for name in OF_PAIRS for case in (
    ((_with(CONFIDENCE, 4, np.nan), CORRECT), "confidence must be finite: 1 of 6 .* first, row 4, holds nan"),
    ((_with(CONFIDENCE, 4, 1.5), CORRECT), r"confidence must be in \[0, 1\]: 1 of 6 .* first, row 4, holds 1.5"),
    ((_with(CONFIDENCE, 4, -0.25), CORRECT), "holds -0.25"),
    ((CONFIDENCE, _with(CORRECT.astype(np.float32), 1, np.nan)), "correct must be finite"))),
  *((name, (_with(CONFIDENCE, 4, -np.inf), CORRECT), f"^{first} must be finite: 1 of 6 .* first, row 4, holds -inf")
    for name, first in OF_SCORES.items()),
])
def test_every_metric_refuses_wrong_values(name, arrays, message):
  with pytest.raises(ValueError, match=message):
    getattr(metrics, name)(*arrays)


@pytest.mark.parametrize("name", OF_SCORES)
def test_scores_may_have_any_range(name):
  getattr(metrics, name)(1e30 * CONFIDENCE, CORRECT)


def test_traced_arrays_pass_unread_and_constants_too():
  bad = _with(PROBS, 2, (0.5, 0.75))
  assert jax.jit(metrics.accuracy)(bad, LABELS) < 1
  assert jax.vmap(metrics.accuracy)(bad[None], LABELS[None]).shape == (1,)
  assert np.isfinite(jax.grad(lambda p: metrics.nll(p, LABELS))(bad)).all()
  assert jax.jit(lambda: metrics.accuracy(jnp.asarray(bad), LABELS))() < 1


@pytest.mark.parametrize("name", ["accuracy", "classwise_losses", "top_label", "class_group_scores", "histogram"])
def test_traced_labels_out_of_range_are_nan(name):
  metric = getattr(metrics, name, None)
  if name == "class_group_scores":
    metric = functools.partial(metric, train_counts=np.array([2, 1]))
  elif name == "histogram":
    metric = lambda p, y: metrics.CalibrationHistogram.from_model_output(probs=p, labels=y).compute()  # noqa: E731
  for bad in (-100, 2):
    actual = jax.tree.leaves(jax.jit(metric)(PROBS, _with(LABELS, 3, bad)))
    floats = [x for x in actual if jnp.issubdtype(x.dtype, jnp.floating)]
    if name == "top_label":
      np.testing.assert_array_equal(np.isnan(actual[0]), np.arange(6) == 3)
      assert not actual[1][3]
    else:
      assert np.isnan(jnp.hstack(floats)).all()
    with pytest.raises(ValueError, match=f"labels must be in .*the first, row 3, holds {bad}"):
      metric(PROBS, _with(LABELS, 3, bad))
  with pytest.raises(ValueError, match="row 3, holds 4294967297"):
    metric(PROBS, _with(LABELS.astype(np.int64), 3, 2**32 + 1))


def test_the_switch(unchecked):
  bad = _with(PROBS, 2, (0.5, 0.75))
  assert metrics.accuracy(bad, LABELS) < 1
  with pytest.raises(ValueError, match="sum to 1"):
    metrics.validate(bad, LABELS)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_probabilities_of_half_precision_sum_to_1_in_their_own_precision(dtype):
  try:
    probs = jax.nn.softmax(3 * jax.random.normal(jax.random.key(0), (500, 100))).astype(dtype).block_until_ready()
  except jax.errors.JaxRuntimeError:
    pytest.skip(f"XLA has no {jnp.dtype(dtype).name} on this processor.")
  labels = jnp.zeros(500, jnp.int32)
  metrics.accuracy(probs, labels)


class _Tensor:
  """What a tensor of another framework offers."""

  def __init__(self, values):
    self.values = values

  def __array__(self, dtype=None, copy=None):
    return np.asarray(self.values, dtype)


def test_lists_tensors_and_pandas_are_read_as_arrays():
  where, weights, groups, key = np.arange(6) > 0, np.arange(6), np.arange(6), jax.random.key(0)
  pair, classes = (CONFIDENCE, np.arange(6) % 2 > 0), (np.stack([CONFIDENCE, 1 - CONFIDENCE], 1), LABELS)

  def mean(c, a=None, where=None):
    return jnp.mean(c)

  calls = {
    **{name: lambda kind, name=name, arrays=arrays: getattr(metrics, name)(
      *map(kind, arrays), where=kind(where), weights=kind(weights))
       for name, arrays in (("nll", classes), ("calibration_error", pair), ("auroc", pair))},
    "aurc": lambda kind: metrics.aurc(kind(CONFIDENCE), risk=kind(CONFIDENCE)),
    "top_label": lambda kind: metrics.top_label(*map(kind, classes)),
    "groups": lambda kind: metrics.class_group_scores(*map(kind, classes), kind(np.array([2, 1]))),
    "histogram": lambda kind: metrics.CalibrationHistogram.from_model_output(
      probs=kind(classes[0]), labels=kind(LABELS), weights=kind(weights)),
    **{name: lambda kind, name=name: getattr(metrics, name)(
      mean, *map(kind, pair), groups=kind(groups), key=key, num_resamples=2)
       for name in ("bootstrap", "calibration_test")},
    "consistency_interval": lambda kind: metrics.consistency_interval(mean, kind(CONFIDENCE), key=key, num_resamples=2),
    "paired_difference": lambda kind: metrics.paired_difference(
      mean, [*map(kind, pair)], [*map(kind, pair)], method="percentile", key=key, num_resamples=2),
    "square": lambda kind: losses.square(*map(kind, classes), where=kind(where)),
    "avuc": lambda kind: losses.avuc(*map(kind, classes), threshold=0.5, weights=kind(weights)),
    "fit": lambda kind: calibrators.get("histogram_binning").fit(
      *map(kind, (4 * classes[0], LABELS)), where=kind(where), weights=kind(weights)),
  }
  pandas = pytest.importorskip("pandas")
  frames = lambda x: pandas.DataFrame(x) if x.ndim > 1 else pandas.Series(x)  # noqa: E731
  for name, call in calls.items():
    expected = jax.tree.leaves(call(np.asarray))
    for kind in (_Tensor, np.ndarray.tolist, *([frames] if name in ("nll", "calibration_error", "square") else [])):
      for a, b in zip(jax.tree.leaves(call(kind)), expected, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=f"{name} of {kind}")


def test_what_is_no_array_of_numbers_is_named():
  for wrong, dtype in ((CORRECT.astype(object), "object"), (["yes"] * 6, "<U3")):
    with pytest.raises(TypeError, match=f"correct must be an array of numbers or bools: got dtype {dtype}"):
      metrics.calibration_error(CONFIDENCE, wrong)
