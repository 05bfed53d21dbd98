"""The whole training state on disk, by Orbax."""

import pathlib

import jax
import orbax.checkpoint as ocp

from calib_jax.training.steps import TrainState


def save(folder: pathlib.Path, state: TrainState) -> pathlib.Path:
  """Writes ``state`` to ``folder/<step>``, whole or not at all, in place of what is there; returns that path."""
  path = folder.resolve() / str(int(state.step))
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(path, state._asdict(), force=True)
  return path


def restore(path: pathlib.Path, like: TrainState) -> TrainState:
  """The state saved at ``path``, with the structure, shapes and dtypes of ``like``."""
  with ocp.StandardCheckpointer() as checkpointer:
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like._asdict())
    return TrainState(**checkpointer.restore(path.resolve(), abstract))
