"""What the calibrator ``auto`` chose, and what all candidates scored."""

from collections.abc import Mapping, Sequence
import dataclasses

from calib_jax.evaluation.predictions import automatic
from calib_jax.evaluation.predictions.fitting import Model
from calib_jax.evaluation.results import Results
from calib_jax.evaluation.sections import SECTIONS, Section, Table


@dataclasses.dataclass(frozen=True)
class Chosen:
  """What ``auto`` chose for one seed."""

  chosen: str  # The name of the calibrator.
  # ``{name: {"score", "excess", "standard_error"}}`` of all candidates, as ``choice.automatic`` returns them.
  scores: Mapping[str, Mapping[str, float]]


def compute(results: Results, models: Mapping[str, Model]) -> dict[str, list[Chosen]]:
  """Returns what was chosen for each seed of each model that has ``auto`` among its calibrators."""
  return {name: [Chosen(next(iter(params[automatic.CHOSEN])), params[automatic.SCORES])
                 for params in model.fitted[automatic.AUTO][1]]
          for name, model in models.items() if automatic.AUTO in model.fitted}


def table(content: Mapping[str, Sequence[Chosen]], results: Results) -> Table:
  """Returns the scores of all candidates."""
  rows = [[model, str(seed), name, *(f"{score[key]:.4f}" for key in ("score", "excess", "standard_error")),
           "chosen" if name == selection.chosen else ""]
          for model, of_seeds in content.items() for seed, selection in enumerate(of_seeds)
          for name, score in selection.scores.items()]
  return Table("What auto chose: NLL out of fold on the data that it was fitted to; the simplest candidate within one "
               "standard error of the lowest",
               ["model", "seed", "candidate", "NLL", "above the lowest", "standard error", "choice"], rows)


SECTIONS["selection"] = Section(compute, table, in_json=6, on_page=1)
