"""Backbones that compute in bfloat16 train as those in float32 do; all that is measured or kept stays in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import training
from calib_jax._system.errors import UserError
from calib_jax.training import data
from calib_jax.training.engine import program
from tests.training.small import PLAIN, digits

STEPS = 60
CNN = (*PLAIN, "model.name=simple_cnn", "model.channels=(8,16)", "training.batch_size=64",
       f"training.num_steps={STEPS}", "optimizer.learning_rate=0.2", "training.log_every_steps=1000",
       "training.evaluate_every_epochs=1000")


def _trained(*overrides):
  config, curve, dtypes = digits(*CNN, *overrides), [], set()

  def note(step, measured):
    curve.append(float(np.mean(measured["loss"])))
    dtypes.update(str(x.dtype) for x in jax.tree.leaves(measured) if jnp.issubdtype(x.dtype, jnp.floating))

  splits = data.load("digits", seed=0, validation_fraction=0.25)
  state, predictions = training.train(config, [splits], seeds=[0], devices=jax.devices()[:1], hooks=[note])
  return np.array(curve), state, predictions[0]["test"], dtypes


@pytest.fixture(scope="module")
def both():
  return {dtype: _trained(f"model.dtype={dtype}") for dtype in ("float32", "bfloat16")}


@pytest.mark.slow
def test_losses_metrics_parameters_and_batch_statistics_are_float32(both):
  _, state, predicted, dtypes = both["bfloat16"]
  assert dtypes == {"float32"} and predicted["logits"].dtype == np.float32
  for kept in (state.params, state.batch_stats, state.opt_state):
    leaves = [x for x in jax.tree.leaves(kept) if jnp.issubdtype(x.dtype, jnp.inexact)]
    assert leaves and all(x.dtype == jnp.float32 for x in leaves)


@pytest.mark.slow
def test_curves_are_close(both):
  full, half = (both[dtype][0] for dtype in ("float32", "bfloat16"))
  # Each product is rounded to eps = 2^-8 of its size, and the two layers and the steps add up to a few such errors of
  # the loss, whose size is log 10.
  tolerance = 4 * 2.0**-8 * np.log(10)
  assert not np.array_equal(full, half)
  np.testing.assert_allclose(half, full, atol=tolerance)
  assert half[-10:].mean() < 0.5 * half[0]
  labels = both["float32"][2]["labels"]
  hits = {dtype: np.mean(both[dtype][2]["logits"].argmax(-1) == labels) for dtype in both}
  # The accuracies differ by less than twice the standard error of one of them.
  assert abs(hits["float32"] - hits["bfloat16"]) < 2 * (hits["float32"] * (1 - hits["float32"]) / len(labels))**0.5


@pytest.mark.parametrize(("version", "dtype", "flags", "refused"), [
  ("0.11.2", "bfloat16", "", True), ("0.12.0", "bfloat16", program.FUSION, False), ("0.10.2", "bfloat16", "", False),
  ("0.12.0", "float32", "", False)])
def test_bfloat16_on_a_cpu_is_refused_where_it_gives_nan(version, dtype, flags, refused, monkeypatch):
  monkeypatch.setattr(jax, "__version__", version)
  monkeypatch.setenv("XLA_FLAGS", flags)
  config = digits(*CNN, f"model.dtype={dtype}")
  if not refused:
    program.classifier(config, config.head, 10)
    return
  reason = f"bfloat16 on a CPU can give NaN with JAX {version}: set XLA_FLAGS={program.FUSION}"
  with pytest.raises(UserError, match=reason):
    program.classifier(config, config.head, 10)
