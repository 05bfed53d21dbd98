"""A plugin of pytest with which float32 quotients are rounded on a CPU as XLA has GPUs of NVIDIA round them.

``pytest -p tests.gpu_division``. XLA compiles them to PTX's ``div.full.f32``, which multiplies by a reciprocal: a
quarter of all quotients are a unit in the last place off, and one in six numbers divided by itself is below 1
(openxla/xla#37181).
"""



def pytest_sessionstart():
  """Replaces the quotient; before conftest.py is read, JAX must not be imported, because it sets JAX's variables."""
  import jax
  from jax.extend.core import Primitive, primitives
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
    inverse = jax.lax.optimization_barrier(exact.bind(jnp.ones_like(y), y))
    return jnp.where((jnp.abs(y) > 2.0**-100) & (jnp.abs(y) < 2.0**100), x * inverse, exact.bind(x, y))

  mlir.register_lowering(exact, lambda context, x, y: [stablehlo.divide(x, y)])
  mlir.register_lowering(primitives.div_p, mlir.lower_fun(quotient, multiple_results=False))
