"""Limits of options, and what losses make of their arrays first."""

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import _checks as checks

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


def test_arrays_are_made_ready_and_soft_labels_stay_floats():
  logits, labels = checks.examples(LOGITS.astype(np.float16), LABELS.astype(np.uint8))
  assert (logits.dtype, labels.dtype) == (jnp.float32, jnp.int32)
  assert checks.examples(LOGITS, LOGITS, soft=True)[1].dtype == jnp.float32
