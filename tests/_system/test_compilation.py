"""Compiled programs are code that is run: they are kept in a directory that nobody else can write."""

import os

import jax
import numpy as np
import pytest

from calib_jax._system import compilation
from calib_jax._system.errors import UserError
from tests.programs import python


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


@pytest.mark.parametrize(("xdg", "expected"), [("/x/y", "/x/y/calib_jax"), ("relative", "/home/me/.cache/calib_jax"),
                                               ("", "/home/me/.cache/calib_jax")])
def test_the_default_is_the_platforms_cache_directory(xdg, expected, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", xdg)
  monkeypatch.setenv("HOME", "/home/me")
  assert str(compilation.default_folder()) == expected


@pytest.mark.parametrize(("mode", "other", "reason"), [(0o777, False, "can be written by everyone"),
                                                       (0o700, True, "belongs to user 12345, not to you")])
def test_a_directory_of_others_is_refused(mode, other, reason, asked, tmp_path, monkeypatch):
  if other:
    monkeypatch.setattr(compilation.os, "getuid", lambda: 1)
    os.chown(tmp_path, 12345, -1) if os.geteuid() == 0 else pytest.skip("only root can give a directory away")
  tmp_path.chmod(mode)
  asked(tmp_path)
  with pytest.raises(UserError, match=rf"code that is run, and their directory {tmp_path} {reason}.*, or set JAX_COMP"):
    compilation.keep()
  # The user's own cache directory is not used then, and the run goes on.
  asked(None)
  monkeypatch.setattr(compilation, "default_folder", lambda: tmp_path)
  assert f"are not kept for the next run, because their directory {tmp_path} {reason}" in compilation.keep()
  assert jax.config.jax_compilation_cache_dir is None


def test_a_directory_that_cannot_be_made_stops_nothing(asked, tmp_path, monkeypatch):
  (tmp_path / "file").write_text("")
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
  asked(None)
  assert "compiled programs are not kept for the next run" in compilation.keep()
  assert jax.config.jax_compilation_cache_dir is None


def test_a_bucket_is_left_to_its_own_permissions(asked):
  asked("gs://bucket/programs")
  assert compilation.keep() is None and jax.config.jax_compilation_cache_dir == "gs://bucket/programs"


@pytest.mark.parametrize("address", ["file:///x", "https://x/y", "/a://b"])
def test_an_address_that_the_cache_does_not_know_is_one_sentence(address, asked):
  asked(address)
  with pytest.raises(UserError, match=f"must be the path of a directory, or begin with one of gs://.*got '{address}'"):
    compilation.keep()


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


@pytest.mark.parametrize("command", [
  ("main.py", "--config=configs/digits_savuc.py", "--workdir=unused"),
  ("-m", "calib_jax.evaluation", "--test", "unused.npz")], ids=["train", "evaluate"])
def test_the_commands_say_it_before_jax_compiles_anything(command, tmp_path):
  done = python(*command, tmp_path=tmp_path, JAX_COMPILATION_CACHE_DIR="file:///x")
  assert done.returncode == 2, done.stderr
  assert done.stderr.startswith("error: JAX_COMPILATION_CACHE_DIR must be the path"), done.stderr
