"""Gaussian mixtures: the posterior is the truth, also after rounding, whatever the options."""

import numpy as np
import pytest
from scipy import stats

from calib_jax._system.errors import UserError
from calib_jax.training import data

OPTIONS = [{}, {"num_classes": 2, "dimensions": 1, "separation": 1.0}, {"num_classes": 30, "dimensions": 3},
           {"imbalance": 0.05, "label_noise": 0.2}, {"separation": 12.0, "num_classes": 3, "dimensions": 2}]


def _drawn(**options):
  pool = data.gaussian_mixture(seed=1, num_examples=20_000, **options)
  return pool, data.mixture_posterior(pool.train.images, seed=1, **options)


@pytest.mark.parametrize("options", OPTIONS)
def test_labels_follow_the_posterior(options):
  """Their mean log-probability and squared error, which are scores of the truth, within five standard errors."""
  pool, posterior = _drawn(**options)
  log_probs = np.log(np.maximum(posterior, 1e-300))
  rows = np.arange(len(posterior))
  for score in (log_probs, posterior):
    excess = score[rows, pool.train.labels] - (posterior * score).sum(1)
    assert abs(excess.mean()) <= 5 * excess.std() / np.sqrt(len(rows)) + 1e-9


@pytest.mark.parametrize("options", OPTIONS)
def test_the_posterior_is_bayes_rule_for_masses_that_round_to_a_grey_level(options):
  pool, posterior = _drawn(**options)
  k, d = options.get("num_classes", 10), options.get("dimensions", 16)
  from calib_jax.training.data.sources.mixture import _means  # The only thing that is drawn and not returned.

  means = _means(1, k, d, options.get("separation", 3.0))
  if d >= k - 1:
    distance = np.linalg.norm(means[:, None] - means[None], axis=-1)[~np.eye(k, dtype=bool)]
    np.testing.assert_allclose(distance, options.get("separation", 3.0), rtol=1e-9)
  priors = options.get("imbalance", 1.0) ** (np.arange(k) / (k - 1))
  for image, p in zip(pool.train.images[:20], posterior[:20], strict=True):
    v = image.ravel().astype(float)
    mass = stats.norm.cdf(v[None] + 0.5, 128 + 16 * means, 16) - stats.norm.cdf(v[None] - 0.5, 128 + 16 * means, 16)
    joint = priors / priors.sum() * mass.prod(1)
    noise = options.get("label_noise", 0.0)
    if joint.max() > 1e-200:
      np.testing.assert_allclose((1 - noise) * joint / joint.sum() + noise / k, p, atol=1e-6)


def test_it_trains_like_any_other_data_set_and_refuses_what_cannot_be():
  splits = data.load("gaussian_mixture", seed=0, validation_fraction=0.1, num_examples=1000, num_classes=4)
  assert splits.train.images.shape == (720, 1, 16, 1) and len(splits.test.labels) == 200
  for option, value in (("num_classes", 1), ("num_examples", 20), ("dimensions", 0), ("separation", -1.0),
                        ("imbalance", 0.0), ("label_noise", 1.5)):
    with pytest.raises(UserError, match=f"data.{option} must be in"):
      data.load("gaussian_mixture", seed=0, validation_fraction=0.1, **{option: value})
