"""The benchmark of the evaluation counts the processor time of a process, and stops where it fails."""

import subprocess
import sys

import pytest

from experiments.benchmarks import evaluation


def test_the_processor_time_of_a_process_is_counted_and_its_failure_is_raised():
  busy = "import time\nwhile time.process_time() < 0.3: pass"
  assert evaluation.processor_seconds([sys.executable, "-c", busy]) >= 0.3
  assert evaluation.processor_seconds([sys.executable, "-c", "import time; time.sleep(0.5)"]) < 0.3
  with pytest.raises(subprocess.CalledProcessError):
    evaluation.processor_seconds([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_commands_read_what_is_written_for_them(tmp_path):
  rows = evaluation.rows(tmp_path, sys.executable)
  files = {argument for command in rows.values() for argument in command if argument.endswith(".npz")}
  assert len(files) == 4 and files == {str(path) for path in tmp_path.glob("*.npz")}
