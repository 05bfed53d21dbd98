"""Those tests of ``make test-gpu`` that compare quotients pass in one process that rounds float32 as a GPU does."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.slow
def test_metrics_and_losses_have_their_digits_with_the_rounding_of_gpus():
  makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
  files = re.search(r"^GPU_TESTS := ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)[1].replace("\\\n", " ").split()
  assert len(files) == 8 and "-p tests.gpu_rounding -n 0" in makefile
  files = [file for file in files if file in ("tests/metrics/test_binned.py", "tests/losses/test_per_batch.py")]
  command = [sys.executable, "-m", "pytest", "-p", "tests.gpu_rounding", "-n", "0", "-m", "not slow", *files]
  subprocess.run(command, cwd=ROOT, check=True)
