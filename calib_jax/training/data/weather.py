"""The corruptions of CIFAR-10-C that are weather: snow, frost, fog and spatter."""

import numpy as np

from calib_jax.training.data.filters import blurred, moved, zoomed

Image = np.ndarray  # [N, H, W, C] float64 in [0, 1].


def snow(x: Image, rng: np.random.Generator, mean: float, scale: float, zoom: float, least: float, radius: int,  # noqa: PLR0917
         sigma: float, weight: float) -> np.ndarray:
  """Blurs random flakes along the wind, and whitens the image."""
  flakes = zoomed(rng.normal(mean, scale, x.shape[:3]), zoom)
  flakes = np.floor(np.clip(np.where(flakes < least, 0, flakes), 0, 1) * 255) / 255
  flakes = moved(flakes, rng.uniform(-135, -45, len(x)), radius, sigma)[..., None]
  turned = flakes[:, ::-1, ::-1]
  return weight * x + (1 - weight) * np.maximum(x, _grey(x)[..., None] * 1.5 + 0.5) + flakes + turned


def frost(x: Image, rng: np.random.Generator, weight: float, added: float) -> np.ndarray:
  """Overlays ridges of ice, made of a fractal."""
  ridges = 1 - np.abs(2 * _plasma(x.shape[:3], rng, 1.7)[..., None] - 1)
  ice = 0.3 + 0.7 * ridges**3
  return weight * x + added * ice * np.array([0.85, 0.95, 1.0] if x.shape[-1] == 3 else [1.0])


def fog(x: Image, rng: np.random.Generator, amount: float, decay: float) -> np.ndarray:
  """Adds a fractal, and keeps the brightest value of the image."""
  most = x.max((1, 2, 3), keepdims=True)
  return (x + amount * _plasma(x.shape[:3], rng, decay)[..., None]) * most / (most + amount)


def spatter(x: Image, rng: np.random.Generator, mean: float, scale: float, sigma: float, least: float,  # noqa: PLR0917
            strength: float, mud: bool) -> np.ndarray:
  """Throws drops of water, or of mud, at the image."""
  drops = blurred(rng.normal(mean, scale, x.shape[:3]), sigma)
  if mud:
    cover = blurred((drops > least).astype(float), strength)
    cover = np.where(cover < 0.8, 0, cover)[..., None]
    return x * (1 - cover) + cover * _tint(x, (63, 42, 20))
  cover = np.stack([_lens(drop) for drop in np.floor(np.where(drops < least, 0, drops) * 255)])[..., None]
  return x + strength * cover * _tint(x, (175, 238, 238))


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


def _grey(x: Image) -> np.ndarray:
  return x @ np.array([0.299, 0.587, 0.114]) if x.shape[-1] == 3 else x[..., 0]


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
  # This equalises the histogram of the distances.
  far = np.round(255 * (counts - lowest) / max(counts[-1] - lowest, 1))[far.astype(int)]
  relief = ndimage.correlate(far, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]), mode="mirror")
  bright = drops * ndimage.uniform_filter(np.clip(relief, 0, 255), 3, mode="mirror")
  return bright / max(bright.max(), 1e-9)
