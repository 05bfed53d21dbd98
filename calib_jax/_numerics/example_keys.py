"""Random keys of the examples of a batch that is spread over devices."""

import jax
from jax import Array
import jax.numpy as jnp


def places(number: int, axis_name: str | None) -> Array:
  """Returns the positions of a device's ``number`` examples in the global batch over the mapped axis, if any."""
  return jnp.arange(number) + (0 if axis_name is None else jax.lax.axis_index(axis_name) * number)


def example_keys(key: Array, number: int, axis_name: str | None) -> Array:
  """Returns one key an example, which depends on its position in the global batch and not on the number of devices."""
  return jax.vmap(jax.random.fold_in, (None, 0))(key, places(number, axis_name))
