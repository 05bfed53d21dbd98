"""The parts of a proper loss: what recalibration removes, by cross-validation, and what is left."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax._numerics import structured_scaling
from calib_jax._numerics.binning import array_module
from calib_jax._numerics.lbfgs import shares
from calib_jax._numerics.softmax import one_hot, pick
from calib_jax._numerics.temperature import solve_nll
from calib_jax._system import compilation
from calib_jax.intervals import draws
from calib_jax.intervals.bootstrap import bootstrap
from calib_jax.intervals.groups import stratified_folds

Array = jax.Array
LOSSES = ("nll", "brier")
MATRIX, VECTOR, TEMPERATURE = "structured_matrix_scaling", "structured_vector_scaling", "temperature_scaling"
# The least examples, the least examples a class and the most classes for which a class of recalibrations is taken, by
# what docs/calibrators.md recommends: with fewer examples it may raise the NLL of others.
LEAST = {MATRIX: (1000, 50, 100), VECTOR: (300, 5, np.inf), TEMPERATURE: (0, 0, np.inf)}
NUM_FOLDS = 5


class Part(NamedTuple):
  """A number with its interval.

  Attributes:
    estimate: the number.
    low: the lower end of its interval.
    high: the upper end.
  """

  estimate: Array
  low: Array
  high: Array


class CalibrationRefinement(NamedTuple):
  """A mean loss and its two parts, in nats or in units of the Brier score.

  Attributes:
    loss: the mean loss.
    calibration: what recalibration removes of it.
    refinement: what is left.
  """

  loss: Part
  calibration: Part
  refinement: Part


def calibration_refinement(probs: ArrayLike, labels: ArrayLike, *, loss: str = "nll", key: Array,
                           recalibration: str = "auto", folds: int = NUM_FOLDS, num_resamples: int = 1000,
                           level: float = 0.95, where: ArrayLike | None = None, weights: ArrayLike | None = None,
                           groups: ArrayLike | None = None) -> CalibrationRefinement:
  r"""What of a proper loss is miscalibration that recalibration removes, and what is left, with intervals.

  It says how much of a loss a calibrator can remove, and how much a better model must.

  With a class G of recalibrations g, among which is the identity, the mean loss of predictions f is the sum of

  .. math::
    \text{refinement} = \inf_{g \in G} \mathrm{E}[\ell(g(f), Y)], \quad
    \text{calibration} = \mathrm{E}[\ell(f, Y)] - \text{refinement}

  The calibration part is at most what the best recalibration of any kind would remove, which is the miscalibration of f
  as the loss measures it. A small part is therefore no evidence that f is calibrated.

  The estimates are by cross-validation: each example is recalibrated by a fit without its fold. Such a fit is worse
  than the best of G, so that the estimate of the calibration part is too low on average. It is not cut off at 0, and is
  below it where recalibration by so many examples raises the loss. A fit to all examples, judged on the same ones,
  removes too much on average. The interval of the calibration part begins at the lower end of the bootstrap interval
  (BCa) of what is removed out of fold, and ends at the upper end for the fit to all examples, or at 0 or the upper end
  out of fold if that is higher; the refinement part likewise. docs/coverage.md has the simulated coverage.

  All recalibrations are fitted by their penalised NLL. The parts of the Brier score are of these fits too: others of
  the same class may remove a little more.

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1, clipped at the smallest normal float32. Examples are divided into
      folds on the host, so that no array may be traced.
    labels: ``[...]`` integers in ``[0, K)``.
    loss: "nll", in nats, or "brier", in [0, 2].
    key: PRNG key of the resamples; the same key gives the same intervals. Folds do not depend on it.
    recalibration: the class G, "temperature_scaling", "structured_vector_scaling" or "structured_matrix_scaling", as
      the functions of ``calibrators`` of these names have it by default. "auto" chooses by the numbers of examples and
      classes alone, so that no choice looks at the labels: matrices from 1,000 examples and 50 a class on, for at most
      100 classes; else vectors from 300 examples and 5 a class on; else a temperature.
    folds: the number of folds, which are stratified by class.
    num_resamples: number of resamples of the bootstrap.
    level: the probability that each interval is meant to cover, in (0, 1).
    where: optional ``[...]`` bools; examples that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row in a group.
    groups: optional ``[...]`` integers; examples with the same integer share a fold and are resampled together.

  Returns:
    ``CalibrationRefinement``; the estimates of the parts add up to the loss's.

  Raises:
    TypeError: if an argument has the wrong dtype or is traced.
    ValueError: if an argument has the wrong shape or value, or there are fewer examples or groups than folds.

  References:
    Berta et al. 2025 for the parts; Berta et al. 2026b for their cross-validation; Berta et al. 2026 for the classes.

  >>> logits = jax.random.normal(jax.random.key(0), (250, 2))
  >>> labels = jax.random.categorical(jax.random.key(1), logits)
  >>> overconfident = jax.nn.softmax(4 * logits)
  >>> parts = calibration_refinement(overconfident, labels, key=jax.random.key(2))
  >>> bool(parts.calibration.low > 0.1), bool(parts.calibration.high < parts.loss.estimate)
  (True, True)
  """
  checks.options(loss=(loss, LOSSES), recalibration=(recalibration, ("auto", *LEAST)),
                 folds=(folds, "integer [2, inf)"))
  weights, where = checks.weights_and_where(weights, where, labels)
  if checks.is_traced(probs, labels, where, weights):
    raise TypeError("calibration_refinement divides the examples into folds on the host: call it outside jax.jit and "
                    "jax.vmap.")
  checks.class_values(probs, labels, where)
  checks.something_counts(labels, where)
  probs, labels, counts = checks.classified(probs, labels, where, weights)
  if groups is not None:
    draws.members(np.ravel(groups), len(labels))
  rows = np.flatnonzero(counts)
  groups = None if groups is None else np.ravel(groups)[rows]
  probs, labels, weights = probs[rows], labels[rows], counts[rows].astype(probs.dtype)
  removed = of_examples(probs, labels, weights, groups, recalibration=recalibration, folds=folds)[loss]
  removed = jnp.where(jnp.any(checks.out_of_range(labels, probs.shape[1])), jnp.nan, removed)
  return parts(*bootstrap(weighted_means, removed, weights, key=key, num_resamples=num_resamples, level=level,
                          groups=groups))


def chosen(num_examples: int, num_classes: int) -> str:
  """The class of recalibrations that "auto" is."""
  return next(name for name, (rows, rows_a_class, most) in LEAST.items()
              if num_classes <= most and num_examples >= max(rows, rows_a_class * num_classes))


def parts(means: Array, low: Array, high: Array) -> CalibrationRefinement:
  """The parts of a loss from the ``five_means`` and the ends of their intervals, ``[5]`` each."""
  xp = array_module(means)
  # The identity is one of the recalibrations: it removes 0, and leaves the loss.
  highest, lowest = xp.maximum(xp.max(high[1:3]), 0), xp.min(low[xp.array([0, 3, 4])])
  return CalibrationRefinement(Part(means[0], low[0], high[0]), Part(means[1], low[1], highest),
                               Part(means[3], lowest, high[3]))


def five_means(means: Array) -> Array:
  """The means ``[..., 3]`` of what ``of_examples`` returns, and what is left out of fold and within: ``[..., 5]``."""
  return array_module(means).concatenate([means, means[..., :1] - means[..., 1:]], axis=-1)


def weighted_means(removed: Array, weights: Array, where: Array | None = None) -> Array:
  """``five_means`` of the weighted means of ``removed`` ``[N, 3]``, as ``bootstrap`` takes a metric."""
  weights = weights if where is None else jnp.where(where, weights, 0)
  return five_means(jnp.sum(weights[:, None] * removed, axis=0) / jnp.sum(weights))


def of_examples(probs: Array, labels: Array, weights: Array, groups: np.ndarray | None = None, *,
                recalibration: str = "auto", folds: int = NUM_FOLDS) -> dict[str, Array]:
  """By loss ``[N, 3]``: it, what a fit without the example's fold removes of it, and what a fit to all removes."""
  if recalibration == "auto":
    recalibration = chosen(*probs.shape)
  fold = stratified_folds(np.asarray(labels), folds, groups)
  with compilation.running_once():  # To few examples, a fit takes far less time than its compilation.
    run = compilation.sized(_of_examples, probs.size, static_argnums=(4, 5))
    return run(probs, labels, weights, fold.astype(np.int32), folds, recalibration)


def _of_examples(probs: Array, labels: Array, weights: Array, fold: Array, num_folds: int, recalibration: str
                 ) -> dict[str, Array]:
  tiny, is_label = jnp.asarray(jnp.finfo(jnp.float32).tiny, probs.dtype), one_hot(labels, probs).astype(probs.dtype)
  log_probs = jnp.log(jnp.maximum(probs, tiny))

  def losses(probs, log_probs):
    return {"nll": -jnp.maximum(pick(log_probs, labels), jnp.log(tiny)),
            "brier": jnp.sum((probs - is_label) ** 2, axis=1)}

  def after_fit(held_out):
    log_recalibrated = _recalibrated(log_probs, labels, jnp.where(fold == held_out, 0, weights), recalibration)
    return losses(jnp.exp(log_recalibrated), log_recalibrated)

  # Folds are masks of one shape, so that the fit is compiled once, also for the one to all examples, which comes last.
  before, after = losses(probs, log_probs), jax.lax.map(after_fit, jnp.arange(num_folds + 1, dtype=jnp.int32))
  return {name: jnp.stack([loss, loss - jnp.take_along_axis(after[name], fold[None], axis=0)[0],
                           loss - after[name][-1]], axis=1) for name, loss in before.items()}


def _recalibrated(log_probs: Array, labels: Array, weights: Array, recalibration: str) -> Array:
  """The log-probabilities ``[N, K]`` after a fit to the examples whose weights are not 0."""
  if recalibration == TEMPERATURE:
    temperature = solve_nll(log_probs, labels, shares(weights, log_probs.dtype))["temperature"]
    return jax.nn.log_softmax(log_probs / temperature)
  penalties = {"intercept": 1.0, "diagonal": 1.0, **({"off_diagonal": 1.0} if recalibration == MATRIX else {})}
  params = structured_scaling.solve(log_probs, labels, weights, **penalties)
  return structured_scaling.apply(params, log_probs)
