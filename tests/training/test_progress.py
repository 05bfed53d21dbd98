"""The progress line says what it should, on a terminal and off it."""

import io

from calib_jax.training.run_log import progress


class Terminal(io.StringIO):
  def isatty(self):
    return True


def _run(stream):
  line = progress.Progress("demo", 100, stream)
  for step in range(1, 101):
    if step in (1, 21, 100):
      line.update(step, 2.5 / step)
    if step > 1:
      line.count(1, 128, 0.25)
  return stream.getvalue()


def test_speed_and_time_left_are_those_of_the_steps_that_were_counted():
  assert _run(io.StringIO()).splitlines() == [
    "demo  step 1/100  loss 2.5000",
    "demo  step 21/100  512 examples/s  loss 0.1190  0:20 left",  # 79 steps of a quarter of a second.
    "demo  step 100/100  512 examples/s  loss 0.0250  0:00 left",
  ]


def test_a_terminal_gets_one_line_rewritten():
  text = _run(Terminal())
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
  line.update(1, 1.0)
  now[0] = 9.0
  assert not line.due(5) and line.due(100)
  now[0] = 11.0
  assert line.due(6)


def test_hours_are_shown_only_when_there_are_any():
  assert progress._clock(59.6) == "1:00" and progress._clock(3725) == "1:02:05"


def test_the_name_of_a_run_moves_no_cursor():
  stream = io.StringIO()
  progress.Progress("a\x1b[2J\n\udcff", 1, stream).update(1, 0.5)
  assert stream.getvalue() == r"a\x1b[2J\n\udcff" + "  step 1/1  loss 0.5000\n"
