"""Accuracy and errors of the head, medium and tail classes of long-tailed data."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calib_jax import _checks as checks
from calib_jax._numerics import binning
from calib_jax.metrics.compiled import counted, of_classes
from calib_jax.metrics.scores import accuracy, nll
from calib_jax.metrics.shorthands import expected_calibration_error

Array = jax.Array
NUM_GROUPS = 3


class ClassGroupScores(NamedTuple):
  """Scores of three groups of examples: those whose label is a head, a medium and a tail class, in this order.

  Attributes:
    counts: ``[3]`` integers, the number of examples in each group, or floats, the sum of their weights.
    accuracy: ``[3]`` floats, nan where a group is empty.
    nll: ``[3]`` floats, the mean negative log-likelihood in nats, nan where a group is empty.
    expected_calibration_error: ``[3]`` floats, nan where a group is empty.
  """

  counts: Array
  accuracy: Array
  nll: Array
  expected_calibration_error: Array


def group_of_classes(train_counts: Array) -> Array:
  """0, 1 or 2 for each class: head, medium or tail, as ``class_group_scores`` divides them."""
  by_frequency = jnp.argsort(train_counts, descending=True, stable=True)
  return binning.equal_mass_index(jnp.argsort(by_frequency), len(train_counts), NUM_GROUPS)


def class_group_scores(probs: ArrayLike, labels: ArrayLike, train_counts: ArrayLike, *, num_bins: int = 15,
                       where: ArrayLike | None = None, weights: ArrayLike | None = None) -> ClassGroupScores:
  """Accuracy, NLL and ECE of the examples of frequent, medium and rare classes.

  It shows whether rare classes are worse calibrated than frequent ones.

  The classes are sorted by their number of training examples, equal numbers by class index, and split into three groups
  whose sizes differ by at most one, larger groups first: head, medium and tail. An example belongs to the group of its
  label, whatever was predicted. Because groups are chosen by the label, the ECE of a group is above 0 for a perfectly
  calibrated model too, which is overconfident on the examples of rare classes and underconfident on frequent ones'
  examples: compare models with each other, not with 0.

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1.
    labels: ``[...]`` integers in ``[0, K)``.
    train_counts: ``[K]`` integers, the number of training examples of each class.
    num_bins: M, the number of equal-width bins of the calibration error.
    where: optional ``[...]`` bools; examples that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.

  Returns:
    ``ClassGroupScores``.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or value.

  >>> probs = jnp.array([[0.8, 0.1, 0.1], [0.6, 0.2, 0.2], [0.6, 0.1, 0.3]])
  >>> class_group_scores(probs, jnp.array([0, 0, 2]), jnp.array([500, 50, 5])).accuracy
  Array([ 1., nan,  0.], dtype=float32)
  """
  checks.options(num_bins=(num_bins, "integer [1, inf)"))
  train_counts = checks.array(train_counts, "train_counts")
  return of_classes(_class_group_scores, probs, labels, where, weights, train_counts, num_bins=num_bins)


def _class_group_scores(probs: Array, labels: Array, counts: Array, train_counts, num_bins) -> ClassGroupScores:
  if not jnp.issubdtype(train_counts.dtype, jnp.integer):
    raise TypeError(f"train_counts must be integers: got dtype {train_counts.dtype}.")
  if train_counts.shape != (probs.shape[1],):
    raise ValueError(f"train_counts must have one number for each of {probs.shape[1]} classes: got shape "
                     f"{train_counts.shape}.")
  group = group_of_classes(train_counts)[labels]

  def scores(index: Array) -> tuple[Array, ...]:
    member = counted(jnp.where(group == index, counts, jnp.zeros_like(counts)))
    values = (accuracy(probs, labels, **member), nll(probs, labels, **member),
              expected_calibration_error(probs, labels, num_bins=num_bins, **member))
    size = binning.total(*member.values())
    return size, *(jnp.where(size > 0, x, jnp.nan) for x in values)

  return ClassGroupScores(*jax.vmap(scores)(jnp.arange(NUM_GROUPS, dtype=jnp.int32)))
