"""What losses need of rows of logits ``features @ kernel + bias`` with very many classes, in chunks of the classes.

The logits ``[N, K]`` of a vocabulary may not fit in memory. Of each chunk ``[N, chunk]`` some sums over its classes are
kept, and the sums of two sets of classes give those of their union (``_merged``), as in the softmax of flash attention.
The gradient computes the logits of each chunk again, so that one pass forwards and one backwards are all there is.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from calib_jax._numerics.softmax import LOWEST, one_hot, predicted, with_lowest

Array = jax.Array
BLOCK = 64  # Classes of which the largest logit is found first.
ENTROPY = ("weighted", "excess")  # The sums that ``entropy_and_divergence`` needs.
SQUARES = ("squares",)  # The sum that ``other_squares`` needs.


class Rows(NamedTuple):
  """Sums over the classes of each row ``[N]``; t is the top class, and x_k = z_k - z_t."""

  top: Array  # The index of t, int32; the lowest where several tie.
  top_logit: Array  # z_t.
  label_logit: Array  # z_y, 0 if the label is not among the classes.
  others: Array  # Σ_{k≠t} exp(x_k).
  squares: Array | None  # Σ_{k≠t} exp(2 x_k).
  weighted: Array | None  # Σ_k exp(x_k) x_k.
  excess: Array | None  # Σ_k (exp(x_k) - 1).
  count: Array | int  # The number of classes.


def row_sums(features: Array, kernel: Array, bias: Array | None, labels: Array, chunk: int,
             sums: tuple[str, ...] = ()) -> Rows:
  """The sums of ``features @ kernel + bias`` by ``chunk`` of classes; ``sums`` says which optional ones."""
  # In ``jax.shard_map``, arrays that are the same on all devices are marked as different here, outside of the rule for
  # the gradient, so that JAX adds up their gradients over the devices.
  arrays = features, kernel, bias, labels
  axes = frozenset().union(*map(_varying, jax.tree.leaves(arrays)))
  features, kernel, bias, labels = jax.tree.map(
    lambda x: jax.lax.pcast(x, tuple(axes - _varying(x)), to="varying") if axes - _varying(x) else x, arrays)
  return _row_sums(chunk, sums, features, kernel, bias, labels)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _row_sums(chunk, sums, features, kernel, bias, labels):
  def of_chunk(start, size):
    return _sums(logits_of(features, *_part(kernel, bias, start, size)), labels, start, sums)

  first, number = _chunks(kernel.shape[1], chunk)
  rows = of_chunk(0, first)
  if number:
    rows = jax.lax.fori_loop(0, number, lambda i, rows: _merged(rows, of_chunk(first + i * chunk, chunk)), rows)
  return rows


def _forwards(chunk, sums, features, kernel, bias, labels):
  rows = _row_sums(chunk, sums, features, kernel, bias, labels)
  return rows, (features, kernel, bias, labels, rows)


def _backwards(chunk, sums, residuals, cotangents):
  features, kernel, bias, labels, rows = residuals
  column = partial(jnp.expand_dims, axis=-1)
  # The derivatives of the sums in each x_k, as a polynomial in exp(x_k) and x_k. Since x_k = z_k - z_t, that in z_t is
  # minus their sum over k.
  of_top = cotangents.top_logit - cotangents.others * rows.others
  if "squares" in sums:
    of_top -= 2 * cotangents.squares * rows.squares
  if "weighted" in sums:
    of_top -= cotangents.weighted * (rows.others + rows.weighted)
  if "excess" in sums:
    of_top -= cotangents.excess * rows.others

  def of_chunk(start, size):
    kernel_part, bias_part = _part(kernel, bias, start, size)
    logits = logits_of(features, kernel_part, bias_part)
    x = with_lowest(logits) - column(rows.top_logit)
    power = jnp.exp(x)
    slope = column(cotangents.others) * power
    if "squares" in sums:
      slope += 2 * column(cotangents.squares) * power**2
    if "weighted" in sums:
      slope += column(cotangents.weighted) * power * (1 + x)
    if "excess" in sums:
      slope += column(cotangents.excess) * power
    slope = jnp.where(one_hot(rows.top - start, logits), column(of_top), slope)
    slope += jnp.where(one_hot(labels - start, logits), column(cotangents.label_logit), 0)
    # As in the gradient of dense logits, products are of numbers of the inputs' type.
    _, pullback = jax.vjp(_product, features, kernel_part)
    of_features, of_kernel = pullback(slope.astype(_product_type(features, kernel)))
    of_bias = None if bias is None else jnp.sum(slope, axis=0).astype(bias.dtype)
    return of_features.astype(slope.dtype), of_kernel, of_bias

  def add_chunk(i, gradients):
    start = first + i * chunk
    of_features, *of_layer = of_chunk(start, chunk)
    return gradients[0] + of_features, *jax.tree.map(
      lambda whole, part: jax.lax.dynamic_update_slice_in_dim(whole, part, start, -1), gradients[1:], tuple(of_layer))

  first, number = _chunks(kernel.shape[1], chunk)
  gradients = of_chunk(0, first)
  if number:
    of_features, *of_layer = gradients
    of_layer = jax.tree.map(lambda x: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, number * chunk)]), of_layer)
    gradients = jax.lax.fori_loop(0, number, add_chunk, (of_features, *of_layer))
  return gradients[0].astype(features.dtype), *gradients[1:], None


_row_sums.defvjp(_forwards, _backwards)


def _varying(x: Array) -> frozenset[str]:
  """The axes of ``jax.shard_map`` along which devices may hold different ``x``."""
  return jax.typeof(x).manual_axis_type.varying


def _chunks(num_classes: int, chunk: int) -> tuple[int, int]:
  """The size of the first chunk, 2 or more, and the number of chunks after it, which are all of the size ``chunk``."""
  number = max(num_classes - 2, 0) // chunk
  return num_classes - number * chunk, number


def _part(kernel: Array, bias: Array | None, start, size: int):
  """The last layer's part for the classes from ``start`` on."""
  return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size, -1), (kernel, bias))


def _product_type(features: Array, kernel: Array):
  with jax.numpy_dtype_promotion("standard"):
    return jnp.promote_types(features.dtype, kernel.dtype)


def _product(features: Array, kernel: Array, **options) -> Array:
  dtype = _product_type(features, kernel)
  return jnp.dot(features.astype(dtype), kernel.astype(dtype), **options)


def logits_of(features: Array, kernel: Array, bias: Array | None) -> Array:
  """Logits ``[N, size]`` of float32 or wider, also from inputs of fewer bits."""
  dtype = _product_type(features, kernel)
  logits = _product(features, kernel, preferred_element_type=jnp.float32 if dtype.itemsize < 4 else dtype)
  return logits if bias is None else logits + bias.astype(logits.dtype)[None, :]


def _sums(logits: Array, labels: Array, start, sums: tuple[str, ...]) -> Rows:
  """The sums over the classes of one chunk, which begins at the class ``start``."""
  logits, size = with_lowest(logits), logits.shape[-1]
  top, place = _predicted(logits), labels - start
  top_logit, label_logit = (jnp.take_along_axis(logits, jnp.clip(i, 0, size - 1)[:, None], axis=-1)[:, 0]
                            for i in (top, place))
  x = logits - top_logit[:, None]
  others = jnp.where(one_hot(top, logits), 0, jnp.exp(x))
  return Rows(
    top=top + start, top_logit=top_logit, label_logit=jnp.where((place >= 0) & (place < size), label_logit, 0),
    others=jnp.sum(others, axis=-1), squares=jnp.sum(others**2, axis=-1) if "squares" in sums else None,
    weighted=jnp.sum(jnp.exp(x) * x, axis=-1) if "weighted" in sums else None,
    excess=jnp.sum(jnp.expm1(x), axis=-1) if "excess" in sums else None,
    count=jnp.full_like(top_logit, size))


def _predicted(logits: Array) -> Array:
  """``softmax.predicted``, first of blocks of classes by their maxima, which XLA:CPU vectorises, unlike ``argmax``."""
  blocks = jnp.pad(logits, ((0, 0), (0, -logits.shape[1] % BLOCK)), constant_values=-jnp.inf)
  blocks = blocks.reshape(len(logits), -1, BLOCK)
  block = predicted(jnp.max(blocks, axis=-1))
  return block * BLOCK + predicted(jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0])


def _merged(a: Rows, b: Rows) -> Rows:
  """The sums over the classes of both; those of ``a`` come first, and so have the top in a tie."""
  wins = b.top_logit > a.top_logit
  high, low = jax.tree.map(partial(jnp.where, wins), b, a), jax.tree.map(partial(jnp.where, wins), a, b)
  shift = low.top_logit - high.top_logit
  weight = jnp.exp(shift)
  return Rows(
    top=high.top, top_logit=high.top_logit, label_logit=a.label_logit + b.label_logit,
    others=high.others + weight * (1 + low.others),
    squares=None if a.squares is None else high.squares + weight**2 * (1 + low.squares),
    weighted=None if a.weighted is None else high.weighted + weight * (low.weighted + shift * (1 + low.others)),
    excess=None if a.excess is None else high.excess + weight * low.excess + low.count * jnp.expm1(shift),
    count=a.count + b.count)


def top_odds(rows: Rows) -> Array:
  """``softmax.label_odds`` of the top class; ``LOWEST``, without a gradient, where all others' sum rounds to 0."""
  return jnp.where(rows.others > 0, jnp.log(jnp.where(rows.others > 0, rows.others, 1)), LOWEST)


def label_odds(rows: Rows, labels: Array) -> Array:
  """log((1 - p_y) / p_y) of the label: ``softmax.label_odds(logits, labels)``."""
  is_top = rows.top == labels
  x = jnp.where(is_top, -1, rows.label_logit - rows.top_logit)
  # The classes other than a label that is not the top: the top, whose exp(x) is 1, and those of ``others`` but itself.
  return jnp.where(is_top, top_odds(rows), jnp.log1p(rows.others - jnp.exp(x)) - x)


def other_squares(rows: Rows, labels: Array) -> Array:
  """Σ_{k≠y} p_k², of all classes but the label."""
  is_top = rows.top == labels
  x = jnp.where(is_top, 0, rows.label_logit - rows.top_logit)
  total = rows.squares + jnp.where(is_top, 0, 1 - jnp.exp(2 * x))
  return total / (1 + rows.others) ** 2


def entropy_and_divergence(rows: Rows) -> tuple[Array, Array]:
  """``softmax.entropy_and_divergence(logits)``, whose docstring has the formula."""
  log_normaliser, mean = jnp.log1p(rows.others), rows.weighted / (1 + rows.others)
  return log_normaliser - mean, mean - jnp.log1p(rows.excess / rows.count)
