"""Limits of options, and the decorator that checks a function's arguments."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import _checks as checks
from calib_jax import losses, metrics
from calib_jax._checks.limits import limited

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
    limited("option", value, limit)
  for value in outside:
    with pytest.raises(ValueError, match="option must be"):
      limited("option", value, limit)


@pytest.mark.parametrize(("limit", "value"), [("[0, 1]", True), ("[0, 1]", "0.5"), ("integer [0, 9]", 0.5),
                                              ("[1, inf) or max", "min"), ("[0, 1]", None)])
def test_a_wrong_kind_is_a_type_error(limit, value):
  with pytest.raises(TypeError, match="option must be an? "):
    limited("option", value, limit)


def test_traced_options_pass_unread():
  loss = jax.jit(lambda gamma: losses.focal(LOGITS, LABELS, gamma=gamma).sum())
  np.testing.assert_allclose(loss(2.0), losses.focal(LOGITS, LABELS, gamma=2.0).sum(), rtol=1e-6)


def test_a_call_with_wrong_arguments_names_the_function_and_its_options():
  with pytest.raises(TypeError, match="focal has no option 'gama'; it has gamma, stop_gradient. Did you mean 'gamma'?"):
    losses.focal(LOGITS, LABELS, gama=1.0)
  with pytest.raises(TypeError, match="focal: missing a required argument: 'labels'"):
    losses.focal(LOGITS)
  with pytest.raises(TypeError, match="nll has no option 'mask'; it has where"):
    metrics.nll(jax.nn.softmax(LOGITS), LABELS, mask=None)
  with pytest.raises(TypeError, match="focal: too many positional arguments"):
    losses.focal(LOGITS, LABELS, 2.0)


def test_arrays_are_made_ready_and_may_be_given_by_name():
  seen = []

  @checks.arguments(functools.partial(checks.scores_and_labels, soft=True))
  def loss(logits, labels, *, scale=1.0):
    seen.append((logits.dtype, labels.dtype))
    return scale * jnp.sum(logits, axis=-1)

  np.testing.assert_allclose(loss(labels=LABELS, logits=LOGITS.astype(np.float16), scale=2.0), [4.0, 2.0])
  loss(LOGITS, LOGITS)
  assert seen == [(jnp.float32, jnp.int32), (jnp.float32, jnp.float32)]


def test_a_mask_is_never_none_inside_a_loss_per_batch():
  @checks.arguments(checks.batch)
  def count(logits, labels, *, where=None):
    return jnp.sum(where), logits

  assert count(LOGITS, LABELS)[0] == 2
  number, logits = count(np.array([[np.nan, 0.0], [0.0, 1.0]], np.float32), LABELS, where=np.array([False, True]))
  assert number == 1 and np.isfinite(logits).all()
