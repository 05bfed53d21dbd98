"""Kernel calibration errors: MMCE, by sorting, and the kernel density estimator, in chunks of rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
import numpy as np

from calib_jax import _checks as checks
from calib_jax._numerics.softmax import (
  label_odds,
  log_one_minus,
  log_softmax,
  map_chunks,
  predicted,
  target,
  targets,
  with_lowest,
)
from calib_jax.losses.catalogue import PER_BATCH, register
from calib_jax.losses.reductions import gather, global_sum, root, shares

Array = jax.Array
FORMS = ("top_label", "canonical", "marginal")
CHUNK = 2**20  # Pairs of examples whose kernels are in memory at a time.


@register(PER_BATCH)
def mmce(logits: ArrayLike, labels: ArrayLike, *, kernel_width: float | Array = 0.4, weighted: bool = False,
         variant: str = "paper", where: ArrayLike | None = None, weights: ArrayLike | None = None,
         axis_name: str | None = None) -> Array:
  r"""Maximum mean calibration error of the top label.

  Use it beside cross entropy for a calibration error without bins.

  With confidence :math:`r_i`, correctness :math:`c_i` (of a distribution, its probability of the top class) and
  :math:`k_{ij} = \exp(-|r_i - r_j| / w)`,

  .. math::
    L = \sqrt{\sum_{ij} v_i v_j k_{ij}}, \qquad v_i = \frac{c_i - r_i}{N}, \qquad \text{weighted: }
    v_i = c_i \frac{1 - r_i}{m} - (1 - c_i) \frac{r_i}{n}

  with :math:`m = \sum_i c_i` correct and :math:`n = \sum_i (1 - c_i)` wrong examples; a group that is empty contributes
  0. The weighted form is MMCE_w.

  The code of Mukhoti et al. 2020, from which later papers take it, has no root over the unweighted sum, and divides the
  sums of the weighted form by :math:`m^2`, :math:`n^2` and :math:`mn` once more:

  .. math::
    L_{\text{released}} = \sum_{ij} v_i v_j k_{ij}, \qquad
    L_{\text{weighted}} = \sqrt{10^{-10} + \sum_{ij} v_i v_j k_{ij}}, \quad
    v_i = c_i \frac{1 - r_i}{m^2} - (1 - c_i) \frac{r_i}{n^2}

  The latter is 0 if a group is empty. Its gradient is usually 2 to 50 times smaller than the paper's form has.

  Args:
    logits: ``[..., K]`` floats, whose leading axes are one batch of N rows.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats, distributions.
    kernel_width: w > 0.
    weighted: whether all correct examples together weigh as much as all wrong ones.
    variant: ``"paper"`` or ``"released"``.
    where: optional ``[...]`` bools; rows that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, at least 0; an integer weight w equals w copies of the row.
    axis_name: optional mapped axis, for the value of the global batch across it.

  Returns:
    A scalar; 0 if nothing counts. O(NK + N log N); devices exchange the N confidences.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Kumar et al. 2018; the code released with Mukhoti et al. 2020.

  >>> jax.jit(mmce)(jnp.array([[2.0, 0.0], [0.0, 2.0]]), jnp.array([0, 1])).round(3)
  Array(0.119, dtype=float32)
  """
  logits, labels, weights = checks.batch(logits, labels, where, weights, axis_name=axis_name, soft=True)
  checks.options(kernel_width=(kernel_width, "(0, inf)"), weighted=(weighted, bool),
                 variant=(variant, ("paper", "released")))
  top = predicted(logits)
  odds, correct = label_odds(logits, top), target(labels, top, logits)
  confidence, rest = jax.nn.sigmoid(-odds), jax.nn.sigmoid(odds)
  released, share = variant == "released", shares(weights, logits.dtype, axis_name)
  groups = jnp.stack([share * correct, share * (1 - correct)], axis=-1)
  if weighted:
    sizes = global_sum(groups, axis_name)
    groups = groups / jnp.where(sizes == 0, 1, sizes)[None, :]
    if released:
      sizes = sizes * global_sum(weights.astype(logits.dtype), axis_name)
      groups = groups / jnp.where(sizes == 0, 1, sizes)[None, :]
  signed = groups[:, 0] * rest - groups[:, 1] * confidence
  total = _laplacian_form(gather(confidence, axis_name) / kernel_width, gather(signed, axis_name))
  total = jnp.maximum(total, 0)
  if not released:
    return root(total, 2)
  return jnp.where(jnp.any(sizes == 0), 0, jnp.sqrt(total + 1e-10)) if weighted else total


@jax.custom_jvp
def _laplacian_form(x: Array, v: Array) -> Array:
  """Q = Σ_ij v_i v_j exp(-|x_i - x_j|), in O(N log N) instead of O(N²)."""
  return jnp.sum(v * _laplacian_sums(x, v)[0])


@_laplacian_form.defjvp
def _laplacian_form_jvp(primals, tangents):
  # To differentiate through the sorting would give equal x a one-sided derivative of |x_i - x_j|, where the sum has 0.
  (x, v), (x_tangent, v_tangent) = primals, tangents
  sums, slopes = _laplacian_sums(x, v)
  return jnp.sum(v * sums), 2 * jnp.sum(v_tangent * sums + x_tangent * v * slopes)


def _laplacian_sums(x: Array, v: Array) -> tuple[Array, Array]:
  """S_i = Σ_j v_j exp(-|x_i - x_j|), and its derivative S'_i in x_i alone, in which that of |x_i - x_j| at 0 is 0."""
  # In ascending order of x, the part of S_i over j <= i is R_i = v_i + R_{i-1} exp(x_{i-1} - x_i); likewise from the
  # right. For equal x from a to b, S_i = R_b + (what lies above b), and S'_i = (what lies above b) - (below a).
  order = jnp.argsort(x)
  x, v = x[order], v[order]
  decay = jnp.exp(-jnp.diff(x, prepend=x[:1]))

  def link(before, here):  # The step of the recurrence, s -> s * factor + term, composed with the one before it.
    return before[0] * here[0], before[1] * here[0] + here[1]

  _, rising = jax.lax.associative_scan(link, (decay, v))
  _, falling = jax.lax.associative_scan(link, (jnp.append(decay[1:], 1), v), reverse=True)
  start, end = (jnp.searchsorted(x, x, side=side).astype(jnp.int32) for side in ("left", "right"))
  below = jnp.where(start > 0, decay[start] * rising[start - 1], 0)
  next_value = jnp.minimum(end, len(x) - 1)
  above = jnp.where(end < len(x), decay[next_value] * falling[next_value], 0)
  back = jnp.argsort(order)
  return (rising[end - 1] + above)[back], (above - below)[back]


@register(PER_BATCH)
def kde_ece(logits: ArrayLike, labels: ArrayLike, *, bandwidth: float | Array = 0.1, norm: float | Array = 1.0,
            form: str = "top_label", where: ArrayLike | None = None, weights: ArrayLike | None = None,
            axis_name: str | None = None) -> Array:
  r"""Calibration error with a leave-one-out kernel estimate of the accuracy at each prediction.

  Use it to train on a calibration error of the whole distribution, without bins.

  .. math::
    L = \frac{1}{N} \sum_i \sum_k \left|\frac{\sum_{j \ne i} \kappa(f_i; f_j)\, y_{jk}}{\sum_{j \ne i} \kappa(f_i; f_j)}
    - f_{ik}\right|^p

  Args:
    logits: ``[..., K]`` floats, whose leading axes are one batch of N rows.
    labels: ``[...]`` integers in ``[0, K)``, or ``[..., K]`` floats, distributions.
    bandwidth: h > 0.
    norm: p, at least 1; there is no root.
    form: ``"top_label"``: Beta kernel with parameters f_j/h + 1 and (1 - f_j)/h + 1 on the confidence, one term;
      ``"canonical"``: Dirichlet kernel, α = f_j/h + 1, on the whole vector; ``"marginal"``: the Beta kernel on each
      class, summed over classes.
    where: optional ``[...]`` bools; rows that are False are ignored and may hold NaN.
    weights: optional ``[...]`` example weights, 0 or at least 1; an integer weight w equals w copies of the
      row. A row that is left out leaves weight - 1 copies of itself as neighbours, so that a weight between 0 and 1
      means nothing: ValueError, or NaN where it is traced. They carry no gradient.
    axis_name: optional mapped axis, for the value of the global batch across it.

  Returns:
    A scalar; 0 with fewer than two examples that count. O(N²) time (canonical and marginal O(N²K)), in chunks of rows
    that keep memory at O(NK); devices exchange the confidences, or for canonical and marginal the log-probabilities.

  Raises:
    TypeError, ValueError: if an argument has the wrong dtype, shape or range.

  References:
    Popordanoska et al. 2022; Zhou et al. 2025, whose KDE-XE is cross entropy plus this. In their released code this
    error is a Python number (``.item()``) without a gradient, so that what trains there is cross entropy alone.

  >>> jax.jit(kde_ece)(jnp.array([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0]]), jnp.array([0, 1, 0])).round(2)
  Array(0.17, dtype=float32)
  """
  logits, labels, weights = checks.batch(logits, labels, where, weights, axis_name=axis_name, soft=True)
  checks.options(bandwidth=(bandwidth, "(0, inf)"), norm=(norm, "[1, inf)"), form=(form, FORMS))
  weights = neighbours(weights)
  index = jnp.arange(len(labels), dtype=jnp.int32)
  if axis_name is not None:
    index = index + jax.lax.axis_index(axis_name) * len(labels)
  every_weight, happened = gather(weights, axis_name), targets(labels, logits)

  def terms(log_f, events):
    return leave_one_out(log_f, gather(log_f, axis_name), gather(events, axis_name), every_weight, index, bandwidth,
                         norm)

  if form == "canonical":
    each = terms(with_lowest(log_softmax(logits)[0]), happened)
  elif form == "top_label":
    top = predicted(logits)
    odds = label_odds(logits, top)
    log_f = -jnp.stack([jax.nn.softplus(odds), jax.nn.softplus(-odds)], axis=-1)
    each = terms(log_f, target(labels, top, logits)[:, None])
  else:
    log_p, is_top = log_softmax(logits)
    log_f = jnp.stack([with_lowest(log_p).T, log_one_minus(log_p, is_top).T], axis=-1)
    one_class = jax.checkpoint(lambda x: terms(x[0], x[1][:, None]))
    each = jnp.sum(jax.lax.map(one_class, (log_f, happened.T)), axis=0)

  weights = weights.astype(logits.dtype)
  count, total = global_sum(weights, axis_name), global_sum(weights * each, axis_name)
  return jnp.where(count <= 1, 0, total / jnp.where(count <= 1, 1, count))


def neighbours(weights: Array) -> Array:
  """The ``weights`` ``[...]`` of a kernel error, without a gradient; a traced one between 0 and 1 is NaN."""
  if weights.dtype == jnp.bool_:
    return weights
  weights = jax.lax.stop_gradient(weights)
  wrong = (weights > 0) & (weights < 1)
  if checks.is_readable(wrong) and np.any(wrong):
    raise ValueError("weights of a kernel error must be 0 or at least 1: a row that is left out leaves weight - 1 "
                     "copies of itself among its neighbours, and one has weight "
                     f"{weights.reshape(-1)[int(np.argmax(wrong))]:g}.")
  return jnp.where(wrong, jnp.nan, weights)


def leave_one_out(log_f: Array, every: Array, events: Array, weights: Array, index: Array, bandwidth: ArrayLike,
                  norm: float) -> Array:
  """Σ_k |estimate of event k - f_k|^p of each row ``[n]``, from the kernels of all N rows but itself.

  Rows have ``log_f`` ``[n, F]``, and ``index`` is their place among ``every`` ``[N, F]``. ``events`` ``[N, E]``, with
  E <= F, are 1 where an event happened; ``weights`` ``[N]`` are bools, False for rows without a kernel, or numbers.
  """
  log_kernel = _log_kernel(every, weights, bandwidth)
  ones_and_events = jnp.concatenate([jnp.ones_like(events[:, :1]), events], axis=-1)

  def row_error(row, i):
    logs = log_kernel(row, i)
    kernel = jnp.exp(logs - jax.lax.stop_gradient(jnp.max(logs)))
    sums = jnp.dot(kernel, ones_and_events, precision="highest")
    return jnp.sum(jnp.abs(sums[1:] / sums[0] - jnp.exp(row[:events.shape[1]])) ** norm)

  return _over_rows(row_error, (log_f, index), len(every))


def log_densities(log_f: Array, valid: Array, bandwidth: ArrayLike) -> Array:
  """Log of the kernel density at each row of ``log_f`` ``[N, F]``, estimated from the others that count: ``[N]``."""
  log_kernel = _log_kernel(log_f, valid, bandwidth)
  sums = _over_rows(lambda row, i: jax.nn.logsumexp(log_kernel(row, i)),
                    (log_f, jnp.arange(len(log_f), dtype=jnp.int32)), len(log_f))
  # log Γ(Σ_k α_k) + (log h + 1)/h, which _log_kernel leaves out, by the same formula.
  whole = jnp.asarray(1 / bandwidth, log_f.dtype)
  more = jnp.log(whole + jnp.arange(1, log_f.shape[1], dtype=log_f.dtype))
  shared = _log_gamma(whole, jnp.zeros_like(whole), bandwidth) + jnp.sum(more)
  return sums + (shared - jnp.log(jnp.maximum(jnp.sum(valid) - 1, 1).astype(log_f.dtype)))


def _log_kernel(every: Array, weights: Array, bandwidth) -> Callable[[Array, Array], Array]:
  """A function of a row's log f and place: weighted log-densities there of N Dirichlet kernels, its own once less."""
  # With α = f_j/h + 1: Σ_k (f_jk/h) log f_ik - Σ_k log Γ(α_k), less log Γ(Σ_k α_k) + (log h + 1)/h, the same of all
  # kernels, where Σ_k α_k = 1/h + F.
  concentration = jnp.exp(every) / bandwidth
  log_beta, left_out = jnp.sum(_log_gamma(concentration, every, bandwidth), axis=-1), -1e30
  if weights.dtype == jnp.bool_:
    log_beta = jnp.where(weights, log_beta, 1e30)
  else:
    log_beta = jnp.where(weights == 0, 1e30, log_beta - jnp.log(jnp.where(weights == 0, 1, weights)))
    left_out = jnp.where(weights > 1, jnp.log1p(-1 / jnp.maximum(weights, 1)), -1e30)  # log((w - 1) / w)
  places = jnp.arange(len(every), dtype=jnp.int32)

  def log_kernel(row, i):
    logs = jnp.dot(concentration, row, precision="highest") - log_beta
    return jnp.where(places == i, left_out if weights.dtype == jnp.bool_ else logs + left_out, logs)

  return log_kernel


def _log_gamma(a: Array, log_f: Array, bandwidth: ArrayLike) -> Array:
  """Log Γ(a + 1) + a (log h + 1) for a = f/h; the second term adds (log h + 1)/h to the sum of any kernel.

  Without it log Γ(1/h + 1) is 364 at h = 0.01, and float32 leaves an error of 8e-5 in a log-density. With it a sum is
  near the entropy of f by h, at most 69 for two classes. Above 4 it is Stirling's series, with log a = log f - log h.
  """
  largest = 4 if a.dtype.itemsize <= 4 else jnp.inf  # The series has the digits of float32.
  few, many = jnp.minimum(a, largest), jnp.maximum(a, 4)
  series = 0.5 * jnp.log(2 * jnp.pi * many) + 1 / (12 * many) - 1 / (360 * many**3) + 1 / (1260 * many**5)
  unit = jnp.log(jnp.asarray(bandwidth, a.dtype)) + 1
  return jnp.where(a > largest, a * log_f + series, gammaln(few + 1) + few * unit)


def _over_rows(function: Callable, rows: tuple[Array, ...], size: int) -> Array:
  """``function`` of each row, in chunks of ``CHUNK`` pairs with ``size`` others, computed again for the gradient."""
  at_once = max(1, CHUNK // max(size, 1))
  if len(rows[0]) <= at_once:
    return jax.vmap(function)(*rows)
  return map_chunks(jax.checkpoint(lambda row: function(*row)), rows, at_once)
