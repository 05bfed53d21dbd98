r"""How many options rows of multiple choice have, and the accuracy relative to guessing among them.

.. math:: s = \frac{\sum_i (y_i - 1 / k_i)}{\sum_i (1 - 1 / k_i)}

Row i is right (y = 1) or wrong (0) and has k options; a guess takes each with probability 1 / k. So s is the
share that is reached of the accuracy which guessing lacks: 1 where all rows are right, 0 where the accuracy is no more
than guessing has, and below 0 where it is lower.
"""

from collections.abc import Mapping
import dataclasses

import numpy as np

from calib_jax.evaluation.numbers import cell
from calib_jax.evaluation.predictions.fitting import Model
from calib_jax.evaluation.results import Interval, Results, Values, over_seeds
from calib_jax.evaluation.sections import SECTIONS, Section, Table
from calib_jax.intervals.groups import standard_error


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of the rows of a set, and how a model chooses among them.

  Attributes:
    fewest: the fewest options of a row.
    most: the most.
    mean: the mean number.
    accuracy: the accuracy.
    guess: the accuracy of guessing, the mean of one over the number of options.
    above_guessing: the share that is reached of the accuracy which guessing lacks, with its 95% interval.
  """

  fewest: int
  most: int
  mean: float
  accuracy: float
  guess: float
  above_guessing: Interval

  @property
  def text(self) -> str:
    """How many options rows have."""
    return f"{self.fewest} to {self.most}, mean {self.mean:.1f}"


def compute(results: Results, models: Mapping[str, Model]) -> dict[str, dict[str, Options]]:
  """Measures each row, by set, where some examples have fewer options than there are classes."""
  content = {}
  for name, evaluated in results.measured.items():
    options = {key: of_values(row.values) for key, row in evaluated.rows.items()
               if row.values.num_options is not None and row.values.num_options.min() < evaluated.num_classes
               and row.values.num_options.max() > 1}
    if options:
      content[name] = results.named(options)
  return content


def of_values(values: Values) -> Options:
  """Measures examples that may have several options.

  The interval is by the standard error of a ratio of means (the residuals of its linear approximation), to whose square
  two more right and two more wrong examples, or groups of dependent ones, are added, because rows that
  are all right have no spread.
  """
  guess, correct = 1 / values.num_options.astype(np.float64), values.correct
  accuracy, lacking = float(values.mean(correct).mean()), 1 - guess
  of_seeds = values.mean(correct - guess) / values.mean(lacking)
  share = float(of_seeds.mean())
  residual = (correct - guess - share * lacking).mean(axis=1)
  units, mean_lacking = values.num_units, float(values.mean(lacking).mean())
  of_four = 2 * (accuracy**2 + (1 - accuracy) ** 2) / units**2
  error = standard_error(residual, values.groups, values.weights)
  margin, of_guess = 1.96 * float(np.sqrt(error**2 + of_four)) / mean_lacking, float(values.mean(guess).mean())
  least = -of_guess / mean_lacking
  interval = over_seeds(Interval(share, share - margin, share + margin), of_seeds).within(least, 1)
  number = values.num_options
  return Options(int(number.min()), int(number.max()), float(values.mean(number).mean()), accuracy, of_guess, interval)


def table(content: Mapping[str, Mapping[str, Options]], results: Results) -> Table:
  """Returns the options of each set, and the accuracy of each row relative to guessing."""
  rows = [[set_name, row, x.text, f"{100 * x.accuracy:.2f}", f"{100 * x.guess:.2f}", cell(x.above_guessing, 100)]
          for set_name, by_row in content.items() for row, x in by_row.items()]
  return Table("Options: accuracy relative to guessing among those that a row has, the share that is reached of what "
               "guessing lacks", ["evaluated on", "row", "options a row", "accuracy %", "that of guessing %",
                                  "reached of what guessing lacks, %"], rows)


SECTIONS["options"] = Section(compute, table, in_json=10, on_page=-3, in_text=True)
