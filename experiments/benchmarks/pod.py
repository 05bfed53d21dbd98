"""What XLA makes of the engine's training steps for a slice of TPU v4, which need not be there.

Run: pip install libtpu==0.0.42.1 && python -m experiments.benchmarks.pod [--topology=v4:2x2x4] [--config=FILE ...]
       [--out=DIR]

libtpu, the compiler of TPUs, is in the package index and compiles on any machine. One step of a process's resident
examples is compiled as several hosts take it (`shard_map`), with one device a chip. The cycles are
those that the compiler estimates of each instruction at 1.05 GHz, loops as often as they are passed, and hold no
transfer between chips and no work of the host. The roofline is the larger of the operations at 275 tera operations a
second (bfloat16, one pass) and the bytes at 1.2 TB/s. Nothing here is a measurement.
"""

from collections.abc import Sequence
import os
import re
import sys
import time
from typing import Any, NamedTuple
from unittest import mock

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from calib_jax._system import environment
from calib_jax._system.errors import UserError
from calib_jax._system.files import write_text
from calib_jax.training import config as run_config
from calib_jax.training import data
from calib_jax.training.distributed import mapping
from calib_jax.training.engine import program
from calib_jax.training.engine.layout import Layout
from experiments.common import commands, markdown

HERTZ, OPERATIONS, BYTES = 1.05e9, 275e12, 1.2e12  # Of one chip of TPU v4.
SIZES = {"f32": 4, "bf16": 2, "s32": 4, "u32": 4, "pred": 1, "u8": 1, "s8": 1, "f16": 2, "s64": 8, "u64": 8, "u16": 2}
COLLECTIVE = re.compile(r"= (.*?) (?:all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\(")


class Case(NamedTuple):
  """A config by its file and fields, the side and the classes of its images, and how many a process keeps."""

  config: str
  side: int = 32
  num_classes: int = 10
  resident: int = 45_000
  fields: Sequence[str] = ()


CASES = {
  "WRN-28-10, focal + soft AvUC, 512": Case("cifar100_savuc.py", num_classes=100),
  "ResNet-50, ImageNet, cross entropy + soft AvUC, 512": Case(
    "soft_calibration.py:imagenet2012.resnet50.cross_entropy+soft_avuc", 224, 1000, 2_000),
  "PreResNet-56, selective risk, 128": Case("reweighted_risk.py:cifar10.preresnet56"),
  "the same, norms by device": Case("reweighted_risk.py:cifar10.preresnet56",
                                    fields=("model.norm_statistics=device",)),
  "MLP 128-128, cross entropy, 128": Case("common.py", fields=("model.name=mlp", "model.hidden=(128, 128)"))}


class Compiled(NamedTuple):
  """What is known of a compiled step of one chip."""

  batch_size: int
  num_devices: int
  seconds: float  # To compile.
  collectives: Sequence[int]  # The bytes of each.
  memory: int  # Bytes: arguments, temporaries and code.
  cycles: int
  roofline: float  # Seconds.

  def cells(self) -> list[str]:
    """Returns the cells of its row."""
    step = self.cycles / HERTZ
    return [f"{self.batch_size // self.num_devices}", f"{self.seconds:.0f}",
            f"{len(self.collectives)}, {sum(self.collectives) / 1e6:.1f}", f"{self.memory / 2**20:,.0f}",
            f"{1e3 * step:.2f}", f"{1e3 * self.roofline:.2f}", f"{self.batch_size / step:,.0f}"]


HEADINGS = ["network, loss, batch", "images a chip", "s to compile", "collectives, MB", "MiB a chip",
            "ms a step by the compiler's cycles", "ms by the roofline", "images a second by these cycles"]


def chips(topology: str) -> list[Any]:
  """Returns the devices of a topology such as ``v4:2x2x4``, one a chip, without hardware."""
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  if not topology.startswith("v4:"):
    raise UserError(f"--topology must be of TPU v4, such as v4:2x2x4: got {topology!r}.")
  from jax.experimental import topologies

  try:
    return list(topologies.get_topology_desc(topology_name=topology, platform="tpu",
                                             chip_config_name="megacore").devices)
  except RuntimeError as error:
    raise UserError(f"--topology={topology}: the compiler of TPUs cannot be asked ({str(error).splitlines()[0]}): "
                    "pip install the libtpu that your JAX names, 0.0.42.1 for JAX 0.10.") from error


def lowered(case: Case, devices: Sequence[Any], fields: Sequence[str] = ()) -> tuple[Any, int]:
  """Returns the lowered first step of a config on these devices, and its batch size."""
  config = run_config.load(str(commands.ROOT / "configs" / case.config),
                           [f"--config.{field}" for field in (*case.fields, *fields)])
  shape, size = (case.side, case.side, 3), config.training.batch_size
  if size % len(devices):
    raise UserError(f"the batch of {case.config}, {size}, is not a multiple of {len(devices)} devices.")
  few = data.Examples(np.zeros((4096, *shape), np.uint8), np.arange(4096, dtype=np.int32) % case.num_classes)
  splits = data.Splits(few, few, few, case.num_classes, np.zeros(3, np.float32), np.ones(3, np.float32))
  functions = []

  def kept(function, arguments, devices, parallel, donate=False):
    functions.extend([function] * donate)  # A training step gives its state away; others do not.

  # The devices are none of this process: arrays cannot lie there, and functions can be lowered but not called.
  with mock.patch.object(mapping, "_on_devices", kept), mock.patch.object(
      Layout, "keys", lambda self, seeds: jax.vmap(jax.random.key)(np.asarray(seeds))):
    stage = program.build(config, [splits], [0], devices).stages[0]
  mesh = Mesh(np.array(devices), (mapping.AXIS,))
  same, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(mapping.AXIS))

  def like(shape, dtype, sharding=same):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

  key = jax.eval_shape(lambda: jax.vmap(jax.random.key)(np.zeros(1, int)))
  state = jax.eval_shape(stage.init, key)
  place = (len(devices), 1, 1, size // len(devices))
  batches = {"index": like(place, np.int32, split), "mask": like(place, bool, split)}
  examples = {"image": like((1, case.resident, int(np.prod(shape))), np.uint8),
              "label": like((1, case.resident), np.int32)}
  state, key = jax.tree.map(lambda x: like(x.shape, x.dtype), (state, key))
  return mapping.sharded(functions[0], mesh, True).lower(state, batches, key, examples, like((), np.int32)), size


def compiled(case: Case, devices: Sequence[Any], fields: Sequence[str] = ()) -> Compiled:
  """Compiles a step and reads what the compiler says of it."""
  step, size = lowered(case, devices, fields)
  started = time.monotonic()
  made = step.compile()
  seconds, text = time.monotonic() - started, made.as_text()
  memory, cost = made.memory_analysis(), made.cost_analysis()
  return Compiled(size, len(devices), seconds, [_bytes(match[1]) for match in COLLECTIVE.finditer(text)],
                  memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes,
                  cycles(text), max(cost["flops"] / OPERATIONS, cost["bytes accessed"] / BYTES))


def _bytes(types: str) -> int:
  return sum(SIZES.get(kind, 0) * int(np.prod([int(x) for x in sides.split(",") if x], dtype=np.int64))
             for kind, sides in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", types))


def cycles(text: str) -> int:
  """Returns the estimated cycles of an optimised program: those of the entry, and of loops as often as they turn."""
  parts = {match[2]: match[0] for match in re.finditer(r"^(ENTRY )?%?([\w.-]+) \(.*?^\}", text, re.M | re.S)}
  own = {name: sum(map(int, re.findall(r'"estimated_cycles":"(\d+)"', part))) for name, part in parts.items()}

  def of(name: str) -> int:
    total = own[name]
    for loop in re.finditer(r" while\(.*", parts[name]):
      condition, body = (re.search(rf"{what}=%?([\w.-]+)", loop[0])[1] for what in ("condition", "body"))
      turns = max((int(x) for x in re.findall(r"constant\((\d+)\)", parts[condition])), default=1)
      total += turns * of(body)
    return total

  return of(next(name for name, part in parts.items() if part.startswith("ENTRY")))


def main(arguments: Sequence[str] | None = None) -> int:
  """Prints the table, and writes it to ``pod.md`` of ``--out``."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("--topology", nargs="+", default=["v4:2x2x1", "v4:2x2x4"], help="of TPU v4; 2x2x4 is a v4-32")
  parser.add_argument("--config", nargs="+", default=[], help="files of configs/, of 32x32 images; four by default")
  parser.add_argument("--fields", nargs="+", default=[], metavar="FIELD=VALUE", help="fields that all configs set")
  parser.add_argument("--out", type=commands.directory, help="where pod.md goes; nowhere by default")
  options = parser.parse_args(arguments)
  cases = {name: Case(name) for name in options.config} or CASES
  lines = [f"# Training steps of TPU v4, as compiled on {time.strftime('%Y-%m-%d')}", "",
           f"`python -m experiments.benchmarks.pod{' --fields ' + ' '.join(options.fields) if options.fields else ''}` "
           f"made this page with JAX {environment.environment()['packages']['jax']}.", "",
           __doc__.split("\n\n")[2].strip()]
  try:
    for topology in options.topology:
      devices, table = chips(topology), []
      for name, case in cases.items():
        print(f"compiling {name} for {topology} …", file=sys.stderr, flush=True)
        table.append([name, *compiled(case, devices, options.fields).cells()])
      hosts = len({device.process_index for device in devices})
      lines += ["", f"## {topology}: {len(devices)} chips of {hosts} host{'s' * (hosts > 1)}", "",
                markdown.table(HEADINGS, table)]
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  page = "\n".join(lines) + "\n"
  print(page)
  if options.out:
    write_text(options.out / "pod.md", page)
  return 0


if __name__ == "__main__":
  sys.exit(main())
