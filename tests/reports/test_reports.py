"""Figures and the page: drawn from what they say they are, also for hard predictions."""

import struct

import numpy as np
import pytest

from calib_jax import evaluation, reports

RNG = np.random.default_rng(0)
ERROR = {"estimate": 0.1234, "low": 0.1, "high": 0.2}


def _size(path):
  content = path.read_bytes()
  assert content.startswith(b"\x89PNG")
  return struct.unpack(">II", content[16:24])


@pytest.mark.parametrize("confidence", [RNG.uniform(0.3, 1, 300), np.ones(5), np.array([0.5])])
def test_a_grid_of_diagrams_is_drawn(tmp_path, confidence):
  panel = reports.Panel("title", confidence.astype(np.float32), RNG.uniform(size=len(confidence)) < 0.7, ERROR)
  reports.draw([[panel, panel], [panel, panel]], tmp_path / "figure.png", num_bins=10)
  width, height = _size(tmp_path / "figure.png")
  assert width > 800 and height > 1000


def test_a_panel_joins_the_seeds():
  parts = [evaluation.Predictions(np.array([[2.0, 0.0], [0.0, 1.0]], np.float32), np.array([0, 0])),
           evaluation.Predictions(np.array([[0.0, 3.0]], np.float32), np.array([1]))]
  panel = reports.panel("both", parts, ERROR)
  np.testing.assert_allclose(panel.confidence, 1 / (1 + np.exp([-2.0, -1.0, -3.0])), rtol=1e-6)
  np.testing.assert_array_equal(panel.correct, [True, False, True])


def test_the_page_is_one_file_and_escapes_what_it_is_given(tmp_path):
  (tmp_path / "f.png").write_bytes(b"picture")
  reports.write(tmp_path / "r.html", title="a <b>", note="note", rows=[["head"], ["cell & more"]],
                figures=[tmp_path / "f.png"], config={"seed": 0}, environment={})
  page = (tmp_path / "r.html").read_text()
  assert "a &lt;b&gt;" in page and "cell &amp; more" in page and "&#34;seed&#34;: 0" in page
  assert "data:image/png;base64,cGljdHVyZQ==" in page and "src=\"http" not in page
