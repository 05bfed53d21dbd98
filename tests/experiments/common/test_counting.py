"""Operations of programs: counted where the device does not, and in agreement with the networks' own formulas."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax._system.errors import UserError
from calib_jax.training import models
from experiments.common import counting

IMAGE = (32, 32, 3)


def _multiply_adds(name):
  """The multiply-adds of the convolutions and dense layers of a network by their shapes, with padding and without."""
  layers, model = [], models.get(name, num_classes=10)

  def recorded(call, arguments, options, context):
    out, module = call(*arguments, **options), context.module
    if isinstance(module, nn.Conv | nn.Dense):
      layers.append((arguments[0].shape, module.variables["params"]["kernel"].shape, out.shape))
    return out

  with nn.intercept_methods(recorded):
    jax.eval_shape(lambda key: model.init(key, jnp.zeros((1, *IMAGE)), train=False), jax.random.key(0))
  return np.sum([(np.prod(after[1:-1]) * np.prod(kernel), np.prod(kernel[-2:]) * np.prod([
    _inside(*sizes) for sizes in zip(before[1:-1], after[1:-1], kernel[:-2], strict=True)]))
                 for before, kernel, after in layers], axis=0)


def _inside(size, places, width):
  """How many places of a kernel lie inside the image as it moves along one side, which "SAME" pads."""
  step = -(-size // places)
  first = np.arange(places) * step - max((places - 1) * step + width - size, 0) // 2
  at = first[:, None] + np.arange(width)
  return np.sum((at >= 0) & (at < size))


def test_counted_operations_are_those_of_the_layers():
  name, printed = "preresnet56", 1.26e8
  counted, (padded, inside) = counting.step_operations({"name": name}, IMAGE, 10, 128), _multiply_adds(name)
  assert padded == pytest.approx(printed, rel=0.01)
  # A step is three forward passes, and a multiply-add two operations; what is no convolution or product is a few %.
  assert 1 < counted / (3 * 2 * 128 * inside) < 1.05
  assert counting.step_operations({"name": name, "dtype": "bfloat16"}, IMAGE, 10, 256) == 2 * counted


def test_a_backward_pass_takes_twice_a_forward_pass():
  model = models.get("resnet8", num_classes=10)
  image = jax.ShapeDtypeStruct((1, *IMAGE), jnp.float32)
  variables = jax.eval_shape(lambda key, x: model.init(key, x, train=False), jax.random.key(0), image)

  def gradient(params, rest, x):
    return jax.grad(lambda params: jnp.sum(model.apply({"params": params, **rest}, x, train=False)))(params)

  rest = {key: value for key, value in variables.items() if key != "params"}
  step = counting.operations(gradient, variables["params"], rest, image)
  assert step == pytest.approx(counting.step_operations({"name": "resnet8"}, IMAGE, 10, 1), rel=0.15)


def test_operations_are_counted_where_the_device_does_not(monkeypatch):
  def product(a, b):
    return a @ b

  shapes = jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((16, 4), jnp.float32)
  assert counting.operations(product, *shapes) == 2 * 8 * 16 * 4
  monkeypatch.setattr(jax.stages.Lowered, "cost_analysis", lambda self: None)  # As on Nvidia's devices and TPUs.
  assert counting.operations(product, *shapes) == pytest.approx(2 * 8 * 16 * 4, rel=0.1)
  with monkeypatch.context() as patch:
    patch.setattr(jax, "local_devices", lambda **_: (_ for _ in ()).throw(RuntimeError("Unknown backend cpu")))
    assert counting.operations(product, *shapes) == pytest.approx(2 * 8 * 16 * 4, rel=0.1)
  monkeypatch.setattr(jax.stages.Compiled, "cost_analysis", lambda self: {"bytes accessed": 3.0})
  with pytest.raises(UserError, match="unset JAX_PLATFORMS"):
    counting.operations(product, *shapes)
