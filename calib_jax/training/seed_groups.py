"""A group is the seeds that train together; it has checkpoints and the shape of its data on disk."""

from collections.abc import Iterable
import json
import math
import os
import pathlib
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax._system import capacity
from calib_jax._system.errors import UserError
from calib_jax._system.files import read_json, write_text
from calib_jax.training import data
from calib_jax.training.checkpoints import newest
from calib_jax.training.distributed import processes

DTYPES = ("uint8", "float32", "int32")
MOST_SEEDS = 10_000  # As in ``config.checks``.


class Shape(NamedTuple):
  """What a model depends on in its data. A finished run keeps this in place of the data."""

  image_shape: tuple[int, ...]
  num_classes: int
  mean: np.ndarray
  std: np.ndarray
  dtype: str = "uint8"  # Of images; or "float32" or "int32", of other arrays.

  def zeros(self) -> jax.Array:
    """Returns an input of zeros for the model, ``[1, ...]``; only integers that are not grey levels stay integers."""
    return jnp.zeros((1, *self.image_shape), jnp.int32 if self.dtype == "int32" else jnp.float32)


def shape_of(splits: data.Splits) -> Shape:
  """Returns the shape of a data set's images, its number of classes, and the mean and deviation of each channel."""
  dtype = splits.train.images.dtype.name if isinstance(splits.train, data.Examples) else "uint8"
  return Shape(tuple(data.image_shape(splits.train)), splits.num_classes, splits.mean, splits.std, dtype)


class Group(NamedTuple):
  """A group is the seeds that train together, and the folder of their checkpoints."""

  seeds: tuple[int, ...]
  folder: pathlib.Path  # Such as ``<run>/checkpoints/seeds0-4``; ``seeds0-4.json`` beside it holds the data's shape.

  def write_shape(self, shape: Shape) -> None:
    """Writes ``shape`` to the JSON file beside the checkpoints."""
    channels = {"mean": np.asarray(shape.mean).tolist(), "std": np.asarray(shape.std).tolist()}
    text = json.dumps(shape._asdict() | channels, indent=2)
    self.folder.parent.mkdir(parents=True, exist_ok=True)
    write_text(self.folder.with_suffix(".json"), text + "\n")

  def read_shape(self) -> Shape | None:
    """Returns what ``write_shape`` wrote, or None if the file was deleted."""
    path = self.folder.with_suffix(".json")
    if not os.path.lexists(path):
      return None
    fields = read_json(path)
    try:
      shape = Shape(tuple(fields["image_shape"]), fields["num_classes"], np.array(fields["mean"], np.float32),
                    np.array(fields["std"], np.float32), fields["dtype"])
      counts = (*shape.image_shape, shape.num_classes)
      if not all(type(count) is int and 0 < count < 2**31 for count in counts) or len(counts) < 2 or not (
          shape.mean.shape == shape.std.shape == shape.image_shape[-1:]):
        raise ValueError("its sizes do not fit together")
      if shape.dtype not in DTYPES or (shape.dtype == "uint8" and len(shape.image_shape) != 3):
        raise ValueError("its type is not one of images or arrays")
      if shape.num_classes < 2 or not (np.isfinite(shape.mean).all() and np.isfinite(shape.std).all() and (
          shape.std > 0).all()):
        raise ValueError("it has one class, or means and deviations that no images have")
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(f"{path} is damaged ({error}): delete it, and it is read from the data.") from error
    capacity.check_read(str(path), math.prod(shape.image_shape))
    return shape

  def variables(self, which: str = "") -> dict[str, Any]:
    """Returns ``params`` and ``batch_stats`` of the newest checkpoint, nested dicts of arrays ``[seeds, ...]``.

    They are the ``"best"``, ``"average"`` or ``"last"`` ones; "" stands for the first of these that was kept. It is a
    UserError if there is no checkpoint, it is damaged, or what ``which`` names was not kept.
    """
    restored = newest(self.folder)
    if restored is None:
      raise UserError(f"{self.folder} holds no checkpoint.")
    tree = restored[1]
    if (field := {"best": "select='last'", "average": "average=''"}.get(which)) and which not in tree:
      raise UserError(f"{self.folder} keeps no {which} models: they were trained with training.{field}.")
    kept = which or next((kind for kind in ("best", "average") if kind in tree), "last")
    source = tree["state"] if kept == "last" else tree[kept]["variables"]
    return {kind: source.get(kind) or {} for kind in ("params", "batch_stats")}


def groups_on_disk(folder: pathlib.Path) -> list[Group]:
  """Returns the groups of seeds whose checkpoints are in a run's directory, ordered by name."""
  groups = []
  for path in sorted((folder / "checkpoints").glob("seed*")):
    if path.is_dir() and (match := re.fullmatch(r"seeds?(\d{1,12})(?:-(\d{1,12}))?", path.name)):
      first_seed, last_seed = int(match[1]), int(match[2] or match[1])
      if last_seed - first_seed >= MOST_SEEDS:
        raise UserError(f"{path} is named as the models of {last_seed - first_seed + 1:,} seeds, more than a run may "
                        "have: it was not written by a run; move it away.")
      groups.append(Group(tuple(range(first_seed, last_seed + 1)), path))
  return groups


def groups_to_train(folder: pathlib.Path, seeds: Iterable[int], missing: list[int], together: bool) -> list[Group]:
  """Divides the seeds whose predictions are missing into groups.

  Seeds that an earlier command began to train stay in the group that they began in. So do seeds that trained with
  others whose predictions are there, because a model predicts the same bits only together with the others of its group.

  Args:
    folder: the run's directory, which only the first process reads.
    seeds: all seeds of the run.
    missing: those whose predictions are missing.
    together: whether the other consecutive seeds share a group, or each seed gets its own.

  Returns:
    The groups, ordered by seed; the same in every process.
  """
  done, bounds = set(seeds) - set(missing), {}  # The first and last seed of each seed's group.
  for group in groups_on_disk(folder) if processes.is_first() else ():
    began = set(group.seeds)
    if began & set(missing) and not began & bounds.keys() and (began <= set(missing) or began & done):
      bounds |= dict.fromkeys(group.seeds, (group.seeds[0], group.seeds[-1]))
  runs: list[list[int]] = []
  for seed in sorted(set(missing) - bounds.keys()):
    if together and runs and seed == runs[-1][-1] + 1:
      runs[-1].append(seed)
    else:
      runs.append([seed])
  bounds |= {seed: (run[0], run[-1]) for run in runs for seed in run}
  agreed = processes.of_first(np.array([bounds[seed] for seed in missing], np.int32).reshape(-1, 2))
  return [Group(tuple(range(first, last + 1)),
                folder / "checkpoints" / (f"seed{first}" if first == last else f"seeds{first}-{last}"))
          for first, last in sorted({(int(first), int(last)) for first, last in agreed})]
