"""The nineteen corruptions of CIFAR-10-C (Hendrycks & Dietterich 2019), for any uint8 images.

Definitions and severities are those of the benchmark's published code for 32x32 images. Lengths are in pixels, so
larger images are corrupted less. Three things differ from that code. ``frost`` overlays a fractal, because the code's
photographs of frost are not distributed. ``spatter`` finds the edges of drops by gradients and hysteresis, but does not
thin them. Random numbers come from a seeded NumPy generator. In ``glass_blur`` a pixel is copied from a neighbour but
not swapped with it; this is what the published code does in effect. Grey images stay grey, and ``saturate`` does not
change them.
"""

from collections.abc import Callable
import io

import numpy as np

from calib_jax.errors import UserError

Image = np.ndarray  # [N, H, W, C] float64 in [0, 1].
_CHUNK = 500  # The number of images that are corrupted at a time; every chunk has its own random numbers.


def corrupt(images: np.ndarray, name: str, severity: int, *, seed: int = 0) -> np.ndarray:
  """Corrupts images; the result depends only on the arguments.

  Args:
    images: uint8 ``[N, H, W, C]`` with 1 or 3 channels.
    name: one of ``CORRUPTIONS``.
    severity: a whole number from 1 to 5.
    seed: the seed of random numbers.
  Returns: uint8 ``[N, H, W, C]``.
  Raises: UserError for an unknown name or severity, or images of another dtype or shape.

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


def _gaussian_noise(x: Image, rng, scale):
  return x + rng.normal(scale=scale, size=x.shape)


def _shot_noise(x: Image, rng, photons):
  return rng.poisson(x * photons) / photons


def _impulse_noise(x: Image, rng, amount):
  return np.where(rng.uniform(size=x.shape) < amount, rng.integers(0, 2, x.shape), x)


def _speckle_noise(x: Image, rng, scale):
  return x + x * rng.normal(scale=scale, size=x.shape)


def _blurred(x: np.ndarray, sigma: float, **options) -> np.ndarray:
  """Applies a Gaussian filter over the second and third axes."""
  from scipy import ndimage

  return ndimage.gaussian_filter(x, (0, sigma, sigma) + (0,) * (x.ndim - 3), **{"mode": "nearest", **options})


def _gaussian_blur(x: Image, rng, sigma):
  del rng
  return _blurred(x, sigma)


def _glass_blur(x: Image, rng, sigma, reach, rounds):
  reach = int(reach)
  x = np.floor(_blurred(x, sigma) * 255) / 255
  each = np.arange(len(x))
  height, width = x.shape[1:3]
  for _ in range(int(rounds)):
    for row in range(height - reach, reach, -1):
      for column in range(width - reach, reach, -1):
        right, down = rng.integers(-reach, reach, (2, len(x)))
        x[:, row, column] = x[each, row + down, column + right]
  return _blurred(x, sigma)


def _defocus_blur(x: Image, rng, radius, alias):
  from scipy import ndimage

  del rng
  near = np.arange(-8, 9)
  disk = (near[:, None] ** 2 + near[None, :] ** 2 <= radius**2).astype(float)
  soft = np.exp(-np.array([1, 0, 1]) / (2 * alias**2))
  soft = soft / soft.sum()
  kernel = ndimage.convolve(disk / disk.sum(), soft[:, None] * soft[None, :], mode="constant")
  return ndimage.correlate(x, kernel[None, :, :, None], mode="mirror")


def _moved(x: np.ndarray, angles: np.ndarray, radius: float, sigma: float) -> np.ndarray:
  """Blurs each of ``[N, H, W, …]`` along its angle in degrees, with half a Gaussian of 2 radius + 1 pixels."""
  steps = np.arange(2 * int(radius) + 1)
  weights = np.exp(-(steps**2) / (2 * sigma**2))
  radians = np.deg2rad(angles)[:, None]
  down, right = (np.ceil(steps * f(radians) - 0.5).astype(int) for f in (np.sin, np.cos))
  each, result = np.arange(len(x))[:, None, None], 0
  for weight, dy, dx in zip(weights / weights.sum(), down.T, right.T, strict=True):
    rows = np.clip(np.arange(x.shape[1])[None] + dy[:, None], 0, x.shape[1] - 1)
    columns = np.clip(np.arange(x.shape[2])[None] + dx[:, None], 0, x.shape[2] - 1)
    result = result + weight * x[each, rows[:, :, None], columns[:, None, :]]
  return result


def _motion_blur(x: Image, rng, radius, sigma):
  return _moved(x, rng.uniform(-45, 45, len(x)), radius, sigma)


def _zoomed(x: np.ndarray, factor: float) -> np.ndarray:
  """Enlarges ``[N, H, W, …]`` by ``factor`` with linear interpolation, and crops the middle to the same size."""
  def enlarged(side):
    inner = int(np.ceil(side / factor))
    large = round(inner * factor)
    place = (np.arange(side) + (large - side) // 2) * (inner - 1) / max(large - 1, 1)
    hats = np.maximum(1 - np.abs(place[:, None] - np.arange(inner)[None]), 0)
    return np.pad(hats, ((0, 0), ((side - inner) // 2, side - inner - (side - inner) // 2)))

  return np.einsum("ai,bj,nij...->nab...", enlarged(x.shape[1]), enlarged(x.shape[2]), x, optimize=True)


def _zoom_blur(x: Image, rng, most):
  del rng
  factors = np.arange(1, most, 0.01)
  return (x + sum(_zoomed(x, factor) for factor in factors)) / (len(factors) + 1)


def _plasma(shape: tuple[int, int, int], rng, decay: float) -> np.ndarray:
  """Returns periodic fractals ``[N, H, W]`` in [0, 1], by the diamond-square algorithm with decaying noise."""
  number, *sides = shape
  size = 2 ** int(np.ceil(np.log2(max(*sides, 32))))
  field, step, wobble = np.zeros((number, size, size)), size, 100.0
  while step >= 2:
    half = step // 2
    corners = field[:, ::step, ::step]

    def noisy(total, wobble=wobble):
      return total / 4 + wobble * rng.uniform(-wobble, wobble, total.shape)

    across = corners + np.roll(corners, -1, 1)
    field[:, half::step, half::step] = middle = noisy(across + np.roll(across, -1, 2))
    field[:, ::step, half::step] = noisy(middle + np.roll(middle, 1, 1) + corners + np.roll(corners, -1, 2))
    field[:, half::step, ::step] = noisy(middle + np.roll(middle, 1, 2) + corners + np.roll(corners, -1, 1))
    step, wobble = half, wobble / decay
  field -= field.min((1, 2), keepdims=True)
  return (field / field.max((1, 2), keepdims=True))[:, :sides[0], :sides[1]]


def _fog(x: Image, rng, amount, decay):
  most = x.max((1, 2, 3), keepdims=True)
  return (x + amount * _plasma(x.shape[:3], rng, decay)[..., None]) * most / (most + amount)


def _frost(x: Image, rng, kept, added):
  ridges = 1 - np.abs(2 * _plasma(x.shape[:3], rng, 1.7)[..., None] - 1)
  ice = 0.3 + 0.7 * ridges**3
  return kept * x + added * ice * np.array([0.85, 0.95, 1.0] if x.shape[-1] == 3 else [1.0])


def _grey(x: Image) -> np.ndarray:
  return x @ np.array([0.299, 0.587, 0.114]) if x.shape[-1] == 3 else x[..., 0]


def _snow(x: Image, rng, mean, scale, zoom, least, radius, sigma, kept):
  flakes = _zoomed(rng.normal(mean, scale, x.shape[:3]), zoom)
  flakes = np.floor(np.clip(np.where(flakes < least, 0, flakes), 0, 1) * 255) / 255
  flakes = _moved(flakes, rng.uniform(-135, -45, len(x)), radius, sigma)[..., None]
  turned = flakes[:, ::-1, ::-1]
  return kept * x + (1 - kept) * np.maximum(x, _grey(x)[..., None] * 1.5 + 0.5) + flakes + turned


def _spatter(x: Image, rng, mean, scale, sigma, least, strength, mud):
  drops = _blurred(rng.normal(mean, scale, x.shape[:3]), sigma)
  if mud:
    cover = _blurred((drops > least).astype(float), strength)
    cover = np.where(cover < 0.8, 0, cover)[..., None]
    return x * (1 - cover) + cover * _tint(x, (63, 42, 20))
  cover = np.stack([_lens(drop) for drop in np.floor(np.where(drops < least, 0, drops) * 255)])[..., None]
  return x + strength * cover * _tint(x, (175, 238, 238))


def _tint(x: Image, colour: tuple[int, int, int]) -> np.ndarray:
  colour = np.array(colour) / 255
  return colour if x.shape[-1] == 3 else _grey(colour)[None]


def _lens(drops: np.ndarray) -> np.ndarray:
  """Returns the brightness of water, at most 1, on a map ``[H, W]`` of drops from 0 to 255, lit from one side."""
  from scipy import ndimage

  slope = np.abs(ndimage.sobel(drops, 0, mode="mirror")) + np.abs(ndimage.sobel(drops, 1, mode="mirror"))
  edges = ndimage.binary_propagation(slope > 150, np.ones((3, 3)), mask=slope > 50)
  far = ndimage.distance_transform_edt(~edges) if edges.any() else np.full(drops.shape, 20.0)
  far = np.maximum(np.floor(ndimage.uniform_filter(np.minimum(far, 20), 3, mode="mirror") + 1e-9), 0)
  counts = np.cumsum(np.bincount(far.astype(int).ravel(), minlength=21))
  lowest = counts[counts > 0][0]
  # Histogram equalisation.
  far = np.round(255 * (counts - lowest) / max(counts[-1] - lowest, 1))[far.astype(int)]
  relief = ndimage.correlate(far, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]), mode="mirror")
  bright = drops * ndimage.uniform_filter(np.clip(relief, 0, 255), 3, mode="mirror")
  return bright / max(bright.max(), 1e-9)


def _contrast(x: Image, rng, factor):
  del rng
  mean = x.mean((1, 2), keepdims=True)
  return (x - mean) * factor + mean


def _brightness(x: Image, rng, added):
  """Adds to the value of HSV: all channels grow in proportion, and black becomes grey."""
  del rng
  value = x.max(-1, keepdims=True)
  more = np.minimum(value + added, 1)
  return np.where(value > 0, x * more / np.where(value > 0, value, 1), more)


def _saturate(x: Image, rng, factor, added):
  """Changes the saturation of HSV. Grey pixels have the hue of red, as in the usual conversion to HSV."""
  del rng
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


def _jpeg_compression(x: Image, rng, quality):
  from PIL import Image as pillow

  del rng

  def through_a_file(picture):
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=int(quality))
    return pillow.open(file)

  return _by_pillow(x, through_a_file)


def _pixelate(x: Image, rng, share):
  from PIL import Image as pillow

  del rng
  height, width = x.shape[1:3]
  small = (max(int(width * share), 1), max(int(height * share), 1))
  return _by_pillow(x, lambda p: p.resize(small, pillow.Resampling.BOX).resize((width, height), pillow.Resampling.BOX))


def _elastic_transform(x: Image, rng, amount, sigma, corner):
  from scipy import ndimage

  height, width = x.shape[1:3]
  amount, sigma, corner = (share * min(height, width) for share in (amount, sigma, corner))
  shifts = (_blurred(rng.uniform(-1, 1, x.shape[:3]), sigma, mode="reflect", truncate=3) * amount for _ in range(2))
  shifts = np.stack([*shifts], axis=1)
  centre, arm = np.array([height // 2, width // 2]), min(height, width) // 3
  corners = np.array([centre + arm, [centre[0] - arm, centre[1] + arm], centre - arm], float)
  grid = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"))
  result = np.empty_like(x)
  for i, image in enumerate(x):
    moved = corners + rng.uniform(-corner, corner, corners.shape)
    # The affine map that takes the moved corners back to where they were: [row, column, 1] @ back.
    back = np.linalg.solve(np.column_stack([moved, np.ones(3)]), corners)
    source = np.tensordot(back[:2].T, grid, 1) + back[2][:, None, None]
    for channel in range(x.shape[-1]):
      warped = ndimage.map_coordinates(image[..., channel], source, order=1, mode="mirror")
      result[i, ..., channel] = ndimage.map_coordinates(warped, grid + shifts[i], order=1, mode="reflect")
  return result


# Corruptions by name, each with its function and one option for each severity.
CORRUPTIONS: dict[str, tuple[Callable, tuple]] = {
  "gaussian_noise": (_gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
  "shot_noise": (_shot_noise, (500, 250, 100, 75, 50)),
  "impulse_noise": (_impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
  "defocus_blur": (_defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
  "glass_blur": (_glass_blur, ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))),
  "motion_blur": (_motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
  "zoom_blur": (_zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
  "snow": (_snow, ((0.1, 0.2, 1, 0.6, 8, 3, 0.95), (0.1, 0.2, 1, 0.5, 10, 4, 0.9), (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
                   (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85), (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8))),
  "frost": (_frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
  "fog": (_fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
  "brightness": (_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
  "contrast": (_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
  "elastic_transform": (_elastic_transform, ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05),
                                             (0.1, 0.03, 0.03))),
  "pixelate": (_pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
  "jpeg_compression": (_jpeg_compression, (80, 65, 58, 50, 40)),
  "speckle_noise": (_speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
  "gaussian_blur": (_gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1)),
  "spatter": (_spatter, ((0.62, 0.1, 0.7, 0.7, 0.5, 0), (0.65, 0.1, 0.8, 0.7, 0.5, 0), (0.65, 0.3, 1, 0.69, 0.5, 0),
                         (0.65, 0.1, 0.7, 0.69, 0.6, 1), (0.65, 0.1, 0.5, 0.68, 0.6, 1))),
  "saturate": (_saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
}
