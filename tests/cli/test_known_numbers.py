"""The numbers that commands as users type them must give (``tests.as_users``), with the flags of the tests."""

import json

import pytest

from calib_jax.cli import evaluate
from calib_jax.training import run
from calib_jax.training.config import load
from tests import known_numbers
from tests.programs import ROOT

pytestmark = pytest.mark.usefixtures("no_figures")


def test_files_have_the_numbers_of_float64(tmp_path, capsys):
  known_numbers.write_files(tmp_path)
  right = known_numbers.numbers()
  for kind, ending in (("classes", "npz"), ("classes", "csv"), ("records", "jsonl")):
    assert evaluate.main(["--test", str(tmp_path / f"test.{ending}"), "--json=-", "--num_resamples=2"]) == 0
    row = json.loads(capsys.readouterr().out)["results"]["test"]["test"]["none"]
    for name, number in right[kind].items():
      assert row[name]["value"] == pytest.approx(number, abs=1e-5), (ending, name)


def test_the_run_has_its_numbers(tmp_path):
  run.execute(load(str(ROOT / "configs/digits_savuc.py"), list(known_numbers.RUN[1:])), tmp_path / "run")
  row = json.loads((tmp_path / "run/results.json").read_text())["results"]["test"]["focal + soft_avuc"]["none"]
  for name, number in known_numbers.RUN_NUMBERS.items():
    assert row[name]["value"] == pytest.approx(number, abs=known_numbers.RUN_TOLERANCE), name
