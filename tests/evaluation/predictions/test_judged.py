"""Records that a person judged in part and a judge all: rows, refusals and the table."""

import json

import numpy as np
import pytest

from calib_jax import evaluation
from calib_jax._system.errors import UserError
from calib_jax.cli import evaluate
from calib_jax.intervals.judged import judged_mean

RNG = np.random.default_rng(0)
CONFIDENCE, PERSON = RNG.beta(4, 2, 300), RNG.random(300) < 0.7
JUDGE = np.where(RNG.random(300) < 0.9, PERSON, ~PERSON)
HAS_PERSON = np.arange(300) % 3 == 0


def _written(path, words=("true", "false")):
  """The records as a file; a person's verdict is missing in two of three."""
  if path.suffix == ".jsonl":
    rows = [{"confidence": c, "correct": bool(y) if has else None, "judge": int(j), "thread": i // 2}
            for i, (c, y, j, has) in enumerate(zip(CONFIDENCE, PERSON, JUDGE, HAS_PERSON, strict=True))]
    path.write_text("\n".join(map(json.dumps, rows)))
  elif path.suffix == ".csv":
    rows = [f"{c},{words[not y] if has else ''},{words[not j]},{i // 2}"
            for i, (c, y, j, has) in enumerate(zip(CONFIDENCE, PERSON, JUDGE, HAS_PERSON, strict=True))]
    path.write_text("\n".join(["confidence,correct,judge,thread", *rows]))
  elif path.suffix == ".npz":
    np.savez(path, confidence=CONFIDENCE, correct=np.where(HAS_PERSON, PERSON, np.nan), judge=JUDGE,
             thread=np.arange(300) // 2)
  else:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"confidence": CONFIDENCE, "judge": JUDGE, "thread": np.arange(300) // 2,
                                  "correct": [bool(y) if has else None for y, has in zip(
                                    PERSON, HAS_PERSON, strict=True)]}), path)
  return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".npz", ".parquet"])
def test_rows_with_a_persons_verdict_are_measured_and_the_others_are_kept_for_the_judge(suffix, tmp_path):
  said = []
  part = evaluation.load(_written(tmp_path / f"x{suffix}", ("yes", "no")), judged="judge", groups="thread",
                         say=said.append)
  assert part.labels.tolist() == PERSON[HAS_PERSON].astype(int).tolist()
  np.testing.assert_allclose(part.probs[:, 1], CONFIDENCE[HAS_PERSON], rtol=1e-6)
  assert part.judged.known.tolist() == JUDGE[HAS_PERSON].tolist()
  assert part.judged.others.tolist() == JUDGE[~HAS_PERSON].tolist()
  thread = np.append(np.flatnonzero(HAS_PERSON), np.flatnonzero(~HAS_PERSON)) // 2
  np.testing.assert_array_equal(part.judged.groups[:, None] == part.judged.groups, thread[:, None] == thread)
  assert any("100 of its 300 answers have a person's verdict, correct, and are measured by it" in x for x in said)
  with pytest.raises(UserError):
    evaluation.load(tmp_path / f"x{suffix}")  # Without the option, a missing verdict is a mistake.


def test_the_command_has_the_accuracy_by_both(tmp_path, no_figures, capsys):
  path = _written(tmp_path / "x.jsonl")
  assert evaluate.main([f"--test={path}", "--judged=judge", "--num_resamples=20", f"--out={tmp_path}"]) == 0
  out = capsys.readouterr().out
  expected = judged_mean(PERSON[HAS_PERSON], JUDGE[HAS_PERSON], JUDGE[~HAS_PERSON])
  assert f"{100 * expected.estimate:.2f} [{100 * expected.low:.2f}, {100 * expected.high:.2f}]" in out
  content = json.loads((tmp_path / "results.json").read_text())["judged"]["x"]
  assert content["by_both"]["estimate"] == pytest.approx(expected.estimate)
  assert (content["with_verdict"], content["others"]) == (100, 200)
  (tmp_path / "few.jsonl").write_text("\n".join(path.read_text().splitlines()[:30]))  # Ten verdicts: no interval.
  assert evaluate.main([f"--test={tmp_path / 'few.jsonl'}", "--judged=judge", "--num_resamples=20"]) == 0
  assert "nan" not in capsys.readouterr().out
  assert evaluate.main([f"--test={path}", "--judged=judge", "--weights=judge"]) == 2
  assert "--weights cannot be combined with --judged" in capsys.readouterr().err


@pytest.mark.parametrize(("change", "message"), [
  ({"judge": np.full(300, 0.5)}, "judge must hold verdicts, 0 or 1"),
  ({"correct": np.where(HAS_PERSON, 0.5, np.nan)}, "correct must hold verdicts"),
  ({"correct": np.full(300, np.nan)}, "none of its rows has a person's verdict in 'correct'"),
  ({"judge": None}, "must have a column 'judge' with the judge's verdict on each of its 300 rows")])
def test_what_a_judge_cannot_say_is_one_sentence(change, message, tmp_path):
  arrays = {"confidence": CONFIDENCE, "correct": np.where(HAS_PERSON, PERSON, np.nan), "judge": JUDGE} | change
  np.savez(tmp_path / "x.npz", **{name: x for name, x in arrays.items() if x is not None})
  with pytest.raises(UserError, match=message):
    evaluation.load(tmp_path / "x.npz", judged="judge")
  np.savez(tmp_path / "y.npz", logits=np.eye(3), labels=np.arange(3), judge=np.ones(3))
  with pytest.raises(UserError, match="a judge's verdicts are of records"):
    evaluation.load(tmp_path / "y.npz", judged="judge")
