"""Gaussian classes with an exactly known posterior p(y|x), for which the true calibration error can be computed."""

from typing import Any

import numpy as np

from calib_jax._checks.registry import register
from calib_jax.training.data.sources import SOURCES
from calib_jax.training.data.splits import Examples, Pool, checked_number

_DEVIATION = 16.0  # One standard deviation in grey levels; 0 and 255 are 8 deviations from the middle.
_MIDDLE = 128.0


@register(SOURCES)
def gaussian_mixture(seed: int, *, num_examples: int = 10_000, num_classes: int = 10, dimensions: int = 16,
                     separation: float = 3.0, imbalance: float = 1.0, label_noise: float = 0.0) -> Pool:
  """Draws examples from spherical Gaussians, one a class, rounded to grey levels; a fifth of them is for test.

  ``mixture_posterior`` with the same arguments returns p(y|x) of the images.

  Args:
    seed: the seed that all random numbers follow from.
    num_examples: the number of examples.
    num_classes: the number of classes.
    dimensions: the number of pixels of an image.
    separation: the distance of any two class means in standard deviations if dimensions >= num_classes - 1, when the
      means are a regular simplex; else approximately its root mean square.
    imbalance: the prior of the last class divided by the prior of the first; priors fall geometrically between them.
    label_noise: the fraction of labels that are replaced by uniformly drawn ones.

  Returns:
    The examples, with images uint8 ``[N, 1, dimensions, 1]``.

  Raises:
    UserError: if an argument is out of its range.
  """
  _check(num_examples, num_classes, dimensions, separation, imbalance, label_noise)
  rng = np.random.default_rng((seed, 2))
  labels = rng.choice(num_classes, num_examples, p=_priors(num_classes, imbalance))
  x = _means(seed, num_classes, dimensions, separation)[labels] + rng.normal(size=(num_examples, dimensions))
  pixels = np.clip(np.round(_MIDDLE + _DEVIATION * x), 0, 255).astype(np.uint8)
  is_noisy = rng.uniform(size=num_examples) < label_noise
  labels = np.where(is_noisy, rng.integers(0, num_classes, num_examples), labels).astype(np.int32)
  everything = Examples(pixels[:, None, :, None], labels)
  test = num_examples // 5
  return Pool(everything.take(np.arange(test, num_examples)), everything.take(np.arange(test)), num_classes)


def mixture_posterior(images: np.ndarray, *, seed: int, num_classes: int = 10, dimensions: int = 16,
                      separation: float = 3.0, imbalance: float = 1.0, label_noise: float = 0.0, **_: Any
                      ) -> np.ndarray:
  """Returns the exact posterior of images that ``gaussian_mixture`` drew with the same arguments.

  It accounts for the rounding: the likelihood of a grey level is the Gaussian's mass that rounds to it, and the
  dimensions are independent.

  Args:
    images: ``[N, 1, dimensions, 1]`` grey levels.
    seed: the seed of ``gaussian_mixture``.
    num_classes: the number of classes.
    dimensions: the number of pixels of an image.
    separation: the distance of class means; see ``gaussian_mixture``.
    imbalance: the ratio of the last and the first prior.
    label_noise: the fraction of labels that were replaced.
    **_: other arguments of ``gaussian_mixture``, which are ignored.

  Returns:
    p(y | rounded x), float64 ``[N, num_classes]``.

  >>> pool = gaussian_mixture(seed=0, num_examples=500, num_classes=3)
  >>> mixture_posterior(pool.test.images, seed=0, num_classes=3).sum(axis=1).round(6).max()
  np.float64(1.0)
  """
  from scipy import special

  pixels = images.reshape(len(images), dimensions).astype(np.float64)
  lower = np.where(pixels == 0, -np.inf, pixels - 0.5 - _MIDDLE) / _DEVIATION
  upper = np.where(pixels == 255, np.inf, pixels + 0.5 - _MIDDLE) / _DEVIATION
  scores = np.tile(np.log(_priors(num_classes, imbalance)), (len(images), 1))
  for k, mean in enumerate(_means(seed, num_classes, dimensions, separation)):
    a, b = lower - mean, upper - mean
    # Right tails are mirrored to the left, where log_ndtr is accurate; on the right it rounds to 0.
    a, b = np.where(a > 0, -b, a), np.where(a > 0, -a, b)
    low, high = special.log_ndtr(a), special.log_ndtr(b)
    scores[:, k] += np.sum(high + np.log1p(-np.exp(low - high)), axis=1)
  return (1 - label_noise) * special.softmax(scores, axis=1) + label_noise / num_classes


def _priors(num_classes: int, imbalance: float) -> np.ndarray:
  weights = imbalance ** (np.arange(num_classes) / (num_classes - 1))
  return weights / weights.sum()


def _means(seed: int, num_classes: int, dimensions: int, separation: float) -> np.ndarray:
  rng = np.random.default_rng((seed, 3))
  if dimensions < num_classes - 1:
    return separation * rng.normal(size=(num_classes, dimensions)) / np.sqrt(2 * dimensions)
  # The means are the corners of a simplex in its own K - 1 coordinates, after a random rotation.
  corners = np.linalg.svd(np.eye(num_classes) - 1 / num_classes)[0][:, :-1]
  turn = np.linalg.qr(rng.normal(size=(dimensions, num_classes - 1)))[0]
  return separation / np.sqrt(2) * corners @ turn.T


def _check(num_examples, num_classes, dimensions, separation, imbalance, label_noise) -> None:
  checked_number("data.num_classes", num_classes, 2, 65_536)
  checked_number("data.num_examples", num_examples, 10 * num_classes, 10**9)
  checked_number("data.dimensions", dimensions, 1, 10**6)
  checked_number("data.separation", separation, 0, 12)
  checked_number("data.imbalance", imbalance, 1e-6, 1)
  checked_number("data.label_noise", label_noise, 0, 1)
