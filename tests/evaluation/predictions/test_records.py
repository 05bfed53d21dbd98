"""Records, a confidence and whether the answer was right: every kind of file, their headers, and what is refused."""

import numpy as np
import pytest

from calib_jax._system.errors import UserError
from tests.evaluation.predictions.data import LABELS, LOGITS, load

CONFIDENCE = np.array([0.0, 0.1, 0.3, 0.3, 0.5, 0.7, 0.9, 0.9, 1.0, 1.0, 1.0, 0.2], np.float32)
CORRECT = np.arange(12) % 3 > 0
NAMES = np.array(["a", "b"] * 6)


@pytest.mark.parametrize(("suffix", "confidence", "correct", "values"), [
  *((suffix, "confidence", "correct", CORRECT) for suffix in ("csv", "jsonl", "parquet", "npz")),
  ("tsv", "score", "is_correct", CORRECT.astype(int)), ("npz", "Confidence", "Correct", CORRECT),
  ("jsonl", "confidence", "is_correct", CORRECT.astype(float))])
def test_every_file_holds_the_same_records(suffix, confidence, correct, values, tmp_path):
  columns = {"id": np.array([f"q{i}" for i in range(12)]), confidence: CONFIDENCE, correct: values,
             "class_name": np.array(["a", "b"] * 6), "paper": np.arange(12) // 4}
  part, notes = load(tmp_path, columns, suffix, groups="paper")
  assert part.records and part.classes is None and part.labels.dtype == np.int32
  np.testing.assert_array_equal(part.probs[:, 1], CONFIDENCE)
  np.testing.assert_array_equal(part.labels, CORRECT)
  np.testing.assert_array_equal(part.groups, np.arange(12) // 4)
  np.testing.assert_allclose(part.logits, np.log(np.maximum(part.probs, np.finfo(np.float32).tiny)), rtol=1e-6)
  assert notes.endswith(f"read as records, {confidence} as the probability that an answer is right and {correct} as "
                        "whether it was.")


def test_percentages_and_rows_without_a_verdict_are_read_as_the_user_says(tmp_path):
  columns = {"confidence": 100 * CONFIDENCE, "correct": CORRECT - 3 * (np.arange(12) == 4)}
  part, _ = load(tmp_path, columns, "csv", percent=True, ignore_label=-2)
  np.testing.assert_allclose(part.probs[:, 1], np.delete(CONFIDENCE, 4), rtol=1e-6)
  np.testing.assert_array_equal(part.labels, np.delete(CORRECT, 4))


def test_outputs_of_classes_with_labels_come_before_records_and_it_is_said(tmp_path):
  prob = {"confidence": CONFIDENCE, "correct": CORRECT, "prob": 1 - CONFIDENCE, "label": CORRECT.astype(int)}
  for suffix in ("csv", "npz"):
    part, notes = load(tmp_path, prob, suffix)
    assert not part.records and ": its prob and labels are used, and confidence and correct are not." in notes
    part, _ = load(tmp_path, {name: prob[name] for name in ("confidence", "correct", "label")}, suffix)
    assert part.records  # A label without outputs is not read.
  part, notes = load(tmp_path, {"confidence": CONFIDENCE, "score": CORRECT, "correct": CORRECT}, "csv")
  np.testing.assert_array_equal(part.probs[:, 1], CONFIDENCE)
  assert "holds confidence and score: confidence are used" in notes


@pytest.mark.parametrize("suffix", ["csv", "npz"])
@pytest.mark.parametrize(("columns", "message"), [
  ({"confidence": CONFIDENCE, "label": CORRECT}, "confidence"),
  ({"prob": CONFIDENCE, "logprob": CONFIDENCE, "correct": CORRECT}, "correct"),
  ({"confidence": CONFIDENCE, "correct": CORRECT * 2}, "0 or 1, false or true, or a credit between: that of row 1,"),
  ({"confidence": CONFIDENCE, "correct": np.where(CORRECT, "yes", "nein")}, "correct must be 0 or 1.* of row 0.*nein"),
  ({"confidence": CONFIDENCE, "score": CORRECT + 3}, "write a column correct, of 0 and 1, beside confidence, such"),
  ({"logprob": CONFIDENCE, "correct": CORRECT}, "must be logarithms of probabilities, at most 0: that of row 1,"),
  ({"confidence": np.arange(12) % 11.0, "correct": CORRECT}, "if they are grades up to 10, divide them by that"),
  ({"confidence": np.arange(12) % 5 + 1.0, "correct": CORRECT}, "if they are grades up to 5, divide them by that"),
  ({"confidence": 100 * CONFIDENCE, "correct": CORRECT}, r"in \[0, 1\]; if they are percentages, add --percent"),
  ({"score": CONFIDENCE - 0.1, "correct": CORRECT}, r"its score are no probabilities: they go from -0.1 to 0.9"),
  ({"confidence": np.where(CORRECT, CONFIDENCE, np.nan), "correct": CORRECT}, "hold NaN"),
  ({"confidence": CONFIDENCE, "correct": CORRECT, "is_correct": ~CORRECT}, "correct and is_correct, which differ"),
  ({"confidence": CONFIDENCE, "Confidence": CONFIDENCE, "correct": CORRECT}, "only one of them can be meant"),
  ({"confidence": CONFIDENCE, "correct": CORRECT, "predictions": CONFIDENCE, "label": CORRECT},
   "can be read as records, by confidence and correct, and as predictions of classes"),
])
def test_what_is_no_record_or_may_be_something_else_is_refused(suffix, columns, message, tmp_path):
  with pytest.raises(UserError, match=message):
    load(tmp_path, columns, suffix)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "npz", "parquet"])
@pytest.mark.parametrize(("columns", "note"), [
  ({"prob": CONFIDENCE, "is_correct": CORRECT}, "prob as the probability that an answer is right and is_correct"),
  ({"probability": CONFIDENCE, "acc": CORRECT.astype(float), "task": NAMES}, "and acc as whether it was"),
  ({"logprob": np.log(np.maximum(CONFIDENCE, 1e-30).astype(float)), "correct": CORRECT},
   "its logprob is read as the logarithm of the probability that an answer is right"),
  ({"confidence": CONFIDENCE, "correct": np.where(CORRECT, "C", "I")}, "'c' is a right answer and 'i' a wrong one"),
  ({"confidence": CONFIDENCE, "correct": np.where(CORRECT, "Yes", "no")}, "'yes' is a right answer and 'no' a wrong"),
  ({"score": CONFIDENCE, "is_correct": np.where(CORRECT, "True", "False")}, "")])
def test_what_has_one_reading_is_read_and_said(columns, note, suffix, tmp_path):
  part, notes = load(tmp_path, columns, suffix)
  assert part.records and note in notes
  np.testing.assert_allclose(part.probs[:, 1], CONFIDENCE, atol=1e-6)
  np.testing.assert_array_equal(part.labels, CORRECT)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_percentages_are_read_by_their_sign(suffix, tmp_path):
  texts = [f"{100 * c:.1f}%" for c in CONFIDENCE]
  part, notes = load(tmp_path, {"confidence": texts, "correct": CORRECT}, suffix)
  np.testing.assert_allclose(part.probs[:, 1], CONFIDENCE, atol=1e-6)
  assert "its confidence are percentages, such as '0.0%', and are divided by 100" in notes
  part, _ = load(tmp_path, {"prob": texts, "label": CORRECT.astype(int)}, suffix)
  np.testing.assert_allclose(part.probs[:, 1], CONFIDENCE, atol=1e-6)
  with pytest.raises(UserError, match="percentages such as 90% in all rows, or in none: row 1, counted from 0, holds"):
    load(tmp_path, {"confidence": [*texts[:1], "0.1", *texts[2:]], "correct": CORRECT}, suffix)
  with pytest.raises(UserError, match="must hold numbers: row 1, counted from 0, holds 'x%'"):
    load(tmp_path, {"confidence": [*texts[:1], "x%", *texts[2:]], "correct": CORRECT}, suffix)


def test_numbers_in_quotes_are_numbers(tmp_path):
  part, _ = load(tmp_path, {"confidence": [f"{c:.2f}" for c in CONFIDENCE], "correct": CORRECT}, "jsonl")
  np.testing.assert_allclose(part.probs[:, 1], CONFIDENCE, atol=1e-6)


def test_records_have_one_confidence_a_row_and_are_never_out_of_distribution(tmp_path):
  with pytest.raises(UserError, match=r"one confidence and one correct in each row: their shapes are \(12, 3\)"):
    load(tmp_path, {"confidence": np.abs(LOGITS) / 9, "correct": LABELS > 0})
  with pytest.raises(UserError, match="its kind is out_of_distribution, which records cannot be"):
    load(tmp_path, {"confidence": CONFIDENCE, "correct": CORRECT, "kind": "out_of_distribution"})
  with pytest.raises(UserError, match="leave out --logits"):
    load(tmp_path, {"score": CONFIDENCE, "correct": CORRECT}, logits=True)
