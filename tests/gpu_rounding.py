"""A plugin of pytest with which a CPU rounds float32 as XLA has GPUs of NVIDIA round: ``-p tests.gpu_rounding``.

Quotients: XLA compiles them to PTX's ``div.full.f32``, which multiplies by a reciprocal; a quarter of all are a unit in
the last place off, and one in six numbers divided by itself is below 1 (openxla/xla#37181). Products of matrices: what
does not ask for a higher precision has its factors rounded to the 10 bits of tf32.
"""


def pytest_sessionstart():
  """Replaces both; before conftest.py is read, JAX must not be imported, because it sets JAX's variables."""
  import jax
  from jax import lax
  from jax.extend.core import Primitive, primitives
  from jax.extend.mlir import ir
  from jax.extend.mlir.dialects import stablehlo
  from jax.interpreters import mlir
  import jax.numpy as jnp

  if jax.default_backend() != "cpu":
    return
  exact = Primitive("exact_quotient")
  exact.def_abstract_eval(lambda x, y: x)

  def quotient(x, y):
    x, y = jnp.broadcast_arrays(x, y)
    if x.dtype != jnp.float32:
      return exact.bind(x, y)
    inverse = lax.optimization_barrier(exact.bind(jnp.ones_like(y), y))
    return jnp.where((jnp.abs(y) > 2.0**-100) & (jnp.abs(y) < 2.0**100), x * inverse, exact.bind(x, y))

  def rounded(x):
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    even = bits + jnp.uint32(0x0FFF) + (bits >> jnp.uint32(13) & jnp.uint32(1))
    return lax.bitcast_convert_type(lax.optimization_barrier(even & jnp.uint32(0xFFFFE000)), jnp.float32)

  def product(context, *factors, dimension_numbers, precision, **_):
    high = {lax.Precision.HIGH, lax.Precision.HIGHEST}
    if not high & set(precision or ()) and all(x.dtype == jnp.float32 for x in context.avals_in):
      lowered = mlir.lower_fun(rounded, multiple_results=False)
      factors = [lowered(context.replace(avals_in=[aval], avals_out=[aval]), x)[0]
                 for aval, x in zip(context.avals_in, factors, strict=True)]
    (a, b), (batch_a, batch_b) = dimension_numbers
    numbers = stablehlo.DotDimensionNumbers.get(batch_a, batch_b, a, b)
    out, = context.avals_out
    kind = ir.RankedTensorType.get(out.shape, mlir.dtype_to_ir_type(out.dtype))
    return [stablehlo.dot_general(kind, *factors, numbers)]

  mlir.register_lowering(exact, lambda context, x, y: [stablehlo.divide(x, y)])
  mlir.register_lowering(primitives.div_p, mlir.lower_fun(quotient, multiple_results=False))
  mlir.register_lowering(primitives.dot_general_p, product, platform="cpu")
  # A version of JAX with other lowerings would test nothing.
  x = jnp.full((1, 1), 3163.328613, jnp.float32)
  assert jax.jit(lambda x: x / x)(x) < 1 and jax.jit(jnp.dot)(x, x) != jax.jit(lambda x: x * x)(x)
