"""Where a run writes what it measured: ``metrics.jsonl``, and TensorBoard events where TensorFlow is installed."""

from collections.abc import Mapping
import importlib.util
import json
import pathlib

EVENTS = all(importlib.util.find_spec(name) for name in ("tensorflow", "tensorboard"))
NO_EVENTS = "TensorBoard events are off: tensorflow and tensorboard are not installed (pip install 'calib-jax[data]')."


class MetricLog:
  """Appends one JSON object a call to ``metrics.jsonl`` in ``folder``, and the same scalars to its event files."""

  def __init__(self, folder: pathlib.Path):
    """Starts a fresh ``metrics.jsonl``."""
    self.folder = folder
    self.file = (folder / "metrics.jsonl").open("w", encoding="utf-8")
    self.writers = {}

  def write(self, step: int, scalars: Mapping[str, float], *, seed: int) -> None:
    """Logs ``scalars`` after ``step`` steps of the run of ``seed``."""
    self.file.write(json.dumps({"seed": seed, "step": step, **scalars}) + "\n")
    self.file.flush()
    if EVENTS:
      if seed not in self.writers:
        # Imported at the first use: it brings TensorFlow, which takes seconds.
        from clu import metric_writers

        self.writers[seed] = metric_writers.SummaryWriter(str(self.folder / "events" / f"seed{seed}"))
      self.writers[seed].write_scalars(step, scalars)

  def close(self) -> None:
    """Flushes and closes every file."""
    self.file.close()
    for writer in self.writers.values():
      writer.close()
