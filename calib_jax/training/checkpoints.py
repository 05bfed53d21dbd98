"""The whole state of a run on disk, by Orbax: written beside training, whole or not at all, and checked when read."""

import logging
import pathlib
import shutil
import sys
from typing import Any
import zlib

import jax
from jax.experimental import multihost_utils
import numpy as np
import orbax.checkpoint as ocp

from calib_jax.errors import UserError


class Checkpoints:
  """The newest ``keep`` checkpoints of one run, ``folder/<step>``.

  The first process reads and writes, the others are sent what it read: only its disk must outlive the run.
  """

  def __init__(self, folder: pathlib.Path, keep: int = 2):
    """Opens ``folder``, which is made when the first checkpoint is written."""
    self.folder, self.last = folder.resolve(), None
    if jax.process_index() == 0:
      self.folder.mkdir(parents=True, exist_ok=True)
      logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax tells every file; what it raises is said here.
      alone = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0}, barrier_sync_key_prefix="first")
      self.manager = ocp.CheckpointManager(self.folder, options=ocp.CheckpointManagerOptions(
        max_to_keep=keep, create=False, cleanup_tmp_directories=True, multiprocessing_options=alone))
      self.last = self.manager.latest_step()

  def save(self, step: int, tree: Any) -> None:
    """Begins to write ``tree`` as it is after ``step`` steps, waiting only for the write before to end.

    UserError, leaving what is there as it was, where the disk takes no more.
    """
    if jax.process_index() or step == self.last:
      return
    # A copy: the training goes on in the memory that holds the state now.
    tree = jax.tree.map(lambda x: np.array(x), tree)
    self._guarded(lambda: self.manager.save(step, args=ocp.args.StandardSave({"tree": tree, "digest": digest(tree)})))
    self.last = step

  def newest(self) -> str:
    """Where the newest checkpoint is, in words."""
    if jax.process_index():
      return "the first process's --workdir"
    return str(self.folder / str(self.last)) if self.last is not None else "none yet"

  def close(self) -> None:
    """Lets the folder go; what is being written is written to its end."""
    if jax.process_index() == 0:
      self._guarded(self.manager.close)

  def _guarded(self, action) -> None:
    try:
      action()
    except Exception as error:  # Orbax and its storage raise many kinds.
      reason = "no space is left" if _is_full(error) else f"{type(error).__name__}: {str(error).splitlines()[0]}"
      before = [step for step in self.manager.all_steps() if (self.folder / str(step)).exists()]
      rest = f"the one of step {max(before):,} is whole" if before else "there is none before it"
      raise UserError(f"the checkpoint could not be written in {self.folder} ({reason}); {rest}. Make room, and the "
                      "same command goes on from there.") from error

  def restore(self, like: Any) -> tuple[int, Any] | None:
    """The newest checkpoint that is whole, as ``(step, tree)`` of arrays on the host; None where there is none.

    ``like`` has its structure, shapes and dtypes. A damaged one is passed over with a warning and set aside.
    """
    like = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
    found = self._newest(like) if jax.process_index() == 0 else None
    if jax.process_count() > 1:
      step, tree = found or (-1, like)
      step, tree = multihost_utils.broadcast_one_to_all((np.int32(step), tree))
      found = None if step < 0 else (int(step), jax.tree.map(np.asarray, tree))
    self.last = found[0] if found else None
    return found

  def _newest(self, like: Any) -> tuple[int, Any] | None:
    wanted = {"tree": like, "digest": np.zeros((), np.uint32)}
    for step in sorted(self.manager.all_steps(), reverse=True):
      try:
        read = self.manager.restore(step, args=ocp.args.StandardRestore(wanted))
        if int(read["digest"]) != digest(read["tree"]):
          raise ValueError("its numbers are not those that were written")
        self.manager.reload()  # Some may have been set aside.
        return step, read["tree"]
      except Exception as error:  # Whatever a damaged file makes Orbax raise, the one before may be whole.
        path = self.folder / str(step)
        aside = path.with_name(f"{step}.damaged")
        print(f"warning: the checkpoint {path} cannot be read whole ({str(error).splitlines()[0][:200]}): it is set "
              f"aside as {aside.name}, and the one before it is used.", file=sys.stderr, flush=True)
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
    self.manager.reload()
    return None


def digest(tree: Any) -> np.ndarray:
  """CRC-32 of all numbers of a tree, in its order."""
  value = 0
  for leaf in jax.tree.leaves(tree):
    value = zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8), value)
  return np.array(value, np.uint32)


def _is_full(error: BaseException | None) -> bool:
  texts = ("No space left", "RESOURCE_EXHAUSTED", "quota", "File too large")
  return error is not None and (any(t in str(error) for t in texts) or _is_full(error.__cause__ or error.__context__))
