"""The operations on single images that RandAugment and AugMix draw from, as array code that is cheap under ``vmap``.

Under ``vmap``, ``jax.lax.switch`` computes the branches of all operations for every image. Here an image goes through
three stages, each computed once, and an operation leaves those that it does not use at the identity:

- a table of 256 grey levels for each channel: auto-contrast, equalise, posterise and solarise;
- one bilinear resampling by an affine matrix: rotation, shears and translations;
- a blend with another image: brightness, contrast, colour and sharpness.

Operations have the definitions of Pillow, and map uint8 images to uint8 images, as there. Pixels that come from outside
of the image are black.
"""

import jax
import jax.numpy as jnp

Array = jax.Array
# Each with its amount in the comment; the amount of the others is not used.
OPERATIONS = (
  "identity", "auto_contrast", "equalise",
  "posterise",  # The number of bits that are kept; 8 changes nothing.
  "solarise",  # The level from which levels are inverted; 256 changes nothing.
  "rotate",  # Degrees, anticlockwise.
  "shear_x", "shear_y",  # Columns a row, or rows a column, about the top left corner.
  "translate_x", "translate_y",  # Pixels, to the left or upwards.
  "brightness", "contrast", "colour", "sharpness")  # The share of the image; 1 changes nothing, and 0 removes it.


def operate(image: Array, index: Array, amount: Array, *, blends: bool = True) -> Array:
  """Applies the ``index``-th of ``OPERATIONS`` to an image uint8 ``[H, W, C]``, as far as ``amount`` in its own unit.

  Both may be traced. Without ``blends`` it may be none of the last four, and the third stage is left out.
  """
  table = _table(image, index, amount)
  # An operation uses one stage alone, so their order does not matter; in this one fewer levels are looked up.
  image = _resampled(image, *_affine(image.shape, index, amount))
  channel = jnp.arange(image.shape[-1], dtype=jnp.int32)
  image = table.reshape(-1)[image.astype(jnp.int32) + 256 * channel[None, None]]
  return _blended(image, index, amount) if blends else image


def amount(index: Array, level: Array | float, sign: Array, shape: tuple[int, ...], *, bits: int, shift: float
           ) -> Array:
  """The amount of an operation at a ``level`` from 0 to 1, in its unit; the largest are from Cubuk et al. 2019.

  At 0 an operation that has an amount changes nothing, unless ``bits`` is below 8: ``posterise`` keeps so many at
  level 0, and four fewer at level 1. ``index`` is the operation's place in ``OPERATIONS``, ``sign`` (1 or -1) the
  direction where there are two, ``shape`` the image's, and ``shift`` the largest translation, as a part of
  the image's side. Bits, grey levels and pixels are whole numbers.
  """
  def whole(largest):
    return jnp.floor(jnp.float32(largest * level))

  degrees, slope, share = (sign * jnp.float32(largest * level) for largest in (30.0, 0.3, 0.9))
  return jnp.array([0, 0, 0, bits - whole(4.0), 256 - whole(256.0), degrees, slope, slope,
                    sign * whole(shift * shape[1]), sign * whole(shift * shape[0]), *[1 + share] * 4])[index]


def levels(images: Array) -> Array:
  """Returns images of grey levels from 0 to 255, as floats or uint8, as uint8."""
  return images if images.dtype == jnp.uint8 else jnp.clip(jnp.round(images), 0, 255).astype(jnp.uint8)


def _is(index: Array, name: str) -> Array:
  return index == OPERATIONS.index(name)


def _table(image: Array, index: Array, amount: Array) -> Array:
  """Returns the new grey level of each level, ``[C, 256]`` uint8."""
  level = jnp.arange(256, dtype=jnp.int32)
  kept_bits = ~((1 << (8 - amount.astype(jnp.int32))) - 1)
  table = jnp.where(_is(index, "posterise"), level & kept_bits, level)
  table = jnp.where(_is(index, "solarise") & (level >= amount.astype(jnp.int32)), 255 - level, table)
  counts = _histogram(image)
  table = jnp.where(_is(index, "auto_contrast"), jax.vmap(_auto_contrast)(counts), table)
  return jnp.where(_is(index, "equalise"), jax.vmap(_equalised)(counts), table).astype(jnp.uint8)


def _histogram(image: Array) -> Array:
  """Returns how many pixels have each level, ``[C, 256]`` int32."""
  channels = image.shape[-1]
  pixels = image.reshape(-1, channels).astype(jnp.int32)
  return jnp.zeros((channels, 256), jnp.int32).at[jnp.arange(channels, dtype=jnp.int32), pixels].add(1)


def _auto_contrast(counts: Array) -> Array:
  """Returns the table ``[256]`` that stretches the levels of one channel over [0, 255]."""
  level = jnp.arange(256, dtype=jnp.int32)
  low = jnp.argmax(counts > 0).astype(jnp.int32)
  span = 255 - jnp.argmax(counts[::-1] > 0).astype(jnp.int32) - low
  stretched = jnp.clip(_quotient((level - low) * 255, span), 0, 255)
  return jnp.where(span > 0, stretched, level)


def _equalised(counts: Array) -> Array:
  """Returns the table ``[256]`` after which the levels of one channel have about equal counts."""
  level = jnp.arange(256, dtype=jnp.int32)
  last = counts[255 - jnp.argmax(counts[::-1] > 0)]
  step = (jnp.sum(counts) - last) // 255
  below = jnp.cumsum(counts) - counts
  return jnp.where(step > 0, jnp.minimum(_quotient(step // 2 + below, step), 255), level)


def _quotient(numerator: Array, divisor: Array) -> Array:
  """Returns ``numerator // divisor`` of whole numbers below 2^22, which processors compute faster in floating point."""
  ratio = (numerator.astype(jnp.float32) + 0.5) / jnp.maximum(divisor, 1).astype(jnp.float32)
  return jnp.floor(ratio).astype(jnp.int32)


def _affine(shape: tuple[int, ...], index: Array, amount: Array) -> tuple[Array, Array]:
  """Returns the matrix and the offset that map a place ``(x, y)`` of the result to one of the image."""
  angle = jnp.where(_is(index, "rotate"), jnp.deg2rad(amount), 0)
  cosine, sine = jnp.cos(angle), jnp.sin(angle)
  shear_x, shear_y, *shift = (jnp.where(_is(index, name), amount, 0)
                              for name in ("shear_x", "shear_y", "translate_x", "translate_y"))
  x, y = shape[1] / 2, shape[0] / 2  # The centre of the rotation.
  offset = [shift[0] + (1 - cosine) * x + sine * y, shift[1] + (1 - cosine) * y - sine * x]
  return jnp.array([[cosine, shear_x - sine], [shear_y + sine, cosine]]), jnp.array(offset)


def _resampled(image: Array, matrix: Array, offset: Array) -> Array:
  """Returns the image ``[H, W, C]`` whose pixels are interpolated at ``matrix @ (x, y) + offset``."""
  height, width, channels = image.shape
  x, y = jnp.meshgrid(jnp.arange(0.5, width), jnp.arange(0.5, height))  # The centres of pixels.
  source_x = matrix[0, 0] * x + matrix[0, 1] * y + offset[0]
  source_y = matrix[1, 0] * x + matrix[1, 1] * y + offset[1]
  inside = (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
  left, top = jnp.floor(source_x - 0.5), jnp.floor(source_y - 0.5)
  across, down = (source_x - 0.5 - left)[..., None], (source_y - 0.5 - top)[..., None]
  rows = [jnp.clip(top.astype(jnp.int32) + i, 0, height - 1) * width for i in (0, 1)]
  columns = [jnp.clip(left.astype(jnp.int32) + i, 0, width - 1) for i in (0, 1)]
  flat = image.reshape(-1, channels)
  (a, b), (c, d) = ([jnp.take(flat, row + column, axis=0, mode="clip").astype(jnp.float32) for column in columns]
                    for row in rows)
  upper, lower = a + across * (b - a), c + across * (d - c)
  return jnp.where(inside[..., None], jnp.round(upper + down * (lower - upper)), 0).astype(jnp.uint8)


def _blended(image: Array, index: Array, amount: Array) -> Array:
  """Returns ``amount`` times the image plus ``1 - amount`` times what the operation takes away from it."""
  factor = jnp.where(index >= OPERATIONS.index("brightness"), amount, 1)
  original, grey = image.astype(jnp.float32), _grey(image).astype(jnp.float32)
  removed = jnp.where(_is(index, "contrast"), jnp.floor(jnp.mean(grey) + 0.5), 0)
  removed = jnp.where(_is(index, "colour"), grey[..., None], removed)
  removed = jnp.where(_is(index, "sharpness"), _smooth(image), removed)
  return jnp.clip(removed + factor * (original - removed), 0, 255).astype(jnp.uint8)


def _grey(image: Array) -> Array:
  """Returns the luminance ``[H, W]`` int32 of a colour image, or the mean of another number of channels."""
  if image.shape[-1] != 3:
    return jnp.mean(image, axis=-1, dtype=jnp.float32).astype(jnp.int32)
  red, green, blue = jnp.moveaxis(image.astype(jnp.int32), -1, 0)
  return (19595 * red + 38470 * green + 7471 * blue + 2**15) >> 16  # 0.299, 0.587 and 0.114 times 2^16.


def _smooth(image: Array) -> Array:
  """Returns each pixel's mean with its eight neighbours, where its own weight is 5; pixels at the border stay."""
  height, width, _ = image.shape
  x = image.astype(jnp.int32)
  total = sum(x[i:height - 2 + i, j:width - 2 + j] for i in range(3) for j in range(3)) + 4 * x[1:-1, 1:-1]
  return x.at[1:-1, 1:-1].set((2 * total + 13) // 26).astype(jnp.float32)
