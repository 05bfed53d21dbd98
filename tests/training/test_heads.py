"""The head of V-TST, whose code is drawn, the losses of shared bodies, and the options that heads refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training import models
from tests.training.small import PLAIN, short, train

VARIATIONAL = (*PLAIN, "training.num_epochs=1", "head.name=variational", "head.width=4")


def _model(seed=0, **options):
  model = models.get("mlp", num_classes=3, hidden=(5,), head={"name": "variational", "width": 4, **options})
  variables = jax.jit(model.init)(jax.random.key(seed), jnp.zeros((1, 2, 2, 1)))
  return model, variables, jnp.asarray(np.random.default_rng(0).normal(size=(6, 2, 2, 1)), jnp.float32)


def _code(variables, features):
  """The mean and variance of z, in NumPy."""
  head = jax.tree.map(np.float64, variables["params"]["head"])

  def branch(name):
    layers = head[f"{name}_hidden"], head[name]
    x = np.maximum(features @ layers[0]["kernel"] + layers[0]["bias"], 0)
    return x @ layers[1]["kernel"] + layers[1]["bias"]

  return branch("mean"), 1 / (1 + np.exp(-branch("log_variance")))


def test_the_kl_term_is_its_closed_form():
  model, variables, images = _model(weight=0.5)
  _, features = jax.jit(lambda: model.apply(variables, images, return_features=True))()
  _, updated = jax.jit(lambda: model.apply(variables, images, train=True, mutable=["losses"],
                                           rngs={"dropout": jax.random.key(3)}))()
  mean, variance = _code(variables, np.asarray(features, np.float64))
  assert (variance <= 1).all()
  kl = 0.5 * np.sum(variance + mean**2 - 1 - np.log(variance), -1)  # Of N(m, v) from N(0, I), in nats.
  np.testing.assert_allclose(updated["losses"]["head"]["kl"], 0.5 * kl / 4, rtol=1e-4)
  # And by Monte Carlo, E log q(z) - log p(z).
  z = mean + np.sqrt(variance) * np.random.default_rng(1).normal(size=(100_000, *mean.shape))
  ratio = 0.5 * np.sum(z**2 - (z - mean) ** 2 / variance - np.log(variance), -1)
  np.testing.assert_allclose(ratio.mean(0), kl, atol=5 * ratio.std() / np.sqrt(100_000))


@pytest.mark.slow
def test_predictions_are_log_probabilities_that_depend_on_the_seed_alone_and_converge_in_samples():
  spread = {}
  others = [_model(seed)[1] for seed in range(4)]
  for samples in (2, 32):
    model, variables, images = _model(num_samples=samples)
    apply, result = jax.jit(model.apply), []
    for other in others:
      variables["batch_stats"] = other["batch_stats"]  # The parameters of seed 0 with the key of another seed.
      log_probs = np.asarray(apply(variables, images))
      np.testing.assert_allclose(np.exp(log_probs).sum(-1), 1, rtol=1e-5)
      np.testing.assert_array_equal(log_probs, apply(variables, images))
      np.testing.assert_allclose(log_probs[2:4], apply(variables, images[2:4]), rtol=1e-5, atol=1e-6)
      result.append(np.exp(log_probs))
    spread[samples] = np.std(result, 0).mean()
  # The error is proportional to 1 / sqrt(samples), so it falls fourfold; half of that is asked for.
  assert 0 < spread[32] < spread[2] / 2


@pytest.mark.slow
def test_the_loss_has_the_kl_term():
  measured = []
  train(short(*VARIATIONAL), devices=4, predicted=(), hooks=[lambda step, m: measured.append(m)])
  last = {name: float(value[0]) for name, value in measured[-1].items()}
  np.testing.assert_allclose(last["loss"], last["primary"] + last["kl"], rtol=1e-5)
  assert last["kl"] > 0


def test_every_member_has_its_own_loss_and_their_mean_is_measured():
  head = models.get_head("shared_body", num_classes=4, members=3)
  output = 50 * jax.random.normal(jax.random.key(0), (6, 3, 4))
  parts = head.objectives(output, jnp.zeros(6, int), None, where=jnp.ones(6, bool), axis_name=None)
  assert [weight for weight, _ in parts] == pytest.approx([1 / 3] * 3)
  for i, (_, logits) in enumerate(parts):
    np.testing.assert_array_equal(logits, output[:, i])
  probs = special.softmax(np.asarray(output, np.float64), -1).mean(1)
  np.testing.assert_allclose(np.exp(head.combined(output, None)), probs, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize(("head", "option", "reason"), [
  ("shared_body", "members=0", "members must be at least 1 and width at least 0: got 0 and 128"),
  ("shared_body", "width=-1", "members must be at least 1 and width at least 0: got 5 and -1"),
  ("simplex_etf", "share=1.5", r"share must be in \[0, 1\]: got 1.5"),
  ("simplex_etf", "target=0.0", r"target must be in \(0, 1\]: got 0"),
  ("variational", "num_samples=0", "num_samples must be at least 1")])
def test_options_out_of_range_are_refused(head, option, reason):
  with pytest.raises(UserError, match=reason):
    run_config.check(short(f"head.name={head}", f"head.{option}"), 1)
