"""What a program sets in its own process, and a library must not: environment, flags, loggers and event loops."""

import asyncio
import contextlib
import logging
import os


def prepare() -> None:
  """Prepares a process that belongs to a program of this package; only what starts such a process calls it.

  TensorFlow, which only reads data and writes events here, prints nothing when it starts. Orbax and TensorFlow Datasets
  log files that are absent or damaged, which this package reports in sentences of its own. Grain's processes read
  absl's flags, which absl allows only once they are parsed.
  """
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
  for name in ("absl", "asyncio"):
    logging.getLogger(name).setLevel(logging.CRITICAL)
  asyncio.SelectorEventLoop.call_soon_threadsafe = unless_closed
  with contextlib.suppress(ImportError):  # Without the extra ``train`` nothing reads flags.
    from absl import flags

    flags.FLAGS.mark_as_parsed()


def unless_closed(loop: asyncio.BaseEventLoop, *arguments, **options):
  """Is an event loop's ``call_soon_threadsafe``; ignores what Orbax's threads of storage report to a closed loop."""
  try:
    return asyncio.BaseEventLoop.call_soon_threadsafe(loop, *arguments, **options)
  except RuntimeError:
    if not loop.is_closed():
      raise
