"""Chooses the cell of a paper's tables that the text after the colon of ``--config`` names."""

from collections.abc import Callable, Collection, Mapping

from ml_collections import ConfigDict

from calib_jax._checks import suggestion
from calib_jax._system.errors import UserError, short


def of_cell(cell: str, networks: Mapping[str, Collection[str]], recipe: Callable[[str, str], ConfigDict],
            losses_of: Callable[[str, str], Mapping[str, dict[str, object]]]) -> ConfigDict:
  """Returns the config of one cell of a paper's tables, which the text after the colon of ``--config`` names.

  Args:
    cell: ``DATA.NETWORK.LOSS``, or ``DATA.NETWORK`` for cross entropy.
    networks: the names of the networks that the paper trains on each data set.
    recipe: maps the names of a data set and a network to the config that trains cross entropy.
    losses_of: maps them to the losses by name: the fields that differ from cross entropy, by their full names.

  Returns:
    The config.

  Raises:
    UserError: for a wrong cell; the message lists what there is.
  """
  if not cell:
    listed = "; ".join(f"{data} with {', '.join(models)}" for data, models in networks.items())
    raise UserError(f"a cell must follow after a colon, as DATA.NETWORK.LOSS, or DATA.NETWORK for cross entropy: there "
                    f"are {listed}.")
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


def _check_part(cell: str, part: str, name: str, known: Collection[str]) -> None:
  if name not in known:
    raise UserError(f"the cell {short(cell)} must be DATA.NETWORK or DATA.NETWORK.LOSS, with {part} one of "
                    f"{', '.join(known)}: got {short(name)}.{suggestion(name, known)}")
