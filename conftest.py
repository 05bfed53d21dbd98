"""Test settings: eight virtual CPU devices, strict promotion, cheap compilation, names that every doctest may use."""

import gc
import importlib.metadata
import itertools
import os
import pathlib

# Workers, programs that tests start, and later runs share what one of them has compiled.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(__file__).parent / ".pytest_cache" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# A worker has a core: on two busy ones scikit-learn's threads wait for each other up to a hundred times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Most of the tests' time is compilation, and these flags take two thirds of that away. CALIB_JAX_FULL_OPTIMIZATION=1
# compiles as users do. XLA refuses unknown flags, so that each stands only where a version that knows it is installed.
os.environ["XLA_FLAGS"] = " ".join([
  os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8",
  *(flag for flag, versions in {
      "--xla_backend_optimization_level=0": ("0.10.", "0.11.", "0.12."),
      "--xla_cpu_parallel_codegen_split_count=1": ("0.10.", "0.11.", "0.12."),
      "--xla_cpu_use_fusion_emitters=false": ("0.10.",)}.items()
    if not os.environ.get("CALIB_JAX_FULL_OPTIMIZATION") and importlib.metadata.version("jax").startswith(versions)),
  # Otherwise networks in bfloat16 may give NaN; see ``engine.program.classifier``.
  *(["--xla_cpu_experimental_ynn_fusion_type="] if importlib.metadata.version("jax").startswith(("0.11.", "0.12."))
    else [])])

import jax
import jax.numpy as jnp
import numpy as np
import pytest

# Traced programs are many small objects that live long, and going through all of them again and again took an eighth of
# the tests' time and more the longer a worker ran. ``_few_executables`` collects where memory runs short.
gc.set_threshold(100_000, 50, 1_000)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
os.makedirs(os.environ["JAX_COMPILATION_CACHE_DIR"], mode=0o700, exist_ok=True)  # Runs refuse one others can write.


_MAPS, _TESTS = pathlib.Path("/proc/self/maps"), itertools.count(1)


@pytest.fixture(autouse=True)
def _few_executables():
  """Lets compiled code go when memory maps run short: a process on Linux may have some 65,000, a program a few.

  To count them takes 25 ms, so it is done after every sixteenth test.
  """
  yield
  if next(_TESTS) % 16 == 0 and _MAPS.exists() and len(_MAPS.read_bytes().splitlines()) > 40_000:
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


def pytest_configure(config):
  """Stops where pytest-xdist would ignore its groups: several workers would make the same runs."""
  if config.getoption("dist", "no") == "loadgroup" and not hasattr(pytest.Item, "_nodeid"):
    raise pytest.UsageError("pytest-xdist 3.8 groups tests up to pytest 9.1: install requirements.txt.")


def pytest_collection_modifyitems(items):
  """Starts the tests with processes of their own first, because at the end they would keep one worker alone."""
  items.sort(key=lambda item: "test_resuming" not in item.nodeid)
