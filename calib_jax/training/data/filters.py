"""Filters of many images at a time, which several corruptions share."""

from typing import Any

import numpy as np


def blurred(x: np.ndarray, sigma: float, **options: Any) -> np.ndarray:
  """Applies a Gaussian filter over the second and third axes."""
  from scipy import ndimage

  return ndimage.gaussian_filter(x, (0, sigma, sigma) + (0,) * (x.ndim - 3), **{"mode": "nearest", **options})


def moved(x: np.ndarray, angles: np.ndarray, radius: float, sigma: float) -> np.ndarray:
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


def zoomed(x: np.ndarray, factor: float) -> np.ndarray:
  """Enlarges ``[N, H, W, …]`` by ``factor`` with linear interpolation, and crops the middle to the same size."""
  def enlarged(side):
    inner = int(np.ceil(side / factor))
    large = round(inner * factor)
    place = (np.arange(side) + (large - side) // 2) * (inner - 1) / max(large - 1, 1)
    hats = np.maximum(1 - np.abs(place[:, None] - np.arange(inner)[None]), 0)
    return np.pad(hats, ((0, 0), ((side - inner) // 2, side - inner - (side - inner) // 2)))

  return np.einsum("ai,bj,nij...->nab...", enlarged(x.shape[1]), enlarged(x.shape[2]), x, optimize=True)
