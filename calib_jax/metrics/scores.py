"""Accuracy and proper scores of probabilities ``[..., K]`` and integer labels ``[...]``."""


import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax._numerics import binning
from calib_jax._numerics.binning import masked_mean
from calib_jax._numerics.softmax import one_hot
from calib_jax.confidence import negative_entropy
from calib_jax.intervals.bias_models import unbiased
from calib_jax.metrics.compiled import in_pieces, of_classes

Array = jax.Array


def top_label(probs: ArrayLike, labels: ArrayLike) -> tuple[Array, Array]:
  """The top probability, and whether its class, the lowest index in a tie, is the label.

  It turns class probabilities into the pair that most metrics take.

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1.
    labels: ``[...]`` integers in ``[0, K)``.

  Returns:
    ``(confidence, correct)``, ``[...]`` floats and bools; where a label that is traced is out of range, NaN and False.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or shape.

  >>> top_label(jnp.array([[0.5, 0.5], [0.1, 0.9]]), jnp.array([1, 1]))
  (Array([0.5, 0.9], dtype=float32), Array([False,  True], dtype=bool))
  """
  probs, labels = checks.array(probs, "probs"), checks.array(labels, "labels")
  if of_pieces := in_pieces(top_of_classes, probs, labels):
    return of_pieces
  checks.class_values(probs, labels)
  return _compiled_top_label(probs, labels)


@jax.jit
def _compiled_top_label(probs: ArrayLike, labels: ArrayLike) -> tuple[Array, Array]:
  probs, labels = checks.outputs_and_labels(probs, labels, name="probs")
  confidence, correct = top_of_classes(checks.gathered(probs, -1), labels)
  outside = checks.out_of_range(labels, probs.shape[-1])
  return jnp.where(outside, jnp.nan, confidence), correct & ~outside


@jax.custom_jvp
def top_of_classes(probs: Array, labels: Array) -> tuple[Array, Array]:
  """``top_label`` of checked arrays, with a gradient."""
  # XLA:CPU vectorises neither an argmax nor a reduction of integers alone, but it vectorises a reduction of floats and
  # integers together: the top probability is taken in one pass with the number of classes that rank before the label.
  # The label is never compared with itself: XLA may compute what made ``probs`` twice, with other rounding.
  label_probs = jnp.take_along_axis(probs, labels[..., None], axis=-1)
  index = jax.lax.broadcasted_iota(labels.dtype, probs.shape, probs.ndim - 1)
  label_index = labels[..., None]
  ranks_before = jnp.where(index < label_index, probs >= label_probs, (probs > label_probs) & (index > label_index))

  def combine(a, b):
    return jnp.maximum(a[0], b[0]), a[1] + b[1]

  start = jnp.asarray(-jnp.inf, probs.dtype), jnp.int32(0)
  top, num_before = jax.lax.reduce((probs, ranks_before.astype(jnp.int32)), start, combine, (probs.ndim - 1,))
  return top, num_before == 0


@top_of_classes.defjvp
def _top_label_jvp(primals, tangents):
  confidence, correct = top_of_classes(*primals)
  tangent = jax.jvp(lambda probs: jnp.max(probs, axis=-1), primals[:1], tangents[:1])[1]
  return (confidence, correct), (tangent, np.zeros(correct.shape, jax.dtypes.float0))


@unbiased
def accuracy(probs: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None, weights: ArrayLike | None = None
             ) -> Array:
  """The fraction of examples whose label is the top class, the lowest index in a tie.

  It says how often the model is right, whatever its probabilities.

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1.
    labels: ``[...]`` integers in ``[0, K)``.
    where: optional ``[...]`` bools; examples that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.

  Returns:
    A scalar in [0, 1]; 0 if nothing counts.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or shape.

  >>> accuracy(jnp.array([[0.5, 0.5], [0.1, 0.9]]), jnp.array([1, 1]))
  Array(0.5, dtype=float32)
  """
  return of_classes(masked_mean, probs, labels, where, weights, rows=_is_right)


def _is_right(probs: Array, labels: Array) -> tuple[Array]:
  top, correct = top_of_classes(probs, labels)
  return (correct & ~jnp.isnan(top)).astype(probs.dtype),  # With the top, which XLA would not compute, it is fast.


def _label_loss(probs: Array, labels: Array) -> tuple[Array]:
  """-log p_y of each example ``[N]``, with p_y clipped at the smallest normal float32."""
  label_probs = jnp.take_along_axis(probs, labels[:, None], axis=-1)[:, 0]
  return -jnp.log(jnp.maximum(label_probs, jnp.finfo(jnp.float32).tiny)),


@unbiased
def nll(probs: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None, weights: ArrayLike | None = None
        ) -> Array:
  """Mean negative log-likelihood of the labels, in nats.

  It judges probabilities as a whole: its least mean is at the true ones.

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1; they are clipped at the smallest normal float32.
    labels: ``[...]`` integers in ``[0, K)``.
    where: optional ``[...]`` bools; examples that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.

  Returns:
    A scalar; 0 if nothing counts.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or shape.

  >>> nll(jnp.array([[0.5, 0.5]]), jnp.array([1])).round(4)
  Array(0.6931, dtype=float32)
  """
  return of_classes(masked_mean, probs, labels, where, weights, rows=_label_loss)


@unbiased
def brier_score(probs: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None, weights: ArrayLike | None = None
                ) -> Array:
  r"""Brier score, in [0, 2]: the mean squared distance from the probabilities to the one-hot label.

  It judges probabilities as a whole, and no single answer can make it infinite.

  .. math:: \frac{1}{N} \sum_i \sum_k (p_{ik} - 1[y_i = k])^2

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1.
    labels: ``[...]`` integers in ``[0, K)``.
    where: optional ``[...]`` bools; examples that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.

  Returns:
    A scalar; 0 if nothing counts.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or shape.

  >>> brier_score(jnp.array([[0.5, 0.5]]), jnp.array([1]))
  Array(0.5, dtype=float32)
  """
  return of_classes(masked_mean, probs, labels, where, weights, rows=_squared_distance)


@jax.custom_jvp
def _squared_distance(probs: Array, labels: Array) -> tuple[Array]:
  is_label = one_hot(labels, probs)
  total, num_labels = checks.sum_and_count(jnp.where(is_label, probs - 1, probs) ** 2, is_label)
  return jnp.where(num_labels == 1, total, jnp.nan),


@_squared_distance.defjvp
def _squared_distance_jvp(primals, tangents):
  probs, labels = primals
  gap = jnp.where(one_hot(labels, probs), probs - 1, probs)
  return _squared_distance(*primals), (2 * jnp.sum(gap * tangents[0], axis=-1),)


@unbiased
def mean_entropy(probs: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None,
                 weights: ArrayLike | None = None) -> Array:
  """Mean entropy of the predictions in nats, in [0, log K].

  It says how undecided the predictions are, without labels.

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1.
    labels: ``[...]`` integers in ``[0, K)``. They do not change the value: they are an argument so that all scores can
      be called in the same way.
    where: optional ``[...]`` bools; examples that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.

  Returns:
    A scalar; 0 if nothing counts.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or shape.

  >>> mean_entropy(jnp.array([[0.5, 0.5], [1.0, 0.0]]), jnp.array([1, 0])).round(4)
  Array(0.3466, dtype=float32)
  """
  return of_classes(masked_mean, probs, labels, where, weights, rows=_entropy)


def _entropy(probs: Array, _labels: Array) -> tuple[Array]:
  return -negative_entropy(probs),


@unbiased
def classwise_losses(probs: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = None,
                     weights: ArrayLike | None = None) -> Array:
  """Mean negative log-likelihood of the examples of each class, in nats.

  It shows which classes a model is worst at.

  Args:
    probs: ``[..., K]`` floats whose rows sum to 1; they are clipped at the smallest normal float32.
    labels: ``[...]`` integers in ``[0, K)``.
    where: optional ``[...]`` bools; examples that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.

  Returns:
    ``[K]`` values, nan where no example that counts has the class.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype or shape.

  References:
    Jung et al. 2023, Eq. 3, with the mean over a class in place of the sum.

  >>> classwise_losses(jnp.array([[0.5, 0.5], [1.0, 0.0]]), jnp.array([0, 0])).round(4)
  Array([0.3466,    nan], dtype=float32)
  """
  return of_classes(_classwise_losses, probs, labels, where, weights)


def _classwise_losses(probs: Array, labels: Array, counts: Array) -> Array:
  loss, = _label_loss(probs, labels)
  index = jnp.where(counts.astype(bool), labels, probs.shape[-1])
  ones, loss = (jnp.ones(index.shape, jnp.int32), loss) if counts.dtype == bool else (counts, counts * loss)
  sizes, sums = (binning.bin_sums(x, index, probs.shape[-1]) for x in (ones, loss))
  return jnp.where(sizes > 0, sums / binning.divisor(sizes).astype(sums.dtype), jnp.nan)


def validate(probs: ArrayLike, labels: ArrayLike) -> None:
  """Checks the values of predictions, and says what is wrong with them and in how many rows.

  Use it before measuring files from other frameworks.

  Metrics of arrays that are not traced make the same checks themselves, unless ``checks.check_values(False)`` has
  turned them off; ``validate`` always makes them.

  Args:
    probs: ``[..., K]`` floats, which must be finite, at least 0, and sum to 1 in each row to within 1e-3.
    labels: ``[...]`` integers, which must be in ``[0, K)``.

  Raises:
    ValueError: if a value is wrong, with the first row that holds one; TypeError or ValueError if an argument has the
      wrong dtype or shape.

  >>> validate(np.array([[0.5, 0.6]]), np.array([1]))
  Traceback (most recent call last):
  ValueError: probs must sum to 1 in each row: 1 of 1 rows does not; the first, row 0, sums to 1.1.
  """
  checks.class_values(probs, labels, always=True)
