"""Commands as users type them: no pytest, none of the tests' flags for JAX, an empty home, one process each.

Trains, kills, continues, loads, compares, evaluates, applies, exports, and trains on two devices. It ends with code 1
after an unexpected exit code, a traceback, or a number other than that of the tests (tests/known_numbers.py).

Run: .venv/bin/python -m tests.as_users
"""

import csv
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

from tests import known_numbers

ROOT = pathlib.Path(__file__).resolve().parent.parent

TS = ("--calibrators", "temperature_scaling")
LOAD = """
import sys, numpy as np
from calib_jax.training.run import Run
run = Run.load(sys.argv[1])
saved = np.load(sys.argv[1] + "/predictions/test_seed0.npz")["logits"]
print(int(np.array_equal(run.predict(run.splits(0).test.images), saved)))
"""
EXPORT = """
import sys
from calib_jax import calibrators
for format in ("numpy", "onnx"):
  calibrators.export(calibrators.load(sys.argv[1]), format, sys.argv[2] + {"numpy": ".py", "onnx": ".onnx"}[format])
"""
SERVE = """
import runpy, sys, numpy as np, onnxruntime
logits = np.load(sys.argv[1])["logits"]
numpy = runpy.run_path(sys.argv[2] + ".py")["calibrate"](logits)
onnx, = onnxruntime.InferenceSession(sys.argv[2] + ".onnx").run(["probs"], {"logits": logits})
np.savez(sys.argv[2], numpy=numpy, onnx=onnx)
"""


def main(folder: pathlib.Path) -> None:
  """Types all commands in an empty folder."""
  began = time.monotonic()
  plain = {"PATH": os.environ["PATH"], "HOME": str(folder)}  # So that nothing that is set here helps.

  def start(*arguments, **environment) -> subprocess.Popen:
    text = " ".join(str(argument).replace(str(folder), "…") for argument in arguments if "\n" not in str(argument))
    print(f"{time.monotonic() - began:4.0f} s  python {text.replace(' '.join(known_numbers.RUN), 'RUN')}", flush=True)
    return subprocess.Popen([sys.executable, *map(str, arguments)], cwd=ROOT, text=True, env=plain | environment,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

  def finish(process: subprocess.Popen, code: int) -> str:
    output, errors = process.communicate(timeout=600)
    check(process.returncode == code, f"exit code {process.returncode} in place of {code}", output, errors)
    check("Traceback" not in output + errors, "a traceback", output, errors)
    return output if code == 0 else errors

  def python(*arguments, code: int = 0, **environment) -> str:
    return finish(start(*arguments, **environment), code)

  # A run that is killed and continued is one that was not, to the byte; one on two devices is, up to rounding.
  train = ("main.py", *known_numbers.RUN)
  killed = start(*train, f"--workdir={folder}/killed")
  while killed.poll() is None and not list(folder.glob("killed/checkpoints/seed0/[0-9]*")):
    time.sleep(0.002)
  killed.kill()
  finish(killed, -signal.SIGKILL)
  # Commands that do not need what others write are typed together.
  others = [start(*train, f"--workdir={folder}/killed"),
            start(*train, f"--workdir={folder}/two", XLA_FLAGS="--xla_force_host_platform_device_count=2")]
  for process in others:
    finish(process, 0)
  whole = start(*train, f"--workdir={folder}/whole")

  # Files, whose classes have two orders.
  known_numbers.write_files(folder)
  right = known_numbers.numbers()
  kinds = (("npz", "csv", "classes"), ("csv", "npz", "classes"), ("jsonl", "jsonl", "records"))
  others = [start("-m", "calib_jax", "evaluate", "--fit", folder / f"fit.{ending}", "--test", folder / f"test.{other}",
                  "--out", folder / f"out_{ending}_{other}", "--num_resamples", 100, *(TS if kind == "classes" else ()))
            for ending, other, kind in kinds]
  for process, (ending, other, kind) in zip(others, kinds, strict=True):
    finish(process, 0)
    out = folder / f"out_{ending}_{other}"
    rows = json.loads((out / "results.json").read_text())["results"]["test"]["test"]
    for name, number in right[kind].items():
      equal(f"{name} of {other}", rows["none"][name]["value"], number, 1e-5)
    if kind == "classes":
      equal(f"NLL of {ending} after TS", rows["temperature_scaling"]["nll"]["value"], right["temperature"]["nll"], 1e-5)
  probs = known_numbers.calibrated(right["temperature"]["temperature"])
  calibrator = folder / "out_npz_csv/calibrator.npz"
  for ending in ("npz", "csv"):
    python("-m", "calib_jax", "apply", "--calibrator", calibrator, "--predictions", folder / f"test.{ending}",
           "--out", folder / f"applied.{ending}")
  equal("probabilities of apply, .npz", np.load(folder / "applied.npz")["probs"], probs, 1e-4)
  with open(folder / "applied.csv", newline="", encoding="utf-8") as file:
    rows = [[float(row[f"prob_{name}"]) for name in known_numbers.CLASSES] for row in csv.DictReader(file)]
  equal("probabilities of apply, CSV", np.array(rows), probs, 1e-4)
  python("-c", EXPORT, calibrator, folder / "exported")
  python("-c", SERVE, folder / "test.npz", folder / "exported")
  for name, served in np.load(folder / "exported.npz").items():
    equal(f"probabilities of {name}", served, probs, 1e-4)

  finish(whole, 0)
  files = [folder / name / "predictions/test_seed0.npz" for name in ("killed", "whole", "two")]
  check(files[0].read_bytes() == files[1].read_bytes(), "a killed run that continues has other predictions")
  devices = json.loads((folder / "two/environment.json").read_text())["devices"]
  check(len(devices) == 2, f"the devices are {devices}")
  equal("logits of one and of two devices", *(np.load(file)["logits"] for file in files[1:]), 1e-2)
  row = json.loads((folder / "whole/results.json").read_text())["results"]["test"]["focal + soft_avuc"]["none"]
  for name, number in known_numbers.RUN_NUMBERS.items():
    equal(f"{name} of the run", row[name]["value"], number, known_numbers.RUN_TOLERANCE)
  check(python("-c", LOAD, folder / "whole").strip() == "1", "Run.load predicts other logits than the run has saved")
  table = python("-m", "calib_jax", "compare", folder / "whole", folder / "two")
  check(all(f"| {name} " in table for name in ("whole", "two")), "compare has no row of each run", table)
  message = python(*train, f"--workdir={folder}/whole", "--config.training.num_steps=7", code=2)
  check("holds a run of another config (training.num_steps" in message, message)
  message = python("-m", "calib_jax", "evaluate", "--test", folder / "tst.npz", code=2)
  check("Did you mean" in message, message)
  print(f"{time.monotonic() - began:4.0f} s  as the tests have it")


def check(is_right: bool, *what: str) -> None:
  """Ends with what is wrong, unless nothing is."""
  if not is_right:
    sys.exit("\n".join(("FAILED", *what)))


def equal(name: str, number, right, tolerance: float) -> None:
  """Checks that numbers are right up to the tolerance."""
  difference = np.abs(np.asarray(number, np.float64) - right).max()
  check(difference <= tolerance, f"{name}: {number}, and the tests have {right}; they differ by {difference}")


if __name__ == "__main__":
  with tempfile.TemporaryDirectory() as temporary:
    main(pathlib.Path(temporary))
