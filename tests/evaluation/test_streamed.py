"""Predictions of too many rows for memory: the numbers of one pass, intervals, noise floors and a progress bar."""

import functools
import io
import json
import re
import sys

import jax
import numpy as np
import pytest

from calib_jax import metrics
from calib_jax._system.errors import UserError
from calib_jax.cli import evaluate as command
from calib_jax.evaluation import streamed
from calib_jax.evaluation.measures import METRICS

K = 3
RNG = np.random.default_rng(0)


def _logits(n, scale, seed=7):
  rng = np.random.default_rng(seed)
  logits = 2 * rng.normal(size=(n, K))
  p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  labels = (p.cumsum(1) > rng.uniform(size=(n, 1))).argmax(1)
  return (scale * logits).astype(np.float32), labels.astype(np.int32)


def _top(logits, labels):
  p = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
  p /= p.sum(1, keepdims=True)
  return p.max(1), p.argmax(1) == labels


def _save(tmp_path, logits, labels):
  np.save(tmp_path / "z.npy", logits)
  np.save(tmp_path / "y.npy", labels)
  return f"{tmp_path}/z.npy,{tmp_path}/y.npy"


def test_streaming_equals_one_pass(tmp_path, monkeypatch, capsys):
  logits, labels = _logits(400, 2)
  monkeypatch.setattr(streamed, "BATCH", 64 * K)  # Seven batches, the last one not full.
  path = _save(tmp_path, logits.astype(np.float64), labels)
  confidence, correct = _top(logits, labels)
  edges = np.ceil(confidence * 15)
  error = sum(abs((confidence - correct)[edges == b].sum()) for b in range(1, 16)) / 400
  assert not streamed.is_large(path) and not streamed.is_large(str(tmp_path / "z.npz"))
  monkeypatch.setattr(streamed, "LARGE", 400)
  assert streamed.is_large(path)
  assert command.main([f"--test={path}", "--num_resamples=40", "--json=-", f"--out={tmp_path / 'out'}"]) == 0
  printed = capsys.readouterr()
  found = json.loads(printed.out)["results"]["z"]["z"]["none"]
  np.testing.assert_allclose([found["accuracy"]["value"], found["ece"]["value"], found["mean_confidence"]["value"]],
                             [correct.mean(), error, confidence.mean()], rtol=1e-5)
  assert "95% bootstrap intervals over its cells" in printed.err
  assert all(cell["low"] <= cell["estimate"] <= cell["high"] for cell in found.values())
  (line,) = [line for line in (tmp_path / "out/results.csv").read_text().splitlines() if ",ece," in line]
  assert line.startswith(f"z,z,none,ece,{found['ece']['estimate']:.9g},")
  assert sorted(path.suffix for path in (tmp_path / "out/figures").iterdir()) == [".svg"]
  assert (tmp_path / "out/results.tex").read_text().startswith("\\begin{tabular}{lrrrr}\n\\toprule\nmetric & ")
  page = (tmp_path / "out/report.html").read_text()
  gap, excess = 100 * (confidence.mean() - correct.mean()), confidence - correct
  assert f"Overconfident by {gap:.1f} ± {249.77 * excess.std() / 20:.1f} points: its ECE is" in page
  assert re.search(fr'alt="Reliability: the mean confidence of \S+ is {gap:.1f} points above its accuracy', page)
  assert "400 rows. The predictions are streamed" in page and page.count("<img") == 1 and "bold" not in page
  np.save(tmp_path / "y.npy", labels + 1)
  with pytest.raises(UserError, match=r"row \d+ of logits is not finite .* or its label is not in \[0, 3\)"):
    streamed.measure(path)


def test_rows_that_sum_to_1_are_probabilities_and_what_is_none_is_said(tmp_path, monkeypatch):
  logits, labels = _logits(400, 2)
  monkeypatch.setattr(streamed, "BATCH", 64 * K)
  probs = np.exp(logits - logits.max(1, keepdims=True))
  probs /= probs.sum(1, keepdims=True)
  found = [streamed.measure(_save(tmp_path, scores, labels), num_resamples=5)[1] for scores in (logits, probs)]
  np.testing.assert_array_equal(found[0].bin_counts, found[1].bin_counts)
  probs[300] = [1.5, -0.5, 0]
  with pytest.raises(UserError, match=r"row 300 of probs is .* not in \[0, 1\]"):
    streamed.measure(_save(tmp_path, probs, labels))


def test_a_stream_is_read_as_a_file_that_fits_into_memory(tmp_path, monkeypatch):
  monkeypatch.setattr(streamed, "BATCH", 64 * K)
  logits, labels = _logits(400, 1)
  logits[np.arange(400), (labels + 1) % K] = -np.inf  # Classes that the row does not have.
  probs = np.exp(logits - logits.max(1, keepdims=True))
  rounded = np.round(probs / probs.sum(1, keepdims=True), 2)
  rounded[7] = [0.5, 0.25, 0.26]  # In the first batch, and its sum is 1.01.
  notes, unscored = [], np.where(np.arange(400) % 4, labels, -100)
  for scores, options in ((rounded, {}), (100 * rounded, {"percent": True})):
    path = _save(tmp_path, scores, unscored.astype(np.float32))
    confidence = (rounded / rounded.sum(1, keepdims=True)).max(1)
    _, state = streamed.measure(path, num_resamples=5, ignore_label=-100, say=notes.append, **options)
    scored = unscored >= 0
    np.testing.assert_allclose(np.sum(state.bin_confidence), confidence[scored].sum(), rtol=1e-5)
    assert int(np.sum(state.correct)) == (rounded.argmax(1) == labels)[scored].sum()
  assert "its probs sum to 1 to 1.01, because they are rounded to 2 decimals: each is divided by its sum" in notes[0]
  assert "100 of its 400 rows have the label -100 and are left out" in notes[1]
  with pytest.raises(UserError, match="its scores are percentages, because each row sums to 100: add --percent"):
    streamed.measure(path, ignore_label=-100)
  with pytest.raises(UserError, match="all labels are -100, which is to be ignored"):
    streamed.measure(_save(tmp_path, logits, np.full(400, -100)), ignore_label=-100)
  state = streamed.measure(_save(tmp_path, logits, labels), num_resamples=5)[1]
  np.testing.assert_allclose(np.sum(state.bin_confidence), _top(logits, labels)[0].sum(), rtol=1e-5)
  labels[300] = (labels[300] + 1) % K
  with pytest.raises(UserError, match="row 300 of logits .* or is a class that the row does not have"):
    streamed.measure(_save(tmp_path, logits, labels))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint64, ">i8"])
def test_labels_of_every_integer_are_streamed_and_never_wrap(dtype, tmp_path, monkeypatch):
  monkeypatch.setattr(streamed, "BATCH", 64 * 300)
  logits, labels = RNG.normal(size=(100, 300)), np.arange(100)  # 300 classes are more than 8 bits can number.
  expected = streamed.measure(_save(tmp_path, logits, labels), num_resamples=5)[1]
  found = streamed.measure(_save(tmp_path, logits.astype(">f8"), labels.astype(dtype)), num_resamples=5)[1]
  np.testing.assert_array_equal(found.correct, expected.correct)
  labels = labels.astype(dtype)
  labels[70] = np.iinfo(dtype).max if np.iinfo(dtype).max > 300 else 0
  labels[71] = 2**32 + 5 if np.iinfo(dtype).max > 2**32 else labels[71]
  if labels[70]:
    with pytest.raises(UserError, match=r"row 70 of logits .* or its label is not in \[0, 300\)"):
      streamed.measure(_save(tmp_path, logits, labels))


def test_files_that_are_written_anew_while_they_are_read_are_refused(tmp_path, monkeypatch):
  path = _save(tmp_path, *_logits(400, 2))
  monkeypatch.setattr(streamed, "BATCH", 64 * K)
  monkeypatch.setattr(streamed, "_show", lambda done, total: _save(tmp_path, *_logits(200, 2)))
  with pytest.raises(UserError, match=r"z\.npy or .*y\.npy was written anew while it was read"):
    streamed.measure(path)


@pytest.mark.parametrize(("shape", "dtype"), [((10, 0), "f4"), ((10, 1), "f4"), ((10,), "f4"), ((10, 3), "g"),
                                              ((10, 3), "i4"), ((10, 3), "V2")])
def test_scores_that_are_no_rows_of_floats_are_not_streamed(shape, dtype, tmp_path):
  with pytest.raises(UserError, match=r"scores must be floats \(float16 to float64\) \[N, K\] and labels integers"):
    streamed.measure(_save(tmp_path, np.zeros(shape, dtype), np.arange(10)))


def _histogram(logits, labels):
  return metrics.CalibrationHistogram.from_model_output(logits=logits, labels=labels)


@pytest.mark.slow
def test_intervals_of_a_histogram_are_those_of_its_examples():
  logits, labels = _logits(4000, 2)
  confidence, correct = _top(logits, labels)
  found = streamed.estimates(_histogram(logits, labels), 200)
  for name, values in (("accuracy", correct), ("mean_confidence", confidence)):
    error = values.std() / np.sqrt(4000)
    np.testing.assert_allclose(found[name].high - found[name].low, 2 * 1.96 * error, rtol=0.25)
  for name, metric in (("ece", metrics.calibration_error), ("ks", metrics.ks_calibration_error),
                       ("adaptive", functools.partial(metrics.calibration_error, binning="equal_mass"))):
    cell = found[name]
    expected = metrics.bootstrap(metric, confidence.astype(np.float32), correct, key=jax.random.key(0),
                                 num_resamples=200, method="bias_corrected", bias=METRICS[name].bias)
    # Both are of 200 halves, whose variances have a relative standard error of 10%, and their roots of 5%.
    np.testing.assert_allclose([cell.estimate, cell.low, cell.high], expected, atol=0.2 * (cell.high - cell.low))
  cell = found["ece"]
  assert cell.p_value < 0.01 and cell.estimate < cell.value


def test_a_calibrated_histogram_is_at_its_noise_floor():
  logits, labels = _logits(4000, 1)
  found = streamed.estimates(_histogram(logits, labels), 200)["ece"]
  confidence, correct = _top(logits, labels)
  expected = metrics.bootstrap(metrics.calibration_error, confidence.astype(np.float32), correct,
                               key=jax.random.key(0), num_resamples=200, method="bias_corrected")
  # Near 0 all is bias, which fifths say. The square roots of two estimates of it differ by some percent of the noise.
  np.testing.assert_allclose([found.estimate, found.low, found.high], expected, atol=0.1 * found.high)
  floor, low, high = metrics.consistency_interval(metrics.calibration_error, _top(logits, labels)[0].astype(np.float32),
                                                  key=jax.random.key(0), num_resamples=200)
  np.testing.assert_allclose(found.floor, floor, rtol=0.1)
  assert low < found.value < high and found.p_value > 0.05 and found.low < 0.002


def test_a_terminal_sees_a_progress_bar(monkeypatch):
  class Terminal(io.StringIO):
    def isatty(self):
      return True

  monkeypatch.setattr(sys, "stderr", Terminal())
  streamed._show(1000, 4000)
  streamed._show(4000, 4000)
  first, last = sys.stderr.getvalue().strip().split("\r")
  assert first == f"[{'#' * 7}{'.' * 23}] 1,000 of 4,000 rows" and last == f"[{'#' * 30}] 4,000 of 4,000 rows"
