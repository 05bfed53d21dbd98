"""Limits of options, and what losses make of their arrays first."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import _checks as checks
from calib_jax import losses

LOGITS, LABELS = np.array([[2.0, 0.0], [0.0, 1.0]], np.float32), np.array([0, 0])


@pytest.mark.parametrize(("limit", "inside", "outside"), [
  ("[0, 1)", (0, 0.5, np.float32(0.25)), (1, -0.1, np.nan, np.inf)),
  ("(0, inf)", (1e-30, 10**6), (0, -1, np.inf)),
  ("(-inf, inf)", (-5, 5.5), (np.inf, -np.inf)),
  ("integer [1, 3]", (1, 3), (0, 4)),
  ("[1, inf) or max", (1, "max"), (0.5,)),
  ("(0, inf) or None", (0.1, None), (0,)),
  (("a", "b"), ("a", "b"), ("c", None, 1)),
  (bool, (True, False), (1, "True", None)),
])
def test_limits_hold_their_ends_as_they_say(limit, inside, outside):
  for value in inside:
    checks.options(option=(value, limit))
  for value in outside:
    with pytest.raises(ValueError, match="option must be"):
      checks.options(option=(value, limit))


@pytest.mark.parametrize(("limit", "value"), [("[0, 1]", True), ("[0, 1]", "0.5"), ("integer [0, 9]", 0.5),
                                              ("[1, inf) or max", "min"), ("[0, 1]", None)])
def test_a_wrong_kind_is_a_type_error(limit, value):
  with pytest.raises(TypeError, match="option must be an? "):
    checks.options(option=(value, limit))


def test_traced_options_pass_unread():
  loss = jax.jit(lambda gamma: losses.focal(LOGITS, LABELS, gamma=gamma).sum())
  np.testing.assert_allclose(loss(2.0), losses.focal(LOGITS, LABELS, gamma=2.0).sum(), rtol=1e-6)


def test_arrays_are_made_ready_and_soft_labels_stay_floats():
  logits, labels = checks.examples(LOGITS.astype(np.float16), LABELS.astype(np.uint8))
  assert (logits.dtype, labels.dtype) == (jnp.float32, jnp.int32)
  assert checks.examples(LOGITS, LOGITS, soft=True)[1].dtype == jnp.float32


def test_a_mask_is_never_none_inside_a_loss_per_batch():
  assert checks.batch(LOGITS, LABELS, None)[2].sum() == 2
  logits, _, where = checks.batch(np.array([[np.nan, 0.0], [0.0, 1.0]], np.float32), LABELS, np.array([False, True]))
  assert where.sum() == 1 and np.isfinite(logits).all()
