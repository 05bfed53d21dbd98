"""Figures and the page: drawn from what they say they are, with legends off the data, and readable in a browser."""

import base64
import copy
import csv
import dataclasses
import functools
import html
import io
import json
import re
import shutil
import struct
import subprocess

import matplotlib.text
import numpy as np
import pytest

from calib_jax import calibrators, evaluation
from calib_jax.evaluation import reports, sections
from calib_jax.evaluation.columns import COLUMNS
from calib_jax.evaluation.reports import formats, outputs
from calib_jax.evaluation.reports.drawing import FIGURES, of_section
from calib_jax.evaluation.sections.candidates import Chosen
from calib_jax.evaluation.sections.severity import Level
from calib_jax.evaluation.verdict.verdict import verdict
from tests.evaluation.data import predictions

pytestmark = pytest.mark.xdist_group("reports")  # One worker makes what most of these tests share.
RNG = np.random.default_rng(0)
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def _pair(n=300, shift=0.0):
  confidence = RNG.uniform(0.4, 1, n).astype(np.float32)
  return confidence, RNG.uniform(size=n) < confidence + shift


def _points(axes, filled):
  lines = [line for line in axes.lines if line.get_marker() == "o"
           and (line.get_markerfacecolor() == "white") != filled]
  return np.concatenate([np.stack(line.get_data(), axis=1) for line in lines] or [np.zeros((0, 2))])


def test_a_point_is_the_mean_and_the_accuracy_of_its_bin_and_few_examples_are_hollow():
  confidence = np.array([0.15, 0.15] + [0.72, 0.74, 0.76, 0.71, 0.79] * 2, np.float32)
  correct = np.array([True, False] + [True] * 7 + [False] * 3)
  axes = reports.reliability_diagram(confidence, correct, num_bins=5)
  np.testing.assert_allclose(_points(axes, True), [[0.744, 0.7]], rtol=1e-5)
  np.testing.assert_allclose(_points(axes, False), [[0.15, 0.5]], rtol=1e-5)


def test_legends_are_not_on_the_data():
  figure = reports.reliability_grid({"a": _pair(shift=-0.3), "b": _pair(shift=0.3)})
  figure.draw_without_rendering()
  assert not any(axes.get_legend() or axes.texts for axes in figure.axes)
  (legend,) = figure.legends
  box = legend.get_window_extent()
  assert not any(box.overlaps(axes.get_tightbbox()) for axes in figure.axes)


def test_a_steep_histogram_is_logarithmic():
  steep = np.concatenate([np.full(970, 0.995), RNG.uniform(0.4, 0.9, 30)]).astype(np.float32)
  assert reports.confidence_histogram(steep).get_yscale() == "log"
  assert reports.confidence_histogram(_pair()[0]).get_yscale() == "linear"


@pytest.mark.parametrize("confidence", [np.array([0.5]), np.ones(5), np.linspace(0.99, 1, 50)])
def test_degenerate_predictions_are_drawn(confidence, tmp_path):
  correct = np.arange(len(confidence)) % 2 == 0
  for log_odds in (False, True):
    figure = reports.reliability_grid({"a": (confidence.astype(np.float32), correct)}, log_odds=log_odds)
    reports.save(figure, tmp_path / "figure", ["png"])
    assert struct.unpack(">II", (tmp_path / "figure.png").read_bytes()[16:24])[0] >= 600


def test_lists_are_drawn_as_arrays():
  confidence, correct = _pair()
  draw = {"reliability": reports.reliability_diagram, "histogram": lambda c, a: reports.confidence_histogram(c),
          "log": lambda c, a: reports.reliability_diagram(c, a, log_odds=True),
          "risk": lambda c, a: reports.risk_coverage_plot({"a": (c, a)}),
          "accuracy": lambda c, a: reports.accuracy_confidence_plot({"a": (c, a)})}
  for name, of_pair in draw.items():
    places = [np.concatenate([[bar.get_height() for bar in axes.patches], *(line.get_ydata() for line in axes.lines)])
              for axes in (of_pair(confidence, correct), of_pair(confidence.tolist(), correct.tolist()))]
    assert len(places[0])
    np.testing.assert_allclose(places[1], places[0], rtol=1e-6, err_msg=name)


def test_the_risk_coverage_curve_ends_at_the_error_rate():
  confidence, correct = _pair()
  axes = reports.risk_coverage_plot({"a": (confidence, correct)})
  x, y = axes.lines[0].get_data()
  np.testing.assert_allclose([x[-1], y[-1]], [1, 100 * np.mean(~correct)])


def test_severities_are_drawn_from_the_test_set_on():
  axes = reports.severity_plot({"none": {0: (0.01, np.nan), 1: (0.1, 0.02), 3: (0.3, 0.04)}, "TS": {0: (0.01, np.nan)}})
  line, *_, bars = axes.containers[0]
  np.testing.assert_allclose(line.get_xydata(), [[0, 1], [1, 10], [3, 30]])
  np.testing.assert_allclose([segment[:, 1] for segment in bars[0].get_segments()], [[1, 1], [8, 12], [26, 34]])


def test_training_curves_are_means_over_seeds_and_skip_damaged_lines(tmp_path):
  log = tmp_path / "metrics.jsonl"
  log.write_text("\n".join([
    '{"seed": 0, "step": 1, "train/loss": 1.0}', '{"seed": 1, "step": 1, "train/loss": 3.0}', '{"seed": 0, "st',
    '{"seed": 0, "step": 2, "train/loss": 0.5}', '{"seed": 0, "step": 2, "validation/nll": 9}']))
  results = _results()
  (axes,) = reports.figures(results, {"mine": log, "absent": tmp_path / "absent"})["training"].axes
  assert [line.get_label() for line in axes.lines] == ["mine: train/loss"]
  np.testing.assert_allclose(axes.lines[0].get_xydata(), [[1, 2], [2, 0.5]])
  assert (axes.get_xlabel(), axes.get_ylabel()) == ("training step", "loss; NLL in nats")
  assert "training" not in reports.figures(results)


def test_the_axes_of_ece_and_accuracy_are_columns_of_the_table_and_have_their_numbers():
  results = copy.deepcopy(_results())
  for place, row in enumerate(results.first[1].rows.values()):
    row.estimates["ece"] = evaluation.Estimate(0.022 + place, 0.018 + place, 0.011, 2.0275, 0.01, 0.5, [0.022])
  head, *rows = formats.to_rows(results)
  (axes,) = reports.figures(results)["pareto"].axes
  columns = [head.index(label.replace(", %", " %")) for label in (axes.get_xlabel(), axes.get_ylabel())]
  points = [container.lines[0].get_xydata()[0] for container in axes.containers]
  assert [[row[i].split()[0] for i in columns] for row in rows] == [[f"{x:.2f}" for x in point] for point in points]
  assert [row[columns[1]].split()[0] for row in rows] == ["1.80", "101.80", "201.80"]


def test_a_picture_for_event_files_is_an_image():
  image = reports.picture("title", evaluation.Predictions(np.eye(3, dtype=np.float32), np.arange(3)))
  assert image.ndim == 3 and image.shape[2] == 4 and 0 <= image.min() < image.max() <= 1


def test_a_section_is_one_object_with_its_content_table_and_figure(tmp_path, monkeypatch):
  def compute(results, models):
    return {name: list(model.sets) for name, model in models.items()}

  def table(content, results):
    return sections.Table("Sets of each model", ["model", "sets"], [[name, *sets] for name, sets in content.items()])

  def figure(content, results, curves):
    return curves.training_plot({name: ([0, 1], [0, len(sets)]) for name, sets in content.items()})

  section = sections.Section(compute, table, in_json=7, on_page=7, figure=figure, caption="How many <sets>.")
  monkeypatch.setitem(sections.SECTIONS, "sets", section)
  monkeypatch.setitem(FIGURES, "sets", of_section("sets", section))
  results = evaluation.judge({"<mine>": evaluation.Model({"test": [predictions(1)]}, {})}, num_resamples=2)
  assert json.loads(evaluation.to_json(results))["sets"] == {"<mine>": ["test"]}
  picture = reports.save(reports.figures(results)["sets"], tmp_path / "sets", ["svg"])
  reports.write(tmp_path / "report.html", results, title="", figures={"sets": picture}, config={}, environment={},
                command="")
  page = (tmp_path / "report.html").read_text()
  assert "Sets of each model</h2>" in page and "<td>&lt;mine&gt;</td><td>test</td>" in page
  assert "<figcaption>How many &lt;sets&gt;.</figcaption>" in page


@functools.cache
def _results(labels=("none", "TS", "<worse>"), set_name="test", model="mine"):
  """Made-up numbers, of which one row loses accuracy and one is the best."""
  rng = np.random.default_rng(0)
  rows = {}
  for i, label in enumerate(labels):
    confidence = rng.uniform(0.5, 1, (200, 1)).astype(np.float32)
    values = evaluation.Values(confidence, rng.uniform(size=(200, 1)) < confidence - 0.1, *[confidence] * 3,
                               rng.integers(0, 3, (200, 1)), {})
    value = 0.9 - 0.2 * (i == 2)
    estimate = evaluation.Estimate(value, value, 0.6, 0.95, 0.02, 0.01, [0.9])
    rows[model, label] = evaluation.Row(dict.fromkeys(COLUMNS, estimate), values.excess(), values)
  none, good, bad = list(rows)[:3]
  differences = {pair: dict.fromkeys(evaluation.COLUMNS, evaluation.Interval(*ends)) for pair, ends in (
    ((good, none), (-1.0, -2.0, -1.0)), ((bad, none), (-1.0, -2.0, 1.0)), ((bad, good), (1.0, 0.5, 2.0)))}
  fitted = {model: {label: (calibrators.temperature_scaling(), [{"temperature": 2.0}]) for label in labels[1:]}}
  evaluated = evaluation.EvaluatedSet(200, 3, 1, rows=rows, differences=differences)
  results = evaluation.Results(15, 10, {set_name: evaluated}, fitted)
  return dataclasses.replace(results, verdict=verdict(results))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
  folder, results = tmp_path_factory.mktemp("page"), _results()
  pictures = {name: reports.save(figure, folder / name, ["svg"]) for name, figure in reports.figures(results).items()}
  reports.write(folder / "report.html", results, title="a <b>", figures=pictures, config={"seed": 0}, environment={},
                command="python main.py")
  return folder / "report.html"


def test_the_tables_of_the_page_hold_every_metric_once_beside_the_names(page):
  tables = [re.findall(r"<button type=\"button\">(.*?)</button>", text)
            for text in re.findall(r"<thead>(.*?)</thead>", page.read_text(), re.DOTALL)]
  head = [html.escape(name) for name in evaluation.to_rows(_results(), every=True)[0]]
  names = [name for name in head if name in ("trained with", "calibrated by")]
  assert len(names) == 2 and all(table[:2] == names for table in tables[1:5])
  assert sorted(name for table in tables[1:5] for name in table[2:]) == sorted(head[2:])
  scores, errors = tables[1:3]
  assert COLUMNS["nll"].heading in scores and "noise floor %" in errors


def test_every_format_and_the_page_show_the_verdict_that_the_results_hold(no_figures, tmp_path, capsys):
  stored = evaluation.Verdict((evaluation.Recommendation("use", "x", "Use it."),), ("It is stored.",), ("mine", "x"))
  results = dataclasses.replace(_results(), verdict=stored)
  outputs.write(results, tmp_path, title="")
  reports.write(tmp_path / "report.html", results, title="", figures={}, config={}, environment={}, command="")
  assert "<p>Use it.</p><p>It is stored.</p>" in (tmp_path / "report.html").read_text(encoding="utf-8")
  assert (tmp_path / "results.md").read_text(encoding="utf-8").startswith("Use it.\n\n- It is stored.\n\n")
  assert "Use it.\n\n- It is stored.\n\n" in capsys.readouterr().out
  assert json.loads(evaluation.to_json(results))["verdict"] == {
    "first_line": "Use it.", "reasons": ["It is stored."], "row": ["mine", "x"],
    "recommendations": [{"kind": "use", "subject": "x", "text": "Use it.", "numbers": {}}]}


def test_alt_texts_say_what_the_figures_show(page):
  alts = [html.unescape(alt) for alt in re.findall(r"alt=\"(.*?)\"", page.read_text(), re.DOTALL)]
  row = next(iter(_results().first[1].rows.values()))
  confidence, correct = row.values.confidence[:, 0], row.values.correct[:, 0]
  above = confidence >= 0.9
  gap = 100 * (confidence - correct).mean()
  for sentence in (f"the mean confidence of uncalibrated is {gap:.1f} points above its accuracy, and its ECE is 90.0%",
               f"of at least 0.9: uncalibrated {100 * above.mean():.0f}% of predictions, and "
               f"{100 * correct[above].mean():.1f}% of them are right",
               f"among all: uncalibrated {100 * np.mean(~correct[confidence > np.median(confidence)]):.1f}% and "
               f"{100 * np.mean(~correct):.1f}%", "accuracy and debiased ECE: uncalibrated 90.0% and 90.0%",
               "the worst class of uncalibrated is "):
    assert any(sentence in alt for alt in alts), (sentence, alts)


@pytest.mark.parametrize(("width", "inches"), [("single", 3.4), ("double", 7.0)])
def test_figures_are_as_wide_as_columns_of_a_paper_and_panels_share_their_axes(width, inches):
  steep = (np.full(300, 0.995, np.float32), np.arange(300) > 3)
  for log_odds in (False, True):
    figure = reports.reliability_grid({"a": _pair(), "b": steep, "c": _pair()}, width=width, log_odds=log_odds)
    assert figure.get_figwidth() == inches
    panels = [axes for axes in figure.axes if axes.get_visible()]
    diagrams, histograms = ([axes for axes in panels if bool(axes.lines) == x] for x in (True, False))
    assert (len(diagrams), len(histograms)) == (3, 0 if log_odds else 3)
    figure.canvas.draw()
    for above, below in zip(diagrams, histograms, strict=not log_odds):  # Bars are below their points.
      ends = [(box.x0, box.x1) for box in (above.get_window_extent(), below.get_window_extent())]
      np.testing.assert_allclose(*ends, atol=1)
    for kind in filter(None, (diagrams, histograms)):
      assert len({(axes.get_xscale(), axes.get_yscale(), axes.get_xlim(), axes.get_ylim()) for axes in kind}) == 1
  assert {figure.get_figwidth() for figure in reports.figures(_results(), width=width).values()} == {inches}


def test_the_page_is_one_file_and_escapes_what_it_is_given(page):
  text = page.read_text()
  first_line, *reasons = _results().verdict.lines
  assert f'aria-label="Verdict"><p>{html.escape(first_line)}</p><p>' in text and html.escape(reasons[0]) in text
  assert "a &lt;b&gt;" in text and "&lt;worse&gt;" in text and "<worse>" not in text and "&#34;seed&#34;: 0" in text
  assert "src=\"http" not in text and "href=\"http" not in text
  for data in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", text):
    assert b"<svg" in base64.b64decode(data)
  rows = re.findall(r"<tr( class=\"loses\")?><td>mine</td><td>(.*?)</td>(.*?)</tr>", text, re.DOTALL)[:3]
  assert [(name, bool(loses)) for loses, name, _ in rows] == [("none", False), ("TS", False), ("&lt;worse&gt;", True)]
  assert ["<strong>" in cells for _, _, cells in rows] == [False, True, False]


# Names that a page or a spreadsheet would run, a terminal obey, a table take for its own, or a file not hold.
HOSTILE = ("<img src=x onerror=alert(1)>", "=cmd|'/c calc'!A0", "@SUM(A1)", "+1+cmd", "\t=1", "\uff1d1", "-0.5",
           "\x1b[31mred\x1b]0;title\x07", "two\nlines\r\x85\u2028", r"a\|b|c", r"\input{/etc/passwd}",
           "$\\frac{$ & % _ # ~ ^", "\u202egnp.exe", "\udcff", "x" * 5000, "\n" * 5000,
           "[1](javascript:alert(1))", "_", "*", "\x7f", "", "-cmd")


@pytest.fixture(scope="module")
def hostile():
  """Results in which every name is one of ``HOSTILE``."""
  results = _results(("none", *HOSTILE), HOSTILE[7] + HOSTILE[0], HOSTILE[8] + "\udcff")
  rows = list(HOSTILE[:3])
  scores = {HOSTILE[7]: dict.fromkeys(("score", "excess", "standard_error"), 0.1)}
  results = dataclasses.replace(results, classes=HOSTILE[7:10], sections={
    "severity": {row: {level: Level(0.1, 0.1) for level in (0, 1)} for row in rows},
    "selection": {row: [Chosen(HOSTILE[7], scores)] for row in rows},
    "conventions": {"test": {"mine": dict.fromkeys(rows, 0.1)}}})
  return dataclasses.replace(results, verdict=verdict(results))


def _is_safe(text):
  """Whether a text of lines holds nothing that a terminal obeys, and UTF-8 can hold it."""
  return all(line.isprintable() for line in text.encode().decode().split("\n"))


def test_names_are_shown_and_never_obeyed_in_tables(hostile, no_figures, tmp_path, capsys):
  outputs.write(hostile, tmp_path, title="")
  texts = {kind: (tmp_path / f"results.{kind}").read_bytes().decode() for kind in ("md", "csv", "json", "tex")}
  texts["terminal"] = capsys.readouterr().out
  texts["notebook"] = hostile._repr_html_()
  assert [kind for kind, text in texts.items() if not _is_safe(text)] == []
  for kind in ("md", "terminal", "notebook"):
    assert r"\x1b[31mred" in texts[kind] and r"\udcff" in texts[kind] and r"\u202egnp" in texts[kind]
  for kind in ("md", "notebook"):
    assert "<img" not in texts[kind] and "&lt;img src=x" in texts[kind]
  rows = [line for line in texts["md"].splitlines() if line.startswith("|")]
  assert len(rows) == 2 + 1 + len(HOSTILE) and "](" not in texts["md"]
  cells = {re.sub(r"\\[\\|]", "", line).count("|") for line in rows}  # Without what is escaped, from the left.
  assert len(cells) == 1 and max(map(len, rows)) < 1000
  # JSON keeps the names as they are.
  (models,) = json.loads(texts["json"])["results"].values()
  assert list(next(iter(models.values()))) == ["none", *HOSTILE]


def test_names_are_no_formulas_in_csv_and_numbers_stay_numbers(hostile):
  head, *rows = csv.reader(io.StringIO(evaluation.to_csv(hostile)))
  assert len(rows) == len(COLUMNS) * (1 + len(HOSTILE)) and {len(row) for row in rows} == {len(head)}
  labels = list(dict.fromkeys(row[2] for row in rows))
  assert labels[2:8] == ["'=cmd|'/c calc'!A0", "'@SUM(A1)", "'+1+cmd", r"\t=1", "'\uff1d1", "-0.5"]
  assert not any(re.match(r"\s*([=@+\t\r]|-[^\d.])", cell) for row in rows for cell in row)
  assert {tuple(row[4:7]) for row in rows} == {("0.9", "0.6", "0.95"), ("0.7", "0.6", "0.95")}


def test_names_are_text_in_latex(hostile):
  table = evaluation.to_latex(hostile).splitlines()
  commands = {command for line in table for command in re.findall(r"\\([A-Za-z]+)", line)}
  assert commands <= {"begin", "end", "toprule", "midrule", "bottomrule", "textbf", "leq", *(
    f"text{name}" for name in ("backslash", "asciitilde", "asciicircum", "less", "greater", "bar"))}
  rows = [line for line in table if line.endswith(r"\\")]
  assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
  assert not any(re.search(r"(?<!\\)[$%_#]|[~^<>|]", row.replace(r"$\leq$", "")) for row in rows[1:])
  # A row that begins with a bracket or a star would be an option of the row above.
  lines = formats.booktabs([["head"], ["[1cm]"], ["*"]], 1).splitlines()
  assert lines[4:6] == [r"{[}1cm] \\", r"{*} \\"]


@pytest.mark.filterwarnings("ignore:Glyph")  # The font lacks the wide equals sign.
def test_names_are_shown_and_never_obeyed_on_the_page_and_in_figures(hostile, tmp_path):
  log = tmp_path / "metrics.jsonl"
  log.write_text("".join(f'{{"seed": 0, "step": {step}, "train/loss": 1.0}}\n' for step in (1, 2)))
  figures = reports.figures(hostile, {name: log for name in HOSTILE[:3]})  # A warning of Matplotlib would be an error.
  for figure in figures.values():
    figure.savefig(io.BytesIO(), dpi=20)
    texts = [text.get_text() for text in figure.findobj(matplotlib.text.Text)]
    assert _is_safe("\n".join(texts)) and max(len(text.split("\n")) for text in texts) <= 3
    assert max(len(line) for text in texts for line in text.split("\n")) < 100
  assert figures.keys() >= {"reliability", "classes", "severity", "training", "pareto"}
  reports.write(tmp_path / "report.html", hostile, title=HOSTILE[0] + HOSTILE[7], figures={},
                config={"name": HOSTILE[7] + "\udcff"}, environment={}, command="\udcff\u202e")
  page = (tmp_path / "report.html").read_bytes().decode()
  assert _is_safe(page) and "<img src=x" not in page and "&lt;img src=x" in page
  assert r"\x1b[31mred" in page and r"\udcff" in page and r"\u202egnp" in page


def test_a_legend_names_every_line():
  """Matplotlib leaves out labels that begin with an underscore."""
  axes = reports.risk_coverage_plot({"_a": _pair(), "b$\\frac{$": _pair()})
  reports.legend_below(axes.figure, axes)
  (legend,) = axes.figure.legends
  assert [text.get_text() for text in legend.get_texts()] == [" _a", r"b\$\frac{\$"]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page_without_overflow_and_sorts_it(page, width, tmp_path):
  script = """<script>window.errors = []; addEventListener("error", e => errors.push(String(e.message)));
  addEventListener("load", () => {
    const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
    document.querySelectorAll("details").forEach(details => { details.open = true; });
    const images = [...document.images].every(image => image.complete && image.naturalWidth > 0);
    const cells = () => [...document.querySelector("tbody").rows].map(row => row.cells[1].textContent);
    const button = document.querySelectorAll("table.sortable th button")[1];
    button.click(); const up = cells(); button.click(); const down = cells();
    const within = [...document.querySelectorAll(".scroll, .panels")].filter(x => x.scrollWidth > x.clientWidth).length;
    const reached = [...document.querySelectorAll("button, summary, [tabindex]")].every(
      x => { x.focus(); return document.activeElement === x && getComputedStyle(x).outlineStyle !== "none"; });
    const loaded = performance.getEntriesByType("resource").map(x => x.name).filter(x => !x.startsWith("data:"));
    parent.postMessage(JSON.stringify({wide, images, within, reached, loaded, up, down, width: innerWidth, errors,
      sorted: button.parentElement.getAttribute("aria-sort")}), "*");
  });</script>"""
  (tmp_path / "page.html").write_text(page.read_text().replace("<head>", "<head>" + script))
  # A window cannot be narrower than 500 pixels, but a frame can.
  frame = tmp_path / "frame.html"
  frame.write_text(f"""<!doctype html><title></title><iframe src="page.html" style="width: {width}px; height: 900px;
    border: 0"></iframe><script>addEventListener("message", e => {{ document.title = e.data; }});</script>""")
  done = subprocess.run([BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000",
                         "--host-resolver-rules=MAP * ~NOTFOUND",  # There is no network.
                         f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", "--dump-dom",
                         frame.as_uri()], capture_output=True, text=True, timeout=240, check=False)
  shown = json.loads(html.unescape(re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)[1]))
  assert shown["width"] == width and shown["errors"] == [] and shown["images"] and shown["wide"] <= 0
  assert shown["reached"] and shown["loaded"] == []  # By the keyboard; and nothing is loaded from elsewhere.
  if width == 1280:
    assert shown["within"] == 0  # Every column is seen.
  assert shown["up"] == shown["down"][::-1] and shown["sorted"] == "descending"


def test_the_band_of_a_risk_of_no_errors_has_a_width():
  axes = reports.risk_coverage_plot({"a": (np.linspace(1, 0.5, 200), np.arange(200) < 150)})
  (band,) = axes.collections
  x, y = band.get_paths()[0].vertices.T
  place = np.isclose(x, 0.5)  # A hundred right answers, of which no more than 3.6% are wrong (Clopper & Pearson).
  assert y[place].min() == 0 and y[place].max() == pytest.approx(100 * (1 - 0.025 ** (1 / 100)), rel=1e-6)
