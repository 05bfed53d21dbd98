"""Order statistics and equal-mass sums without sorting, against sorting."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics
from calib_jax._numerics import radix_selection
from tests.metrics import references
from tests.metrics.data import KINDS, pairs


@functools.partial(jax.jit, static_argnums=3)
@functools.partial(jax.vmap, in_axes=(0, 0, 0, None))
def _sums(confidence, correct, where, num_bins):
  return radix_selection.equal_mass_sums(confidence, correct.astype(jnp.float32), where, num_bins)


@pytest.mark.parametrize("num_bins", [2, 32])
def test_sums_equal_the_reference_under_masks_and_vmap(num_bins):
  n = 2000
  samples = [pairs(n, kind) for kind in KINDS] * 3
  # All count, some do, fewer than bins, and none.
  where = np.stack([np.random.default_rng(i).permutation(n) < size
                    for i, size in enumerate([n] * 4 + [1234] * 4 + [9, 1, 0, 33])])
  counts, num_correct, total = _sums(*(np.stack(x) for x in zip(*samples, strict=True)), where, num_bins)
  for i, (confidence, correct) in enumerate(samples):
    confidence, correct = confidence[where[i]], references.shared(confidence[where[i]], correct[where[i]])
    for b, members in enumerate(references.groups(confidence, num_bins)):
      assert counts[i, b] == len(members)
      expected = [np.sum(x[members].astype(np.float64)) for x in (confidence, correct)]
      np.testing.assert_allclose([total[i, b], num_correct[i, b]], expected, rtol=1e-5,
                                 atol=1e-6 * max(len(members), 1), err_msg=f"{i} {b}")


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_of_many_examples_equals_the_reference(kind):
  confidence, correct = pairs(10_000, kind)
  options = {"binning": "equal_mass", "norm": 2, "num_bins": 7, "debias": True}
  np.testing.assert_allclose(metrics.calibration_error(confidence, correct, **options),
                             references.calibration_error(confidence, correct, **options), rtol=1e-5, atol=2e-6)
