"""Calibrators that map each class's probability on its own and renormalise, or that map the confidence alone."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import _checks as checks
from calib_jax._numerics import binning as bins
from calib_jax._numerics.softmax import log_one_minus, log_softmax, predicted
from calib_jax.calibrators.base import Calibrator, by_row, fit_batch, fit_by, refuse_traced, register

Array = jax.Array
LEAST = 1e-6  # The smallest calibrated probability, before rows are renormalised.
MOST_ODDS = 1e5  # Log-odds beyond, as of a class masked by a logit of -1e30, count as these.
MAX_ITERATIONS, TOLERANCE = 50, 1e-6
NUM_BINS = 15  # The default number of bins of histogram binning.


@register
def isotonic(*, top_label: bool = False) -> Calibrator:
  """Isotonic regression of 1[y = c] on p_c for every class, floored at 1e-6 and renormalised.

  Each class's function is the rising one of least squares, by SciPy's pool-adjacent-violators algorithm. It is linear
  between the probabilities seen and constant outside. It may change accuracy.

  Args:
    top_label: if True, one function maps the confidence, and the other classes share the rest in proportion to their
      probabilities; if False, each class has its own function.

  Returns:
    A calibrator whose params are ``x`` and ``y`` ``[K, B]``, the corners of the functions. B depends on the data, so
    that ``fit`` runs on the host and not under ``jit`` or ``vmap``.

  References:
    Zadrozny & Elkan 2002.

  >>> calibrator = isotonic()
  >>> params = calibrator.fit(jnp.log(jnp.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])), jnp.array([0, 1, 1]))
  >>> jnp.exp(calibrator.apply(params, jnp.log(jnp.array([[0.75, 0.25]])))).round(2)
  Array([[0.5, 0.5]], dtype=float32)
  """
  checks.choice("top_label", top_label, (True, False))

  def fit(logits, labels, *, where=None, weights=None):
    refuse_traced("isotonic", logits, labels, where, weights)
    return _solve(*fit_batch(logits, labels, where, weights), by_class=_solve_isotonic, top_label=top_label)

  return Calibrator(fit, by_row(_apply, value=_isotonic, top_label=top_label), "isotonic", {"top_label": top_label})


def _solve_isotonic(p: Array, happened: Array, weights: Array) -> dict:
  counted = np.asarray(weights) > 0
  p, happened, weights = (np.asarray(x)[..., counted] for x in (p, happened, weights))
  corners = [_isotonic_corners(*column, weights) for column in zip(p, happened, strict=True)]
  longest = max(x.size for x, _ in corners)
  x, y = (jnp.asarray(np.stack([np.pad(values, (0, longest - values.size), mode="edge") for values in columns]))
          for columns in zip(*corners, strict=True))
  return {"x": x, "y": y}


def _isotonic(params: dict, p: Array) -> Array:
  return jax.vmap(jnp.interp)(checks.gathered(p), params["x"], params["y"])


def _isotonic_corners(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The ends of the isotonic regression's constant pieces; the identity if there are no examples."""
  if not x.size:
    return np.array([0, 1], x.dtype), np.array([0, 1], x.dtype)
  from scipy import optimize  # Imported here, because the import takes 0.4 s and only isotonic regression needs it.

  values, group = np.unique(x, return_inverse=True)
  counts = np.bincount(group, weights)
  fitted = optimize.isotonic_regression(np.bincount(group, weights * y) / counts, weights=counts)
  ends = np.unique([fitted.blocks[:-1], fitted.blocks[1:] - 1])
  return values[ends], fitted.x[ends].astype(x.dtype)


@register
def histogram_binning(num_bins: int = NUM_BINS, *, binning: str = "equal_mass", top_label: bool = False) -> Calibrator:
  """Histogram binning of p_c for every class, floored at 1e-6 and renormalised.

  The value of a bin is the share of its examples that are of the class. An empty bin keeps its middle. It may change
  accuracy. For many classes equal-mass bins of each class are harmful: the top bin holds a share 1 / M of all rows,
  which is far more than the rows of a class, so that its high probabilities are lost.

  Args:
    num_bins: number of bins M, at least 1.
    binning: "equal_mass" for bins of equally many examples, whose edges lie midway between neighbouring probabilities
      and never divide equal ones; or "equal_width" for M equal parts of [0, 1], each without its lower edge but the
      first.
    top_label: if True, one set of bins maps the confidence, and the other classes share the rest in proportion to their
      probabilities; if False, each class has its own bins.

  Returns:
    A calibrator whose params are ``edges`` ``[K, M + 1]`` and ``values`` ``[K, M]``.

  Raises:
    ValueError, TypeError: if an option is out of range or of another type.

  References:
    Zadrozny & Elkan 2001.

  >>> calibrator = histogram_binning(2)
  >>> params = calibrator.fit(jnp.log(jnp.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])), jnp.array([0, 1, 1]))
  >>> params["values"].round(2)
  Array([[0. , 1. ],
         [0.5, 1. ]], dtype=float32)
  """
  checks.options(num_bins=(num_bins, "integer [1, inf)"), binning=(binning, ("equal_mass", "equal_width")))
  return _one_vs_rest("histogram_binning", _solve_histogram, _histogram, top_label=top_label, of_counts=True,
                      num_bins=num_bins, binning=binning)


def _solve_histogram(p: Array, happened: Array, weights: Array, *, num_bins: int, binning: str) -> dict:
  where = weights.astype(bool)

  def class_bins(column):
    x, y = column
    if binning == "equal_mass":
      edges = _equal_mass_edges(jnp.where(where, x, jnp.inf), weights, num_bins)
    else:
      edges = jnp.linspace(0, 1, num_bins + 1, dtype=x.dtype)
    index = jnp.where(where, _bin(edges, x), num_bins)
    rows = jnp.stack([jnp.ones_like(y), y], axis=-1)
    if weights.dtype != bool:
      rows = weights[:, None] * rows
    counts, positives = bins.bin_sums(rows, index, num_bins).T
    shares = positives / jnp.where(counts > 0, counts, 1)
    return edges, jnp.where(counts > 0, shares, (edges[1:] + edges[:-1]) / 2)

  edges, values = jax.lax.map(class_bins, (p, happened))
  return {"edges": edges, "values": values}


def _equal_mass_edges(x: Array, weights: Array, num_bins: int) -> Array:
  """The edges of bins of equally many examples, where an integer weight is so many examples in its row's place."""
  if weights.dtype == bool:
    return bins.equal_mass_edges(jnp.sort(x), jnp.sum(weights, dtype=jnp.int32), num_bins)
  order = jnp.argsort(x)
  ranks = jnp.cumsum(weights[order])  # The examples up to each row, so that a row holds the ranks below its own number.
  start = bins.equal_mass_starts(ranks[-1].astype(jnp.int32), num_bins)[1:-1].astype(x.dtype)
  ends = [x[order][jnp.clip(jnp.searchsorted(ranks, start, side=side), 0, len(x) - 1)] for side in ("left", "right")]
  inner = jnp.where(start < ranks[-1], (ends[0] + ends[1]) / 2, 1)
  return jnp.concatenate([jnp.zeros(1, x.dtype), inner, jnp.ones(1, x.dtype)])


def _histogram(params: dict, p: Array) -> Array:
  return jax.vmap(lambda edges, values, x: values[_bin(edges, x)])(params["edges"], params["values"],
                                                                   checks.gathered(p))


def _bin(edges: Array, x: Array) -> Array:
  return jnp.searchsorted(edges[1:-1], x, side="left").astype(jnp.int32)


@register
def platt(*, top_label: bool = False) -> Calibrator:
  r"""Platt scaling for every class: :math:`\sigma(a_c s_c + b_c)`, s the log-odds of p_c, renormalised.

  a and b minimise the mean NLL of 1[y = c], a convex problem, by Newton steps. Where the optimum is at infinity (a
  class that never occurs, or that p_c separates), the fit ends where less than 1e-6 nats are left to gain. It may
  change accuracy.

  Args:
    top_label: if True, one function maps the confidence, and the other classes share the rest in proportion to their
      probabilities; if False, each class has its own function.

  Returns:
    A calibrator whose params are ``scale`` and ``bias`` ``[K]``, ``converged`` and ``iterations``, the most that a
    class took.

  References:
    Platt 1999, without its smoothed targets.

  >>> calibrator = platt()
  >>> params = calibrator.fit(jnp.array([[3.0, 0.0], [3.0, 0.0], [0.0, 3.0], [0.0, 3.0]]), jnp.array([0, 1, 1, 0]))
  >>> jnp.exp(calibrator.apply(params, jnp.array([[9.0, 0.0]]))).round(2)
  Array([[0.5, 0.5]], dtype=float32)
  """
  return _one_vs_rest("platt", _solve_platt, _platt, top_label=top_label, of_odds=True)


def _solve_platt(odds: Array, happened: Array, weights: Array) -> dict:
  coefficients, left, iterations = jax.lax.map(
    lambda column: _logistic(column[0][:, None], column[1], weights), (odds, happened))
  return {"scale": coefficients[:, 0], "bias": coefficients[:, 1]} | _ended(left, iterations)


def _ended(left: Array, iterations: Array) -> dict:
  """How the fits of all classes ended, from what is left to gain in each and how many iterations each took."""
  return {"converged": jnp.all(left <= TOLERANCE), "iterations": jnp.max(iterations)}


def _platt(params: dict, odds: Array) -> Array:
  return jax.nn.sigmoid(params["scale"][:, None] * odds + params["bias"][:, None])


@register
def beta_calibration(*, top_label: bool = False) -> Calibrator:
  r"""Beta calibration for every class: :math:`\sigma(a_c \log p_c - b_c \log(1 - p_c) + c_c)`, renormalised.

  It rises with p_c, because a and b are at least 0. They and c minimise the mean NLL of 1[y = c], a convex problem: by
  Newton steps without the bounds, and, where the optimum violates them, on the bounds. Where the optimum is at
  infinity, the fit ends where less than 1e-6 nats are left to gain. It may change accuracy.

  Args:
    top_label: if True, one function maps the confidence, and the other classes share the rest in proportion to their
      probabilities; if False, each class has its own function.

  Returns:
    A calibrator whose params are ``a``, ``b`` and ``c`` ``[K]``, ``converged`` and ``iterations``, the most that a
    class took.

  References:
    Kull et al. 2017.

  >>> calibrator = beta_calibration()
  >>> params = calibrator.fit(jnp.array([[3.0, 0.0], [3.0, 0.0], [0.0, 3.0], [0.0, 3.0]]), jnp.array([0, 1, 1, 0]))
  >>> jnp.exp(calibrator.apply(params, jnp.array([[9.0, 0.0]]))).round(2)
  Array([[0.5, 0.5]], dtype=float32)
  """
  return _one_vs_rest("beta_calibration", _solve_beta, _beta, top_label=top_label, of_odds=True)


def _beta_features(odds: Array) -> Array:
  return jnp.stack([jax.nn.log_sigmoid(odds), jax.nn.softplus(odds)], axis=-1)


def _solve_beta(odds: Array, happened: Array, weights: Array) -> dict:
  free = jnp.array([[1, 1], [0, 1], [1, 0], [0, 0]], odds.dtype)

  def class_fit(column):
    features, y = _beta_features(column[0]), column[1]
    # A convex problem's optimum under the bounds is the best of the optima on their faces that satisfy them.
    coefficients, left, iterations = jax.lax.map(lambda face: _logistic(features * face[None, :], y, weights), free)
    values = jax.lax.map(lambda at: _binary_nll(features, y, weights, at), coefficients)
    allowed = jnp.all(coefficients[:, :2] >= 0, axis=1)
    best = jnp.argmin(jnp.where(allowed, values, jnp.inf))
    gain = _gain_of_rising(features, y, weights, coefficients[best])
    return coefficients[best], jnp.maximum(left[best], gain), iterations[best]

  coefficients, left, iterations = jax.lax.map(class_fit, (odds, happened))
  return dict(zip("abc", coefficients.T, strict=True)) | _ended(left, iterations)


def _beta(params: dict, odds: Array) -> Array:
  coefficients = jnp.stack([params[name] for name in "abc"], axis=-1)
  return jax.nn.sigmoid(jnp.sum(_beta_features(odds) * coefficients[:, None, :2], axis=-1) + coefficients[:, 2:])


def _binary_nll(features: Array, y: Array, weights: Array, at: Array) -> Array:
  """The weighted NLL of the logistic regression of ``y`` on ``features`` ``[N, D]``; ``at``'s last is the constant."""
  scores = jnp.dot(features, at[:-1], precision="highest") + at[-1]
  return jnp.sum(weights * (jax.nn.softplus(scores) - y * scores))


def _gain_of_rising(features: Array, y: Array, weights: Array, at: Array) -> Array:
  """How far the NLL could fall, to second order, if one coefficient of a feature rose and the constant followed.

  Where a coefficient is bound to be 0, the bounds hold the optimum only if this is nothing.
  """
  p = jax.nn.sigmoid(jnp.dot(features, at[:-1], precision="highest") + at[-1])
  curvature = weights * p * (1 - p)
  tiny = jnp.finfo(y.dtype).tiny
  centre = jnp.dot(curvature, features, precision="highest") / jnp.maximum(jnp.sum(curvature), tiny)
  centred = features - centre[None, :]
  slopes = jnp.dot(weights * (p - y), centred, precision="highest")
  gains = jnp.minimum(slopes, 0) ** 2 / (2 * jnp.maximum(jnp.dot(curvature, centred**2, precision="highest"), tiny))
  return jnp.max(gains)


def _logistic(features: Array, y: Array, weights: Array) -> tuple[Array, Array, Array]:
  """``(coefficients [D + 1], what is left to gain, iterations)`` of the logistic regression of ``y`` on ``features``.

  The features are centred and scaled to unit variance first. Coefficients begin at 1 for the features as they were,
  which is no calibration at all. Newton's steps from there may fail where the sigmoids are saturated, as those of an
  overconfident model are; the fit then begins at 1 for the scaled features.
  """
  centre = jnp.dot(weights, features, precision="highest")
  variance = jnp.dot(weights, (features - centre[None, :]) ** 2, precision="highest")
  constant = variance <= (jnp.finfo(y.dtype).eps * jnp.maximum(jnp.abs(centre), 1)) ** 2
  unit = jnp.where(constant, 1, jnp.sqrt(variance))
  features = jnp.where(constant[None, :], 0, (features - centre[None, :]) / unit[None, :])

  def nll(at):
    return _binary_nll(features, y, weights, at)

  def newton(at):
    p = jax.nn.sigmoid(jnp.dot(features, at[:-1], precision="highest") + at[-1])
    rows = jnp.concatenate([features, jnp.ones_like(features[:, :1])], axis=1)
    gradient = jnp.dot(weights * (p - y), rows, precision="highest")
    hessian = jnp.dot((rows * (weights * p * (1 - p))[:, None]).T, rows, precision="highest")
    ridge = 4e-7 * jnp.diag(hessian) + jnp.finfo(y.dtype).tiny
    step = -jnp.linalg.solve(hessian + jnp.diag(ridge), gradient)
    # The NLL is at least 0; where it nearly is, the Hessian may be singular and the step not a number.
    return step, jnp.fmin(-jnp.dot(gradient, step) / 2, nll(at))

  def unfinished(carry):
    _, _, left, moved, iterations = carry
    return (left > TOLERANCE / 10) & moved & (iterations < MAX_ITERATIONS)

  def advance(carry):
    at, step, _, _, iterations = carry
    candidates = at[None, :] + 0.5 ** jnp.arange(12, dtype=y.dtype)[:, None] * step[None, :]
    values = jax.lax.map(nll, candidates)
    best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
    moved = values[best] < nll(at)
    new = jnp.where(moved, candidates[best], at)
    return new, *newton(new), moved, iterations + 1

  def fit(start):
    at, _, left, _, iterations = jax.lax.while_loop(
      unfinished, advance, (start, *newton(start), jnp.ones((), bool), jnp.zeros((), jnp.int32)))
    return at, left, iterations

  ones = jnp.where(constant, 0, 1).astype(y.dtype)
  at, left, iterations = fit(jnp.append(ones * unit, jnp.sum(ones * centre)))
  at, left, more = fit(jnp.where(left <= TOLERANCE, at, jnp.append(ones, 0)))
  slopes = at[:-1] / unit
  return jnp.append(slopes, at[-1] - jnp.dot(slopes, centre, precision="highest")), left, iterations + more


def _one_vs_rest(name: str, solve: Callable, value: Callable, *, top_label: bool, of_odds: bool = False,
                 of_counts: bool = False, **options) -> Calibrator:
  """A calibrator of the columns ``[K, N]`` of probabilities or log-odds; one column, the confidence, if ``top_label``.

  Args:
    name: the name of its factory.
    solve: ``(columns, happened [K, N], weights [N], **options) -> params``.
    value: ``(params, columns) -> calibrated probabilities [K, N]``.
    top_label: whether the only column is the confidence.
    of_odds: whether the columns are log-odds.
    of_counts: as in ``fit_by``.
    **options: the factory's other options.

  Returns:
    The calibrator.
  """
  checks.choice("top_label", top_label, (True, False))
  of_columns = {"top_label": top_label, "of_odds": of_odds}
  return Calibrator(fit_by(_solve, by_class=solve, of_counts=of_counts, **of_columns, **options),
                    by_row(_apply, value=value, **of_columns), name, {**options, "top_label": top_label})


def _columns(logits: Array, top_label: bool, of_odds: bool) -> Array:
  log_p, is_top = log_softmax(logits)
  values = jnp.clip(log_p - log_one_minus(log_p, is_top), -MOST_ODDS, MOST_ODDS) if of_odds else jnp.exp(log_p)
  return (jnp.sum(values, axis=-1, where=is_top, keepdims=True) if top_label else values).T


def _solve(logits: Array, labels: Array, weights: Array, *, by_class: Callable, top_label: bool, of_odds: bool = False,
           **options) -> dict:
  if top_label:
    happened = (predicted(logits) == labels)[None]
  else:
    happened = labels[None, :] == jnp.arange(logits.shape[1], dtype=jnp.int32)[:, None]
  return by_class(_columns(logits, top_label, of_odds), happened.astype(logits.dtype), weights, **options)


def _apply(params: dict, logits: Array, *, value: Callable, top_label: bool, of_odds: bool = False) -> Array:
  values = jnp.clip(value(params, _columns(logits, top_label, of_odds)), LEAST, 1 - LEAST * top_label).T
  values = checks.aligned(values, logits)  # Those of tables are on all devices.
  if not top_label:
    return jax.nn.log_softmax(jnp.log(values))
  log_p, is_top = log_softmax(logits)
  log_others = jax.nn.logsumexp(log_p, axis=-1, where=~is_top, keepdims=True)
  others = log_p - log_others + jnp.log1p(-values)
  return jax.nn.log_softmax(jnp.where(is_top, jnp.log(values), others))
