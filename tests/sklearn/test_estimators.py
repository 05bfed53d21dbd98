"""The scikit-learn estimators: their conventions, and the same probabilities as the calibrators that they hold."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, KFold, LeaveOneOut, ShuffleSplit, StratifiedKFold, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import check_estimator

from calib_jax import calibrators
from calib_jax.sklearn import CalibratedClassifier, Calibrator

RNG = np.random.default_rng(0)
NAMES = np.array(["cat", "dog", "eel"])
Y = RNG.integers(0, 3, 240)
X = RNG.normal(size=(240, 4)) + 1.5 * np.eye(3, 4)[Y]
BINARY = (Y == 2).astype(int)


# The fits are in float32, and these two compare probabilities to 1e-7.
TO_NINE_DIGITS = {f"check_sample_weight_equivalence_on_{kind}_data": "float32" for kind in ("dense", "sparse")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_check_estimator():
  # Three folds, because the checks have data with three or four examples in a class.
  results = check_estimator(CalibratedClassifier(cv=3), on_fail="raise", on_skip=None,
                            expected_failed_checks=TO_NINE_DIGITS)
  assert {result["status"] for result in results} <= {"passed", "skipped", "xfail"}


def test_the_calibrator_is_fitted_to_scores_out_of_fold_and_the_classifier_to_all_examples():
  model = CalibratedClassifier(GaussianNB()).fit(X, NAMES[Y])
  log_probs = cross_val_predict(GaussianNB(), X, Y, cv=StratifiedKFold(5), method="predict_log_proba")
  expected = calibrators.temperature_scaling().fit(log_probs, Y)
  np.testing.assert_allclose(model.calibrator_.params["temperature"], expected["temperature"], rtol=1e-5)
  own = GaussianNB().fit(X, Y).predict_log_proba(X)
  scaled = np.exp(own / float(expected["temperature"]))
  np.testing.assert_allclose(model.predict_proba(X), scaled / scaled.sum(1, keepdims=True), rtol=1e-4, atol=1e-6)
  np.testing.assert_array_equal(model.predict(X), NAMES[own.argmax(1)])
  assert list(model.classes_) == list(NAMES) and model.n_features_in_ == 4


def test_an_ensemble_has_the_mean_of_classifiers_that_are_calibrated_on_their_own_folds():
  weights = RNG.integers(1, 3, 240)
  model = CalibratedClassifier(GaussianNB(), cv=3, ensemble=True).fit(X, NAMES[Y], weights)
  expected, calibrator = [], calibrators.temperature_scaling()
  for train, held_out in StratifiedKFold(3).split(X, Y):
    classifier = GaussianNB().fit(X[train], Y[train], weights[train])
    params = calibrator.fit(classifier.predict_log_proba(X[held_out]), Y[held_out], weights=weights[held_out])
    expected.append(np.exp(calibrator.apply(params, classifier.predict_log_proba(X))))
  np.testing.assert_allclose(model.predict_proba(X), np.mean(expected, axis=0), rtol=1e-4, atol=1e-6)
  np.testing.assert_array_equal(model.predict(X), NAMES[np.mean(expected, axis=0).argmax(1)])
  with pytest.raises(ValueError, match="ensemble=True needs folds"):
    CalibratedClassifier(GaussianNB().fit(X, Y), cv="prefit", ensemble=True).fit(X, Y)


def test_a_prefit_classifier_is_left_as_it_is_and_masked_by_no_refit():
  fitted = LogisticRegression().fit(X[:120], Y[:120])
  model = CalibratedClassifier(fitted, cv="prefit").fit(X[120:], Y[120:])
  assert model.estimator_ is fitted
  logits = fitted.decision_function(X[120:])
  calibrator = calibrators.temperature_scaling()
  expected = np.exp(calibrator.apply(calibrator.fit(logits, Y[120:]), logits))
  np.testing.assert_allclose(model.predict_proba(X[120:]), expected, rtol=1e-5, atol=1e-6)
  with pytest.raises(ValueError, match="no class that the prefit estimator does not have"):
    CalibratedClassifier(fitted, cv="prefit").fit(X, Y + 1)


def test_options_are_parameters_that_clones_keep_and_grids_can_set():
  model = CalibratedClassifier(GaussianNB(), "histogram_binning", num_bins=3)
  assert clone(model).get_params()["num_bins"] == 3 and "estimator__var_smoothing" in model.get_params()
  assert model.set_params(num_bins=2, estimator__var_smoothing=1e-3).estimator.var_smoothing == 1e-3
  assert model.fit(X, Y).calibrator_.calibrator == calibrators.histogram_binning(2)
  assert clone(model).get_params(deep=False)["num_bins"] == 2
  assert "num_bins=2" in repr(model)
  with pytest.raises(TypeError, match="num_bin"):
    CalibratedClassifier(GaussianNB(), "histogram_binning", num_bin=2).fit(X, Y)


@pytest.mark.parametrize("estimator", [
  LogisticRegression(), GaussianNB(), SVC(decision_function_shape="ovo"),
  pytest.param(RandomForestClassifier(5, random_state=0), marks=pytest.mark.slow)], ids=lambda x: type(x).__name__)
def test_two_classes_of_any_classifier(estimator):
  probs = CalibratedClassifier(estimator, "platt", cv=3).fit(X, NAMES[BINARY]).predict_proba(X)
  assert probs.shape == (240, 2) and np.all(np.isfinite(probs))
  np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-12)
  assert probs[BINARY == 1, 1].mean() > probs[BINARY == 0, 1].mean() + 0.2


def test_pipelines_frames_pickles_and_a_choice_by_cross_validation(monkeypatch):
  monkeypatch.setattr(calibrators.selection, "CANDIDATES", ("identity", "temperature_scaling"))
  monkeypatch.setattr(calibrators.selection, "MATRIX_ROWS", 100)  # The default candidates have tests of their own.
  frame = pd.DataFrame(X, columns=list("abcd"))
  model = make_pipeline(StandardScaler(), CalibratedClassifier(GaussianNB(), "auto")).fit(frame, pd.Series(NAMES[Y]))
  again = pickle.loads(pickle.dumps(model))
  np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
  assert model[-1].calibrator_.calibrator.name in ("identity", "temperature_scaling")
  assert list(CalibratedClassifier(GaussianNB()).fit(frame, Y).feature_names_in_) == list("abcd")
  with pytest.raises(ValueError, match="takes no options and no sample_weight"):
    CalibratedClassifier(GaussianNB(), "auto").fit(X, Y, np.ones(240))
  with pytest.raises(ValueError, match="cross-validation in 5 folds needs at least 5 examples: there are 3"):
    Calibrator("auto").fit(np.eye(3), [0, 1, 2])


def test_weights_of_a_prefit_classifier_are_repeated_rows():
  fitted, times = GaussianNB().fit(X, Y), RNG.integers(0, 3, 240)
  repeated = CalibratedClassifier(fitted, cv="prefit").fit(np.repeat(X, times, 0), np.repeat(Y, times))
  weighted = CalibratedClassifier(fitted, cv="prefit").fit(X, Y, times)
  np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), rtol=1e-4)


def test_folds_that_cannot_be_used_are_refused():
  with pytest.raises(ValueError, match=r"5 examples of each class: got n_samples=239, and 2 of the rarest"):
    CalibratedClassifier(GaussianNB()).fit(X[:-1], np.r_[Y[:-3], 3, 3])
  order = np.argsort(Y)
  with pytest.raises(ValueError, match="no example of some class to train on"):
    CalibratedClassifier(GaussianNB(), cv=KFold(3)).fit(X[order], Y[order])
  with pytest.raises(ValueError, match="hold out every example exactly once"):
    CalibratedClassifier(GaussianNB(), cv=ShuffleSplit(2, random_state=0)).fit(X, Y)


def test_scores_of_any_model():
  logits = 3 * X[:, :3]
  calibrator = calibrators.temperature_scaling()
  expected = np.exp(calibrator.apply(calibrator.fit(logits, Y), logits))
  model = Calibrator("temperature_scaling").fit(logits, NAMES[Y])
  np.testing.assert_allclose(model.predict_proba(logits), expected, rtol=1e-5)
  probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  np.testing.assert_allclose(Calibrator(inputs="probs").fit(probs, Y).predict_proba(probs), expected, rtol=1e-4)
  with pytest.raises(ValueError, match="rows in \\[0, 1\\] that sum to 1"):
    Calibrator(inputs="probs").fit(logits, Y)
  with pytest.raises(ValueError, match="y must have 3 classes"):
    Calibrator().fit(logits, Y + 7 * (Y == 2) + 5 * (Y == 1) * (np.arange(240) < 9))
  assert list(Calibrator().fit(logits[Y < 2], Y[Y < 2]).classes_) == [0, 1, 2]


def test_a_probability_of_zero_counts_as_half_of_the_smallest_above_it():
  probs = np.array([[1.0, 0.0], [0.9, 0.1], [1e-9, 1 - 1e-9], [0.6, 0.4]])
  y = [0, 1, 1, 0]
  model = Calibrator(inputs="probs").fit(probs, y)
  halved = np.where(probs == 0, 5e-10, probs)
  same = Calibrator(inputs="probs").fit(halved, y)
  np.testing.assert_allclose(model.predict_proba(probs), same.predict_proba(halved))
  np.testing.assert_allclose(Calibrator(inputs="probs").fit(probs[[0, 1, 3]], y[:3]).least_, np.log(0.05))
  assert np.all(np.isfinite(model.predict_proba([[0.0, 1.0]])))
  tiny = np.array([[1 - 1e-300, 1e-300], [0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
  np.testing.assert_array_equal(Calibrator(inputs="probs").fit(tiny, y).predict_proba(tiny),
                                Calibrator(inputs="probs").fit(np.maximum(tiny, 2.2204460492503131e-16), y)
                                .predict_proba(tiny))


def test_one_column_is_of_the_second_class():
  odds = 2 * X[:, 2]
  both = Calibrator().fit(np.stack([0 * odds, odds], 1), BINARY).predict_proba(np.stack([0 * odds, odds], 1))
  for column in (odds, odds[:, None]):
    np.testing.assert_array_equal(Calibrator().fit(column, BINARY).predict_proba(column), both)
  probs = 1 / (1 + np.exp(-odds))
  np.testing.assert_allclose(Calibrator(inputs="probs").fit(probs, BINARY).predict_proba(probs), both, atol=1e-5)


def test_scores_of_pairs_of_classes_are_not_those_of_classes():
  pairs = SVC(decision_function_shape="ovo")  # Three classes have three pairs.
  frozen = FrozenEstimator(SVC(decision_function_shape="ovo").fit(X, Y))
  for estimator in (pairs, make_pipeline(StandardScaler(), pairs), frozen, make_pipeline(frozen)):
    with pytest.raises(ValueError, match='a score to each pair of classes, and a calibrator needs one of each class'):
      CalibratedClassifier(estimator, cv=3).fit(X, Y)


@pytest.mark.parametrize(("prefix", "inputs"), [("", "probs"), ("prob_", "probs"), ("logit_", "logits")])
def test_columns_that_are_called_as_classes_are_joined_by_name(prefix, inputs):
  """Whatever the order of a frame's columns, of texts and of numbers, the probabilities are the same."""
  scores = X[:, :3] if inputs == "logits" else GaussianNB().fit(X, Y).predict_proba(X)
  for names in (NAMES, [0, 1, 2], [10, 2, 30]):
    labels = np.array(names)[Y]
    straight = pd.DataFrame(scores, columns=[f"{prefix}{name}" if prefix else name for name in names])
    expected = Calibrator("vector_scaling", inputs=inputs).fit(straight, labels).predict_proba(straight)
    turned = straight.iloc[:, [2, 0, 1]]
    model = Calibrator("vector_scaling", inputs=inputs).fit(turned, labels)
    np.testing.assert_allclose(model.predict_proba(turned), expected, atol=1e-6)
    assert model.calibrator_.classes == tuple(map(str, sorted(names)))
  two = pd.DataFrame({"prob_no": 1 - scores[:, 0]}) if inputs == "probs" else pd.DataFrame({"logit_no": -scores[:, 0]})
  yes = pd.DataFrame({"prob_yes": scores[:, 0]}) if inputs == "probs" else pd.DataFrame({"logit_yes": scores[:, 0]})
  labels = np.where(Y == 0, "yes", "no")
  np.testing.assert_allclose(*(Calibrator("vector_scaling", inputs=inputs).fit(x, labels).predict_proba(x)
                               for x in (two, yes)), atol=1e-5)


def test_columns_of_other_classes_are_refused_and_features_are_places():
  frame = pd.DataFrame(X[:, :3], columns=["logit_cat", "logit_dog", "logit_fox"])
  with pytest.raises(ValueError, match="only the columns of X has 'fox' and only the labels has 'eel'"):
    Calibrator().fit(frame, NAMES[Y])
  with pytest.raises(ValueError, match="call the columns as the classes"):
    Calibrator().fit(frame, np.array(["x", "y", "z"])[Y])
  plain = frame.set_axis(["a0", "a1", "a2"], axis=1)
  np.testing.assert_array_equal(Calibrator().fit(plain, NAMES[Y]).predict_proba(plain),
                                Calibrator().fit(X[:, :3], NAMES[Y]).predict_proba(X[:, :3]))


class _Unsorted(GaussianNB):
  """A prefit classifier whose classes are not sorted, as some outside of scikit-learn are."""

  def fit(self, X, y):
    super().fit(X, y)
    self.classes_, self.order = self.classes_[::-1], slice(None, None, -1)
    return self

  def predict_proba(self, X):
    sorted_ = GaussianNB.fit(GaussianNB(), *self.data) if hasattr(self, "data") else None
    return sorted_.predict_proba(X)[:, ::-1]


def test_classes_of_a_prefit_classifier_need_not_be_sorted():
  model = _Unsorted().fit(X, NAMES[Y])
  model.data = (X, NAMES[Y])
  ours = CalibratedClassifier(model, "vector_scaling", cv="prefit").fit(X, NAMES[Y])
  theirs = CalibratedClassifier(GaussianNB().fit(X, NAMES[Y]), "vector_scaling", cv="prefit").fit(X, NAMES[Y])
  assert list(ours.classes_) == list(NAMES[::-1])
  np.testing.assert_allclose(ours.predict_proba(X)[:, ::-1], theirs.predict_proba(X), atol=1e-5)


def test_groups_and_parameters_of_the_fit_reach_the_folds():
  groups = np.arange(240) // 10

  seen = []

  class Noting(GaussianNB):
    def fit(self, X, y, sample_weight=None, extra=None, once=None):
      seen.append((len(y), None if extra is None else np.array(extra), once))
      return super().fit(X, y, sample_weight)

  extra = np.arange(240)
  model = CalibratedClassifier(Noting(), cv=GroupKFold(4)).fit(X, Y, groups=groups, extra=extra, once="x")
  listed = list(GroupKFold(4).split(X, Y, groups))
  np.testing.assert_allclose(model.predict_proba(X), CalibratedClassifier(GaussianNB(), cv=listed).fit(
    X, Y).predict_proba(X), atol=1e-7)
  assert [len(rows) for _, rows, _ in seen] == [180] * 4 + [240] and {x for *_, x in seen} == {"x"}
  for (train, _), (_, rows, _) in zip(listed, seen, strict=False):
    np.testing.assert_array_equal(rows, extra[train])
  with pytest.raises(ValueError, match=r"keeps groups together: give them as fit\(X, y, groups=groups\)"):
    CalibratedClassifier(GaussianNB(), cv=GroupKFold(4)).fit(X, Y)


def test_weights_that_the_classifier_does_not_take_are_said():
  with pytest.warns(UserWarning, match="KNeighborsClassifier takes no sample_weight, so that the weights are those of"):
    CalibratedClassifier(KNeighborsClassifier()).fit(X, Y, np.ones(240))


@pytest.mark.parametrize("cv", [LeaveOneOut(), KFold(120), KFold(3)])
def test_folds_too_small_for_a_calibrator_of_their_own_are_refused(cv):
  """Of one or two rows, or of one class, as of sorted examples in folds without stratification."""
  order = np.argsort(Y, kind="stable")
  with pytest.raises(ValueError, match=r"too few for a calibrator of its own|no example of some class to train on"):
    CalibratedClassifier(GaussianNB(), cv=cv, ensemble=True).fit(X[order], Y[order])
  if cv.get_n_splits(X) > 100:
    fitted = CalibratedClassifier(GaussianNB(), cv=KFold(40)).fit(X, Y)
    assert np.ptp(fitted.predict_proba(X)) > 0.5
