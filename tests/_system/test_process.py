"""What a program sets in its own process."""

import asyncio

import pytest

from calib_jax._system import process


def test_a_closed_event_loop_ignores_late_reports_and_an_open_one_does_not(monkeypatch):
  loop = asyncio.SelectorEventLoop()
  loop.close()
  with pytest.raises(RuntimeError, match="closed"):
    loop.call_soon_threadsafe(print)
  assert process.unless_closed(loop, print) is None

  def failing(loop, *arguments):
    raise RuntimeError("another error")

  monkeypatch.setattr(asyncio.BaseEventLoop, "call_soon_threadsafe", failing)
  monkeypatch.setattr(loop, "is_closed", lambda: False)
  with pytest.raises(RuntimeError, match="another"):
    process.unless_closed(loop, print)
