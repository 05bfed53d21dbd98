"""Some of the attacks of ``tests.adversary`` on every kind of file and config, and files that stand in another's place.

The whole of them, with killed runs and in processes that note what is executed: python -m tests.adversary --minutes=10.
"""

import pytest

from tests.adversary import judge, mutations
from tests.adversary.pool import KINDS

FEW = {"weights.safetensors": 8, "checkpoint": 12, "overrides": 40, "runs to compare": 5,
       "names in formats": 10, "names of files": 5, "predictions.parquet": 15, "manifest.json": 20,
       "metrics.jsonl": 20, "lock": 20}


@pytest.fixture(scope="module")
def _unchanged():
  """Undoes what kinds change in the modules that they attack."""
  from calib_jax.cli import inputs
  from calib_jax.run import directory, outputs
  from calib_jax.training.run_log import metric_log

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(mutations, "FLOOD", 2**20)
    for module, name in ((outputs, "missing_for_figures"), (directory, "environment"), (inputs, "fit"),
                         (metric_log, "EVENTS")):
      patch.setattr(module, name, getattr(module, name))
    yield


@pytest.mark.usefixtures("_unchanged")
@pytest.mark.parametrize("name", KINDS)
def test_what_is_mutated_is_read_as_it_is_or_refused_in_a_sentence(name, tmp_path):
  (tmp_path / "sound").mkdir()
  sound = KINDS[name].prepare(tmp_path / "sound")
  outcomes = [judge.judged(name, KINDS[name], sound, number, 1, tmp_path / "case")
              for number in range(FEW.get(name, 50))]
  assert not [outcome for outcome in outcomes if outcome.fault]
  assert any(outcome.accepted for outcome in outcomes)


@pytest.mark.parametrize(("text", "message"), [
  ("x" * 4000, "a message of 4000 characters"), ("two\nlines", "not one printable"), ("\x1b[2J", "not one printable"),
  ("see allow_pickle", "allow_pickle"), ("one sentence.", "")])
def test_the_judge_finds_messages_that_are_no_sentence(text, message):
  found = judge.message_fault(text)
  assert message in found and bool(found) == bool(message)


@pytest.mark.parametrize(("read", "fault"), [
  (lambda case: 1 / 0, "traceback"), (lambda case: bytearray(600 * 2**20) and None, "too large"),
  (lambda case: "other", "silent"), (lambda case: "same", "")])
def test_the_judge_finds_what_gives_way(read, fault, tmp_path):
  kind = judge.Kind(lambda folder: None, lambda draw, sound, folder: folder, read,
                    lambda sound, case, value, said: "" if value == "same" else "it is another")
  assert judge.judged("x", kind, None, 0, 0, tmp_path / "case").fault == fault
