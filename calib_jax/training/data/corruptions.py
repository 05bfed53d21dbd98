"""The nineteen corruptions of CIFAR-10-C (Hendrycks & Dietterich 2019), for any uint8 images.

Definitions and severities are from the benchmark's published code for 32x32 images. Lengths are in pixels, so
larger images are corrupted less. Three things differ from that code. ``frost`` overlays a fractal, because the code's
photographs of frost are not distributed. ``spatter`` finds the edges of drops by gradients and hysteresis, but does not
thin them. Random numbers come from a seeded NumPy generator. In ``glass_blur`` a pixel is copied from a neighbour but
not swapped with it; this is what the published code does in effect. Grey images stay grey, and ``saturate`` does not
change them.
"""

from collections.abc import Callable
import io
from typing import Any

import numpy as np

from calib_jax._system.errors import UserError
from calib_jax.training.data.filters import blurred, moved, zoomed
from calib_jax.training.data.weather import fog, frost, snow, spatter

Image = np.ndarray  # [N, H, W, C] float64 in [0, 1].
_CHUNK = 500  # The number of images that are corrupted at a time; every chunk has its own random numbers.


def corrupt(images: np.ndarray, name: str, severity: int, *, seed: int = 0) -> np.ndarray:
  """Corrupts images; the result depends only on the arguments.

  Args:
    images: uint8 ``[N, H, W, C]`` with 1 or 3 channels.
    name: one of ``CORRUPTIONS``.
    severity: a whole number from 1 to 5.
    seed: the seed of random numbers.

  Returns:
    uint8 ``[N, H, W, C]``.

  Raises:
    UserError: for an unknown name or severity, or images of another dtype or shape.

  >>> corrupt(np.full((1, 4, 4, 3), 100, np.uint8), "brightness", 3)[0, 0, 0]
  array([138, 138, 138], dtype=uint8)
  """
  if name not in CORRUPTIONS:
    raise UserError(f"corruption must be one of {', '.join(CORRUPTIONS)}: got {name!r}.")
  if severity not in range(1, 6):
    raise UserError(f"severity of a corruption must be 1, 2, 3, 4 or 5: got {severity!r}.")
  if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
    raise UserError("corruptions need images uint8 [N, H, W, 1] or [N, H, W, 3]: "
                    f"got {images.dtype} of shape {images.shape}.")
  function, options = CORRUPTIONS[name]
  options = options[severity - 1]
  result = np.empty_like(images)
  for start in range(0, len(images), _CHUNK):
    rng = np.random.default_rng((seed, list(CORRUPTIONS).index(name), severity, start))
    corrupted = function(images[start:start + _CHUNK] / 255, rng, *np.atleast_1d(options).tolist())
    result[start:start + _CHUNK] = (np.clip(corrupted, 0, 1) * 255 + 1e-9).astype(np.uint8)
  return result


def _glass_blur(x: Image, rng, sigma, reach, rounds):
  reach = int(reach)
  x = np.floor(blurred(x, sigma) * 255) / 255
  each = np.arange(len(x))
  height, width = x.shape[1:3]
  for _ in range(int(rounds)):
    for row in range(height - reach, reach, -1):
      for column in range(width - reach, reach, -1):
        right, down = rng.integers(-reach, reach, (2, len(x)))
        x[:, row, column] = x[each, row + down, column + right]
  return blurred(x, sigma)


def _defocus_blur(x: Image, _, radius, alias):
  from scipy import ndimage

  near = np.arange(-8, 9)
  disk = (near[:, None] ** 2 + near[None, :] ** 2 <= radius**2).astype(float)
  soft = np.exp(-np.array([1, 0, 1]) / (2 * alias**2))
  soft = soft / soft.sum()
  kernel = ndimage.convolve(disk / disk.sum(), soft[:, None] * soft[None, :], mode="constant")
  return ndimage.correlate(x, kernel[None, :, :, None], mode="mirror")


def _zoom_blur(x: Image, _, most):
  factors = np.arange(1, most, 0.01)
  return (x + sum(zoomed(x, factor) for factor in factors)) / (len(factors) + 1)


def _contrast(x: Image, _, factor):
  mean = x.mean((1, 2), keepdims=True)
  return (x - mean) * factor + mean


def _brightness(x: Image, _, added):
  """Adds to the value of HSV: all channels grow in proportion, and black becomes grey."""
  value = x.max(-1, keepdims=True)
  more = np.minimum(value + added, 1)
  return np.where(value > 0, x * more / np.where(value > 0, value, 1), more)


def _saturate(x: Image, _, factor, added):
  """Changes the saturation of HSV. Grey pixels have the hue of red, as in the usual conversion to HSV."""
  if x.shape[-1] == 1:
    return x
  value = x.max(-1, keepdims=True)
  spread = value - x
  saturation = spread.max(-1, keepdims=True) / np.where(value > 0, value, 1)
  wanted = np.clip(saturation * factor + added, 0, 1)
  grown = spread * wanted / np.where(saturation > 0, saturation, 1)
  return value - np.where(saturation > 0, grown, value * wanted * np.array([0, 1, 1]))


def _by_pillow(x: Image, change: Callable) -> np.ndarray:
  from PIL import Image as pillow

  pixels = np.round(x * 255).astype(np.uint8)
  pictures = [pillow.fromarray(p if p.shape[-1] == 3 else p[..., 0]) for p in pixels]
  return np.stack([np.asarray(change(p)) for p in pictures]).reshape(x.shape) / 255


def _jpeg_compression(x: Image, _, quality):
  from PIL import Image as pillow

  def through_a_file(picture):
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=int(quality))
    return pillow.open(file, formats=("JPEG",))

  return _by_pillow(x, through_a_file)


def _pixelate(x: Image, _, share):
  from PIL import Image as pillow

  height, width = x.shape[1:3]
  small = (max(int(width * share), 1), max(int(height * share), 1))
  return _by_pillow(x, lambda p: p.resize(small, pillow.Resampling.BOX).resize((width, height), pillow.Resampling.BOX))


def _elastic_transform(x: Image, rng, amount, sigma, corner):
  from scipy import ndimage

  height, width = x.shape[1:3]
  amount, sigma, corner = (share * min(height, width) for share in (amount, sigma, corner))
  shifts = (blurred(rng.uniform(-1, 1, x.shape[:3]), sigma, mode="reflect", truncate=3) * amount for _ in range(2))
  shifts = np.stack([*shifts], axis=1)
  centre, arm = np.array([height // 2, width // 2]), min(height, width) // 3
  corners = np.array([centre + arm, [centre[0] - arm, centre[1] + arm], centre - arm], float)
  grid = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"))
  result = np.empty_like(x)
  for i, image in enumerate(x):
    displaced = corners + rng.uniform(-corner, corner, corners.shape)
    # The affine map that takes the displaced corners back to where they were: [row, column, 1] @ back.
    back = np.linalg.solve(np.column_stack([displaced, np.ones(3)]), corners)
    source = np.tensordot(back[:2].T, grid, 1) + back[2][:, None, None]
    for channel in range(x.shape[-1]):
      warped = ndimage.map_coordinates(image[..., channel], source, order=1, mode="mirror")
      result[i, ..., channel] = ndimage.map_coordinates(warped, grid + shifts[i], order=1, mode="reflect")
  return result


# Corruptions by name, each with its function of an image, a generator and options, and the options of each severity.
CORRUPTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
  "gaussian_noise": (lambda x, rng, scale: x + rng.normal(scale=scale, size=x.shape), (0.04, 0.06, 0.08, 0.09, 0.10)),
  "shot_noise": (lambda x, rng, photons: rng.poisson(x * photons) / photons, (500, 250, 100, 75, 50)),
  "impulse_noise": (lambda x, rng, share: np.where(rng.uniform(size=x.shape) < share, rng.integers(0, 2, x.shape), x),
                    (0.01, 0.02, 0.03, 0.05, 0.07)),
  "defocus_blur": (_defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
  "glass_blur": (_glass_blur, ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))),
  "motion_blur": (lambda x, rng, radius, sigma: moved(x, rng.uniform(-45, 45, len(x)), radius, sigma),
                  ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
  "zoom_blur": (_zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
  "snow": (snow, ((0.1, 0.2, 1, 0.6, 8, 3, 0.95), (0.1, 0.2, 1, 0.5, 10, 4, 0.9), (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
                  (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85), (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8))),
  "frost": (frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
  "fog": (fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
  "brightness": (_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
  "contrast": (_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
  "elastic_transform": (_elastic_transform, ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05),
                                             (0.1, 0.03, 0.03))),
  "pixelate": (_pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
  "jpeg_compression": (_jpeg_compression, (80, 65, 58, 50, 40)),
  "speckle_noise": (lambda x, rng, scale: x + x * rng.normal(scale=scale, size=x.shape), (0.06, 0.1, 0.12, 0.16, 0.2)),
  "gaussian_blur": (lambda x, _, sigma: blurred(x, sigma), (0.4, 0.6, 0.7, 0.8, 1)),
  "spatter": (spatter, ((0.62, 0.1, 0.7, 0.7, 0.5, 0), (0.65, 0.1, 0.8, 0.7, 0.5, 0), (0.65, 0.3, 1, 0.69, 0.5, 0),
                        (0.65, 0.1, 0.7, 0.69, 0.6, 1), (0.65, 0.1, 0.5, 0.68, 0.6, 1))),
  "saturate": (_saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
}
