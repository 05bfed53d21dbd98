"""Fits of logits of any scale reach the optimum that scipy finds in float64, and say so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from calib_jax import calibrators
from calib_jax.calibrators import logistic
from tests.calibrators.data import SETS, made, sample

ROWS, CLASSES = 64, 4
EPS = float(np.finfo(np.float32).eps)


def _usual():
  rng = np.random.default_rng(0)
  logits = 3 * rng.normal(size=(ROWS, CLASSES))
  return logits, (special.softmax(logits / 2, axis=1).cumsum(1) < rng.random((ROWS, 1))).sum(1).clip(0, CLASSES - 1)


def _accurate():
  """An overconfident model that is right but for four rows."""
  rng = np.random.default_rng(1)
  labels = rng.integers(0, CLASSES, ROWS)
  logits = 20 * np.eye(CLASSES)[labels] + rng.normal(size=(ROWS, CLASSES))
  logits[:4] = logits[:4, ::-1]
  return logits, labels


def _extreme(name):
  logits, labels = _accurate() if name == "accurate" else _usual()
  if name == "one long row":
    logits[0] *= 1000
  elif name == "masked":  # Rows lack up to three classes, and one is left with its label alone.
    masks = np.array([-np.inf, -1e30, -1e9, -2e4])[np.arange(ROWS) % 4]
    absent = (np.random.default_rng(1).random(logits.shape) < 0.3) | (np.arange(ROWS) == 5)[:, None]
    logits = np.where(absent & (np.arange(CLASSES) != labels[:, None]), masks[:, None], logits)
  elif name == "columns of other units":
    logits *= [1, 1e3, 1, 1e-3]
  elif name == "far from 0":
    logits += 1e4
  elif name != "accurate":
    logits *= float(name)
  return logits.astype(np.float32), labels.astype(np.int32)


def _float64(logits):
  """The logits, and -inf for classes that a row does not have."""
  z = logits.astype(np.float64)
  return np.where(z <= z.max(1, keepdims=True) - 1e4, -np.inf, z)


EXTREMES = ("0.0001", "300", "one long row", "masked", "columns of other units", "far from 0", "accurate")


def _lowest(value, starts, bounds):
  actual = [optimize.minimize(value, start, jac=True, method="L-BFGS-B", bounds=bounds,
                              options={"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-12})
            for start in starts]
  return min(x.fun for x in actual)


def _binary(features, labels, ours, bounds):
  """``(NLL of ours, the lowest)`` of a logistic regression whose last coefficient is the constant."""
  centre, unit = features.mean(0), np.maximum(features.std(0), 1e-6)
  x = np.column_stack([(features - centre) / unit, np.ones(len(features))])

  def value(at):
    score = x @ at
    return np.mean(np.logaddexp(0, score) - labels * score), x.T @ (special.expit(score) - labels) / len(labels)

  inner = np.append(ours[:-1] * unit, ours[-1] + ours[:-1] @ centre)
  return value(inner)[0], _lowest(value, [inner, np.append(np.ones(len(unit)), 0), np.zeros(len(inner))], bounds)


@pytest.mark.parametrize(("name", "data"), [
  pytest.param(name, data, marks=[pytest.mark.xdist_group(f"fit {name}"), *[pytest.mark.slow] * (data in SETS)])
  for name in ("platt", "beta_calibration") for data in (*EXTREMES, "padded real", "padded K=10", "K=2")])
def test_fits_of_every_class(name, data):
  (*arguments, where), logits, every_label = ((*_extreme(data), None), *_extreme(data)) if data in EXTREMES else (
    sample(data))
  params = made(name).fit(*arguments, where=where)
  assert params["converged"]
  assert data != "accurate" or name == "platt" or (params["a"].min() == 0 and params["b"].min() == 0)  # On bounds.
  every_log_p = special.log_softmax(_float64(logits), axis=1)
  for c in range(min(logits.shape[1], 10)):
    rows = np.isfinite(every_log_p[:, c]) & (np.isfinite(every_log_p).sum(1) > 1)
    log_p, labels = every_log_p[rows], every_label[rows]
    log_others = special.logsumexp(np.delete(log_p, c, axis=1), axis=1)
    if name == "platt":
      features, names, bounds = (log_p[:, c] - log_others)[:, None], ("scale", "bias"), None
    else:
      features, names = np.column_stack([log_p[:, c], -log_others]), "abc"
      bounds = [(0, None), (0, None), (None, None)]
    of_class, others = (features.sum(1)[labels == c], features.sum(1)[labels != c])
    is_separable = not len(of_class) or others.max() <= of_class.min()
    targets = np.where(labels == c, (len(of_class) + 1) / (len(of_class) + 2), 1 / (len(others) + 2)) if is_separable \
      else labels == c
    ours, best = _binary(features, targets, np.array([float(params[n][c]) for n in names]), bounds)
    assert ours - best <= 1e-4 * best + 2e-6, (c, ours, best)


SEPARATED = {"above": [0, 0, 0, 1, 1, 1], "below": [1, 1, 1, 0, 0, 0], "above, but for equal ones": [0, 0, 0, 1, 1, 1],
             "below, but for equal ones": [1, 1, 1, 0, 0, 0], "absent": [0, 0, 0, 0, 0, 0], "of every row": [1] * 6,
             "mixed": [0, 0, 1, 0, 1, 1], "equal": [0, 1, 0, 0, 1, 0]}


@pytest.mark.parametrize(("name", "case"), [
  pytest.param(name, case, marks=pytest.mark.xdist_group(f"fit {name}"))
  for name in ("platt", "quadratic_scaling", "beta_calibration") for case in SEPARATED])
def test_events_that_the_log_odds_tell_from_the_others_have_platts_targets(name, case):
  """Without them the optimum is at infinity, where no prediction is ever wrong."""
  labels, odds = np.array(SEPARATED[case]), np.array([-2.0, -1.0, -0.5, 0.5, 1.0, 3.0])
  odds[2:4] = 0 if "equal ones" in case else odds[2:4]
  odds = np.full(6, 2.0) if case == "equal" else odds
  counts, where = np.array([1, 2, 1, 1, 3, 1, 1]), np.arange(7) < 6  # The last row would mix what is told apart.
  logits = np.stack([np.zeros(7), np.append(odds, 1 if labels[0] else -3)], axis=1).astype(np.float32)
  fitted = made(name).fit(logits, np.append(labels, 1), where=where, weights=counts.astype(np.float32))
  odds, labels = np.repeat(odds, counts[:6]), np.repeat(labels, counts[:6])
  targets, events, others = labels.astype(float), labels.sum(), (1 - labels).sum()
  if case not in ("mixed", "equal") and (name, case[:5]) != ("beta_calibration", "below"):  # Which cannot fall.
    targets = np.where(labels, (events + 1) / (events + 2), 1 / (others + 2))
  features, names, bounds = {
    "platt": (odds[:, None], ("scale", "bias"), None),
    "quadratic_scaling": (np.stack([odds, odds**2], 1), "abc", None),
    "beta_calibration": (-np.logaddexp(0, np.stack([-odds, odds], 1)) * [1, -1], "abc",
                         [(0, None), (0, None), (None, None)])}[name]
  ours, best = _binary(features, targets, np.array([float(fitted[x][1]) for x in names]), bounds)
  assert fitted["converged"] and ours - best <= 1e-6, (ours, best)


@pytest.mark.parametrize(("name", "extreme"), [
  pytest.param(name, extreme, marks=pytest.mark.xdist_group(f"fit {name}"))
  for name in ("vector_scaling", "class_temperature_scaling") for extreme in EXTREMES
  # Half of a unit in the last place of 1e4 is 5e-4: the fit says that it cannot do better.
  if (name, extreme) != ("class_temperature_scaling", "far from 0")])
def test_fits_of_a_factor_for_each_class(name, extreme):
  logits, labels = _extreme(extreme)
  params = {k: np.asarray(v, np.float64) for k, v in made(name).fit(logits, labels).items()}
  assert params["converged"]
  offsets = name == "vector_scaling"
  absent = np.isneginf(_float64(logits))
  z = np.where(absent, 0, logits.astype(np.float64))
  centre = z.mean(0) if offsets else np.zeros(CLASSES)
  temperature = float(calibrators.temperature_scaling().fit(logits, labels)["temperature"])
  scale = params["scale"] if offsets else 1 / params["temperatures"]
  unit = np.minimum(1 / np.abs(z - centre).mean(0), 100 / temperature)

  def value(x):
    scores = np.where(absent, -np.inf, x[:CLASSES] * unit * (z - centre) + x[CLASSES:])
    slope = special.softmax(scores, axis=1)
    slope[np.arange(ROWS), labels] -= 1
    nll = np.mean(special.logsumexp(scores, axis=1) - scores[np.arange(ROWS), labels])
    return nll, np.append((slope * unit * (z - centre)).mean(0), slope.mean(0))

  ours = np.append(scale / unit, params["bias"] + scale * centre if offsets else np.zeros(CLASSES))
  bounds = [(None, None)] * 2 * CLASSES
  if not offsets:  # As documented, T_k is within a factor of 1e4 of where the fit begins, which is T here.
    bounds = [(1e-4 / temperature / u, 1e4 / temperature / u) for u in unit] + [(0, 0)] * CLASSES
  start = np.append(1 / temperature / unit, np.zeros(CLASSES))
  best = _lowest(value, [ours, start, np.append(np.ones(CLASSES), np.zeros(CLASSES))], bounds)
  assert value(ours)[0] - best <= 1e-4 * best, (value(ours)[0], best)


def test_one_temperature_and_a_matrix_of_rows_that_lack_classes():
  logits, labels = _extreme("masked")
  z, rows = _float64(logits), np.arange(ROWS)
  some = np.isfinite(z).sum(1) > 1
  x, z, chosen = np.where(np.isneginf(z), 0, z)[some], z[some], (rows[:some.sum()], labels[some])

  def nll(scores):
    return np.mean(special.logsumexp(scores, axis=1) - scores[chosen])

  best = optimize.minimize_scalar(lambda t: nll(z / t), bounds=(0.1, 20), method="bounded", options={"xatol": 1e-9})
  params = made("temperature_scaling").fit(logits, labels)
  np.testing.assert_allclose(params["temperature"], best.x, rtol=1e-3)
  assert params["converged"] and not params["at_bound"]

  def objective(flat):
    matrix, bias = flat[:-CLASSES].reshape(CLASSES, CLASSES), flat[-CLASSES:]
    off_diagonal = matrix[~np.eye(CLASSES, dtype=bool)]
    return (nll(np.where(np.isneginf(z), -np.inf, x @ matrix.T + bias))
            + 100 * np.mean(off_diagonal**2) + np.mean(bias**2))

  params = made("matrix_scaling").fit(logits, labels)
  ours = objective(np.append(params["weights"], params["bias"]).astype(np.float64))
  least = optimize.minimize(objective, np.append(np.eye(CLASSES) / best.x, np.zeros(CLASSES)), tol=1e-10).fun
  assert params["converged"] and ours - least <= 1e-5 * least


@pytest.mark.parametrize(("name", "options", "params", "expected"), [
  ("ensemble_temperature_scaling", {}, {"temperature": 1.0, "weights": [0.0, 0.5, 0.5]}, [0.65, 0.35, 0]),
  ("structured_vector_scaling", {}, {"temperature": 1.0, "uniform_share": 0.5, "scale": [0.0] * 3, "bias": [0.0] * 3},
   [0.65, 0.35, 0]),
  ("meta_calibration", {"target": 0.5}, {"temperature": 1.0, "threshold": 0.0}, [0.5, 0.5, 0]),
  ("isotonic", {}, {"x": [[0.0, 1.0]] * 3, "y": [[0.0, 0.0]] * 3}, [0.5, 0.5, 0]),
  ("isotonic", {"top_label": True}, {"x": [[0.0, 1.0]], "y": [[0.0, 0.6]]}, [0.48, 0.52, 0]),
  ("vector_scaling", {}, {"scale": [1.0] * 3, "bias": [0.0, np.log(4.0), 9.0]}, [0.5, 0.5, 0]),
  # The scores of the second and third class would hold the first's log 0.8 and, if it had one, the third's logit.
  ("matrix_scaling", {}, {"weights": [[1.0, 0.0, 7.0], [0.0, 1.0, 7.0], [1.0, 0.0, 1.0]], "bias": [0.0] * 3},
   [0.8, 0.2, 0]),
])
def test_what_formulas_make_of_a_class_that_a_row_does_not_have(name, options, params, expected):
  """By hand, for the probabilities 0.8 and 0.2 of the two classes that the row has."""
  params = {name: np.asarray(value, np.float32) for name, value in params.items()}
  apply = calibrators.get(name, **options).apply

  @jax.jit
  def applied(params, logits):
    return apply(params, logits)[0], jax.grad(lambda p, z: apply(p, z)[0, 0], argnums=(0, 1))(params, logits)

  for mask in (-np.inf, -10001.0):
    log_probs, slopes = applied(params, np.array([[np.log(0.8), np.log(0.2), mask]], np.float32))
    np.testing.assert_allclose(np.exp(log_probs), expected, rtol=1e-5, atol=0)
    assert all(np.isfinite(slope).all() for slope in jax.tree.leaves(slopes)) and slopes[1][0, 2] == 0


def test_better_than_equal_probabilities_is_over_the_classes_that_rows_have():
  """Of two classes whose logits differ by 2, the first one is right in 7 of 10 rows: 2 / T is log(7 / 3)."""
  rows = np.arange(ROWS)
  logits = np.tile(np.array([0, -2, -np.inf, -np.inf], np.float32), (ROWS, 1))
  params = made("temperature_scaling").fit(logits, (rows % 10 >= 7).astype(np.int32), where=rows < 60)
  np.testing.assert_allclose(params["temperature"], 2 / np.log(7 / 3), rtol=1e-5)
  assert not params["at_bound"]


@pytest.mark.parametrize("name", ["temperature_scaling", "ensemble_temperature_scaling", "class_temperature_scaling",
                                  "structured_vector_scaling"])
def test_a_temperature_at_an_end_of_its_range_is_named(name):
  logits, labels = _usual()
  logits, fit = logits.astype(np.float32), made(name).fit
  assert [bool(fit(logits, y)["at_bound"]) for y in (labels, logits.argmax(1), logits.argmin(1))] == [False, True, True]


def test_focal_temperature_says_where_its_grid_ends():
  logits, labels = _usual()
  fit = made("focal_temperature_scaling", objective="nll").fit
  inside, at_end = fit(logits.astype(np.float32), labels), fit((300 * logits).astype(np.float32), labels)
  assert inside["converged"] and not inside["at_bound"] and not at_end["converged"] and at_end["at_bound"]


def test_beta_calibration_knows_that_a_bound_does_not_hold_the_optimum(monkeypatch):
  """Where the fit without bounds fails, the best on the bounds is no optimum: there, a coefficient should rise."""
  fit = logistic._logistic

  def failing(features, y, weights):
    both = (features != 0).any(axis=0).all()
    return tuple(jnp.where(both, jnp.nan, x) if x.dtype == jnp.float32 else x for x in fit(features, y, weights))

  logits, labels = (x[1:] for x in _extreme("1"))  # Of a shape that no other test has compiled.
  monkeypatch.setattr(logistic, "_logistic", failing)
  assert not calibrators.beta_calibration().fit(logits, labels)["converged"]


def _mixed_objective(params, x, labels, penalties):
  """The NLL of labels mixed with equal probabilities, of weight 1 / (n + 1), and the penalties, in float64."""
  count, num_classes = x.shape
  weights, bias = params[:-num_classes].reshape(num_classes, -1), params[-num_classes:]
  if weights.shape[1] == 1:
    weights = np.diag(weights[:, 0])
  log_probs = special.log_softmax(x @ weights.T + bias, axis=1)
  part = 1 / (count + 1)
  nll = -(1 - part) * log_probs[np.arange(count), labels].mean() - part * log_probs.mean()
  off = weights[~np.eye(num_classes, dtype=bool)]
  return nll + penalties[0] * np.mean(off**2) + penalties[1] * np.mean(bias**2)


@pytest.mark.parametrize(("name", "is_parted"), [
  ("vector_scaling", True), ("matrix_scaling", True), ("matrix_scaling", False), ("dirichlet", True)])
def test_separable_labels_are_mixed_with_equal_probabilities(name, is_parted):
  rng = np.random.default_rng(0)
  logits = (4 * rng.normal(size=(40, 3))).astype(np.float32)
  labels = logits.argmax(1).astype(np.int32)
  if not is_parted:  # Class 2 is still told from the others without an error.
    labels = np.where((labels < 2) & (np.arange(40) % 3 == 0), 1 - labels, labels).astype(np.int32)
    logits[:, 2] += np.where(labels == 2, 9, -9)
  params = (calibrator := getattr(calibrators, name)()).fit(logits, labels)
  assert bool(params["at_bound"]) == is_parted and params["converged"]
  log_probs = np.asarray(calibrator.apply(params, logits))
  x = special.log_softmax(logits.astype(np.float64), axis=1) if name == "dirichlet" else logits.astype(np.float64)
  penalties = (0.0, 0.0) if name == "vector_scaling" else (100.0, 1.0)
  start = np.concatenate([np.ones(3) if name == "vector_scaling" else np.eye(3).ravel(), np.zeros(3)])
  best = optimize.minimize(_mixed_objective, start, (x, labels, penalties), tol=1e-10)
  own = np.concatenate([np.ravel(params.get("scale", params.get("weights"))), params["bias"]]).astype(np.float64)
  assert _mixed_objective(own, x, labels, penalties) == pytest.approx(best.fun, rel=1e-4)
  assert log_probs.min() > -60
