"""Writes what an evaluation found: tables for people and programs, figures and the page."""

from collections.abc import Callable, Mapping, Sequence
import importlib.util
import pathlib
import shlex
import sys
from typing import Any

from calib_jax import evaluation
from calib_jax._system import progress
from calib_jax._system.environment import environment
from calib_jax._system.files import write_text
from calib_jax.evaluation.reports import formats

NO_FIGURES = ("The figures and the page are not written, because {} cannot be imported "
              "(pip install 'calib-jax[report]').")


def missing_for_figures() -> list[str]:
  """Returns the packages that figures need and that are not installed."""
  return [name for name in ("matplotlib", "jinja2") if not importlib.util.find_spec(name)]


def reliability_picture(method: str) -> Callable[..., Any] | None:
  """Returns a function of logits and labels that draws a reliability diagram, or None if a package is missing."""
  def picture(logits, labels):
    from calib_jax.evaluation import reports  # Matplotlib takes a second to import, so training starts without it.

    return reports.picture(f"{method}\nvalidation", evaluation.Predictions(logits, labels))

  return None if missing_for_figures() else picture


def write(results: evaluation.Results, folder: pathlib.Path, *, title: str, config: Mapping[str, Any] | None = None,
          log: pathlib.Path | Mapping[str, pathlib.Path] | None = None, seconds: float | None = None,
          say: Callable[[str], None] = print, figures: Sequence[str] = (), width: str | None = None) -> None:
  """Writes the results, and prints the verdict and the short table by ``say``.

  The page shows the ``title`` and the ``config``, the curves of ``log``, the ``metrics.jsonl`` of a run, or of
  several runs by name, and how many ``seconds`` the evaluation took; without them, the same results give the same
  page. ``figures`` are the formats of the figures beside SVG, which the page has: ``pdf`` and ``png``. The ``width``
  of these formats is ``"single"`` or ``"double"``, a column of a paper or both; None is the second from three rows on,
  and else the page's width.
  """
  text = formats.text(results)
  write_text(folder / "results.json", evaluation.to_json(results))
  write_text(folder / "results.csv", evaluation.to_csv(results))
  write_text(folder / "results.md", text)
  write_text(folder / "results.tex", evaluation.to_latex(results))
  say(f"\n{text}")
  if missing := missing_for_figures():
    say(NO_FIGURES.format(" and ".join(missing)))
    return
  progress.at("drawing figures")
  from calib_jax.evaluation import reports

  (folder / "figures").mkdir(exist_ok=True)
  if figures and width is None and len(results.first[1].rows) >= 3:
    width = "double"
  pictures = {name: reports.save(figure, folder / "figures" / name, ["svg"] if width else [*figures, "svg"])
              for name, figure in reports.figures(results, log).items()}
  for name, figure in reports.figures(results, log, width=width).items() if width else ():
    reports.save(figure, folder / "figures" / name, figures)
  reports.write(folder / "report.html", results, title=title, figures=pictures, config=config or {},
                environment=environment() | ({} if seconds is None else {"seconds": round(seconds, 1)}),
                command=command(), logs=log)


def command() -> str:
  """Returns the command that started this program."""
  if sys.argv[0].startswith("calib-jax "):  # As ``cli.main`` sets it.
    return shlex.join([*sys.argv[0].split(), *sys.argv[1:]])
  spec = getattr(sys.modules["__main__"], "__spec__", None)
  module = spec.name.removesuffix(".__main__") if spec else ""
  return shlex.join(["python", *(["-m", module] if module else sys.argv[:1]), *sys.argv[1:]])
