"""Losses that act on the logits themselves: squares, margins and pairs."""

import jax
import jax.numpy as jnp

from calib_jax import checks
from calib_jax.losses.proper import cross_entropy
from calib_jax.rows import first, one_hot, pick, predicted, reduce_rows, relative_to_top, sum_rows

Array = jax.Array


def square(logits, labels, *, true_class_weight: float = 1.0, true_class_target: float = 1.0) -> Array:
  r"""Square loss on raw logits.

  .. math:: \ell(z, y) = \frac{1}{K} \Big[w (z_y - M)^2 + \sum_{k \ne y} z_k^2\Big]

  Args: logits ``[..., K]``; labels ``[...]`` integers; true_class_weight: w, at least 0; true_class_target: M.
  Returns: ``[...]`` values. O(NK). References: Hui & Belkin 2021.

  >>> square(jnp.array([[2.0, 1.0]]), jnp.array([0]))
  Array([1.], dtype=float32)
  """
  checks.number("true_class_weight", true_class_weight, low=0)
  checks.number("true_class_target", true_class_target)
  logits, labels = checks.scores_and_labels(logits, labels)
  of_label = true_class_weight * (logits - true_class_target) ** 2
  return sum_rows(jnp.where(one_hot(labels, logits), of_label, logits**2)) / logits.shape[-1]


def margin_label_smoothing(logits, labels, *, margin: float = 10.0, weight: float = 0.1) -> Array:
  r"""Margin-based label smoothing (MbLS), in nats plus logits.

  .. math:: -\log p_y + \frac{w}{K} \sum_k \max(0, \max_j z_j - z_k - m)

  Args: logits ``[..., K]``; labels ``[...]`` integers; margin: m, at least 0; weight: w, at least 0.
  Returns: ``[...]`` values. O(NK). References: Liu et al. 2022.

  >>> margin_label_smoothing(jnp.array([[3.0, 0.0]]), jnp.array([0]), margin=1.0, weight=1.0).round(3)
  Array([1.049], dtype=float32)
  """
  checks.number("margin", margin, low=0)
  checks.number("weight", weight, low=0)
  logits, labels = checks.scores_and_labels(logits, labels)
  return cross_entropy(logits, labels) + weight * _mean_excess(logits, jnp.asarray(margin, logits.dtype))


@jax.custom_jvp
def _mean_excess(logits: Array, margin: Array) -> Array:
  """The mean over classes of max(0, max_j z_j - z_k - m)."""
  return _excess(logits, margin)[0] / logits.shape[-1]


@_mean_excess.defjvp
def _mean_excess_jvp(primals, tangents):
  logits, margin = primals
  total, count, top = _excess(*jax.lax.stop_gradient(primals))
  active = -relative_to_top(logits) - margin > 0
  count = count.astype(logits.dtype)
  slope = jnp.where(one_hot(top, logits), count[..., None], -active.astype(logits.dtype))
  of_logits = jnp.sum(slope * tangents[0], axis=-1)
  return total / logits.shape[-1], (of_logits - count * tangents[1]) / logits.shape[-1]


def _excess(logits: Array, margin: Array) -> tuple[Array, Array, Array]:
  """Of each row: the sum of max(0, max_j z_j - z_k - m), the number of classes above 0, the top class."""
  below = relative_to_top(logits)
  excess = jnp.maximum(-below - margin, 0)
  return reduce_rows((jax.lax.add, 0, excess), (jax.lax.add, 0, (excess > 0).astype(jnp.int32)), first(below == 0))


def adaptive_conditional_label_smoothing(logits, labels, *, margin: float = 10.0, weight: float = 0.1,
                                         positive_weight: float = 1.0, negative_weight: float = 0.1) -> Array:
  r"""Adaptive and conditional label smoothing (ACLS).

  .. math::
    -\log p_y + w \Big[\lambda^+ \max(0, z_{\hat y} - m)^2 +
    \frac{\lambda^-}{K - 1} \sum_{k \ne \hat y} \max(0, \mathrm{sg}(z_{\hat y}) - z_k - m)^2\Big]

  with ŷ the top class and sg the stop-gradient.

  Args: logits ``[..., K]``; labels ``[...]`` integers; margin: m; weight: w, at least 0; positive_weight and
    negative_weight: λ⁺ and λ⁻, at least 0.
  Returns: ``[...]`` values. O(NK). References: Park et al. 2023.

  >>> adaptive_conditional_label_smoothing(jnp.array([[3.0, 0.0]]), jnp.array([0]), margin=1.0, weight=1.0).round(1)
  Array([4.4], dtype=float32)
  """
  for name, value in (("margin", margin), ("weight", weight), ("positive_weight", positive_weight),
                      ("negative_weight", negative_weight)):
    checks.number(name, value, low=0)
  logits, labels = checks.scores_and_labels(logits, labels)
  top = pick(logits, predicted(logits))
  # The top class itself adds relu(-margin)² = 0.
  below = jax.nn.relu(jax.lax.stop_gradient(top)[..., None] - logits - margin) ** 2
  negative = sum_rows(below) / (logits.shape[-1] - 1)
  penalty = positive_weight * jax.nn.relu(top - margin) ** 2 + negative_weight * negative
  return cross_entropy(logits, labels) + weight * penalty


def pairwise_constraints(logits, labels, *, discrimination_weight: float = 1.0,
                         exclusion_weight: float = 1.0) -> Array:
  r"""Calibration by pairwise constraints (CPC), in nats.

  .. math::
    -\log p_y + w_d \operatorname{mean}_{k \ne y} -\log \sigma(z_y - z_k) +
    w_e \operatorname{mean}_{i \ne j;\; i, j \ne y} -\tfrac12 \log \sigma(z_i - z_j)

  Args: logits ``[..., K]``; labels ``[...]`` integers; discrimination_weight and exclusion_weight: w_d and w_e, at
    least 0. For K = 2 there is no pair of other classes and the last term is 0.
  Returns: ``[...]`` values. O(NK²) time, O(NK) memory. References: Cheng & Vasconcelos 2022.

  >>> pairwise_constraints(jnp.array([[0.0, 0.0, 0.0]]), jnp.array([0])).round(3)
  Array([2.138], dtype=float32)
  """
  checks.number("discrimination_weight", discrimination_weight, low=0)
  checks.number("exclusion_weight", exclusion_weight, low=0)
  logits, labels = checks.scores_and_labels(logits, labels)
  num_classes = logits.shape[-1]
  other = ~one_hot(labels, logits)
  of_label = pick(logits, labels)[..., None]
  discrimination = jnp.sum(jax.nn.softplus(logits - of_label), axis=-1, where=other) / (num_classes - 1)

  # One class against all others at a time, its terms made again for the gradient: never [..., K, K].
  @jax.checkpoint
  def against(total, i):
    chosen = jax.lax.dynamic_index_in_dim(logits, i, -1)
    counts = other & (jnp.arange(num_classes, dtype=jnp.int32) != i).reshape((1,) * (logits.ndim - 1) + (-1,))
    row = jnp.sum(jax.nn.softplus(logits - chosen), axis=-1, where=counts)
    return total + jnp.where(i == labels, 0, row), None

  total, _ = jax.lax.scan(against, jnp.zeros(labels.shape, logits.dtype), jnp.arange(num_classes, dtype=jnp.int32))
  exclusion = total / 2 / max((num_classes - 1) * (num_classes - 2), 1)
  return cross_entropy(logits, labels) + discrimination_weight * discrimination + exclusion_weight * exclusion
