"""The progress line says what it should, on a terminal and off it."""

import io

from calib_jax.training.run_log import progress


class Terminal(io.StringIO):
  def isatty(self):
    return True


def _run(stream, monkeypatch, seconds):
  clock = iter(seconds)
  monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
  line = progress.Progress("demo", 100, stream)
  line.update(10, 1280, 2.5)
  line.update(30, 2560, 1.25)
  line.update(100, 8960, 0.5)
  return stream.getvalue()


def test_rate_and_time_left_exclude_the_first_step(monkeypatch):
  text = _run(io.StringIO(), monkeypatch, [0.0, 4.0, 18.0])
  assert text.splitlines() == [
    "demo  step 10/100  loss 2.5000",
    "demo  step 30/100  640 examples/s  loss 1.2500  0:14 left",
    "demo  step 100/100  640 examples/s  loss 0.5000  0:00 left",
  ]


def test_a_terminal_gets_one_line_rewritten(monkeypatch):
  text = _run(Terminal(), monkeypatch, [0.0, 4.0, 18.0])
  assert text.count("\n") == 1 and text.endswith("\n") and text.count("\r") == 3


def test_a_note_is_replaced_on_a_terminal_and_a_line_elsewhere():
  for stream, text in ((Terminal(), "\r\x1b[Kdemo  compiling …\r\x1b[K"), (io.StringIO(), "demo  compiling …\n")):
    line = progress.Progress("demo", 100, stream)
    line.note("compiling")
    line.clear()
    assert stream.getvalue() == text


def test_lines_are_due_first_at_the_end_and_now_and_then(monkeypatch):
  now = [0.0]
  monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
  line = progress.Progress("demo", 100, io.StringIO())
  assert line.due(1)
  line.update(1, 10, 1.0)
  now[0] = 9.0
  assert not line.due(5) and line.due(100)
  now[0] = 11.0
  assert line.due(6)


def test_hours_are_shown_only_when_there_are_any():
  assert progress._clock(59.6) == "1:00" and progress._clock(3725) == "1:02:05"


def test_the_name_of_a_run_moves_no_cursor():
  stream = io.StringIO()
  progress.Progress("a\x1b[2J\n\udcff", 1, stream).update(1, 1, 0.5)
  assert stream.getvalue() == r"a\x1b[2J\n\udcff" + "  step 1/1  loss 0.5000\n"
