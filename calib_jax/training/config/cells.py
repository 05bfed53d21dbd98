"""Chooses the cell of a paper's tables that the text after the colon of ``--config`` names."""

from collections.abc import Callable, Collection, Mapping

import ml_collections

from calib_jax._checks import suggestion
from calib_jax._system.errors import UserError, short


def cells(networks: Mapping[str, Collection[str]], recipe: Callable[[str, str], ml_collections.ConfigDict],
          losses_of: Callable[[str, str], Mapping[str, dict[str, object]]]
          ) -> Callable[[str], ml_collections.ConfigDict]:
  """Returns the function ``get_config`` of a paper's file.

  It maps ``DATA.NETWORK.LOSS``, or ``DATA.NETWORK`` for cross entropy, to the config of that cell of the paper's
  tables, and raises a UserError that lists what there is for a wrong cell.

  Args:
    networks: the names of the networks that the paper trains on each data set.
    recipe: maps the names of a data set and a network to the config that trains cross entropy.
    losses_of: maps them to the losses by name: the fields that differ from cross entropy, by their full names.

  Returns:
    The function.
  """
  def get_config(cell: str = "") -> ml_collections.ConfigDict:
    if not cell:
      listed = "; ".join(f"{data} with {', '.join(models)}" for data, models in networks.items())
      raise UserError(f"a cell must follow after a colon, as DATA.NETWORK.LOSS, or DATA.NETWORK for cross entropy: "
                      f"there are {listed}.")
    data, _, rest = cell.partition(".")
    _check_part(cell, "DATA", data, networks)
    model, has_loss, loss = rest.partition(".")
    _check_part(cell, "NETWORK", model, networks[data])
    fields = losses_of(data, model)
    loss = loss if has_loss else "cross_entropy"
    _check_part(cell, "LOSS", loss, fields)
    config = recipe(data, model)
    config.update_from_flattened_dict(fields[loss])
    return config

  return get_config


def _check_part(cell: str, part: str, name: str, choices: Collection[str]) -> None:
  if name not in choices:
    raise UserError(f"the cell {short(cell)} must be DATA.NETWORK or DATA.NETWORK.LOSS, with {part} one of "
                    f"{', '.join(choices)}: got {short(name)}.{suggestion(name, choices)}")
