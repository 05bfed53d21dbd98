"""What editors and type checkers see of the importable half."""

import json
import pathlib
import subprocess
import sys
import types

import pytest

from calib_jax import calibrators, losses, metrics
from tests import new_check
from tests.programs import ROOT

PYREFLY = pathlib.Path(sys.executable).parent / "pyrefly"


def _reported(*options):
  """The lines that the type checker reports, by file."""
  done = subprocess.run([PYREFLY, "check", *options, "--output-format", "json", "--python-interpreter-path",
                         sys.executable], cwd=ROOT, check=False, capture_output=True, text=True)
  lines = {}
  for error in json.loads(done.stdout)["errors"]:
    lines.setdefault(pathlib.Path(error["path"]).as_posix(), set()).add(error["line"])
  return lines


def test_a_type_checker_reports_wrong_calls_and_no_others():
  (reported,) = _reported("tests/typed_calls.py", "--preset", "default").values()
  lines = (ROOT / "tests/typed_calls.py").read_text(encoding="utf-8").splitlines()
  assert reported == {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def test_no_part_lacks_what_a_new_one_needs():
  assert not new_check.missing(), "run make new-check"
  assert new_check.PATH.read_text(encoding="utf-8") == new_check.stub(), "run make new-check"


@pytest.mark.parametrize("module", [losses, metrics, calibrators])
def test_a_module_lists_what_is_public_and_no_files(module):
  assert dir(module) == sorted(module.__all__)
  assert not any(isinstance(getattr(module, name), types.ModuleType) for name in dir(module))
