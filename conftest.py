"""Test settings: eight virtual CPU devices, strict promotion, and names that every doctest may use."""

import gc
import itertools
import os
import pathlib

# Compiled once for all workers, programs that tests start, and the next time: compiling is most of what tests do.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(__file__).parent / ".pytest_cache" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


_finished = itertools.count(1)


@pytest.fixture(autouse=True)
def _few_executables():
  """Compiled code is let go now and then: a process may not map memory more than some 65,000 times on Linux."""
  yield
  if next(_finished) % 100 == 0:
    jax.clear_caches()
    gc.collect()


@pytest.fixture(autouse=True)
def _own_numbers(request):
  """A module's `RNG` starts anew in each test: workers share tests out in an order that is not fixed."""
  if hasattr(getattr(request, "module", None), "RNG"):
    request.module.RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
  doctest_namespace.update(jax=jax, jnp=jnp, np=np)
