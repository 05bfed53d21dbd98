"""Draws the figures of a report from the results of an evaluation."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from calib_jax.evaluation import Results
from calib_jax.evaluation.reports import curves, positive_class, reliability
from calib_jax.evaluation.reports.report_figure import FIGURES, Logs, ReportFigure, Shown
from calib_jax.evaluation.reports.style import WIDTHS, legend_below, styled
from calib_jax.evaluation.sections import SECTIONS, Section

# The last two add their figures to FIGURES when they are imported, as curves does.
__all__ = ["FIGURES", "curves", "figures", "of_section", "positive_class", "reliability"]


def of_section(name: str, section: Section) -> ReportFigure:
  """Returns the figure of a section."""
  def draw(shown):
    content = shown.results.sections.get(name)
    return section.figure(content, shown.results, curves) if content else None

  def finding(shown):
    return section.finding(shown.results.sections[name], shown.results)

  return ReportFigure(draw, section.caption, section.figure_place, finding=finding)


FIGURES.update({name: of_section(name, section) for name, section in SECTIONS.items() if section.figure})


@styled
def figures(results: Results, log: Logs = None, *, width: str | None = None) -> dict[str, Figure]:
  """Draws every figure that the results have data for.

  Args:
    results: the results.
    log: the ``metrics.jsonl`` of a run, whose curves are drawn, or of several runs by name.
    width: the width of every figure, ``"single"`` or ``"double"``, a column of a paper or both; None for those that
      suit the page.

  Returns:
    The figures by name, in the order of the report.
  """
  shown, drawn = Shown(results, log, width), {}
  for name, figure in sorted(FIGURES.items(), key=lambda item: item[1].place):
    picture = figure.draw(shown)
    if isinstance(picture, Axes):
      if width:
        inches = WIDTHS[width]
        picture.figure.set_size_inches(inches, max(picture.figure.get_figheight(), 0.45 * inches))
      legend_below(picture.figure, picture)
      picture = picture.figure
    if picture is not None:
      drawn[name] = picture
  return drawn
