"""Says what a command is at, once it takes longer than two seconds; commands show it on a terminal."""

from collections.abc import Callable, Iterator
import contextlib
import contextvars
import threading
import time

EVERY, AT_LEAST = 2.0, 10.0  # Seconds between looks at what is done, and between two lines that say the same.


class _Status:
  text = ""


_status: contextvars.ContextVar[_Status | None] = contextvars.ContextVar("status", default=None)


def at(text: str) -> None:
  """Notes what is done from here on; nothing happens outside ``shown``."""
  status = _status.get()
  if status is not None:
    status.text = text


@contextlib.contextmanager
def shown(say: Callable[[str], None]) -> Iterator[None]:
  """Calls ``say`` from a thread with what the block is at, every two seconds if that changes, and else every ten."""
  status, ended, start = _Status(), threading.Event(), time.monotonic()

  def watch():
    last, when = "", start
    while not ended.wait(EVERY):
      now, text = time.monotonic(), status.text
      if text and (text != last or now - when >= AT_LEAST):
        say(f"{text} … ({now - start:.0f} s)")
        last, when = text, now

  thread, token = threading.Thread(target=watch, daemon=True), _status.set(status)
  thread.start()
  try:
    yield
  finally:
    _status.reset(token)
    ended.set()
    thread.join()
