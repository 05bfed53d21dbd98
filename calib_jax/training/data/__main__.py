"""Checks the archive of a public data set, and writes it as an ``.npz`` of plain arrays.

python -m calib_jax.training.data prepare cifar-10-python.tar.gz [--out=DIR/cifar10.npz]

The archives are cifar-10-python.tar.gz, cifar-100-python.tar.gz and tiny-imagenet-200.zip, which keep their names. The
file is written beside the archive as cifar10.npz, cifar100.npz or tiny_imagenet.npz, by which name --config.data.dir
and the experiments' --data find it in their directory.
"""

import argparse
import pathlib
import sys

from calib_jax._system import process
from calib_jax._system.errors import UserError, printable
from calib_jax.training.data import archives


def main(arguments: list[str]) -> int:
  """Runs the command line; returns the exit code, which is 2 after a mistake of the user and else 0."""
  parser = argparse.ArgumentParser(prog="python -m calib_jax.training.data", description=__doc__.splitlines()[0],
                                   allow_abbrev=False)
  parser.add_argument("command", choices=("prepare",))
  parser.add_argument("archive", type=pathlib.Path, help="the downloaded archive")
  parser.add_argument("--out", type=pathlib.Path, help="the .npz to write; NAME.npz beside the archive by default")
  parser.add_argument("--sha256", default="",
                      help="the SHA-256 that the archive must have, if not that of the published one")
  try:
    _prepare(parser.parse_args(arguments))
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  return 0


def _prepare(options: argparse.Namespace) -> None:
  names = {value.file: name for name, value in archives.ARCHIVES.items()}
  if (name := names.get(options.archive.name)) is None:
    raise UserError(f"the archive must be called {', '.join(names)}: got {options.archive.name}.")
  out = options.out or options.archive.with_name(f"{name}.npz")
  if out.suffix != ".npz":
    raise UserError(f"--out must end in .npz: got {out}.")
  pool = archives.prepare(name, options.archive, out, options.sha256)
  print(f"{printable(out)} holds {len(pool.train.labels):,} training and {len(pool.test.labels):,} test images of "
        f"{pool.num_classes} classes")


if __name__ == "__main__":
  process.prepare()
  sys.exit(main(sys.argv[1:]))
