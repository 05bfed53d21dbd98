"""The results of an evaluation: judged from predictions, and shown as a table, JSON, CSV, Markdown, LaTeX and HTML."""

from collections.abc import Mapping, Sequence
import contextlib
import csv
import html
import io
import json
import math
import re
import types
from typing import Any, NamedTuple
import unicodedata

import jax
import numpy as np

from calib_jax import metrics
from calib_jax._system import compilation
from calib_jax._system.errors import cut, printable
from calib_jax.evaluation import choice, class_groups
from calib_jax.evaluation.detection import detection
from calib_jax.evaluation.fitting import UNCALIBRATED, Fitted, calibrated
from calib_jax.evaluation.measures import JOINT, METRICS, Values, measure, per_example
from calib_jax.evaluation.predictions import Predictions
from calib_jax.evaluation.rowwise import Calibrated
from calib_jax.evaluation.severity import by_severity

NAMELESS = "predictions"  # The name of a model of which only predictions are given.
FLOORED = "ece"  # The metric whose noise floor and p-value the short table has.
LARGEST_SHOWN = 16  # Numbers of a fitted parameter that the results repeat.


class Model(NamedTuple):
  """The predictions of one model.

  Attributes:
    sets: predictions by the name of the set, each a list of one element a seed. The first set is the test set.
    fitted: its calibrators, as ``fit`` returns them.
    out_of_fold: predictions of the first set by label, if those of ``fitted`` would be of what it was fitted to.
  """

  sets: Mapping[str, Sequence[Predictions]]
  fitted: Fitted
  out_of_fold: Mapping[str, Sequence[Calibrated]] | None = None


class Results(NamedTuple):
  """What an evaluation found. A row is a pair of the model's name and the calibrator's label.

  Attributes:
    settings: bins, resamples, and the size of each set.
    tables: ``{set: {model: {calibrator: {metric: cell}}}}``, as ``evaluate`` returns them.
    differences: ``{set: {(row, earlier row): {metric: {"difference", "low", "high"}}}}``, of the same resamples.
    detection: ``{set: {model: {calibrator: {score: …}}}}`` of out-of-distribution sets, as ``detection`` returns them.
    stability: ``{set: {convention: {row: error}}}``, calibration errors as other tools compute them.
    effects: ``{set: {row: {metric: {"mean", "sem", "cohens_d"}}}}`` over seeds, Cohen's d against the
      same calibrator of the first model.
    parameters: ``{model: {calibrator: [params of each seed]}}``, those that are not too large to print.
    values: ``{set: {row: values of each example}}``, for figures.
    classes: the names of the classes, or None.
    severity: ``{row: {severity: …}}`` of corrupted sets, as ``by_severity`` returns it.
    class_groups: ``{set: {row: {group: …}}}``, as ``class_groups`` returns it, where training was long-tailed.
    selection: ``{model: [what auto chose, one element a seed]}``, as ``choice.selection`` returns it.
    factories: ``{model: {calibrator: [name of the function that made it, one element a seed]}}``, as ``choice.names``
      returns it.
  """

  settings: dict
  tables: dict
  differences: dict
  detection: dict
  stability: dict
  effects: dict
  parameters: dict
  values: dict
  classes: tuple[str, ...] | None = None
  severity: Mapping = types.MappingProxyType({})
  class_groups: Mapping = types.MappingProxyType({})
  selection: Mapping = types.MappingProxyType({})
  factories: Mapping = types.MappingProxyType({})

  def _repr_html_(self) -> str:
    """Returns the table as a notebook shows it."""
    head, *body = to_rows(self)
    rows = [f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
            for tag, cells in [("th", head), *(("td", cells) for cells in body)]]
    return printable(f"<p>{html.escape(note(self))}</p><table>{''.join(rows)}</table>")


def judge(models: Mapping[str, Model], *, num_bins: int = 15, num_resamples: int = 1000) -> Results:
  """Evaluates models before and after calibration on all of their sets.

  Args:
    models: the models by name. The first set of the first one is the test set, which all have. The first model is the
      one that others are compared with.
    num_bins: the number of bins of calibration errors.
    num_resamples: the number of resamples of the intervals.

  Returns:
    The results.
  """
  first = next(iter(models.values()))
  test_set = next(iter(first.sets))
  results = Results({"num_bins": num_bins, "num_resamples": num_resamples, "level": 0.95, "sets": {}}, {}, {}, {}, {},
                    {}, {}, {}, first.sets[test_set][0].classes, severity={}, class_groups={}, selection={},
                    factories={})
  for set_name in dict.fromkeys(name for model in models.values() for name in model.sets):
    having = {name: model for name, model in models.items() if set_name in model.sets}
    parts = next(iter(having.values())).sets[set_name]
    results.settings["sets"][set_name] = {
      "num_examples": len(parts[0].labels), "num_classes": parts[0].logits.shape[1],
      "num_seeds": max(len(model.sets[set_name]) for model in having.values()), "kind": parts[0].kind}
    if parts[0].kind == "out_of_distribution":
      results.detection[set_name] = {name: {
        label: detection(_calibrated(model, test_set, label), _calibrated(model, set_name, label),
                         num_resamples=num_resamples) for label in _labels(model)} for name, model in having.items()}
      continue
    rows = {(name, label): per_example(_calibrated(model, set_name, label), num_bins=num_bins)
            for name, model in having.items() for label in _labels(model)}
    _add_tables(results, set_name, rows)
    _add_class_groups(results, set_name, next(
      (part.train_counts for part in (parts[0], first.sets[test_set][0]) if part.train_counts is not None), None))
  _add_summaries(results, test_set)
  for name, model in models.items():
    results.parameters[name] = {label: [_small(p) for p in params] for label, (_, params) in model.fitted.items()}
    results.factories[name] = {label: choice.names(*fitted) for label, fitted in model.fitted.items()}
    if found := choice.selection(model.fitted):
      results.selection[name] = found
  return results


def _add_class_groups(results: Results, set_name: str, train_counts: np.ndarray | None) -> None:
  """Adds the scores of head, medium and tail classes, if training was long-tailed."""
  rows = results.values[set_name]
  if class_groups.is_long_tailed(train_counts):
    found = class_groups.class_groups(rows, train_counts, num_bins=results.settings["num_bins"],
                                      num_resamples=results.settings["num_resamples"])
    results.class_groups[set_name] = {row_name(results, row): groups for row, groups in found.items()}


def _add_summaries(results: Results, test_set: str) -> None:
  """Adds what is computed from the tables of all sets, and what other tools' conventions make of the test set."""
  rows = results.values[test_set]
  if len(rows) > 1:
    results.stability[test_set] = _conventions({row_name(results, row): values for row, values in rows.items()})
  results.severity.update({row_name(results, row): found
                           for row, found in by_severity(results.tables, test_set, list(rows)).items()})


def _labels(model: Model) -> list[str]:
  return [UNCALIBRATED, *model.fitted]


def _calibrated(model: Model, set_name: str, label: str) -> Sequence[Calibrated]:
  """Returns the predictions of a set with one calibrator, which is applied when they are read."""
  if model.out_of_fold and set_name == next(iter(model.sets)):
    return model.out_of_fold[label]
  return calibrated(model.fitted, label, model.sets[set_name])


def _add_tables(results: Results, set_name: str, rows: Mapping[tuple[str, str], Values]) -> None:
  """Adds what is measured on one set. Rows are compared if they have the same labels in the same order."""
  options = {key: results.settings[key] for key in ("num_bins", "num_resamples")}
  tables, differences = {}, {}
  examples = {row: values.labels[:, 0].tobytes() for row, values in rows.items()}
  for same in dict.fromkeys(examples.values()):
    found, apart = measure({row: values for row, values in rows.items() if examples[row] == same}, **options)
    tables |= found
    differences |= apart
  models = dict.fromkeys(name for name, _ in rows)
  results.tables[set_name] = {name: {label: tables[row] for row in rows if row[0] == name for label in row[1:]}
                              for name in models}
  results.differences[set_name] = differences
  results.values[set_name] = dict(rows)
  effects = {}
  for (name, label), row in tables.items():
    baseline = tables.get((next(iter(models)), label), {})
    if len(row["nll"]["per_seed"]) > 1:
      effects[row_name(results, (name, label))] = {
        key: {"mean": cell["value"], "sem": float(metrics.sem(np.array(cell["per_seed"], np.float32))),
              **_effect(cell["per_seed"], baseline.get(key, {}).get("per_seed", ()), name == next(iter(models)))}
        for key, cell in row.items()}
  if effects:
    results.effects[set_name] = effects


def _effect(own: Sequence[float], baseline: Sequence[float], is_baseline: bool) -> dict[str, float]:
  """Returns Cohen's d, if there is a baseline with several seeds of which some differ."""
  own, baseline = np.array(own, np.float32), np.array(baseline, np.float32)
  if is_baseline or len(baseline) < 2 or np.ptp(own) == np.ptp(baseline) == 0:
    return {}
  return {"cohens_d": float(metrics.cohens_d(own, baseline))}


@compilation.once
def _every_convention(confidence: jax.Array, correct: jax.Array) -> dict[str, jax.Array]:
  return {name: metrics.calibration_error(confidence, correct, **rule) if isinstance(rule, Mapping)
          else rule(confidence, correct) for name, rule in metrics.CONVENTIONS.items()}


def _conventions(rows: Mapping[str, Values]) -> dict[str, dict[str, float]]:
  """Returns the calibration error of each row, the mean over seeds, by every convention."""
  found = {row: [_every_convention(values.confidence[:, s], values.correct[:, s])
                 for s in range(values.confidence.shape[1])] for row, values in rows.items()}
  return {name: {row: float(np.mean([float(errors[name]) for errors in seeds]))
                 for row, seeds in found.items()} for name in metrics.CONVENTIONS}


def _small(params: Any) -> dict[str, Any]:
  """Returns the params that the results repeat: those with few numbers."""
  if choice.CHOSEN in params:
    (name, params), = params[choice.CHOSEN].items()
    return {choice.CHOSEN: name, **_small(params)}
  return {name: np.asarray(value).tolist() for name, value in params.items()
          if not isinstance(value, dict) and np.size(value) <= LARGEST_SHOWN}


def verdicts(results: Results, set_name: str, metric: str, row: tuple[str, str]) -> dict[tuple[str, str], str]:
  """Returns which rows a row is better or worse than, where the interval of the paired difference excludes zero.

  Args:
    results: the results.
    set_name: the set.
    metric: one of ``JOINT``.
    row: the row.

  Returns:
    ``{other row: "better" | "worse"}``.
  """
  found = {}
  for (later, earlier), cells in results.differences[set_name].items():
    if row in (later, earlier) and metric in JOINT:
      low, high = cells[metric]["low"], cells[metric]["high"]
      if low > 0 or high < 0:
        is_higher = (low > 0) == (row == later)
        found[earlier if row == later else later] = (
          "worse" if is_higher == METRICS[metric].lower_is_better else "better")
  return found


def row_name(results: Results, row: tuple[str, str]) -> str:
  """Returns the name of a row, which names the model only if there are several."""
  several = len({model for rows in results.values.values() for model, _ in rows}) > 1
  calibrator = {UNCALIBRATED: "uncalibrated"}.get(row[1], row[1])
  return f"{row[0]}, {calibrator}" if several else calibrator


def is_best(results: Results, set_name: str, metric: str, row: tuple[str, str]) -> bool:
  """Returns whether a row is better than every other row of a set, by intervals that exclude zero."""
  others = [other for other in results.values[set_name] if other != row]
  has_best = metric in JOINT and METRICS[metric].lower_is_better is not None
  found = verdicts(results, set_name, metric, row) if has_best else {}
  return bool(others) and all(found.get(other) == "better" for other in others)


def note(results: Results) -> str:
  """Returns the sentences that say what the numbers of the table are."""
  settings = results.settings
  seeds = max(found["num_seeds"] for found in settings["sets"].values())
  sizes = ", ".join(f"{name}: N = {found['num_examples']:,}, K = {found['num_classes']:,}"
                    for name, found in settings["sets"].items())
  chosen = "".join(f" {choice.AUTO} chose {choice.phrase([found[choice.CHOSEN] for found in of_seeds])}"
                   f"{f' for {model}' if len(results.selection) > 1 else ''}."
                   for model, of_seeds in results.selection.items())
  return printable(
    f"{sizes}. {f'Means over {seeds} seeds, w' if seeds > 1 else 'W'}ith 95% bootstrap intervals over examples "
    f"({settings['num_resamples']:,} resamples). ECE with {settings['num_bins']} bins. The bias that the "
    "size of the set causes is subtracted from calibration errors and their intervals (results.json also has the "
    "errors before that, \"value\"), but not from the noise floor, which is the ECE that a perfectly calibrated "
    "model with these confidences would have; p is the probability of an ECE as large as this if the model is "
    f"calibrated.{chosen}")


def to_rows(results: Results, *, every: bool = False) -> list[list[str]]:
  """Formats results as the cells of a table.

  Args:
    results: the results.
    every: whether to show every metric instead of the main ones.

  Returns:
    Rows of text, the heading first; a cell is ``estimate [low, high]``.
  """
  measured = next(iter(next(iter(next(iter(results.tables.values())).values())).values()))
  shown = {key: METRICS[key] for key in measured if every or METRICS[key].is_main}
  head = ["evaluated on", "trained with", "calibrated by"]
  for key, metric in shown.items():
    head += [metric.heading, *(["noise floor %", "p"] if key == FLOORED else [])]
  rows = []
  for set_name, models in results.tables.items():
    for model, table in models.items():
      for label, row in table.items():
        cells = [set_name, model, label]
        for key, metric in shown.items():
          cells.append(format_cell(row[key], metric.scale))
          if key == FLOORED:
            cells += [f"{100 * row[key]['floor']:.2f}", f"{row[key]['p_value']:.3f}"]
        rows.append(cells)
  # One set is named in the note, and predictions without a model have no name.
  kept = [i for i in range(len(head)) if i > 1 or len({row[i] for row in rows}) > 1 or (i and rows[0][i] != NAMELESS)]
  return [[row[i] for i in kept] for row in [head, *rows]]


def format_cell(cell: Mapping[str, float], scale: float) -> str:
  """Returns ``estimate [low, high]``, percent with two digits and others with four."""
  digits = 2 if scale == 100 else 4
  estimate, low, high = (f"{scale * cell[key]:.{digits}f}" for key in ("estimate", "low", "high"))
  return f"{estimate} [{low}, {high}]"


def to_json(results: Results) -> str:
  """Returns every number as JSON; numbers that are not finite are null."""
  differences = {name: [{"row": row_name(results, a), "minus": row_name(results, b), **cells}
                        for (a, b), cells in pairs.items()] for name, pairs in results.differences.items()}
  content = {"settings": results.settings, "results": results.tables, "differences": differences,
             "detection": results.detection, "conventions": results.stability, "seeds": results.effects,
             "severity": results.severity, "class_groups": results.class_groups, "selection": results.selection,
             "parameters": results.parameters}
  return json.dumps(_finite(content), indent=2).replace("\x7f", r"\u007f") + "\n"  # json lets this one through.


def _finite(value: Any) -> Any:
  if isinstance(value, Mapping):
    return {key: _finite(child) for key, child in value.items()}
  if isinstance(value, list | tuple):
    return [_finite(child) for child in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value


def to_csv(results: Results) -> str:
  """Returns one line for each number: set, model, calibrator, metric, estimate, low, high, value, floor, p-value.

  A name that a spreadsheet would compute as a formula, such as ``=1+1``, begins with an apostrophe.
  """
  numbers = ("estimate", "low", "high", "value", "floor", "p_value")
  text = io.StringIO()
  writer = csv.writer(text, lineterminator="\n")
  writer.writerow(["set", "model", "calibrator", "metric", *numbers])
  for set_name, models in results.tables.items():
    for model, table in models.items():
      for label, row in table.items():
        writer.writerows([*map(csv_text, (set_name, model, label, key)),
                          *(f"{cell[k]:.9g}" if k in cell else "" for k in numbers)] for key, cell in row.items())
  return text.getvalue()


def csv_text(name: str) -> str:
  """Returns a name as text of one line that no spreadsheet takes for a formula; a number such as -0.5 is none."""
  name = printable(name)
  with contextlib.suppress(ValueError):
    float(name)
    return name
  # Wide characters, which a Japanese spreadsheet also reads as these four, are normalised.
  is_formula = unicodedata.normalize("NFKC", name).lstrip().startswith(("=", "+", "-", "@"))
  return f"'{name}" if is_formula else name


def to_latex(results: Results) -> str:
  r"""Returns a booktabs table, with the best in bold where it is better than every other row of its set."""
  head, *body = to_rows(results)
  places = [(set_name, (model, label)) for set_name, models in results.tables.items()
            for model, table in models.items() for label in table]
  mains = {metric.heading: key for key, metric in METRICS.items()}
  best = [[name in mains and is_best(results, set_name, mains[name], row) for name in head] for set_name, row in places]
  return booktabs([head, *body], sum(name not in (*mains, "noise floor %", "p") for name in head), best)


def booktabs(rows: Sequence[Sequence[str]], num_texts: int, best: Sequence[Sequence[bool]] | None = None) -> str:
  r"""Formats rows of text as a booktabs table.

  Args:
    rows: the rows, the heading first.
    num_texts: the number of columns of text, which come first; the others are numbers.
    best: which cells of the rows after the heading are bold; None for none.

  Returns:
    The table.
  """
  def line(cells, bold):
    return " & ".join(rf"\textbf{{{_escaped(cell)}}}" if b else _escaped(cell)
                      for cell, b in zip(cells, bold, strict=True)) + r" \\"

  plain, (head, *body) = [False] * len(rows[0]), rows
  return "\n".join([r"\begin{tabular}{" + "l" * num_texts + "r" * (len(head) - num_texts) + "}", r"\toprule",
                    line(head, plain), r"\midrule",
                    *(line(*pair) for pair in zip(body, best or [plain] * len(body), strict=True)),
                    r"\bottomrule", r"\end{tabular}"]) + "\n"


def _escaped(text: str) -> str:
  """Returns ``text`` as LaTeX that prints it: a backslash in a user's label is no command."""
  names = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar"}
  text = "".join(rf"\text{names[c]}{{}}" if c in names else f"\\{c}" if c in "%_&#${}" else c
                 for c in printable(text))
  # At the beginning of a row these would be options of the end of the row above.
  return f"{{{text[0]}}}{text[1:]}" if text.startswith(("[", "*")) else text


def markdown_text(text: str) -> str:
  """Returns a text of one line as Markdown that shows it: names in it are neither HTML nor links."""
  return html.escape(printable(text), quote=False).replace("](", "]\\(")


def markdown(rows: Sequence[Sequence[str]]) -> str:
  """Formats rows of text as a Markdown table whose columns are also aligned in a terminal.

  Markup in a cell is escaped, because Markdown may hold HTML, and a long cell is cut.

  Args:
    rows: the rows, the heading first.

  Returns:
    The table.
  """
  # Backslashes before a bar are doubled, because an even number of them would leave it bare.
  rows = [[re.sub(r"(\\*)\|", r"\1\1\\|", markdown_text(cut(printable(cell)))) for cell in row] for row in rows]
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
  return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]) + "\n"
