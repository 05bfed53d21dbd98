"""Lines of code are counted without blank lines, comments and docstrings, in the files as they are or at a revision."""

import subprocess

import pytest

from experiments import lines_of_code

MODULE = '''"""Two lines
of a docstring."""
# A comment.
import math  # 1


class Angle:  # 2
  """A docstring."""

  degrees: float = 0.0  # 3

  def sine(self):  # 4
    """One more.

    >>> Angle().sine()
    """
    return math.sin(  # 5
      # Why.
      self.degrees)  # 6


TEXT = """7
# 8

10"""
'''


def test_statements_count_and_comments_and_docstrings_do_not():
  assert lines_of_code.count(MODULE) == 10
  assert lines_of_code.count("") == lines_of_code.count("# Nothing.\n") == 0


def test_directories_hold_those_in_them_now_and_at_a_revision(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(lines_of_code, "ROOT", tmp_path)
  for name in ("calib_jax/a.py", "calib_jax/metrics/b.py", "calib_jax/metrics/deep/c.py", "configs/d.py",
               "experiments/e.py", "tests/f.py"):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x = 1\n")
  expected = ["3  calib_jax", "2  calib_jax/metrics", "1  configs", "1  experiments", "1  tests"]

  def printed(*arguments):
    assert lines_of_code.main(arguments) == 0
    return [line.strip() for line in capsys.readouterr().out.splitlines()]

  assert printed() == expected
  git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
  for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "all")):
    subprocess.run([*git, *command], cwd=tmp_path, check=True)
  (tmp_path / "configs/d.py").write_text("x = 1\ny = 2\n")
  assert printed("--at=HEAD") == expected and printed()[2] == "2  configs"
  with pytest.raises(SystemExit, match=r"git cannot read the revision 'absent'\."):
    lines_of_code.main(["--at=absent"])
