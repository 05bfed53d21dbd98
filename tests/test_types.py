"""What editors and type checkers see of the importable half."""

import json
import shutil
import subprocess
import sys
import types

import pytest

from calib_jax import calibrators, losses, metrics
from tests import loss_stubs
from tests.programs import ROOT

PYRIGHT = shutil.which("pyright")  # It fetches a program for Node at its first run, and is not among the requirements.


@pytest.mark.slow
@pytest.mark.skipif(PYRIGHT is None, reason="needs pyright on the path")
def test_a_type_checker_reports_wrong_calls_and_no_others():
  calls = ROOT / "tests" / "typed_calls.py"
  done = subprocess.run([PYRIGHT, "--outputjson", "--pythonpath", sys.executable, str(calls)], cwd=ROOT, check=False,
                        capture_output=True, text=True)
  reported = {1 + error["range"]["start"]["line"] for error in json.loads(done.stdout)["generalDiagnostics"]}
  lines = calls.read_text(encoding="utf-8").splitlines()
  assert reported == {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def test_the_stub_of_the_losses_is_what_their_signatures_say():
  assert loss_stubs.PATH.read_text(encoding="utf-8") == loss_stubs.stub(), "run python -m tests.loss_stubs"


@pytest.mark.parametrize("module", [losses, metrics, calibrators])
def test_a_module_lists_what_is_public_and_no_files(module):
  assert dir(module) == sorted(module.__all__)
  assert not any(isinstance(getattr(module, name), types.ModuleType) for name in dir(module))
