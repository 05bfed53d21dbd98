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
  if hasattr(asyncio, "set_event_loop_policy"):  # Python 3.16 has no policies.
    class Policy(asyncio.DefaultEventLoopPolicy):
      def new_event_loop(self):
        return _Loop()

    asyncio.set_event_loop_policy(Policy())
  with contextlib.suppress(ImportError):  # Without the extra ``train`` nothing reads flags.
    from absl import flags

    flags.FLAGS.mark_as_parsed()


class _Loop(asyncio.SelectorEventLoop):
  """An event loop that ignores what Orbax's threads of storage report after the loop was closed."""

  def call_soon_threadsafe(self, *arguments, **options):
    try:
      return super().call_soon_threadsafe(*arguments, **options)
    except RuntimeError:
      if not self.is_closed():
        raise
