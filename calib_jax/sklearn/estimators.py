"""The two estimators: of a classifier, and of scores that are there already."""

from collections.abc import Iterator
import re
from typing import Any
import warnings

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.model_selection import check_cv
from sklearn.svm import LinearSVC
from sklearn.utils import _safe_indexing, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
  _check_method_params,
  _check_sample_weight,
  check_array,
  check_is_fitted,
  column_or_1d,
  has_fit_parameter,
  validate_data,
)

from calib_jax import _checks as checks
from calib_jax import calibrators
from calib_jax._checks import class_names

LOWEST = float(np.finfo(np.float64).eps)
INPUTS = ("logits", "probs")
# How columns of scores are called before the name of the class.
NAMED = re.compile(r"(?:y_)?(?:logits?|log_probs?|probs?|probabilit(?:y|ies)|proba|scores?|\.pred)[_ .](.+)", re.I)
FEWEST = 3  # Examples that a fold must hold out for a calibrator of its own.


class _WithOptions(ClassifierMixin, BaseEstimator):
  """An estimator that has the options of its calibrator as parameters, besides its signature's."""

  def get_params(self, deep: bool = True) -> dict[str, Any]:
    """Returns the parameters by name; with ``deep``, also the calibrated estimator's."""
    return {name: value for name, value in vars(self).items() if not name.startswith("_") and not name.endswith("_")
            } | super().get_params(deep)

  def predict(self, X: Any) -> np.ndarray:
    """Returns the most probable class of each row of ``X``, ``[N]``; the first of those that tie."""
    probs = self.predict_proba(X)
    return self.classes_[probs.argmax(1)]

  def _calibrate(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
    """Fits the calibrator to logits ``[N, K]`` and labels ``[N]`` in ``[0, K)``.

    A probability of 0, as forests give it, has a logit of -inf, from which no calibrator can learn. It counts as half
    of the smallest one that is above 0, as in ``calibrators.probability_floor``.
    """
    self.least_ = float(np.min(logits, where=np.isfinite(logits), initial=0) - np.log(2))
    logits, parameters = self._finite(logits), type(self)._get_param_names()
    options = {name: value for name, value in self.get_params(deep=False).items() if name not in parameters}
    names = list(map(str, self.classes_)) if len(self.classes_) == logits.shape[1] else None
    if self.method != "auto":
      self.calibrator_ = calibrators.get(self.method, **options).fitted(logits, labels, weights=weights, classes=names)
      return
    if options or weights is not None:
      raise ValueError('method="auto" takes no options and no sample_weight: name a calibrator, such as '
                       '"temperature_scaling".')
    chosen = calibrators.select(logits, labels)
    self.calibrator_ = calibrators.Fitted(chosen.calibrator, chosen.params, logits.shape[1], names and tuple(names))

  def _calibrated(self, logits: np.ndarray) -> np.ndarray:
    """The calibrated probabilities ``[N, K]`` of logits, in float64, with rows that sum to 1."""
    probs = np.exp(np.asarray(self.calibrator_(self._finite(logits)), np.float64))
    return probs / probs.sum(1, keepdims=True)

  def _finite(self, logits: np.ndarray) -> np.ndarray:
    return np.where(np.isneginf(logits), self.least_, logits)


class Calibrator(_WithOptions):
  """A calibrator of ``calib_jax.calibrators`` for scores of any model, which it takes in place of features.

  Args:
    method: the name of the calibrator, or "auto" for the choice of ``calibrators.select``.
    inputs: what the scores are: "logits" or "probs".
    **options: arguments of the calibrator; they are parameters of this estimator too.

  Attributes:
    classes_: ``[K]``, the classes in the order of the columns.
    calibrator_: the fitted calibrator, a function of logits.
    n_features_in_: the number of columns of the scores.

  >>> logits, y = np.array([[3.0, 0.0], [0.0, 3.0], [3.0, 0.0]]), np.array(["cat", "dog", "dog"])
  >>> Calibrator("temperature_scaling").fit(logits, y).predict(logits)
  array(['cat', 'dog', 'cat'], dtype='<U3')
  """

  def __init__(self, method: str = "temperature_scaling", *, inputs: str = "logits", **options: Any):
    self.method = method
    self.inputs = inputs
    vars(self).update(options)

  def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> "Calibrator":
    """Fits the calibrator.

    Args:
      X: scores ``[N, K]``, or ``[N]`` or ``[N, 1]`` of the second of two classes: its probability or its log-odds.
        Columns of a frame that are called as the classes, or so after ``prob_``, ``logit_`` or the like, are joined
        with them by name, in any order.
      y: the labels ``[N]``: other columns are their sorted values or, if some class is absent, ``0, …, K − 1``.
      sample_weight: ``[N]``; an integer weight w equals w copies of the row.

    Returns:
      The estimator.

    Raises:
      ValueError: if labels and columns do not agree, probabilities are none, or a name or an option is unknown.
    """
    checks.choice("inputs", self.inputs, INPUTS)
    logits = self._logits(X, reset=True)
    y = column_or_1d(y, warn=True)
    check_classification_targets(y)
    self.classes_ = _classes(y, logits.shape[1])
    if len(y) != len(logits):
      raise ValueError(f"X and y must have the same length: got {len(logits)} and {len(y)}.")
    weights = None if sample_weight is None else _check_sample_weight(sample_weight, logits)
    self._calibrate(logits[:, _order(X, self.classes_)], np.searchsorted(self.classes_, y), weights)
    return self

  def predict_proba(self, X: ArrayLike) -> np.ndarray:
    """Returns the calibrated probabilities ``[N, K]`` of scores as ``fit`` takes them, in the order of ``classes_``."""
    check_is_fitted(self)
    return self._calibrated(self._logits(X)[:, _order(X, self.classes_)])

  def _logits(self, X: ArrayLike, reset: bool = False) -> np.ndarray:
    scores = np.asarray(X)
    scores = validate_data(self, scores[:, None] if scores.ndim == 1 else X, reset=reset, dtype=np.float64)
    if self.inputs == "probs":
      sums = scores.sum(1) if scores.shape[1] > 1 else np.ones(len(scores))
      if np.any(scores < 0) or np.any(scores > 1) or np.any(np.abs(sums - 1) > 1e-3):
        raise ValueError('inputs="probs" needs rows in [0, 1] that sum to 1: for scores before the softmax, use '
                         'inputs="logits".')
      if scores.shape[1] == 1:
        scores = np.concatenate([1 - scores, scores], 1)
      return _log(scores)
    return _two_columns(scores)


def _order(X: Any, classes: np.ndarray) -> np.ndarray:
  """For each class its place among the columns of scores, by name where they are called as the classes are."""
  columns, wanted = list(map(str, getattr(X, "columns", ()))), list(map(str, classes))
  ends = [match[1] if (match := NAMED.fullmatch(column)) else column for column in columns]
  if not set(ends) & set(wanted):  # Such as x0, x1.
    if columns and all(map(NAMED.fullmatch, columns)) and not all(end.isdigit() for end in ends):
      raise ValueError(f"the columns of X are called {class_names.listed(columns)}, and the classes "
                       f"{class_names.listed(wanted)}: call the columns as the classes.")
    return np.arange(len(classes))
  if len(ends) == 1 and len(wanted) == 2:
    ends = [f"not {ends[0]}", *ends]
  return np.array(class_names.places(ends, wanted, ("the columns of X", "the labels")))


def _places(classes: np.ndarray, y: np.ndarray) -> np.ndarray:
  """The place of each label ``[N]`` among ``classes``, which need not be sorted."""
  order = np.argsort(classes)
  return order[np.searchsorted(classes, y, sorter=order)]


def _two_columns(scores: np.ndarray) -> np.ndarray:
  """Logits ``[N, K]`` of scores, which of two classes may be one column: the log-odds of the second class."""
  if scores.ndim == 1 or scores.shape[1] == 1:
    return np.stack([np.zeros(len(scores)), scores.reshape(-1)], 1)
  return scores


def _classes(y: np.ndarray, number: int) -> np.ndarray:
  """The classes of the columns of scores."""
  present = np.unique(y)
  if len(present) == number:
    return present
  if np.issubdtype(present.dtype, np.integer) and present[0] >= 0 and present[-1] < number:
    return np.arange(number)
  raise ValueError(f"y must have {number} classes, one for each column of X, or integers from 0 to {number - 1}: got "
                   f"{len(present)} classes.")


class CalibratedClassifier(MetaEstimatorMixin, _WithOptions):
  """A classifier whose probabilities a calibrator of ``calib_jax.calibrators`` corrects.

  The calibrator is fitted to the scores of examples that the classifier has not learnt from: by cross-validation, after
  which one classifier is fitted to all examples, or to examples of your own (``cv="prefit"``). Scores are the
  classifier's ``decision_function`` or, without one, the logarithms of its ``predict_proba``, as in scikit-learn's
  ``CalibratedClassifierCV(ensemble=False)``. Probabilities below 2.2e-16 count as that, and one of 0 as half of the
  smallest above it.

  Args:
    estimator: the classifier; None for ``LinearSVC(random_state=0)``.
    method: the name of the calibrator, or "auto" for the choice of ``calibrators.select``.
    cv: the number of folds, a splitter of scikit-learn, or "prefit" for an estimator that is fitted already, which
      ``fit`` leaves as it is.
    ensemble: whether every fold keeps its classifier and a calibrator that is fitted to the examples it held out, and
      probabilities are the means of theirs, as in ``CalibratedClassifierCV(ensemble=True)``.
    **options: arguments of the calibrator; they are parameters of this estimator too.

  Attributes:
    classes_: ``[K]``, the classes in the order of the columns of ``predict_proba``.
    estimator_: the fitted classifier, and ``calibrator_`` the fitted calibrator, a function of logits; or
    members_: with ``ensemble``, a prefit ``CalibratedClassifier`` of each fold.

  >>> CalibratedClassifier(method="focal_temperature_scaling", search="line").get_params()["search"]
  'line'
  """

  def __init__(self, estimator: Any = None, method: str = "temperature_scaling", *, cv: Any = 5,
               ensemble: bool = False, **options: Any):
    self.estimator = estimator
    self.method = method
    self.cv = cv
    self.ensemble = ensemble
    vars(self).update(options)

  def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, *, groups: ArrayLike | None = None,
          **fit_params: Any) -> "CalibratedClassifier":
    """Fits the classifier, unless it is, and the calibrator.

    Args:
      X: whatever the classifier takes, with N rows.
      y: the labels ``[N]``.
      sample_weight: ``[N]``; an integer weight w equals w copies of the row. The classifier gets it if it takes
        weights; if not, a warning says so.
      groups: ``[N]``, which a splitter such as ``GroupKFold`` keeps together.
      **fit_params: passed to the classifier's ``fit``; of what has N rows, it gets its fold's.

    Returns:
      The estimator.

    Raises:
      ValueError: if a class has fewer examples than there are folds, a prefit estimator has other classes than y, or
        with ``ensemble`` a fold holds out fewer than three examples, or examples of one class.
    """
    X, y = indexable(X, y)
    validate_data(self, X, y, skip_check_array=True)
    y = column_or_1d(check_array(y, ensure_2d=False, dtype=None), warn=True)
    check_classification_targets(y)
    weights = None if sample_weight is None else _check_sample_weight(sample_weight, X)
    if weights is not None and self.cv != "prefit" and not has_fit_parameter(self._estimator(), "sample_weight"):
      warnings.warn(f"{type(self._estimator()).__name__} takes no sample_weight, so that the weights are those of the "
                    "calibrator alone.", UserWarning, stacklevel=2)
    folds = (X, y, weights, groups, fit_params)
    if self.ensemble:
      if self.cv == "prefit":
        raise ValueError('ensemble=True needs folds: got cv="prefit".')
      self.classes_ = np.unique(y)
      self.members_ = []
      for estimator, rows in self._folds(*folds):
        if len(rows) < FEWEST or len(np.unique(y[rows])) < 2:
          raise ValueError(f"a fold of cv={self.cv} holds out {len(rows)} examples of {len(np.unique(y[rows]))} "
                           "classes, too few for a calibrator of its own: use fewer or stratified folds, or "
                           "ensemble=False.")
        self.members_.append(clone(self).set_params(estimator=estimator, cv="prefit", ensemble=False).fit(
          _safe_indexing(X, rows), y[rows], None if weights is None else weights[rows]))
      return self
    if self.cv == "prefit":
      self.estimator_ = self._estimator()
      check_is_fitted(self.estimator_)
      self.classes_ = np.asarray(self.estimator_.classes_)
      if not np.isin(y, self.classes_).all():
        raise ValueError("y must have no class that the prefit estimator does not have.")
      logits = _scores(self.estimator_, X)
    else:
      self.classes_ = np.unique(y)
      logits = self._out_of_fold(*folds)
      self.estimator_ = self._trained(X, y, weights, fit_params)
    self._calibrate(logits, _places(self.classes_, y), weights)
    return self

  def predict_proba(self, X: Any) -> np.ndarray:
    """Returns the calibrated probabilities ``[N, K]`` of the rows of ``X``."""
    check_is_fitted(self)
    if self.ensemble:
      return np.mean([member.predict_proba(X) for member in self.members_], axis=0)
    return self._calibrated(_scores(self.estimator_, X))

  def _estimator(self) -> Any:
    return LinearSVC(random_state=0) if self.estimator is None else self.estimator

  def _trained(self, X: Any, y: np.ndarray, weights: np.ndarray | None, params: dict[str, Any]) -> Any:
    estimator = clone(self._estimator())
    takes_weights = weights is not None and has_fit_parameter(estimator, "sample_weight")
    return estimator.fit(X, y, **params, **({"sample_weight": weights} if takes_weights else {}))

  def _out_of_fold(self, X: Any, y: np.ndarray, *others: Any) -> np.ndarray:
    """The logits ``[N, K]`` of every row, by a classifier that has not learnt from it."""
    logits = np.empty((len(y), max(len(self.classes_), 2)))
    seen = np.zeros(len(y), int)
    for estimator, held_out in self._folds(X, y, *others):
      logits[held_out] = _scores(estimator, _safe_indexing(X, held_out))
      seen[held_out] += 1
    if np.any(seen != 1):
      raise ValueError("cv must hold out every example exactly once.")
    return logits

  def _folds(self, X: Any, y: np.ndarray, weights: np.ndarray | None, groups: ArrayLike | None,
             params: dict[str, Any]) -> Iterator[tuple[Any, np.ndarray]]:
    """Yields the classifier of every fold, and the rows that it has not learnt from."""
    folds = check_cv(self.cv, y, classifier=True)
    fewest = np.unique(y, return_counts=True)[1].min()
    if isinstance(self.cv, int) and fewest < self.cv:
      raise ValueError(f"cv={self.cv} needs at least {self.cv} examples of each class: got n_samples={len(y)}, and "
                       f"{fewest} of the rarest class.")
    try:
      parts = list(folds.split(X, y, groups))
    except ValueError as error:
      if groups is not None or "groups" not in str(error):
        raise
      raise ValueError(f"cv={self.cv} keeps groups together: give them as fit(X, y, groups=groups).") from error
    for train, held_out in parts:
      estimator = self._trained(_safe_indexing(X, train), y[train], None if weights is None else weights[train],
                                _check_method_params(X, params, train))
      if len(estimator.classes_) != len(self.classes_):
        raise ValueError("a fold of cv has no example of some class to train on: use fewer or stratified folds.")
      yield estimator, held_out

  def __sklearn_tags__(self) -> Any:
    """Returns the tags of the classifier, whose input this one takes."""
    tags, of_estimator = super().__sklearn_tags__(), get_tags(self._estimator())
    tags.input_tags = of_estimator.input_tags
    return tags


def _scores(estimator: Any, X: Any) -> np.ndarray:
  """The logits ``[N, K]`` of a classifier."""
  number = len(estimator.classes_)
  parts = (estimator, *getattr(estimator, "get_params", dict)().values())
  in_pairs = number > 2 and any(getattr(part, "decision_function_shape", None) == "ovo" for part in parts)
  if hasattr(estimator, "decision_function") and not in_pairs:
    scores = _two_columns(np.asarray(estimator.decision_function(X), np.float64))
    if scores.shape[1] == max(number, 2):
      return scores
  if in_pairs and not hasattr(estimator, "predict_proba"):
    raise ValueError('decision_function_shape="ovo" gives a score to each pair of classes, and a calibrator needs one '
                     'of each class: use "ovr".')
  return _log(np.asarray(estimator.predict_proba(X), np.float64))


def _log(probs: np.ndarray) -> np.ndarray:
  """Logarithms of probabilities, those below ``LOWEST`` as if they were that; -inf for 0."""
  with np.errstate(divide="ignore"):
    return np.log(np.where(probs > 0, np.maximum(probs, LOWEST), 0))
