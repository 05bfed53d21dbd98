"""Dropout before the head, and predictions by samples of a model's random layers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from calib_jax import training
from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training import data, models
from tests.training.small import assert_same, short, tiny_splits, train

K, RATE = 6, 0.25
IMAGES = jnp.asarray(np.random.default_rng(0).normal(size=(8, 4, 4, 1)), jnp.float32)


def _model(name="mlp", **options):
  """A model, and its variables; the head of the MLP returns the features that it gets."""
  model = models.get(name, num_classes=K, **({"hidden": (K,)} if name == "mlp" else {}), **options)
  variables = jax.jit(model.init)(jax.random.key(0), IMAGES)
  if name == "mlp" and "head" not in options:
    variables["params"]["head"] = {"kernel": jnp.eye(K), "bias": jnp.zeros(K)}
  return model, {"batch_stats": {}, **variables}


def _of_keys(model, variables, kind, number=200, **options):
  """The outputs ``[number, N, K]`` of passes with keys of their own."""
  return np.asarray(jax.jit(jax.vmap(lambda key: model.apply(variables, IMAGES, rngs={kind: key}, **options)))(
    jax.random.split(jax.random.key(1), number)))


def test_training_drops_features_of_each_image_and_predictions_none():
  model, variables = _model(dropout=RATE)
  plain = _model()[0]
  assert jax.tree.structure(variables) == jax.tree.structure(_model()[1])  # Dropout has no parameters.
  features = np.asarray(plain.apply(variables, IMAGES))
  np.testing.assert_array_equal(model.apply(variables, IMAGES), features)
  result = _of_keys(model, variables, "dropout", train=True)
  kept = result > 0
  np.testing.assert_allclose(result, np.where(kept, features / (1 - RATE), 0), rtol=1e-6)
  share = kept[:, features > 0].mean()
  assert abs(share - (1 - RATE)) < 5 * np.sqrt(RATE * (1 - RATE) / kept[:, features > 0].size)
  assert not np.array_equal(kept[0, 0], kept[0, 1]) and not np.array_equal(kept[0], kept[1])
  for frozen in (False, True):  # The head is in training also where the backbone is not.
    output = model.apply(variables, IMAGES, train=True, freeze_batch_stats=frozen, rngs={"dropout": jax.random.key(1)})
    assert (np.asarray(output)[features > 0] == 0).any()
  # Without dropout the key is not used.
  np.testing.assert_allclose(_of_keys(plain, variables, "samples", 2)[1], features, rtol=1e-5)


def test_a_sample_drops_the_same_features_of_all_images():
  model, variables = _model(dropout=RATE)
  features = np.asarray(model.apply(variables, IMAGES))
  result = _of_keys(model, variables, "samples")
  kept = np.array([[(sample[:, k] > 0).any() for k in range(K)] for sample in result])
  expected = kept[:, None] * features / (1 - RATE)
  np.testing.assert_allclose(result, expected, rtol=1e-6)
  used = (features > 0).any(0)
  assert len(np.unique(kept, axis=0)) > 2**used.sum() / 4 and abs(kept[:, used].mean() - (1 - RATE)) < 0.08


@pytest.mark.slow
def test_a_sample_of_stochastic_depth_takes_whole_blocks_and_keeps_the_batch_statistics():
  model, variables = _model("resnet8", last_survival=0.5)
  variables["batch_stats"] = jax.tree.map(lambda x: x - 0.3, variables["batch_stats"])
  apply = jax.jit(_model("resnet8")[0].apply)

  def with_factors(factors):
    """The logits if the convolutions of the three blocks are multiplied by factors; by 0 only the shortcut is left."""
    params = dict(variables["params"])
    for name, factor in zip((f"group{group}_block0" for group in (1, 2, 3)), factors, strict=True):
      params[name] = {**params[name], "norm2": jax.tree.map(lambda x, f=factor: x * f, params[name]["norm2"])}
    return np.asarray(apply({**variables, "params": params}, IMAGES))

  combinations = np.array([with_factors(taken) for taken in itertools.product((0, 1), repeat=3)])
  result = _of_keys(model, variables, "samples")
  distance = np.abs(result[:, None] - combinations).max((2, 3))
  np.testing.assert_allclose(distance.min(1), 0, atol=1e-5)
  odds = [np.prod(c) for c in itertools.product(*((1 - s, s) for s in (5 / 6, 4 / 6, 0.5)))]
  # Without samples each block counts by its odds. So it does in a frozen backbone, though the step has a key.
  frozen = jax.jit(lambda variables: model.apply(variables, IMAGES, train=True, freeze_batch_stats=True,
                                                 rngs={"dropout": jax.random.key(2)}))(variables)
  for logits in (frozen, jax.jit(model.apply)(variables, IMAGES)):
    np.testing.assert_allclose(logits, with_factors((5 / 6, 4 / 6, 0.5)), rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(np.bincount(distance.argmin(1), minlength=8) / len(result), odds, atol=0.12)


@pytest.mark.slow
def test_a_sample_of_v_tst_has_one_code_and_their_mean_is_that_of_many_codes():
  head = {"name": "variational", "width": 4, "num_samples": 1000}
  model, variables = _model(head=head)
  result = special.softmax(_of_keys(model, variables, "samples", 1000), -1).mean(0)
  expected = np.exp(jax.jit(model.apply)(variables, IMAGES))
  np.testing.assert_allclose(result, expected, atol=0.03)
  few = _model(head={**head, "num_samples": 3})[0]  # Samples do not depend on the number of the head's own.
  np.testing.assert_array_equal(_of_keys(few, variables, "samples", 5), _of_keys(model, variables, "samples", 5))


@pytest.mark.parametrize(("options", "expected"), [
  ({}, False), ({"dropout": 0.1}, True), ({"head": "masked"}, False), ({"head": "variational"}, True),
  ({"name": "resnet8"}, False), ({"name": "resnet8", "last_survival": 0.9}, True),
  ({"head": "simplex_etf"}, False), ({"head": "shared_body"}, False), ({"head": "masked", "dropout": 0.5}, True)])
def test_it_is_known_which_models_have_a_random_layer(options, expected):
  model = models.get(num_classes=3, **{"name": "mlp", **options})
  images = jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), images)
  assert models.is_random(model, shapes, images) is expected


def test_samples_of_a_model_without_a_random_layer_are_refused():
  with pytest.raises(UserError, match="evaluation.samples needs a model with a random layer"):
    run_config.check(short("evaluation.samples=4"), 1)
  run_config.check(short("evaluation.samples=4", "model.dropout=0.1"), 1)
  run_config.check(short("evaluation.samples=4", "head.name=variational", "schedule.name=two_stage"), 1)
  with pytest.raises(UserError, match=r"model.dropout must be in \[0, 0.999\]: got 1"):
    run_config.check(short("model.dropout=1.0"), 1)


def test_samples_of_rows_need_a_random_layer_too(tmp_path):
  """The shape of rows is known when they are read."""
  path = tmp_path / "rows.npz"
  np.savez(path, x=np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32), labels=np.arange(60) % 3)
  splits = data.load("arrays", seed=0, validation_fraction=0.2, path=str(path))
  config = short("evaluation.samples=4", "data.name=arrays", f"data.path={path}")
  run_config.check(config, 1)
  with pytest.raises(UserError, match="evaluation.samples needs a model with a random layer"):
    training.check_model(config, splits)
  for option in ("model.dropout=0.1", "head.name=variational"):
    training.check_model(short("evaluation.samples=4", "data.name=arrays", f"data.path={path}", option), splits)


@pytest.mark.slow
def test_the_predictions_of_a_run_are_the_mean_probabilities_of_its_samples():
  """Those of the last step; the scores of validation, and so the model that is selected, are without samples."""
  fields = ("model.dropout=0.4", "training.select=best", "training.evaluate_every_epochs=1")
  (plain, _), (state, result) = (train(short(*fields, f"evaluation.samples={samples}"), seeds=(3, 4))
                                 for samples in (0, 500))
  assert_same(plain, state)
  config, splits = short(*fields), tiny_splits(4)
  model, shape = training.classifier(config, config.head, 3), training.shape_of(splits)
  images = training.engine.program.normalizer(shape)(splits.test.images)
  # The last steps of so short a run are its best.
  variables = {"params": jax.tree.map(lambda x: x[1], state.params), "batch_stats": {}}
  _, features = model.apply(variables, images, return_features=True)
  head = jax.tree.map(np.float64, variables["params"]["head"])
  masks = list(itertools.product((0, 1), repeat=5))
  expected = 0
  for mask in masks:
    z = (np.asarray(features, np.float64) * mask / 0.6) @ head["kernel"] + head["bias"]
    expected = expected + 0.6**sum(mask) * 0.4**(5 - sum(mask)) * special.softmax(z, axis=1)
  np.testing.assert_allclose(np.exp(result[1]["test"]["logits"]), expected, atol=4 * 0.5 / np.sqrt(500))
