"""The progress line says what it should, on a terminal and off it; rates, waits and traces are what they say."""

import io

import numpy as np
import pytest

from calib_jax.evaluation.reports import outputs
from calib_jax.training.run_log import metric_log, progress, telemetry


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


@pytest.mark.slow  # TensorFlow takes seconds to import.
def test_events_hold_scalars_and_a_reliability_diagram(tmp_path, monkeypatch):
  monkeypatch.setattr(metric_log, "EVENTS", True)
  log = metric_log.MetricLog(tmp_path, outputs.reliability_picture("mine"))
  log.write(3, {"train/loss": 0.5}, seed=0)
  log.reliability(3, np.eye(3, dtype=np.float32)[[0, 1, 2, 0]], np.array([0, 1, 2, 1]), seed=0)
  log.close()
  (events,) = (path.read_bytes() for path in (tmp_path / "events/seed0").iterdir())
  assert [tag for tag in (b"train/loss", b"validation/reliability", b"\x89PNG") if tag not in events] == []


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


def test_speed_and_time_left_are_of_the_last_minute(monkeypatch):
  now, stream = [0.0], io.StringIO()
  monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
  line = progress.Progress("demo", 300, stream)
  for step in range(1, 101):  # A step takes one second, then three.
    now[0] += 1 if step <= 50 else 3
    line.count(1, 128, 1.0 if step <= 50 else 3.0)
  line.update(100, 0.5)
  assert stream.getvalue() == "demo  step 100/300  43 examples/s  loss 0.5000  10:00 left\n"


def test_the_time_left_is_that_of_the_stage_by_its_own_steps():
  stream = io.StringIO()
  line = progress.Progress("demo", 300, stream)
  line.stage(100)
  line.count(20, 2560, 20.0)
  line.update(20, 0.5)
  line.stage(300)
  line.update(101, 0.5)
  line.count(10, 1280, 1.0)
  line.update(110, 0.5)
  assert stream.getvalue().splitlines() == [
    "demo  step 20/300  128 examples/s  loss 0.5000  1:20 left of this stage",
    "demo  step 101/300  loss 0.5000",
    "demo  step 110/300  1,280 examples/s  loss 0.5000  0:19 left",
  ]


def test_a_line_that_stays_is_left_out_if_one_was_just_written(monkeypatch):
  now, stream = [0.0], Terminal()
  monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
  line = progress.Progress("demo", 100, stream)
  for seconds, text, must in ((0, "first", False), (1, "soon", False), (1, "must", True), (4, "later", False)):
    now[0] = float(seconds)
    line.say(text, now=must)
  assert stream.getvalue() == "".join(f"\r\x1b[Kdemo  {text}\n" for text in ("first", "must", "later"))


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


def test_a_meter_measures_since_it_was_read(monkeypatch):
  now = [0.0]
  monkeypatch.setattr(telemetry.time, "monotonic", lambda: now[0])
  meter = telemetry.Meter()
  now[0] = 7.0
  meter.compiled("train", 6.5)
  now[0] = 9.0
  meter.count(1, 32, 0.0)
  meter.count(1, 16, 0.5)
  result = meter.read()
  assert result.pop("memory_gib") > 0.01
  assert result == {"first_step_of_train_seconds": 6.5, "examples_per_second": 24, "step_seconds": 1,
                   "input_seconds": 0.25}
  assert meter.read() == {}
  now[0] = 10.0
  meter.count(2, 5, 0.0)
  assert {**meter.read(), "memory_gib": 0} == {"examples_per_second": 5, "step_seconds": 0.5, "input_seconds": 0,
                                               "memory_gib": 0}


def test_a_profile_traces_the_steps_asked_for_from_the_tenth_on(tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(telemetry.jax.profiler, "start_trace", lambda folder: calls.append(folder))
  monkeypatch.setattr(telemetry.jax.profiler, "stop_trace", lambda: calls.append("stop"))
  profile, traced = telemetry.Profile(tmp_path, 3), []
  for _ in range(20):
    profile.step()
    traced.append(calls != [] and calls[-1] != "stop")
  assert calls == [str(tmp_path), "stop"] and [i for i, on in enumerate(traced) if on] == [10, 11, 12]
  profile = telemetry.Profile(tmp_path, 100)
  for _ in range(12):
    profile.step()
  profile.close()
  assert calls == [str(tmp_path), "stop"] * 2
  for none in (telemetry.Profile(tmp_path, 0), telemetry.Profile(None, 5)):
    for _ in range(20):
      none.step()
    none.close()
  assert len(calls) == 4
