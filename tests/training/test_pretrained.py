"""A run that starts from published weights, on images that the model resizes."""

import ast
import re
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from calib_jax import training
from calib_jax._system.errors import UserError
from calib_jax.training import config as run_config
from calib_jax.training import models
from calib_jax.training.engine import program
from tests.training.models.test_pytorch import torch_weights
from tests.training.small import alone, assert_same, built, digits, tiny_splits

SMALL = {"vit_small": {"width": 6, "depth": 1, "heads": 1, "patch_size": 4},
         "swin_tiny": {"patch_size": 1, "window": 2, "width": 6, "depths": (1, 1), "heads": (1, 2)}}


def write_weights(name, path, num_classes=5, image_size=8):
  """Writes random weights of a small model under PyTorch's names; returns its parameters and them."""
  model, rng = models.get(name, num_classes=num_classes, **SMALL[name]), np.random.default_rng(5)
  shapes = jax.eval_shape(model.init, jax.random.key(5), jnp.zeros((1, image_size, image_size, 3)))["params"]
  params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)
  weights = torch_weights(name, {"params": params})
  save_file(weights, path)
  return params, weights


def _config(path, name="vit_small", *overrides):
  options = (f"model.name={name}", *(f"model.{key}={value}" for key, value in SMALL[name].items()),
             "loss.secondary.name=", "training.batch_size=16", "training.num_epochs=1", "optimizer.learning_rate=0.0",
             "model.image_size=8", f"model.weights={path}", *overrides)
  return digits(*options)


def rgb_splits(seed=0):
  splits = tiny_splits(seed)
  return splits._replace(**{name: getattr(splits, name)._replace(images=getattr(splits, name).images.repeat(3, axis=-1))
                            for name in ("train", "validation", "test")})


@pytest.mark.slow
def test_a_run_starts_from_the_weights_with_a_new_head_for_each_seed(tmp_path):
  params, _ = write_weights("vit_small", tmp_path / "w.safetensors")
  config = _config(tmp_path / "w.safetensors")
  run_config.check(config, 2)
  training.check_weights(config)
  stage, = program.build(config, [rgb_splits(0), rgb_splits(1)], [0, 1], jax.devices()[:2]).stages
  begun = stage.start(None, jnp.stack([jax.random.key(seed) for seed in (0, 1)])).params
  for seed in (0, 1):
    assert_same({key: jax.tree.map(lambda x, seed=seed: x[seed], x) for key, x in begun.items() if key != "head"},
                {key: x for key, x in params.items() if key != "head"})
  heads = begun["head"]["kernel"]
  assert heads.shape[-1] == 3 and np.abs(heads[0] - heads[1]).max() > 0.01  # The weights have five classes.


def test_a_head_that_fits_is_kept_and_interleaved_runs_start_from_weights_too(tmp_path):
  params, _ = write_weights("vit_small", tmp_path / "w.safetensors", num_classes=3)
  run, keys = built(_config(tmp_path / "w.safetensors", "vit_small", "schedule.name=interleaved",
                                 "loss.secondary.name=soft_avuc"), rgb_splits())
  assert_same(alone(run.stages[0].start(None, keys).params), params)


def test_a_model_resizes_its_images():
  images = jax.random.normal(jax.random.key(0), (2, 4, 4, 3))
  plain, resizing = (models.get("vit_small", num_classes=3, image_size=size, **SMALL["vit_small"]) for size in (0, 8))
  variables = jax.jit(resizing.init)(jax.random.key(1), images)
  large = jax.image.resize(images, (2, 8, 8, 3), "bilinear")
  np.testing.assert_allclose(jax.jit(resizing.apply)(variables, images), jax.jit(plain.apply)(variables, large),
                             rtol=1e-5, atol=1e-6)
  assert variables["params"]["stem_pos_embed"].shape[1] == 5


def test_swin_weights_under_the_names_of_the_hub_are_read(tmp_path):
  params, weights = write_weights("swin_tiny", tmp_path / "w.safetensors")
  assert "layers.1.downsample.reduction.weight" in weights
  hub = {key.replace("layers.1.downsample", "layers.0.downsample").replace("head.fc.", "head."): x
         for key, x in weights.items()}
  hub["layers.0.blocks.0.attn.relative_position_index"] = np.zeros((4, 4))
  assert_same(models.from_torch("swin_tiny", hub, **SMALL["swin_tiny"])["params"], params)


def test_mistakes_about_weights_are_one_sentence():
  with pytest.raises(UserError, match="there is no file absent.safetensors. Write it.*vit_small_patch16_224"):
    training.check_weights(_config("absent.safetensors"))
  with pytest.raises(UserError) as raised:
    training.check_weights(_config("it's $(touch pwned).safetensors"))
  command = shlex.split(re.search(r"Write it with (.*), or name", str(raised.value))[1])
  assert command[:2] == ["python", "-c"]
  assert ast.literal_eval(command[2].rpartition("state_dict(), ")[2][:-1]) == "it's $(touch pwned).safetensors"
  with pytest.raises(UserError, match="model.weights needs a model that timm or torchvision has.*got model.name 'mlp'"):
    training.check_weights(digits("model.weights=w.safetensors"))
  fresh = {"params": {"stem_pos_embed": np.zeros((1, 1, 2, 6))}}
  with pytest.raises(UserError, match=r"another backbone.*stem_pos_embed is \(1, 5, 6\) in the weights and "
                                      r"\(1, 2, 6\) in the model\). Set model.image_size"):
    training.pretrained.fitted({"params": {"stem_pos_embed": np.zeros((1, 1, 5, 6))}}, fresh)
  with pytest.raises(UserError, match="starts from schedule.workdir or schedule.weights: leave model.weights empty"):
    run_config.check(_config("w.safetensors", "vit_small", "schedule.name=warm_start", "schedule.workdir=x"), 1)
