"""Calibration errors by the gain of a recalibration on examples that it was not fitted to, without bins."""

from typing import Any, NamedTuple

from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax.intervals.groups import standard_error, stratified_folds

FORMS, NORMS, SIGNS = ("top_label", "canonical"), (1, 2, "max"), ("both", "over", "under")
NUM_FOLDS = 5
# Each example helps to choose the direction in which examples of the other folds count, so that the terms of folds are
# correlated. Of a calibrated model the variance of their mean is 1.9 to 2.1 times as large as of independent terms,
# with five folds, in all families of recalibrations that were simulated; where the error is large the direction is
# fixed, and the factor falls to 1.
VARIANCE = 2.0


class VariationalError(NamedTuple):
  """An estimate that is at most the error on average, and a lower confidence limit of the error.

  Attributes:
    estimate: the estimate; below 0 where the recalibration finds nothing.
    low: the error is at least this with the probability ``level``.
  """

  estimate: float
  low: float


def variational_calibration_error(probs: ArrayLike, labels: ArrayLike, *, norm: int | str = 1, sign: str = "both",
                                  form: str = "top_label", classifier: Any = None, level: float = 0.95,
                                  groups: ArrayLike | None = None) -> VariationalError:
  r"""An estimate of a calibration error that is at most the error on average, and its lower confidence limit.

  Use it for a lower limit: the true error is at least so large.

  The error of predictions f is at least what any recalibration g shows of it:

  .. math:: \mathrm{E}\,\lVert \mathrm{E}[Y \mid f] - f \rVert \ge \mathrm{E}\,\langle v(g(f) - f),\, Y - f \rangle,
    \qquad \lVert v \rVert_* \le 1, \quad \langle v(d), d \rangle = \lVert d \rVert

  with equality for :math:`g(f) = \mathrm{E}[Y \mid f]`. A classifier is fitted to f and Y of four fifths of the
  examples, and the right-hand side is the mean over the other fifth, for each of five folds. Errors in bins are too
  high for few examples, because they measure the noise of the bins; this one is too low, because a fit to few examples
  is a poor recalibration. The lower limit subtracts the standard error of the mean, with the correlation of folds, and
  at least a calibrated model's with these predictions.

  With ``form="top_label"`` f is the confidence alone, Y whether the prediction is correct, and
  :math:`\langle v, Y - f \rangle` is :math:`Y - f` where g is above f and :math:`f - Y` where it is below.
  ``sign="over"`` takes only examples where g is below the confidence, ``"under"`` those where it is above; the two add
  up to ``"both"``.

  Args:
    probs: ``[N, K]`` probabilities.
    labels: ``[N]`` integers in ``[0, K)``.
    norm: 1, 2 or "max", of the vector over classes; of the top label all are the same.
    sign: "both", "over" or "under"; the last two are of the top label.
    form: "top_label", or "canonical": f is the vector of all probabilities, and Y the label as a unit vector.
    classifier: a scikit-learn classifier of the logarithms of f; None for histogram gradient boosting.
    level: of the one-sided limit, in (0, 1).
    groups: optional ``[N]`` integers; examples with the same integer share a fold and depend on each other.

  Returns:
    The estimate and the limit, in fractions (of norm 1, twice the total variation distance).

  Raises:
    ImportError: without scikit-learn.
    TypeError, ValueError: if an argument has the wrong dtype, shape or value, or there are fewer than five examples or
      groups.

  References:
    Berta et al. 2026b, `A variational estimator for Lp calibration errors <https://arxiv.org/abs/2602.24230>`_.

  >>> rng = np.random.default_rng(0)
  >>> logits = rng.normal(size=(600, 3))
  >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
  >>> overconfident, calibrated = jax.nn.softmax(3 * logits), jax.nn.softmax(logits)
  >>> error, calibrated = (variational_calibration_error(x, labels) for x in (overconfident, calibrated))
  >>> error.low > 0.1, calibrated.low < 0
  (True, True)
  """
  checks.options(norm=(norm, NORMS), sign=(sign, SIGNS), form=(form, FORMS), level=(level, "(0, 1)"))
  if form == "canonical" and sign != "both":
    raise ValueError(f'sign={sign!r} is of the top label: all probabilities are never too high at once, so '
                     'form="canonical" needs sign="both".')
  probs, labels = np.asarray(probs), np.asarray(labels)
  checks.class_values(probs, labels)
  checks.rank(probs, 2, "probs", "[N, K]")
  f, y = probs.astype(np.float64), labels.astype(np.int64)
  if form == "top_label":
    y = (f.argmax(1) == y).astype(np.int64)
    f = np.stack([1 - f.max(1), f.max(1)], axis=1)
  groups = None if groups is None else np.asarray(groups)
  # Folds with equal shares of each class would share the noise of the labels, so that the estimate would be too high.
  fold = stratified_folds(np.zeros_like(y), NUM_FOLDS, groups)
  g = _out_of_fold(classifier or _boosting(), f, y, fold)
  v = _direction(g - f, norm)
  if form == "top_label":  # In one dimension all norms are the same, and the direction is a sign.
    side = np.sign(g[:, 1] - f[:, 1])
    v = np.outer(np.where({"both": True, "over": side < 0, "under": side > 0}[sign], side, 0), [0, 1])
  values = np.sum(v * (np.eye(f.shape[1])[y] - f), axis=1)
  estimate = float(values.mean())
  # Some hundred sure predictions may all be right, so that their values hardly vary; a calibrated model's do.
  of_calibrated = np.sqrt(np.sum((f * v**2).sum(1) - (f * v).sum(1) ** 2)) / len(f)
  from scipy.special import ndtri  # A tenth of a second of importing, for this metric alone.

  deviation = VARIANCE**0.5 * max(standard_error(values, groups), of_calibrated)
  return VariationalError(estimate, estimate - float(ndtri(level)) * deviation)


def _boosting() -> Any:
  from sklearn.ensemble import HistGradientBoostingClassifier
  return HistGradientBoostingClassifier(max_iter=50, max_leaf_nodes=8, min_samples_leaf=50, random_state=0)


def _out_of_fold(classifier: Any, f: np.ndarray, y: np.ndarray, fold: np.ndarray) -> np.ndarray:
  """The recalibrated probabilities ``[N, K]`` by a fit without the fold; classes that it has not seen have 0."""
  from sklearn.base import clone
  x = np.log(np.maximum(f, np.finfo(np.float32).tiny))
  g = np.zeros_like(f)
  for i in range(fold.max() + 1):
    is_fit, rows = fold != i, np.flatnonzero(fold == i)
    classes = np.unique(y[is_fit])
    g[np.ix_(rows, classes)] = (1 if len(classes) == 1 else
                                clone(classifier).fit(x[is_fit], y[is_fit]).predict_proba(x[rows]))
  return g


def _direction(d: np.ndarray, norm: int | str) -> np.ndarray:
  """The vectors v ``[N, K]`` of dual norm 1, or 0 where d is 0, with ``<v, d>`` equal to the norm of d."""
  if norm == 1:
    return np.sign(d)
  if norm == 2:
    length = np.linalg.norm(d, axis=1, keepdims=True)
    return np.divide(d, length, out=np.zeros_like(d), where=length > 0)
  v, rows, largest = np.zeros_like(d), np.arange(len(d)), np.abs(d).argmax(1)
  v[rows, largest] = np.sign(d[rows, largest])
  return v
