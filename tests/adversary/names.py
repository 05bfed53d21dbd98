"""Names that hold markup, formulas and control characters, in every format that results are written in."""

from collections.abc import Mapping
import contextlib
import csv
import dataclasses
import html.parser
import io
import json
import pathlib
import random
import re
from typing import Any

import numpy as np

from calib_jax import calibrators, evaluation
from calib_jax._system.errors import UserError
from calib_jax.cli import evaluate as evaluation_command
from calib_jax.reports import __main__ as reports_command
from calib_jax.reports import page
from calib_jax.run import outputs
from tests.adversary import mutations, predictions
from tests.adversary.judge import CONTROL, Kind

PIECES = ("<script>alert(1)</script>", "<img src=x onerror=alert(2)>", "</td></table>", "<!--", "]]>", "&lt;", "=1+1",
          "=cmd|' /C calc'!A0", "@SUM(1)", "+1+1", "-1+1", "\t=1", "\x1b[2J", "\x1b]0;x\x07", "\n", "\r\n", "|", "\\|",
          "$$", "\\input{/etc/passwd}", "\\write18{id}", "%", "&", "_", "#", "^", "~", "{", "}", "\u202egpj.exe",
          "\u2066",
          "\ud800", "\udc1b", "x" * 5000, "é", "日本", "\u200b", "`", "[a](javascript:alert(1))", "![a](http://x)",
          "**", "'", '"', "{{ 7 * 7 }}", "{% raw %}", "\x00", "\x9b2J", "\u2028", "..", "none", "", " ", "🙂", "-", "0")
SET, MODEL, OTHER, LABEL, CLASS = "SetName", "ModelName", "OtherName", "LabelName", "ClassName"


def _prepare(folder: pathlib.Path) -> dict[str, Any]:
  """Judges two models with plain names, and notes the tags of their page."""
  part = evaluation.Predictions(predictions.LOGITS, predictions.LABELS.astype(np.int32), classes=(CLASS, "b", "c"))
  fitted = evaluation.fit([part], {LABEL: calibrators.temperature_scaling()}, lambda note: None)
  other = part._replace(logits=part.logits * 2)
  results = evaluation.judge({MODEL: evaluation.Model({SET: [part], "fog_1": [other]}, fitted),
                              OTHER: evaluation.Model({SET: [other]}, {})}, num_resamples=5)
  outputs.missing_for_figures = lambda: ["matplotlib"]  # The page is made here, without figures.
  plain = _page(results, folder / "plain.html", {"a": MODEL})
  return {"results": results, "tags": _tags(plain), "columns": _columns(results)}


def _columns(results: Any) -> int:
  return len(evaluation.to_rows(results)[0])


def _page(results: Any, path: pathlib.Path, config: Mapping[str, Any]) -> str:
  page.write(path, results, title=str(next(iter(config.values()))), figures={}, config=config, environment=dict(config),
             command=str(next(iter(config.values()))))
  return path.read_text(encoding="utf-8")


class _Tags(html.parser.HTMLParser):
  """Collects the tags and attributes of a page."""

  def __init__(self):
    super().__init__()
    self.found: set[tuple[str, ...]] = set()

  def handle_starttag(self, tag, attributes):
    self.found.add((tag, *(name for name, _ in attributes)))

  def handle_comment(self, data):
    self.found.add(("comment",))


def _tags(text: str) -> set[tuple[str, ...]]:
  parser = _Tags()
  parser.feed(text)
  return parser.found


def name(draw: random.Random) -> str:
  """Returns a name of one to four pieces."""
  return "".join(draw.choice(PIECES) for _ in range(draw.randint(1, 4)))[:6000]


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
  """Returns ``value`` with the plain names replaced, in keys, texts and tuples."""
  if isinstance(value, str):
    for plain, new in names.items():
      value = value.replace(plain, new)
    return value
  if isinstance(value, Mapping):
    return {_renamed(key, names): _renamed(child, names) for key, child in value.items()}
  if isinstance(value, evaluation.Results | evaluation.EvaluatedSet | evaluation.Verdict | evaluation.Recommendation):
    return type(value)(**{field: _renamed(x, names) for field, x in vars(value).items()})
  if dataclasses.is_dataclass(value) or hasattr(value, "_replace"):
    return value
  if isinstance(value, list | tuple):
    return type(value)(_renamed(x, names) for x in value)
  return value


def _formats(draw: random.Random, sound: Mapping[str, Any], folder: pathlib.Path) -> tuple:
  names = {plain: name(draw) for plain in draw.sample((SET, MODEL, OTHER, LABEL, CLASS), draw.randint(1, 4))}
  if len(set(names.values())) < len(names) or {"none", "", "fog_1"} & set(names.values()):
    names = {MODEL: "<b>" + draw.choice(PIECES)}
  return _renamed(sound["results"], names), names, folder


def _write(case: tuple) -> str:
  """Writes every format, as the commands do; returns what they print."""
  results, names, folder = case
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    outputs.write(results, folder, title="x")
  _page(results, folder / "report.html", {"title": next(iter(names.values())), **names})
  (folder / "notebook.html").write_text(results._repr_html_(), encoding="utf-8")
  return printed.getvalue()


def _silent_formats(sound: Mapping[str, Any], case: tuple, printed: str, said: str) -> str:
  """Returns what a name does to a format, or ""."""
  folder = case[2]
  texts = {suffix: (folder / f"results.{suffix}").read_bytes().decode() for suffix in ("md", "csv", "json", "tex")}
  texts |= {"terminal": printed, **{stem: (folder / f"{stem}.html").read_bytes().decode() for stem in (
    "report", "notebook")}}
  for where, text in texts.items():
    if found := CONTROL.search(text):
      return f"{where} holds the control character {found[0]!r}"
  if found := re.search(r"<[A-Za-z/!?][^\n]{0,20}", texts["md"]):
    return f"md holds {found[0]!r}"
  rows = [line for line in texts["md"].rpartition("\n\n")[2].splitlines()]
  if {len(re.findall(r"(?<!\\)\|", row)) for row in rows} != {sound["columns"] + 1} or len(rows) != 7:
    return f"the table of md has other cells: {len(rows)} rows"
  for row in csv.reader(io.StringIO(texts["csv"])):
    formulas = [cell for cell in row if cell[:1] in tuple("=+-@\t\r") and not _is_number(cell)]
    if len(row) != 10 or formulas:
      return f"csv holds a row of {len(row)} cells with {formulas!r:.100}"
  json.loads(texts["json"], parse_constant=lambda constant: 1 / 0)
  # The smallest p-value has the first, the heading of p-values the second.
  for line in texts["tex"].replace(r"$\leq$ ", "").replace(" & $p$ & ", " & p & ").splitlines():
    commands = set(re.findall(r"\\([A-Za-z]+|.)", line)) - set("$%_&#{}\\")
    if not all(c.startswith("text") or c in ("begin", "end", "toprule", "midrule", "bottomrule") for c in commands):
      return f"tex holds the commands {sorted(commands)!r:.100}"
    if re.search(r"(?<!\\)[$%_#]|[~^<>|]", line):
      return f"tex holds a bare special character: {line[:100]}"
  if more := _tags(texts["report"]) - sound["tags"]:
    return f"the page holds {sorted(more)!r:.100}"
  if more := _tags(texts["notebook"]) - {("p",), ("table",), ("tr",), ("td",), ("th",)}:
    return f"the notebook's table holds {sorted(more)!r:.100}"
  return ""


def _is_number(cell: str) -> bool:
  try:
    float(cell)
  except ValueError:
    return False
  return True


def _paths(draw: random.Random, sound: Any, folder: pathlib.Path) -> tuple[str, list[str]]:
  """Writes a file of a hostile name, and returns the arguments of a command that reads it."""
  stem = name(draw).replace("/", "").replace("\x00", "")
  stem = stem.encode("utf-8", "surrogatepass")[:80].decode("utf-8", draw.choice(("ignore", "surrogateescape")))
  path = folder / f"{stem}{draw.choice(('.npz', '.csv', ''))}"
  with contextlib.suppress(OSError, UnicodeError, ValueError):
    content = mutations.zipped([("logits.npy", mutations.npy(predictions.LOGITS)),
                                (draw.choice(("labels.npy", "labels.npy", f"{stem}.npy")), mutations.npy(
                                  predictions.LABELS))])
    if draw.random() < 0.8:
      path.write_bytes(content if draw.random() < 0.7 else mutations.changed(content, draw))
  np.savez(folder / "sound.npz", logits=predictions.LOGITS[::-1], labels=predictions.LABELS)
  command = draw.choice(("evaluation", "compare"))
  return command, (["--test", str(path)] if command == "evaluation" else
                   ["compare", str(folder / "sound.npz"), str(path)])


def _command(case: tuple[str, list[str]]) -> str:
  """Runs a command; returns what it prints, and raises its error."""
  command, arguments = case
  out, errors = io.StringIO(), io.StringIO()
  run = evaluation_command.main if command == "evaluation" else reports_command.main
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
    code = run([*arguments, "--num_resamples=2"])
  if code:
    text = errors.getvalue()
    raise UserError(text.removesuffix("\n"))
  return out.getvalue() + errors.getvalue()


def _silent_command(sound: Any, case: tuple[str, list[str]], printed: str, said: str) -> str:
  found = CONTROL.search(printed)
  return f"the terminal gets {found[0]!r}" if found else ""


KINDS: dict[str, Kind] = {
  "names in formats": Kind(_prepare, _formats, _write, _silent_formats, cases=2000),
  "names of files": Kind(lambda folder: None, _paths, _command, _silent_command, cases=2000),
}
