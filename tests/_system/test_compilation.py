"""Compiled programs are kept where only the user writes, or refused with the reason."""

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


@pytest.mark.parametrize(("mode", "reason"), [(0o777, "everyone"), (0o702, "everyone"), (0o1777, "everyone"),
                                              (0o770, "group")])
def test_a_directory_that_others_can_write_is_refused(mode, reason, asked, tmp_path, monkeypatch):
  monkeypatch.setattr(compilation, "_is_own_group", lambda number: False)
  asked(tmp_path)
  tmp_path.chmod(mode)
  with pytest.raises(UserError, match=rf"code that is run, and their directory {tmp_path} can be written by {reason}.*"
                     r"\(chmod go-w\), or set JAX_COMPILATION_CACHE_DIR to another directory\.$"):
    compilation.keep()
  tmp_path.chmod(0o755)
  assert compilation.keep() is None


def test_a_directory_below_one_that_others_can_write_is_refused(asked, tmp_path, monkeypatch):
  monkeypatch.setattr(compilation, "_is_own_group", lambda number: False)
  open_ = tmp_path / "open"
  folder = open_ / "mine"
  folder.mkdir(parents=True, mode=0o700)
  (tmp_path / "link").symlink_to(folder)
  open_.chmod(0o777)
  for path in (folder, tmp_path / "link"):
    asked(path)
    with pytest.raises(UserError, match=f"directory {path} lies in {open_}, which can be written by everyone"):
      compilation.keep()
  open_.chmod(0o1777)  # Only the owner can rename what is in it.
  assert compilation.keep() is None
  # Who can write beside a link can replace it, although its target is private.
  open_.chmod(0o777)
  (open_ / "link").symlink_to(tmp_path)
  tmp_path.chmod(0o700)
  asked(open_ / "link")
  with pytest.raises(UserError, match=f"lies in {open_}, which can be written"):
    compilation.keep()


@pytest.mark.parametrize("which", ["parent", "entry"])
def test_what_belongs_to_another_user_is_refused(which, asked, tmp_path, monkeypatch):
  folder = tmp_path / "programs"
  folder.mkdir(mode=0o700)
  (folder / "jit_f-cache").write_text("")
  other = os.stat(tmp_path if which == "parent" else folder / "jit_f-cache").st_ino
  of_another = compilation._of_another
  monkeypatch.setattr(compilation, "_of_another", lambda status: of_another(
    status if status.st_ino != other else _stat(status.st_mode, os.getuid() + 1, 0)))
  asked(folder)
  place = f"lies in {tmp_path}" if which == "parent" else "holds jit_f-cache"
  with pytest.raises(UserError, match=f"{place}, which belongs to user {os.getuid() + 1}, not to you"):
    compilation.keep()
  # The user's own cache directory is not used then, and the run goes on.
  asked(None)
  monkeypatch.setattr(compilation, "default_folder", lambda: folder)
  sentence = f"compiled programs are not kept for the next run, because their directory {folder} {place}"
  assert sentence in compilation.keep()
  assert jax.config.jax_compilation_cache_dir is None


def test_files_that_others_cannot_reach_may_have_any_mode_and_links_are_refused(asked, tmp_path):
  folder = tmp_path / "programs"
  folder.mkdir(mode=0o700)
  (folder / "jit_f-cache").write_text("")
  (folder / "jit_f-cache").chmod(0o666)  # As JAX writes it if the user's umask is 0.
  asked(folder)
  assert compilation.keep() is None
  folder.chmod(0o755)
  with pytest.raises(UserError, match="holds jit_f-cache, which can be written by everyone"):
    compilation.keep()
  (folder / "jit_f-cache").chmod(0o644)
  (folder / "link").symlink_to("jit_f-cache")
  with pytest.raises(UserError, match="holds link, which is a symbolic link: delete it"):
    compilation.keep()


def _stat(mode, owner, group):
  return os.stat_result((mode, 0, 0, 1, owner, group, 0, 0, 0, 0))


@pytest.mark.parametrize(("owner", "mode", "expected"), [
  (1000, 0o40700, None), (0, 0o40755, None), (1001, 0o40755, "belongs to user 1001, not to you"),
  (1000, 0o40770, None), (1001, 0o40700, "belongs to user 1001")])
def test_who_may_own_it(owner, mode, expected, monkeypatch):
  monkeypatch.setattr(compilation.os, "getuid", lambda: 1000)
  monkeypatch.setattr(compilation, "_is_own_group", lambda number: number == 1000)
  status = compilation.objection(_stat(mode, owner, 1000))
  assert status is None if expected is None else status.startswith(expected)
  assert "group 50" in compilation.objection(_stat(0o40770, 1000, 50))


@pytest.mark.parametrize(("name", "members", "own"), [("me", [], True), ("me", ["me"], True), ("users", [], False),
                                                      ("me", ["me", "you"], False)])
def test_a_users_own_group_is_that_of_the_same_name_without_others(name, members, own, monkeypatch):
  import grp
  import pwd

  monkeypatch.setattr(compilation.pwd, "getpwuid", lambda _: pwd.struct_passwd(("me", "", 1000, 1000, "", "", "")))
  monkeypatch.setattr(compilation.grp, "getgrgid", lambda number: grp.struct_group((name, "", number, members)))
  assert compilation._is_own_group(1000) is own


def test_what_cannot_be_made_is_said_and_stops_nothing(asked, tmp_path, monkeypatch):
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
