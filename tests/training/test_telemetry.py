"""Rates, waits and traces are what they say."""

import pytest

from calib_jax._system.errors import UserError
from calib_jax.training.distributed import processes
from calib_jax.training.run_log import telemetry


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


@pytest.mark.parametrize(("given", "message"), [
  (("localhost:1", None, None), "--coordinator, --num_processes and --process_id go together"),
  ((None, 2, 0), "go together"), (("localhost:1", 2, 2), r"--process_id must be in \[0, 1\].*got 2"),
])
def test_flags_of_processes_that_cannot_be_are_one_sentence(given, message):
  with pytest.raises(UserError, match=message):
    processes.connect(*given)
