"""Compiled programs are dropped before their memory mappings run out."""

import pathlib

import jax
import jax.numpy as jnp
import pytest

from calib_jax import capacity


@pytest.mark.skipif(not pathlib.Path("/proc/self/maps").exists(), reason="this system does not list mappings")
def test_programs_are_forgotten_only_where_their_mappings_are_many():
  double = jax.jit(lambda x: 2 * x)
  double(jnp.ones(3))
  capacity.forget_programs()
  assert double._cache_size() == 1
  capacity.forget_programs(share=0.0)
  assert double._cache_size() == 0
  assert double(jnp.ones(3)).tolist() == [2, 2, 2]
