"""Writes a self-contained HTML page of an evaluation: verdict, tables, figures, config and environment."""

import base64
from collections.abc import Mapping, Sequence
import html
import json
import pathlib
from typing import Any

import jinja2
import markupsafe

from calib_jax import evaluation
from calib_jax._system.errors import printable
from calib_jax._system.files import write_text
from calib_jax.evaluation.results import is_best
from calib_jax.evaluation.verdict import POINT, verdict
from calib_jax.reports import page_tables
from calib_jax.reports.figures import is_steep

POOLED = ("reliability", "reliability_log_odds", "accuracy_confidence", "risk_coverage", "classes")
INDEPENDENT = ("reliability", "reliability_log_odds", "risk_coverage")
CAPTIONS = {
  "reliability": "Accuracy against confidence. Points are bins with 95% intervals, hollow with fewer than five "
                 "examples; the curve is a kernel mean with its 95% band. Below are the confidences.",
  "reliability_log_odds": "The same on axes of log-odds, which separate confidences near 1, and with bins of equal "
                          "size.",
  "accuracy_confidence": "Accuracy of the predictions whose confidence is at least a threshold.",
  "risk_coverage": "Share of errors among the most confident predictions, with 95% bands.",
  "classes": "Confidence minus accuracy of each predicted class with 95% intervals, the worst class first. Right of 0, "
             "predictions are overconfident.",
  "severity": "ECE against the severity of corruptions: means over corruption types with within-subject standard "
              "errors, if there are several types and rows.",
  "training": "What training logged, means over seeds.",
  "pareto": "ECE against accuracy with 95% intervals. Lower right is better.",
}

MARKS = ("The best is bold where it is better than every other row by an interval of paired differences that excludes "
         "zero. Rows in grey italics lose more than a point of accuracy.")

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
  :root { color-scheme: light dark; --ink: #1f2328; --soft: #57606a; --back: #ffffff; --card: #f3f5f7; --line: #d0d7de;
          --link: #0550ae; }
  @media (prefers-color-scheme: dark) {
    :root { --ink: #e6edf3; --soft: #a8b3bf; --back: #0d1117; --card: #161b22; --line: #3d444d; --link: #79c0ff; } }
  * { box-sizing: border-box; }
  body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 76rem;
         margin: 0 auto; padding: 1rem; }
  h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
  .verdict { background: var(--card); border-left: 4px solid var(--link); padding: .8rem 1.1rem; font-size: 1.1rem; }
  .verdict p { margin: .35rem 0; }
  .note, figcaption { color: var(--soft); font-size: .9rem; max-width: 60rem; }
  .scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
  .scroll:focus-visible, button:focus-visible, summary:focus-visible { outline: 3px solid var(--link); }
  table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; width: 100%; }
  th, td { padding: .4rem .7rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
  thead th { background: var(--card); padding: 0; }
  th button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0; padding: .4rem .7rem;
              cursor: pointer; white-space: nowrap; width: 100%; text-align: left; }
  th[aria-sort=ascending] button::after { content: " \\2191"; }
  th[aria-sort=descending] button::after { content: " \\2193"; }
  tr.loses td { color: var(--soft); font-style: italic; }
  .figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
  figure { margin: 0; } .wide { grid-column: 1 / -1; }
  img { max-width: 100%; height: auto; background: white; border-radius: 6px; padding: .4rem; }
  pre { background: var(--card); padding: .8rem; overflow-x: auto; font-size: .8rem; }
  pre.command { white-space: pre-wrap; overflow-wrap: anywhere; }
  summary { cursor: pointer; font-weight: 600; margin: .8rem 0; }
  @media print { body { max-width: none; } .scroll { overflow: visible; border: 0; } table { font-size: .62rem; }
    th, td { white-space: normal; padding: .2rem; } th button { padding: .2rem; white-space: normal; }
    figure, tr { break-inside: avoid; } h2, summary { break-after: avoid; } }
</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
<section class="verdict" aria-label="Verdict">{% for sentence in sentences %}<p>{{ sentence }}</p>{% endfor %}</section>
{% for table in tables %}
<h2 id="table{{ loop.index }}">{{ table.title }}</h2>
{% if loop.first %}<p class="note">{{ note }}</p>{% endif %}
<div class="scroll" tabindex="0" role="region" aria-labelledby="table{{ loop.index }}"><table class="sortable">
<thead><tr>{% for cell in table.head %}<th scope="col"><button type="button">{{ cell }}</button></th>{% endfor %}</tr>
</thead>
<tbody>{% for row in table.rows %}<tr{% if row.loses %} class="loses"{% endif %}>
{%- for cell in row.cells %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table></div>
{% if loop.first %}<h2>Figures</h2>
<div class="figures">{% for figure in figures %}
{% if figure.folded is not none %}<details class="wide"{% if not figure.folded %} open{% endif %}>
<summary>Reliability on axes of log-odds</summary>{% endif %}
<figure{% if figure.wide %} class="wide"{% endif %}><img src="data:image/svg+xml;base64,{{ figure.data }}"
 alt="{{ figure.name }}: {{ figure.caption }}"><figcaption>{{ figure.caption }}</figcaption></figure>
{% if figure.folded is not none %}</details>{% endif %}{% endfor %}
</div>
{% endif %}
{% endfor %}
<h2>How to repeat it</h2>
<pre class="command">{{ command }}</pre>
{% if config %}<details><summary>Config</summary><pre tabindex="0">{{ config }}</pre></details>{% endif %}
<details><summary>Environment</summary><pre tabindex="0">{{ environment }}</pre></details>
{% if parameters %}
<details><summary>Fitted parameters</summary><pre tabindex="0">{{ parameters }}</pre></details>
{% endif %}
</main>
<script>
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.querySelectorAll("th")];
    heads.forEach((head, i) => head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const [x, y] = [a, b].map(row => row.cells[i].textContent), [p, q] = [parseFloat(x), parseFloat(y)];
        const order = isNaN(p) || isNaN(q) ? x.localeCompare(y) : p - q;
        return up ? order : -order;
      });
      table.tBodies[0].append(...rows);
    }));
  }
</script>
</body>
</html>
"""


def write(path: pathlib.Path, results: evaluation.Results, *, title: str, figures: Mapping[str, pathlib.Path],
          config: Mapping[str, Any], environment: Mapping[str, Any], command: str) -> None:
  """Writes the page.

  Args:
    path: the file to write.
    results: what the page is about.
    title: the title of the page.
    figures: SVG files by name, in the order of the page.
    config: the config to print; none if empty.
    environment: the environment to print.
    command: the command that repeats the evaluation.
  """
  tables = [_table(results, "Results"), _table(results, "Every metric", every=True)]
  tables += [table for table in (
    page_tables.selection(results), page_tables.seeds(results), page_tables.severity(results),
    page_tables.class_groups(results), page_tables.conventions(results), page_tables.detection(results))
    if table["rows"]]
  shown = [_figure(name, picture, _caption(results, name), name.startswith("reliability"),
                   not is_steep(results) if name == "reliability_log_odds" else None)
           for name, picture in figures.items()]
  _render(path, title=title, sentences=verdict(results), note=f"{evaluation.note(results)} {MARKS}", tables=tables,
          figures=shown, command=command, config=json.dumps(config, indent=2) if config else "",
          environment=json.dumps(environment, indent=2), parameters=json.dumps(results.parameters, indent=2))


def write_streamed(path: pathlib.Path, rows: Sequence[Sequence[str]], sentence: str, *, title: str, note: str,
                   reliability: pathlib.Path, environment: Mapping[str, Any], command: str) -> None:
  """Writes the page of predictions that were streamed.

  Args:
    path: the file to write.
    rows: the table, the heading first.
    sentence: the verdict.
    title: the title of the page.
    note: what the intervals mean.
    reliability: the SVG file of the reliability diagram.
    environment: the environment to print.
    command: the command that repeats the evaluation.
  """
  head, *body = rows
  _render(path, title=title, sentences=[sentence], note=note, command=command,
          tables=[{"title": "Results", "head": head, "rows": [{"cells": cells} for cells in body]}],
          figures=[_figure("reliability", reliability, CAPTIONS["reliability"], True)],
          environment=json.dumps(environment, indent=2))


def _figure(name: str, picture: pathlib.Path, caption: str, wide: bool, folded: bool | None = None) -> dict[str, Any]:
  return {"name": name.replace("_", " "), "caption": caption, "wide": wide, "folded": folded,
          "data": base64.b64encode(picture.read_bytes()).decode()}


def _render(path: pathlib.Path, **content) -> None:
  page = jinja2.Environment(autoescape=True).from_string(TEMPLATE).render(**content)
  write_text(path, printable(page, lines=True))


def _table(results: evaluation.Results, title: str, *, every: bool = False) -> dict[str, Any]:
  """Returns a table with the best in bold and the rows marked that lose accuracy."""
  head, *body = evaluation.to_rows(results, every=every)
  mains = {metric.heading: key for key, metric in evaluation.METRICS.items()}
  rows, lines = [], iter(body)
  for set_name, models in results.tables.items():
    reference = next(iter(models.values()))[evaluation.UNCALIBRATED]["accuracy"]["value"]
    for model, table in models.items():
      for label, row in table.items():
        cells = [markupsafe.Markup(f"<strong>{html.escape(cell)}</strong>")
                 if name in mains and is_best(results, set_name, mains[name], (model, label)) else cell
                 for name, cell in zip(head, next(lines), strict=True)]
        rows.append({"cells": cells, "loses": row["accuracy"]["value"] < reference - POINT})
  return {"title": title, "head": head, "rows": rows}


def _caption(results: evaluation.Results, name: str) -> str:
  """Returns the caption of a figure, which says what becomes of several seeds."""
  num_seeds = max(found["num_seeds"] for found in results.settings["sets"].values())
  ending = ""
  if num_seeds > 1 and name in POOLED:
    ending = " The predictions of all seeds are pooled" + (
      ", and their intervals take them for independent" if name in INDEPENDENT else "")
    ending += "; the ECE in the titles is the mean over seeds." if name.startswith("reliability") else "."
  return CAPTIONS.get(name, "") + ending
