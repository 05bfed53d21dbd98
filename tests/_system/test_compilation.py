"""Compiled programs are kept in a directory of the user alone, and those that run once give what others give."""

import os

import jax
import numpy as np
import pytest

from calib_jax._system import compilation


@pytest.fixture
def asked():
  """Sets the directory that is asked for, as JAX_COMPILATION_CACHE_DIR does, and restores it after the test."""
  names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
  before = [getattr(jax.config, name) for name in names]
  yield lambda path: jax.config.update("jax_compilation_cache_dir", path and str(path))
  for name, value in zip(names, before, strict=True):
    jax.config.update(name, value)


@pytest.mark.parametrize("given", [True, False])
def test_a_new_directory_is_the_users_alone(given, asked, tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
  folder = tmp_path / "mine" / "programs" if given else tmp_path / "xdg" / "calib_jax"
  asked(folder if given else None)
  old = os.umask(0)  # The widest permissions that a user can have asked for.
  try:
    assert compilation.keep() is None
  finally:
    os.umask(old)
  assert folder.stat().st_mode & 0o777 == 0o700
  assert jax.config.jax_compilation_cache_dir == str(folder)
  assert compilation.keep() is None  # And again in the same process.


@pytest.mark.parametrize(("seconds", "kept"), [(None, compilation.LEAST_SECONDS), ("0.75", 0.75)])
def test_programs_of_few_seconds_are_kept_too_unless_the_user_says_what_is(seconds, kept, asked, tmp_path, monkeypatch):
  variable = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
  jax.config.update(variable.lower(), 0.75)  # As JAX does when it is imported.
  monkeypatch.delenv(variable) if seconds is None else monkeypatch.setenv(variable, seconds)
  asked(tmp_path / "programs")
  assert compilation.keep() is None
  assert jax.config.jax_persistent_cache_min_compile_time_secs == kept


@pytest.mark.parametrize("xdg", ["relative", ""])
def test_the_default_is_the_cache_directory_in_ones_home(xdg, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", xdg)
  monkeypatch.setenv("HOME", "/home/me")
  assert str(compilation.default_folder()) == "/home/me/.cache/calib_jax"


def test_a_directory_that_cannot_be_made_stops_nothing(asked, tmp_path, monkeypatch):
  (tmp_path / "file").write_text("")
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
  asked(None)
  assert "compiled programs are not kept for the next run" in compilation.keep()
  assert jax.config.jax_compilation_cache_dir is None


def test_a_bucket_is_left_to_its_own_permissions(asked):
  asked("gs://bucket/programs")
  assert compilation.keep() is None and jax.config.jax_compilation_cache_dir == "gs://bucket/programs"


def test_a_program_that_runs_once_gives_what_jit_gives_and_takes_its_options():
  traced = []

  def power(x, exponent):
    """The power of x."""
    traced.append(exponent)
    return x**exponent

  function = compilation.once(power, static_argnums=1)
  assert [float(function(3.0, 2)), float(function(4.0, 2)), float(function(2.0, 3))] == [9, 16, 8]
  assert traced == [2, 3] and function.__doc__ == "The power of x."


def test_a_program_that_runs_once_may_hold_others():
  def inner(x):
    return x**2

  def outer(x):
    return compilation.sized(inner, 3)(x) + 1

  with compilation.running_once():
    np.testing.assert_array_equal(compilation.sized(outer, 3)(np.arange(3.0)), [1, 2, 5])
    np.testing.assert_array_equal(compilation.once(outer)(np.arange(3.0)), [1, 2, 5])


def test_fewer_passes_draw_the_same_bits():
  users = {"xla_backend_optimization_level": 3}
  if jax.__version__.startswith("0.10."):
    users |= {"xla_cpu_use_fusion_emitters": True}  # Later versions know of no other way.
  options = [users, users | compilation.fewer_passes()]
  assert jax.default_backend() != "cpu" or options[0] != options[1]

  def drawn(keys):
    return [jax.vmap(draw)(keys) for draw in (
      lambda key: 0.3 * jax.random.normal(key, (3, 3, 7, 16)), lambda key: jax.random.uniform(key, (129,), minval=-1.0),
      lambda key: 0.02 * jax.random.truncated_normal(key, -2, 2, (48, 36)))]

  keys = jax.random.split(jax.random.key(0), 2)
  for full, few in zip(*(jax.jit(drawn, compiler_options=one)(keys) for one in options), strict=True):
    np.testing.assert_array_equal(full, few)


def test_a_fit_of_few_numbers_is_compiled_fast_and_each_size_in_one_way(monkeypatch):
  monkeypatch.setattr(compilation, "_jitted", lambda function, how: how)
  sizes = (1, compilation.SMALL, compilation.SMALL + 1, compilation.FEW, compilation.FEW + 1)
  ways = ["fast", "fast", "few passes", "few passes", "users"]
  assert [compilation.for_fits(abs, size) for _ in range(20) for size in sizes] == 20 * ways
  with compilation.running_once():
    assert [compilation.for_fits(abs, size) for size in sizes] == ["fast"] * 4 + ["few passes"]
