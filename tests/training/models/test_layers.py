"""Convolutions, whose gradient a CPU computes in slices of the batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax.training.models import layers


def _of_kernel(x, g, kernel, stride):
  """The gradient of a kernel in float64: at each of its pixels, the shifted image times the cotangent."""
  x = np.pad(x.astype(np.float64), ((0, 0), (kernel // 2,) * 2, (kernel // 2,) * 2, (0, 0)))
  height, width = g.shape[1:3]
  return np.array([[np.einsum("nhwi,nhwo->io", x[:, a:a + stride * height:stride, b:b + stride * width:stride], g)
                    for b in range(kernel)] for a in range(kernel)])


@pytest.mark.parametrize("kernel, stride", [(3, 1), (3, 2), (1, 2)])
def test_the_gradient_of_a_kernel_is_a_sum_over_slices(kernel, stride):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, 70, 6, 6, 2)).astype(np.float32)  # 70 is no multiple of a slice; two networks at once.
  module = layers.conv(3, kernel, stride, dtype=jnp.float32, name="conv")
  params = jax.vmap(lambda key, x: module.init(key, x))(jax.random.split(jax.random.key(0)), x)
  g = rng.normal(size=jax.eval_shape(jax.vmap(module.apply), params, x).shape).astype(np.float32)
  grads = jax.jit(jax.vmap(jax.grad(lambda p, x, g: jnp.vdot(module.apply(p, x), g))))(params, x, g)
  expected = [_of_kernel(*of_one, kernel, stride) for of_one in zip(x, g, strict=True)]
  np.testing.assert_allclose(grads["params"]["kernel"], expected, rtol=1e-4, atol=1e-4)


def test_other_devices_have_no_slices():
  module = layers.conv(3, 3, dtype=jnp.float32, name="conv")
  x = jnp.ones((64, 6, 6, 2))
  traced = jax.jit(jax.grad(lambda p: jnp.sum(module.apply(p, x)**2))).trace(module.init(jax.random.key(0), x))
  slices = [traced.lower(lowering_platforms=(platform,)).as_text().count("stablehlo.slice")
            for platform in ("cpu", "tpu", "cuda")]
  assert slices == [4, 0, 0]
