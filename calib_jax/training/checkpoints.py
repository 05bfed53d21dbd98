"""Checkpoints hold the whole state of a run.

Orbax writes them in the background. A checkpoint appears only when it is complete, and a checksum is verified when it
is read.
"""

from collections.abc import Callable
import json
import pathlib
import shutil
import sys
from typing import Any
import zlib

import flax.serialization
import jax
from jax.experimental import multihost_utils
import numpy as np
import orbax.checkpoint as ocp

from calib_jax._system.errors import UserError, printable


class Checkpoints:
  """Keeps the newest ``keep`` checkpoints of one run, each in ``folder/<step>``.

  Only the first process reads and writes, and it sends the other processes what it read, so only its disk must outlive
  the run.
  """

  def __init__(self, folder: pathlib.Path, keep: int = 2):
    """Opens ``folder``, and creates it in the first process if it does not exist."""
    self.folder, self.last = folder.resolve(), None
    if jax.process_index() == 0:
      self.folder.mkdir(parents=True, exist_ok=True)
      _check_regular(self.folder)
      alone = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0}, barrier_sync_key_prefix="first")
      try:
        self.manager = ocp.CheckpointManager(self.folder, options=ocp.CheckpointManagerOptions(
          max_to_keep=keep, create=False, cleanup_tmp_directories=True, multiprocessing_options=alone))
      except Exception as error:  # Orbax raises many types for damaged files.
        raise UserError(f"the checkpoints in {self.folder} cannot be opened ({reason(error)}): delete the damaged one."
                        ) from error
      self.last = self.manager.latest_step()

  def save(self, step: int, tree: Any) -> None:
    """Starts to write ``tree``, the state after ``step`` steps, once the previous write has ended.

    Raises:
      UserError: if the checkpoint cannot be written, such as on a full disk; earlier checkpoints stay as they are.
    """
    if jax.process_index() or step == self.last:
      return
    # The tree is copied because the next step reuses the memory that holds the state now.
    tree = jax.tree.map(lambda x: np.array(x), tree)
    written = {"tree": tree, "checksum": checksum(tree), "step": np.array(step, np.int64)}
    self._guarded(lambda: self.manager.save(step, args=ocp.args.StandardSave(written)))
    self.last = step

  def newest(self) -> str | None:
    """Returns the path of the newest checkpoint, or a phrase that stands for it, for messages; None without one."""
    if jax.process_index():
      return "the first process's --workdir"
    return str(self.folder / str(self.last)) if self.last is not None else None

  def close(self) -> None:
    """Waits until the last write has ended, and releases the folder."""
    if jax.process_index() == 0:
      self._guarded(self.manager.close)

  def _guarded(self, action) -> None:
    try:
      action()
    except Exception as error:  # Orbax and its storage raise exceptions of many types.
      reason = "no space is left" if _is_full(error) else f"{type(error).__name__}: {str(error).splitlines()[0]}"
      before = [step for step in self.manager.all_steps() if (self.folder / str(step)).exists()]
      rest = f"the one of step {max(before):,} is whole" if before else "there is no earlier checkpoint"
      raise UserError(f"the checkpoint could not be written in {self.folder} ({reason}); {rest}. Free some space and "
                      "run the same command again: it continues from the last checkpoint.") from error

  def restore(self, like: Callable[[int], Any]) -> tuple[int, Any] | None:
    """Returns the newest undamaged checkpoint as ``(step, tree)`` of arrays on the host, or None if there is none.

    A damaged checkpoint is renamed with a warning, and the previous one is read. ``like`` maps a step to a tree of the
    structure, shapes and dtypes of a checkpoint of that step.
    """
    restored = self._newest(like) if jax.process_index() == 0 else None
    if jax.process_count() > 1:
      step = int(multihost_utils.broadcast_one_to_all(np.int32(restored[0] if restored else -1)))
      if step >= 0:
        tree = restored[1] if restored else jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like(step))
        restored = step, jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(tree))
    self.last = restored[0] if restored else None
    return restored

  def _newest(self, like: Callable[[int], Any]) -> tuple[int, Any] | None:
    for step in sorted(self.manager.all_steps(), reverse=True):
      try:
        tree = read(self.manager, step, like(step))
        self.manager.reload()  # Damaged checkpoints may have been renamed above.
        return step, tree
      except Exception as error:  # Orbax raises many types for damaged files; the previous checkpoint may be whole.
        path = self.folder / str(step)
        aside = path.with_name(f"{step}.damaged")
        print(f"warning: the checkpoint {printable(path)} cannot be read whole ({printable(reason(error))}): it is "
              f"renamed to {aside.name}, and the previous checkpoint is used.", file=sys.stderr, flush=True)
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
    self.manager.reload()
    return None


def reason(error: Exception) -> str:
  """Returns why a checkpoint cannot be read, for a message: Orbax's errors about damaged metadata are a bare key."""
  text = next(iter(str(error).splitlines()), "")[:200]
  if isinstance(error, KeyError | AttributeError | TypeError | json.JSONDecodeError):
    return f"its metadata is damaged: {type(error).__name__}: {text}"
  return text or type(error).__name__


def _check_regular(folder: pathlib.Path) -> None:
  """Raises a UserError for a pipe or a device in the place of a checkpoint's file: to read it could wait for ever."""
  for path in folder.rglob("*"):
    if not (path.is_file() or path.is_dir()):
      raise UserError(f"{path} is a pipe, a device or a broken link, not a file: delete its checkpoint.")


def read(manager: ocp.CheckpointManager, step: int, like: Any = None) -> Any:
  """Reads a checkpoint's tree, as ``like`` or nested dicts; a wrong checksum, shape or dtype is a ValueError."""
  restored = manager.restore(step, args=ocp.args.StandardRestore())
  tree = restored["tree"] if like is None else _as(like, restored["tree"])
  if int(restored["checksum"]) != checksum(restored["tree"]):
    raise ValueError("its numbers are not those that were written")
  if int(restored["step"]) != step:
    raise ValueError(f"it is that of step {int(restored['step']):,}")
  return tree


def newest(folder: pathlib.Path) -> tuple[int, Any] | None:
  """Reads the newest checkpoint in ``folder`` as ``(step, tree)``; None if there is none, a UserError if damaged."""
  if not folder.is_dir():
    return None
  _check_regular(folder)
  path = folder
  try:
    # Orbax warns of a directory that it may only read; it writes nothing here either.
    with ocp.CheckpointManager(folder.resolve(), options=ocp.CheckpointManagerOptions(create=False)) as manager:
      step = manager.latest_step()
      if step is None:
        return None
      path = folder / str(step)
      return step, read(manager, step)
  except Exception as error:
    raise UserError(f"the checkpoint {path} cannot be read whole ({reason(error)}).") from error


def _as(like: Any, restored: Any) -> Any:
  """Puts the arrays of ``restored``, the nested dicts and lists that Orbax reads, into the structure of ``like``."""
  def leaf(path, expected):
    node = restored
    for part in path:
      try:
        node = node[getattr(part, "key", getattr(part, "name", getattr(part, "idx", None)))]
      except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"it has no {jax.tree_util.keystr(path)}") from error
    if node.shape != expected.shape or node.dtype != expected.dtype:
      raise ValueError(f"{jax.tree_util.keystr(path)} is {node.dtype}{list(node.shape)} where "
                       f"{expected.dtype}{list(expected.shape)} is expected")
    return node

  return jax.tree.map_with_path(leaf, like)


def checksum(tree: Any) -> np.ndarray:
  """Returns the CRC-32 of a tree's arrays in the order of their names, so that it survives Orbax's change of types."""
  value = 0
  for leaf in jax.tree.leaves(flax.serialization.to_state_dict(tree)):
    value = zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8), value)
  return np.array(value, np.uint32)


def _is_full(error: BaseException | None) -> bool:
  texts = ("No space left", "RESOURCE_EXHAUSTED", "quota", "File too large")
  return error is not None and (any(t in str(error) for t in texts) or _is_full(error.__cause__ or error.__context__))
