"""Kernel calibration errors: MMCE, and the kernel density estimator. O(N²) time, in chunks of rows."""

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln

from calib_jax import checks
from calib_jax.losses.reductions import gather, global_sum, log_softmax, prepare, root, top_odds

Array = jax.Array
CHUNK = 256


def _over_rows(function, rows: tuple[Array, ...]):
  """``function`` of each row of ``rows``, a chunk at a time; nothing but its results is kept for the gradient."""
  return jax.lax.map(jax.checkpoint(lambda row: function(*row)), rows, batch_size=min(CHUNK, len(rows[0])))


def mmce(logits, labels, *, kernel_width: float = 0.4, weighted: bool = False, where=None,
         axis_name: str | None = None) -> Array:
  r"""Maximum mean calibration error of the top label.

  With confidence :math:`r_i`, correctness :math:`c_i` and :math:`k_{ij} = \exp(-|r_i - r_j| / w)`,

  .. math::
    \sqrt{\sum_{ij} v_i v_j k_{ij}}, \qquad v_i = \frac{c_i - r_i}{N}, \qquad \text{weighted: }
    v_i = \frac{1 - r_i}{m} \text{ if correct}, \; -\frac{r_i}{n} \text{ if wrong}

  with m correct and n wrong examples; a group that is empty contributes 0. The weighted form is MMCE_w.

  Args: logits ``[N, K]``; labels ``[N]`` integers; kernel_width: w > 0; weighted; where; axis_name as for
    ``soft_binned_ece``. Returns: a scalar; 0 if nothing counts.
  References: Kumar et al. 2018. O(NK + N²) time, O(NK) memory; devices exchange the N confidences.

  >>> mmce(jnp.array([[2.0, 0.0], [0.0, 2.0]]), jnp.array([0, 1])).round(3)
  Array(0.119, dtype=float32)
  """
  checks.number("kernel_width", kernel_width, low=0, open_low=True)
  checks.choice("weighted", weighted, (True, False))
  logits, labels, where = prepare(logits, labels, where)
  odds, correct = top_odds(logits, labels)
  confidence, rest = jax.nn.sigmoid(-odds), jax.nn.sigmoid(odds)
  groups = jnp.stack([where & correct, where & ~correct], axis=-1).astype(logits.dtype)
  sizes = global_sum(groups, axis_name)
  divisors = jnp.maximum(sizes if weighted else jnp.broadcast_to(jnp.sum(sizes), (2,)), 1)
  signed = groups[:, 0] * rest / divisors[0] - groups[:, 1] * confidence / divisors[1]
  every, weights = gather(confidence, axis_name), gather(signed, axis_name)

  def row(r, v):
    return v * jnp.sum(weights * jnp.exp(-jnp.abs(r - every) / kernel_width))

  return root(global_sum(_over_rows(row, (confidence, signed)), axis_name), 2)


def kde_ece(logits, labels, *, bandwidth: float = 0.1, norm: float = 1.0, form: str = "top_label", where=None,
            axis_name: str | None = None) -> Array:
  r"""Calibration error with a leave-one-out kernel estimate of the accuracy at each prediction.

  .. math::
    \frac{1}{N} \sum_i \sum_k \Big|\frac{\sum_{j \ne i} \kappa(f_i; f_j)\, y_{jk}}{\sum_{j \ne i} \kappa(f_i; f_j)} -
    f_{ik}\Big|^p

  Args:
    logits: ``[N, K]`` floats.
    labels: ``[N]`` integers in ``[0, K)``.
    bandwidth: h > 0.
    norm: p, at least 1; there is no root.
    form: ``"top_label"``: Beta kernel with parameters f_j/h + 1 and (1 - f_j)/h + 1 on the confidence, one term;
      ``"canonical"``: Dirichlet kernel, α = f_j/h + 1, on the whole vector; ``"marginal"``: the Beta kernel on each
      class, summed over classes.
    where, axis_name: as for ``soft_binned_ece``.
  Returns: a scalar; 0 with fewer than two examples that count.
  References: Popordanoska et al. 2022; Zhou et al. 2025. O(N²) time (canonical and marginal O(N²K)), in chunks of rows
    that keep memory at O(NK); devices exchange the confidences, or for canonical and marginal the log-probabilities.

  >>> kde_ece(jnp.array([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0]]), jnp.array([0, 1, 0])).round(2)
  Array(0.17, dtype=float32)
  """
  checks.number("bandwidth", bandwidth, low=0, open_low=True)
  checks.number("norm", norm, low=1)
  checks.choice("form", form, ("top_label", "canonical", "marginal"))
  logits, labels, where = prepare(logits, labels, where)
  index = jnp.arange(len(labels), dtype=jnp.int32)
  if axis_name is not None:
    index = index + jax.lax.axis_index(axis_name) * len(labels)
  valid = gather(where, axis_name)

  if form == "canonical":
    log_p, _ = log_softmax(logits)
    every, onehot = gather(log_p, axis_name), jax.nn.one_hot(gather(labels, axis_name), logits.shape[1])
    alpha = jnp.exp(every) / bandwidth
    log_beta = jnp.sum(gammaln(alpha + 1), axis=-1) - gammaln(1 / bandwidth + logits.shape[1])

    def row(i, log_f):
      weights = _leave_one_out(alpha @ log_f - log_beta, valid, i)
      return jnp.sum(jnp.abs(weights @ onehot.astype(weights.dtype) - jnp.exp(log_f)) ** norm)

    terms = _over_rows(row, (index, log_p))
  else:
    # log f and log(1 - f), the latter from the other classes, so that neither loses its digits near 0 or 1.
    if form == "top_label":
      odds, correct = top_odds(logits, labels)
      log_f, log_not = -jax.nn.softplus(odds)[:, None], -jax.nn.softplus(-odds)[:, None]
      happened = correct[:, None]
    else:
      log_p, is_top = log_softmax(logits)
      top_not = jax.nn.logsumexp(log_p, axis=-1, where=~is_top, keepdims=True)
      log_f, log_not = log_p, jnp.where(is_top, top_not, jnp.log1p(-jnp.where(is_top, 0, jnp.exp(log_p))))
      happened = jax.nn.one_hot(labels, logits.shape[1], dtype=bool)

    def one_class(log_f, log_not, happened):
      events = gather(happened, axis_name).astype(log_f.dtype)
      alpha, beta = (jnp.exp(gather(x, axis_name)) / bandwidth for x in (log_f, log_not))
      log_beta = gammaln(alpha + 1) + gammaln(beta + 1) - gammaln(jnp.asarray(1 / bandwidth + 2, log_f.dtype))

      def row(i, x, not_x):
        weights = _leave_one_out(alpha * x + beta * not_x - log_beta, valid, i)
        return jnp.abs(jnp.sum(weights * events) - jnp.exp(x)) ** norm

      return _over_rows(row, (index, log_f, log_not))

    by_class = (log_f.T, log_not.T, happened.T)
    terms = jnp.sum(jax.lax.map(jax.checkpoint(lambda x: one_class(*x)), by_class), axis=0)

  count = global_sum(where.astype(logits.dtype), axis_name)
  total = global_sum(jnp.where(where, terms, 0), axis_name)
  return jnp.where(count >= 2, total / jnp.maximum(count, 1), 0)


def _leave_one_out(log_kernel: Array, valid: Array, i: Array) -> Array:
  """Weights ``[N]`` that sum to 1: the kernel over the examples that count, but for the i-th."""
  counts = valid & (jnp.arange(len(valid), dtype=jnp.int32) != i)
  return jnp.where(counts, jax.nn.softmax(jnp.where(counts, log_kernel, -1e30)), 0)
