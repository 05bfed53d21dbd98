"""The monitor: its evidence is fair, however it is divided and stored, and drifts are seen."""

import itertools
import json

import numpy as np
import pytest

from calib_jax import thresholds
from calib_jax.cli import watch
from calib_jax.thresholds import monitoring


@pytest.mark.parametrize("risk", [0.05, 0.3, None])
def test_the_expected_evidence_is_one_where_the_promise_just_holds(risk):
  """Over all 2^8 outcomes, exactly; and each fortune stays above 0."""
  confidence = np.full(8, risk) if risk else np.array([0.1, 0.5, 0.9, 0.99, 0.3, 0.7, 0.6, 0.2])
  total = 0.0
  for outcomes in itertools.product([False, True], repeat=8):
    chance = np.prod(np.where(outcomes, confidence, 1 - confidence))
    state = thresholds.update_monitor(thresholds.monitor(risk=risk), np.array(outcomes), None if risk else confidence)
    assert min(state.sums) > 0
    total += chance * state.evidence
  assert total == pytest.approx(1, rel=1e-12)


def test_each_bet_is_that_of_the_authors_code():
  """Of confseq 0.0.11: `betting_mart` with one λ, begun anew at each of 400 outcomes, weighted by 1 / (t (t + 1))."""
  outcomes = np.random.default_rng(0).uniform(size=400) < 0.075
  sums = thresholds.update_monitor(thresholds.monitor(risk=0.05), outcomes).sums
  theirs = {0: 5.00015757919472, 3: 12.63100639390708, 5: 0.1587197259424651, 11: 6.930987911498005e-07}
  np.testing.assert_allclose([sums[i] for i in theirs], list(theirs.values()), rtol=1e-12)


def test_parts_and_json_give_the_same_bits():
  rng = np.random.default_rng(0)
  outcomes, confidence = rng.uniform(size=500) < 0.8, rng.uniform(0.7, 0.9, 500)
  whole = thresholds.update_monitor(thresholds.monitor(), outcomes, confidence)
  state = thresholds.monitor()
  for part in np.array_split(np.arange(500), 7):
    state = monitoring.from_json(json.loads(json.dumps(state._asdict())))
    state = thresholds.update_monitor(state, outcomes[part], confidence[part])
  assert state.sums == whole.sums and state.evidence == whole.evidence and state.steps == 500
  for wrong in (None, {}, {**whole._asdict(), "sums": [1.0]}, {**whole._asdict(), "steps": -1},
                {**whole._asdict(), "level": 2.0}, {**whole._asdict(), "evidence": float("nan")}):
    with pytest.raises(ValueError, match="it holds no monitor"):
      monitoring.from_json(wrong)


def test_a_drift_is_seen_soon_also_after_good_years():
  rng = np.random.default_rng(0)
  for before in (0, 2000):
    state = thresholds.update_monitor(thresholds.monitor(risk=0.05), rng.uniform(size=before) < 0.04)
    drifted = thresholds.update_monitor(state, rng.uniform(size=150) < 0.3)
    assert state.refuted_at is None and before < drifted.refuted_at < before + 100


@pytest.mark.slow
def test_promises_that_hold_are_seldom_refuted_and_drifts_are_seen():
  rng = np.random.default_rng(0)
  refuted = [thresholds.update_monitor(thresholds.monitor(risk=0.05), rng.uniform(size=3000) < 0.05).refuted_at
             for _ in range(60)]
  assert sum(x is not None for x in refuted) <= 7  # 5%, and chance.
  confidence = rng.uniform(0.5, 1, 3000)
  calm = thresholds.update_monitor(thresholds.monitor(), rng.uniform(size=3000) < confidence, confidence)
  for shift in (-0.1, 0.1):  # Over- and underconfident.
    happened = rng.uniform(size=3000) < np.clip(confidence + shift, 0, 1)
    drifted = thresholds.update_monitor(calm, happened, confidence)
    assert calm.refuted_at is None and drifted.refuted_at is not None and drifted.refuted_at < 5000


def test_what_is_no_outcome_or_no_promise_is_refused():
  with pytest.raises(ValueError, match="confidence must be given"):
    thresholds.update_monitor(thresholds.monitor(), np.array([True]))
  with pytest.raises(ValueError, match="outcomes must be bools, zeros and ones, or credits in"):
    thresholds.update_monitor(thresholds.monitor(risk=0.1), np.array([2, 0]))
  with pytest.raises(ValueError, match=r"risk must be in \(0, 1\)"):
    thresholds.monitor(risk=0.0)
  assert thresholds.update_monitor(thresholds.monitor(risk=0.1), np.zeros(0, bool)) == thresholds.monitor(risk=0.1)


@pytest.fixture
def log(tmp_path, monkeypatch):
  """A log in the present directory, and a function that appends answers, of which so many of a hundred are wrong."""
  monkeypatch.chdir(tmp_path)
  rng = np.random.default_rng(0)

  def append(number, wrong):
    with open("log.jsonl", "a", encoding="utf-8") as file:
      for _ in range(number):
        line = {"confidence": round(rng.uniform(0.8, 1), 3), "correct": bool(rng.uniform() > wrong / 100)}
        file.write(json.dumps(line) + "\n")

  return append


CUT = ["--log=log.jsonl", "--cut=0.9", "--risk=0.05"]


def test_a_log_that_grows_is_read_on_and_a_refuted_promise_is_exit_code_3(log, capsys, tmp_path):
  log(600, 2)
  assert watch.main(CUT) == 0 and watch.main(CUT) == 0
  first, _, again = capsys.readouterr().out.partition("600 new answers")[2].partition("0 new answers")
  assert "is not refuted" in first and "is not refuted" in again
  with open("log.jsonl", "a", encoding="utf-8") as file:
    file.write('{"confidence": 0.95, "corr')  # Still being written.
  assert watch.main(CUT) == 0
  with open("log.jsonl", "a", encoding="utf-8") as file:
    file.write('ect": true}\n')
  log(900, 20)
  assert watch.main(CUT) == 3 and watch.main(CUT) == 3
  text = capsys.readouterr().out
  assert "901 new answers of log.jsonl" in text and "The promise of at most 5% was refuted after" in text
  content = json.loads((tmp_path / "log.jsonl.watch.json").read_text())
  lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
  errors = [not x["correct"] for x in lines if x["confidence"] >= 0.9]
  assert content["monitor"]["steps"] == len(errors) and content["monitor"]["happened"] == sum(errors)
  (tmp_path / "log.jsonl.watch.json").unlink()
  watch.main(CUT)
  assert json.loads((tmp_path / "log.jsonl.watch.json").read_text()) == content  # The bits of one look.


def test_a_byte_order_mark_and_an_empty_line_of_windows_are_no_mistakes(log, capsys, tmp_path):
  (tmp_path / "marked.jsonl").write_bytes(b'\xef\xbb\xbf{"confidence": 0.9, "correct": 1}\r\n\r\n')
  assert watch.main(["--log=marked.jsonl"]) == 0 and "1 of 1 answers" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_cut_means_the_same_in_texts_of_every_float_type(dtype, log, capsys, tmp_path):
  stated = np.array([0.95, 0.94, 0.96, 0.95], dtype)
  lines = [json.dumps({"confidence": x, "correct": 1}) + "\n" for x in stated.tolist()]  # 0.949999988, of float32.
  (tmp_path / "log.jsonl").write_text("".join(lines))
  watch.main([CUT[0], "--cut=0.95", "--risk=0.05"])
  assert thresholds.check_threshold(0.95, stated, np.ones(4)).accepted == 3
  assert "0 of 3 answers at or above 0.95" in capsys.readouterr().out
  watch.main([CUT[0], "--cut=0.99999999", "--risk=0.05", "--state=other.json"])
  assert "answers at or above 0.99999999 were wrong" in capsys.readouterr().out


def test_mistakes_are_one_sentence_and_leave_the_state(log, capsys, tmp_path):
  log(50, 5)
  assert watch.main(["--log=log.jsonl"]) == 0
  state = tmp_path / "log.jsonl.watch.json"
  before = state.read_bytes()
  for lines, message in (('{"confidence": 2, "correct": 1}\n', "log.jsonl, line 51: it must be a JSON object with a "),
                         ('{"confidence": 0.5}\n', "line 51"), ("[1]\n", "line 51"), ("\xff\n", "line 51")):
    original = (tmp_path / "log.jsonl").read_bytes()
    (tmp_path / "log.jsonl").write_bytes(original + lines.encode("latin-1"))
    assert watch.main(["--log=log.jsonl"]) == 2 and message in capsys.readouterr().err
    (tmp_path / "log.jsonl").write_bytes(original)
  assert watch.main(CUT) == 2 and "is of another promise" in capsys.readouterr().err
  assert watch.main(["--log=log.jsonl", "--cut=0.9"]) == 2 and "belong together" in capsys.readouterr().err
  assert watch.main(["--log=logs.jsonl"]) == 2 and "Did you mean 'log.jsonl'" in capsys.readouterr().err
  assert state.read_bytes() == before
  (tmp_path / "log.jsonl").write_text('{"confidence": 0.5, "correct": 1}\n')
  assert watch.main(["--log=log.jsonl"]) == 2 and "is not the log of the last call" in capsys.readouterr().err
  state.write_text("{}")
  assert watch.main(["--log=log.jsonl"]) == 2 and "is no state of calib-jax watch" in capsys.readouterr().err
