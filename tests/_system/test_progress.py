"""What a command is at: said once it takes long, as often as it changes, and not after its end."""

import threading

from calib_jax._system import progress


def test_a_long_step_is_said_and_a_short_command_says_nothing(monkeypatch):
  monkeypatch.setattr(progress, "EVERY", 0.01)
  lines, heard = [], threading.Event()

  def say(text):
    lines.append(text)
    heard.set()

  with progress.shown(say):
    for text in ("fitting a", "fitting b"):
      progress.at(text)
      assert heard.wait(60)
      heard.clear()
  assert [text.split(" … ")[0] for text in lines] == ["fitting a", "fitting b"]  # Once each.
  monkeypatch.setattr(progress, "EVERY", 60)
  with progress.shown(lines.append):
    progress.at("reading")
  progress.at("nobody listens")
  assert len(lines) == 2
