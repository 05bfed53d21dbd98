"""Kernel calibration errors: MMCE, by sorting, and the kernel density estimator, in chunks of rows."""

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln

from calib_jax import checks
from calib_jax.losses.reductions import gather, global_sum, prepare, root
from calib_jax.ordering import ordered_key
from calib_jax.rows import log_softmax, row_statistics

Array = jax.Array
CHUNK = 2**20  # Pairs of examples at a time.


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
  References: Kumar et al. 2018. O(NK + N log N); devices exchange the N confidences.

  >>> mmce(jnp.array([[2.0, 0.0], [0.0, 2.0]]), jnp.array([0, 1])).round(3)
  Array(0.119, dtype=float32)
  """
  checks.number("kernel_width", kernel_width, low=0, open_low=True)
  checks.choice("weighted", weighted, (True, False))
  logits, labels, where = prepare(logits, labels, where)
  row = row_statistics(logits)
  confidence, rest, correct = jax.nn.sigmoid(-row.odds), jax.nn.sigmoid(row.odds), row.top == labels
  groups = jnp.stack([where & correct, where & ~correct], axis=-1).astype(logits.dtype)
  sizes = global_sum(groups, axis_name)
  divisors = jnp.maximum(sizes if weighted else jnp.broadcast_to(jnp.sum(sizes), (2,)), 1)
  signed = groups[:, 0] * rest / divisors[0] - groups[:, 1] * confidence / divisors[1]
  total = _laplacian_form(gather(confidence, axis_name) / kernel_width, gather(signed, axis_name))
  return root(jnp.maximum(total, 0), 2)


@jax.custom_jvp
def _laplacian_form(x: Array, v: Array) -> Array:
  """Σ_ij v_i v_j exp(-|x_i - x_j|)."""
  return jnp.sum(v * _laplacian_sums(x, v)[0])


@_laplacian_form.defjvp
def _laplacian_form_jvp(primals, tangents):
  (x, v), (of_x, of_v) = primals, tangents
  sums, tilts = _laplacian_sums(x, v)
  return jnp.sum(v * sums), 2 * jnp.sum(of_v * sums + of_x * v * tilts)


def _laplacian_sums(x: Array, v: Array) -> tuple[Array, Array]:
  """Σ_j v_j exp(-|x_i - x_j|) for each i, and its derivative in x_i, for which |x_i - x_j| has derivative 0 at 0.

  In sorted order the sum over what is not above follows from its neighbour's: S_i = v_i + S_{i-1} exp(x_{i-1} - x_i).
  """
  order = jnp.argsort(ordered_key(x))
  x, v = x[order], v[order]
  decay = jnp.exp(-jnp.diff(x, prepend=x[:1]))

  def link(before, here):
    return before[0] * here[0], before[1] * here[0] + here[1]

  _, rising = jax.lax.associative_scan(link, (decay, v))
  _, falling = jax.lax.associative_scan(link, (jnp.append(decay[1:], 1), v), reverse=True)
  # Equal values share the sums of the first and the last of them.
  first, after = (jnp.searchsorted(x, x, side=side).astype(jnp.int32) for side in ("left", "right"))
  below = jnp.where(first > 0, decay[first] * rising[first - 1], 0)
  beyond = jnp.minimum(after, len(x) - 1)
  above = jnp.where(after < len(x), decay[beyond] * falling[beyond], 0)
  back = jnp.argsort(order)
  return (rising[after - 1] + above)[back], (above - below)[back]


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

  def terms(log_f, events):
    return leave_one_out(log_f, gather(log_f, axis_name), gather(events, axis_name), valid, index, bandwidth, norm)

  if form == "canonical":
    each = terms(log_softmax(logits)[0], jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype))
  elif form == "top_label":
    row = row_statistics(logits)
    log_f = -jnp.stack([jax.nn.softplus(row.odds), jax.nn.softplus(-row.odds)], axis=-1)
    each = terms(log_f, (row.top == labels)[:, None].astype(logits.dtype))
  else:
    log_p, is_top = log_softmax(logits)
    # log(1 - p): of the top class from the others, of the others (p <= 1/2) directly, so that no digits are lost.
    top_not = jax.nn.logsumexp(log_p, axis=-1, where=~is_top, keepdims=True)
    log_not = jnp.where(is_top, top_not, jnp.log1p(-jnp.where(is_top, 0, jnp.exp(log_p))))
    happened = jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    one_class = jax.checkpoint(lambda x: terms(x[0].T, x[1][:, None]))
    each = jnp.sum(jax.lax.map(one_class, (jnp.stack([log_p.T, log_not.T], axis=1), happened.T)), axis=0)

  count = global_sum(where.astype(logits.dtype), axis_name)
  total = global_sum(jnp.where(where, each, 0), axis_name)
  return jnp.where(count >= 2, total / jnp.maximum(count, 1), 0)


def leave_one_out(log_f: Array, every: Array, events: Array, valid: Array, index: Array, bandwidth, norm) -> Array:
  """Σ_k |estimate of event k - f_k|^p of each row ``[n]``, from the kernels of all N but itself.

  ``log_f`` ``[n, F]``, whose places among ``every`` ``[N, F]`` are ``index``; ``events`` ``[N, E]`` with E <= F.
  """
  log_kernel = _log_kernel(every, valid, bandwidth)
  ones_and_events = jnp.concatenate([jnp.ones_like(events[:, :1]), events], axis=-1)

  def of_row(at, i):
    logs = log_kernel(at, i)
    weights = jnp.exp(logs - jax.lax.stop_gradient(jnp.max(logs)))
    sums = jnp.dot(weights, ones_and_events, precision="highest")
    return jnp.sum(jnp.abs(sums[1:] / sums[0] - jnp.exp(at[:events.shape[1]])) ** norm)

  return _over_rows(of_row, (log_f, index), len(every))


def log_densities(log_f: Array, valid: Array, bandwidth) -> Array:
  """Log of the kernel density at each row of ``log_f`` ``[N, F]``, estimated from the others that count: ``[N]``."""
  log_kernel = _log_kernel(log_f, valid, bandwidth)
  sums = _over_rows(lambda at, i: jax.nn.logsumexp(log_kernel(at, i)),
                    (log_f, jnp.arange(len(log_f), dtype=jnp.int32)), len(log_f))
  # The part of the Beta function that all kernels share, left out so far: it is large where the classes are many.
  shared = gammaln(jnp.asarray(1 / bandwidth + log_f.shape[1], log_f.dtype))
  return sums + (shared - jnp.log(jnp.maximum(jnp.sum(valid) - 1, 1).astype(log_f.dtype)))


def _log_kernel(every: Array, valid: Array, bandwidth):
  """A function of a row's log f and place: log-densities there of all N Dirichlet kernels, -1e30 for itself.

  That of j at i is Σ_k f_jk/h log f_ik, less the logarithm of its Beta function but for what all of them share.
  """
  alpha = jnp.exp(every) / bandwidth
  log_beta = jnp.sum(gammaln(alpha + 1), axis=-1)
  log_beta = jnp.where(valid, log_beta, 1e30)
  places = jnp.arange(len(every), dtype=alpha.dtype)

  def of_row(at, i):
    logs = jnp.dot(alpha, at, precision="highest") - log_beta
    return logs - 1e30 * jnp.maximum(1 - jnp.abs(places - i.astype(alpha.dtype)), 0)

  return of_row


def _over_rows(of_row, rows: tuple[Array, ...], size: int) -> Array:
  """``of_row`` of each, in chunks of ``CHUNK`` pairs with ``size`` others, made again for the gradient."""
  at_once = max(1, CHUNK // max(size, 1))
  if len(rows[0]) <= at_once:
    return jax.vmap(of_row)(*rows)
  return jax.lax.map(jax.checkpoint(lambda row: of_row(*row)), rows, batch_size=at_once)
