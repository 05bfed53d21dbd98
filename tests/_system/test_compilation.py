"""Compiled programs are kept in a directory of the user alone, and those that run once give what others give."""

import os

import jax
import numpy as np
import pytest

from calib_jax._system import compilation


@pytest.fixture
def asked():
  """Sets the directory that is asked for, as JAX_COMPILATION_CACHE_DIR does, and restores it after the test."""
  before = jax.config.jax_compilation_cache_dir
  yield lambda path: jax.config.update("jax_compilation_cache_dir", path and str(path))
  jax.config.update("jax_compilation_cache_dir", before)


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
