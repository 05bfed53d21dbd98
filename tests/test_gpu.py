"""The tests of ``make test-gpu`` pass in one process where float32 is rounded as on a GPU."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.slow
def test_the_tests_for_gpus_pass_with_the_rounding_of_gpus():
  makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
  files = re.search(r"^GPU_TESTS := ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)[1].replace("\\\n", " ").split()
  assert len(files) == 8 and "-p tests.gpu_rounding -n 0" in makefile
  command = [sys.executable, "-m", "pytest", "-p", "tests.gpu_rounding", "-n", "0", "-m", "not slow", *files]
  subprocess.run(command, cwd=ROOT, check=True)
