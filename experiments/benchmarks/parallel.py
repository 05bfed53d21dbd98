"""The time of a step under `training.parallel` pmap and shard_map, in several processes of this machine.

Run: python -m experiments.benchmarks.parallel [--num_processes=2] [--num_devices=4] [--rounds=3] [--config.FIELD=…]

Each round trains configs/digits_savuc.py once in each way, with a fresh directory; the processes share a coordinator on
this machine, and each has `--num_devices` virtual CPU devices. The time of a run is the median of the logged seconds a
step, without the first steps, which compile. The table has the median over the rounds and the ratio within each round.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

from experiments.common import commands

RUN = ("--config=configs/digits_savuc.py", "--config.num_seeds=1", "--config.compare_with_cross_entropy=False",
       "--config.training.num_steps=400", "--config.training.log_every_steps=20", "--config.evaluation.num_resamples=2",
       "--config.evaluation.calibrators={}", "--config.checkpoint.every_steps=400", "--config.training.batch_size=128")
WAYS = ("pmap", "shard_map")


def step_seconds(parallel: str, options: argparse.Namespace, overrides: list[str]) -> float:
  """Returns the median seconds a step of one run."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  environment = {**os.environ, "JAX_PLATFORMS": "cpu",
                 "XLA_FLAGS": f"--xla_force_host_platform_device_count={options.num_devices}"}
  with tempfile.TemporaryDirectory() as folder:
    several = [f"--coordinator=127.0.0.1:{port}", f"--num_processes={options.num_processes}"]
    processes = [subprocess.Popen(
      [sys.executable, "main.py", *RUN, *overrides, f"--config.training.parallel={parallel}",
       f"--workdir={folder}/run{i}", *([*several, f"--process_id={i}"] if options.num_processes > 1 else [])],
      env=environment, stdout=subprocess.DEVNULL) for i in range(options.num_processes)]
    if any([process.wait() for process in processes]):
      raise SystemExit("a run ended with an error; see above.")
    rows = map(json.loads, (pathlib.Path(folder) / "run0/metrics.jsonl").read_text(encoding="utf-8").splitlines())
    seconds = [value for row in rows for key, value in row.items() if key.endswith("step_seconds")]
  return statistics.median(seconds[1:])


def main() -> None:
  """Runs all rounds and prints the table."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("--num_processes", type=int, default=2)
  parser.add_argument("--num_devices", type=int, default=4, help="virtual devices of each process")
  parser.add_argument("--rounds", type=int, default=3)
  options, overrides = parser.parse_known_args()
  rounds = [{way: step_seconds(way, options, overrides) for way in WAYS} for _ in range(options.rounds)]
  for way in WAYS:
    print(f"{way:10} {1000 * statistics.median(r[way] for r in rounds):8.2f} ms a step")
  print("shard_map / pmap in each round:", ", ".join(f"{r['shard_map'] / r['pmap']:.2f}" for r in rounds))


if __name__ == "__main__":
  main()
