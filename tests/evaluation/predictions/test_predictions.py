"""Predictions on disk: what is read, without pickle, and one sentence for what cannot be."""

import runpy
import sys

import numpy as np
import pytest

from calib_jax import evaluation, metrics
from calib_jax._system.errors import UserError
from calib_jax.evaluation import class_errors
from calib_jax.evaluation.predictions import logits as logits_of_files
from tests.evaluation.predictions.data import load

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(40, 4)).astype(np.float32)
LABELS = RNG.integers(0, 4, 40)
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)


def test_probabilities_are_measured_as_they_are_given(tmp_path):
  """Shares of fifteen votes lie on the edges of fifteen bins, which log and exp miss at times."""
  votes = RNG.multinomial(15, [0.5, 0.3, 0.2], 300)
  probs, labels = (votes / 15).astype(np.float32), RNG.integers(0, 3, 300)
  values = evaluation.per_example([load(tmp_path, {"probs": probs, "labels": labels})[0]], num_redraws=2)
  np.testing.assert_array_equal(values.confidence[:, 0], probs.max(1))
  np.testing.assert_array_equal(values.predicted[:, 0], probs.argmax(1))
  for binning in ("equal_width", "equal_mass"):
    np.testing.assert_allclose(class_errors.resampled(values.class_sums[binning], 20).value[1],
                               metrics.classwise_calibration_error(probs, labels) if binning == "equal_width" else
                               _by_equal_values(probs, labels), rtol=1e-4)


def _by_equal_values(probs, labels):
  """The classwise error in equal-mass bins in which equal probabilities share the bin of the last of them."""
  errors = []
  for c in range(probs.shape[1]):
    p = probs[:, c]
    edges = np.sort(p)[np.arange(1, 15) * 20 - 1]
    place = np.searchsorted(edges, p)
    errors.append(sum(abs(np.sum((p - (labels == c))[place == b])) for b in range(15)) / len(p))
  return np.mean(errors)


@pytest.mark.parametrize(("arrays", "message"), [
  ({"logits": LOGITS}, "must hold labels, and logits or probs; it holds logits: name them so, as in numpy.savez"),
  ({"other": LOGITS, "mine": LABELS}, "it holds other, mine: name them so"),
  ({"logits": LOGITS.astype(int), "labels": LABELS}, "logits must be floats"),
  ({"logits": LOGITS.astype(np.longdouble), "labels": LABELS}, r"logits must be floats \(float16 to float64\)"),
  ({"logits": LOGITS[None], "labels": LABELS}, r"of shape \(1, 40, 4\) need labels of shape \(1, 40\), not \(40,"),
  ({"logits": LOGITS.reshape(10, 4, 2, 2), "labels": LABELS.reshape(10, 2, 2)}, r"numpy.moveaxis\(logits, 1, -1\)"),
  ({"logits": LOGITS[:, 0], "labels": LABELS}, r"labels must be in \[0, 2\): they go from 0 to 3"),
  ({"probs": LOGITS[:, 0], "labels": LABELS % 2}, r"must be in \[0, 1\]; if they are logits, call them"),
  ({"logits": LOGITS.astype(np.float64) * 1e39, "labels": LABELS}, "of the 40 rows of its logits hold NaN, .inf, or"),
  ({"logits": LOGITS, "labels": 2 * np.eye(4)[LABELS]}, "must be one-hot"),
  ({"logits": LOGITS, "labels": np.array(list("abcd"))[LABELS]}, "labels are text, such as '.': also save classes"),
  ({"logits": LOGITS, "labels": np.array(list("abce"))[LABELS], "classes": list("abcd")}, "no class is called 'e'"),
  ({"logits": LOGITS, "labels": LABELS, "classes": list("aab")}, "classes must be 4 different names"),
  ({"logits": LOGITS, "labels": LABELS[:5]}, r"labels must be integers of shape \[40\]"),
  ({"logits": LOGITS, "labels": LABELS / 2}, r"labels must be integers: that of row \d+, counted from 0, is [01].5\."),
  ({"logits": LOGITS, "labels": np.where(LABELS, LABELS, -100)}, "from -100 to 3. If -100 .*: --ignore_label=-100 "),
  ({"logits": np.where(np.arange(4) == LABELS[:, None], -2e4, LOGITS), "labels": LABELS}, "1e4 or more below the row"),
  ({"logits": np.full((40, 4), -np.inf), "labels": LABELS}, "40 of the 40 rows .* or -inf in every class; .* is row 0"),
  ({"logits": LOGITS, "labels": LABELS + 1},
   r"labels must be in \[0, 4\): they go from 1 to 4\. They are numbered from 1: save labels - 1\."),
  ({"probs": 2 * PROBS, "labels": LABELS}, r"no probabilities: row \d+, .* sums to 2(\.0.*)? in place of 1, and"),
  ({"probs": LOGITS, "labels": LABELS}, r"its probs are no probabilities: they go from -\d.* call them logits"),
  ({"logits": LOGITS, "labels": LABELS, "train_counts": np.ones(3)}, "train_counts must be 4 integers of at least 0"),
])
def test_what_is_wrong_is_said(tmp_path, arrays, message):
  with pytest.raises(UserError, match=message):
    load(tmp_path, arrays)


@pytest.mark.parametrize("chunk", [4, 16, 10**6])
def test_the_first_bad_row_is_named_also_beyond_the_first_chunk(chunk, tmp_path, monkeypatch):
  monkeypatch.setattr(logits_of_files, "CHUNK", chunk)
  logits = LOGITS.copy()
  logits[[21, 30], 2] = np.nan
  with pytest.raises(UserError, match=r"2 of the 40 rows .*; the first is row 21, counted from 0: \[.*nan.*\]"):
    load(tmp_path, {"logits": logits, "labels": LABELS})
  logits = LOGITS.copy()
  logits[[21, 30], LABELS[[21, 30]]] = -np.inf
  with pytest.raises(UserError, match=rf"the label of row 21, counted from 0, is {LABELS[21]}, a class that the row"):
    load(tmp_path, {"logits": logits, "labels": LABELS})
  probs = np.tile([0.25, 0.25, 0.25, 0.25], (40, 1))
  probs[33] = [0.3, 0.25, 0.24, 0.22]  # Row 33 alone makes all rows be divided.
  loaded, _ = load(tmp_path, {"probs": probs.astype(np.float32), "labels": LABELS})
  np.testing.assert_allclose(loaded.probs, probs / probs.sum(1, keepdims=True), rtol=1e-6)


def test_the_command_line_judges_saved_predictions(tmp_path, monkeypatch, capsys):
  for name, part in (("val", slice(0, 20)), ("test", slice(20, 40))):
    evaluation.save(tmp_path / f"{name}.npz", LOGITS[part], LABELS[part])
  monkeypatch.setattr(sys, "argv", ["evaluation", "--num_resamples=20", "--calibrators=identity",
                                    f"--fit={tmp_path}/val.npz", f"--test={tmp_path}/test.npz"])
  with pytest.raises(SystemExit, match="0"):
    runpy.run_module("calib_jax.evaluation", run_name="__main__")
  rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
  assert [row[1].strip() for row in rows[2:]] == ["none", "identity"]
  accuracy = 100 * np.mean(LOGITS[20:].argmax(1) == LABELS[20:])
  assert all(row[2].strip().startswith(f"{accuracy:.2f} [") for row in rows[2:])
