"""Operations of programs: counted where the device does not, and in agreement with the networks' own formulas."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models
from calib_jax._system.errors import UserError
from experiments.common import counting

IMAGE = (32, 32, 3)


def multiply_adds(name, is_padding_counted):
  """Returns the multiply-adds of the convolutions and dense layers of a network by their shapes."""
  layers, total, model = [], 0, models.get(name, num_classes=10)

  def recorded(call, arguments, options, context):
    out, module = call(*arguments, **options), context.module
    if isinstance(module, nn.Conv | nn.Dense):
      layers.append((module, arguments[0].shape, module.variables["params"]["kernel"].shape, out.shape))
    return out

  with nn.intercept_methods(recorded):
    jax.eval_shape(lambda key: model.init(key, jnp.zeros((1, *IMAGE)), train=False), jax.random.key(0))
  for module, before, kernel, after in layers:
    products = np.prod(after[1:-1]) * np.prod(kernel[:-2])
    if isinstance(module, nn.Conv) and not is_padding_counted:  # A convolution of ones counts what is no padding.
      ones = nn.Conv(1, module.kernel_size, module.strides, module.padding, use_bias=False)
      weights = {"params": {"kernel": jnp.ones((*kernel[:2], 1, 1))}}
      products = float(jnp.sum(ones.apply(weights, jnp.ones((1, *before[1:-1], 1)))))
    total += products * kernel[-2] * kernel[-1]
  return total


def test_counted_operations_are_those_of_the_layers():
  name, printed = "preresnet56", 1.26e8
  counted = counting.step_operations({"name": name}, IMAGE, 10, 128)
  assert multiply_adds(name, is_padding_counted=True) == pytest.approx(printed, rel=0.01)
  # A step is three forward passes, and a multiply-add two operations; what is no convolution or product is a few %.
  assert 1 < counted / (3 * 2 * 128 * multiply_adds(name, is_padding_counted=False)) < 1.05
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
