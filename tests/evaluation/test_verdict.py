"""The first line of the verdict: rarely wrong where the truth is known, and right on ten sets of predictions."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from calib_jax import calibrators, evaluation
from calib_jax.evaluation import decisions
from calib_jax.evaluation.measures import class_gaps, measure, per_example
from calib_jax.evaluation.results import over_seeds
from calib_jax.evaluation.verdict import verdict


def _values(confidence, correct, predicted):
  return evaluation.Values(confidence.astype(np.float32), correct, *[confidence] * 3, predicted, {})


def _normal(samples):
  mean, error = samples.mean(), samples.std() / len(samples) ** 0.5
  return evaluation.Interval(mean, mean - 1.96 * error, mean + 1.96 * error)


def _is_rare(number, repeats, share=0.05):
  """Whether what has at most a chance of ``share`` may have happened so often, by two standard errors."""
  return number <= share * repeats + 2 * (share * (1 - share) * repeats) ** 0.5


def _log_softmax(logits):
  return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def _sample(rng, n, spread):
  """Logits of 10 classes, and labels that are drawn from their softmax."""
  logits = spread * rng.normal(size=(n, 10))
  probs = np.exp(_log_softmax(logits))
  return logits, (probs.cumsum(1) > rng.uniform(size=(n, 1))).argmax(1)


def _simulated(rng, n, scale, spread=2, num_redraws=99):
  """Results of logits that are ``scale`` times too large, with TS fitted to as many others, by definition in NumPy."""
  (fit_logits, fit_labels), (logits, labels) = _sample(rng, n, spread), _sample(rng, n, spread)

  def losses(logits, labels, temperature):
    return -_log_softmax(scale * logits / temperature)[np.arange(len(labels)), labels]

  temperature = minimize_scalar(lambda t: losses(fit_logits, fit_labels, t).mean(), (0.3, 3), method="golden",
                                tol=1e-3).x
  before, after = (losses(logits, labels, t) for t in (1, temperature))
  correct = (logits.argmax(1) == labels)[:, None]
  rows = {}
  for label, nll, t in (("none", before, 1), ("TS", after, temperature)):
    confidence = np.exp(_log_softmax(scale * logits / t)).max(1, keepdims=True).astype(np.float32)
    outcomes = np.concatenate([correct, rng.uniform(size=(n, num_redraws)) < confidence], axis=1)
    bins = np.ceil(confidence[:, 0] * 15).astype(int)
    errors = sum(abs((confidence - outcomes)[bins == j].sum(0)) for j in range(16)) / n
    ece = evaluation.Estimate(errors[0], errors[0], 0, errors[0], errors[1:].mean(),
                              np.mean(errors >= errors[0] * (1 - 1e-5)), [errors[0]])
    estimates = {"ece": ece, "nll": evaluation.Estimate(nll.mean(), nll.mean(), 0, 9),
                 "accuracy": evaluation.Estimate(correct.mean(), correct.mean(), 0, 1)}
    values = _values(confidence, correct, logits.argmax(1)[:, None])
    rows["a", label] = evaluation.Row(estimates, values.excess(), values)
  differences = {(("a", "TS"), ("a", "none")): {"nll": _normal(after - before), "ece": evaluation.Interval(0, -1, 1),
                                                "accuracy": evaluation.Interval(0, 0, 0)}}
  fitted = {"a": {"TS": (calibrators.temperature_scaling(), [{"temperature": temperature}])}}
  sets = {"test": evaluation.EvaluatedSet(n, 10, 1, rows=rows, differences=differences)}
  return evaluation.Results(15, num_redraws, sets, fitted)


SIZES = [pytest.param(n, spread, repeats, marks=marks) for n, spread, repeats, marks in (
  (500, 2, 100, ()), (5000, 2, 25, ()), (300, 12, 100, ()),
  (500, 2, 1000, pytest.mark.slow), (5000, 2, 300, pytest.mark.slow), (300, 12, 1000, pytest.mark.slow))]


@pytest.mark.parametrize(("n", "spread", "repeats"), SIZES)
def test_a_calibrated_model_is_to_be_kept_in_at_least_95_percent(n, spread, repeats):
  # With the spread of 12 many predictions are nearly certain, and their own spread is almost 0.
  rng = np.random.default_rng((n, repeats))
  kinds = [[x.kind for x in verdict(_simulated(rng, n, 1, spread)).recommendations] for _ in range(repeats)]
  num_wrong = sum(kind != ["keep"] for kind in kinds)
  assert _is_rare(num_wrong, repeats), num_wrong


@pytest.mark.parametrize(("n", "repeats"), [(500, 20), pytest.param(500, 300, marks=pytest.mark.slow),
                                            pytest.param(5000, 100, marks=pytest.mark.slow)])
def test_an_overconfident_model_is_told_to_use_temperature_scaling(n, repeats):
  rng = np.random.default_rng((n, repeats))
  lines = [verdict(_simulated(rng, n, 2)).first_line for _ in range(repeats)]
  right = [line for line in lines if line.startswith("Use TS (T = ") and line.endswith(" at equal accuracy.")]
  assert len(right) >= 0.95 * repeats, lines


def test_predictions_that_are_right_without_exception_are_not_called_underconfident():
  # Of 60 predictions of each class with a confidence of 97%, 1.8 would be wrong; none is wrong in 16% of samples.
  confidence = np.random.default_rng(0).uniform(0.965, 0.975, (120, 1))
  all_right = _values(confidence, np.ones((120, 1), bool), np.arange(120)[:, None] % 2)
  assert decisions.miscalibrated_classes(class_gaps(all_right, 2)).size == 0
  assert decisions.side(all_right.excess()) == 0
  five_seeds = _values(*(np.repeat(x, 5, 1) for x in (confidence, all_right.correct, all_right.predicted)))
  assert decisions.miscalibrated_classes(class_gaps(five_seeds, 2)).size == 0
  assert decisions.side(five_seeds.excess()) == 0
  none_right = _values(confidence, np.zeros((120, 1), bool), np.arange(120)[:, None] % 2)
  assert decisions.miscalibrated_classes(class_gaps(none_right, 2)).size == 2
  assert decisions.side(none_right.excess()) == 1


def test_intervals_of_class_wise_errors_hold_the_truth_with_few_examples_a_class():
  # With 30 examples a class the intervals that subtract an estimate of the bias held the 0 of this model in no sample.
  rng, repeats, held = np.random.default_rng(0), 30, 0
  for _ in range(repeats):
    logits = 2 * rng.normal(size=(300, 10))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (probs.cumsum(1) > rng.uniform(size=(300, 1))).argmax(1)
    values = per_example([evaluation.Predictions(logits.astype(np.float32), labels.astype(np.int32))], num_redraws=80)
    estimates = measure({0: values}, num_resamples=20)[0][0]
    held += estimates["classwise"].low == 0
    assert estimates["classwise"].low <= estimates["classwise"].estimate <= estimates["classwise"].high
  assert held >= 25  # At 97.5%, fewer have a chance of 1e-4.
