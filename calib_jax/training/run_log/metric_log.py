"""The log of a run: ``metrics.jsonl``, and TensorBoard event files if TensorFlow is installed."""

from collections.abc import Callable, Mapping, Sequence
import importlib.util
import json
import os
import pathlib
import sys
from typing import Any

import numpy as np

from calib_jax._system.errors import UserError
from calib_jax._system.files import check_regular, parse_json, write_text

# Whether TensorBoard events can be written.
EVENTS = all(importlib.util.find_spec(name) for name in ("tensorflow", "tensorboard"))
# What is said where TensorBoard events cannot be written.
NO_EVENTS = "TensorBoard events are off: tensorflow and tensorboard are not installed (pip install 'calib-jax[data]')."


class MetricLog:
  """Appends one JSON object a call to ``metrics.jsonl`` in ``folder``, and the same scalars to its event files."""

  def __init__(self, folder: pathlib.Path, picture: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None):
    """Opens ``metrics.jsonl`` in ``folder`` to append to it.

    ``picture(logits, labels)`` draws an image ``[H, W, C]`` for the event files; None to draw none.
    """
    self.folder, self.path, self.picture = folder, folder / "metrics.jsonl", picture
    if os.path.lexists(self.path):
      check_regular(self.path)  # To open a pipe would wait for a reader.
    self.file = self.path.open("a", encoding="utf-8")
    self.writers: dict[int, Any] = {}

  def resume(self, seeds: Sequence[int], step: int) -> None:
    """Removes what was logged for ``seeds`` after ``step``, because those steps are taken again."""
    def stays(line):
      try:
        entry = parse_json(line, "a line")
        return entry["seed"] not in seeds or entry["step"] <= step
      except (UserError, KeyError, TypeError):
        return False  # A process that was killed may leave an incomplete line.

    self.file.close()
    # Bytes that are not UTF-8 make a damaged line, and a line that was cut at its end still ends before the next one.
    lines = self.path.read_text(encoding="utf-8", errors="replace").split("\n")
    write_text(self.path, "".join(f"{line}\n" for line in lines if stays(line)))
    self.file = self.path.open("a", encoding="utf-8")

  def open_events(self, seeds: Sequence[int], note: Callable[[str], None]) -> None:
    """Opens the event files of ``seeds``; ``note`` says first that the import takes seconds."""
    if EVENTS:
      if "tensorflow" not in sys.modules:
        note("importing TensorFlow for the event files of TensorBoard")
      for seed in seeds:
        self._writer(seed)

  def write(self, step: int, scalars: Mapping[str, float], *, seed: int) -> None:
    """Logs ``scalars`` of the model of ``seed`` after ``step`` steps."""
    self.file.write(json.dumps({"seed": seed, "step": step, **scalars}) + "\n")
    self.file.flush()
    if EVENTS:
      self._writer(seed).write_scalars(step, scalars)

  def reliability(self, step: int, logits: np.ndarray, labels: np.ndarray, *, seed: int) -> None:
    """Adds the reliability diagram of a validation split to the event files."""
    if EVENTS and self.picture:
      self._writer(seed).write_images(step, {"validation/reliability": self.picture(logits, labels)[None]})

  def _writer(self, seed: int):
    if seed not in self.writers:
      # clu is imported at its first use because it imports TensorFlow, which takes seconds.
      from clu import metric_writers

      self.writers[seed] = metric_writers.SummaryWriter(str(self.folder / "events" / f"seed{seed}"))
    return self.writers[seed]

  def close(self) -> None:
    """Flushes and closes every file."""
    self.file.close()
    for writer in self.writers.values():
      writer.close()
