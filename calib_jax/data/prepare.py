"""Checks the archive of a public data set, and writes it as an ``.npz`` of plain arrays.

python -m calib_jax.data prepare cifar-10-python.tar.gz [--out=DIR/cifar10.npz]

The archives are cifar-10-python.tar.gz, cifar-100-python.tar.gz and tiny-imagenet-200.zip, which keep their names. The
file is written beside the archive as cifar10.npz, cifar100.npz or tiny_imagenet.npz, by which name --config.data.dir
and the experiments' --data find it in their directory.
"""

import argparse
import pathlib
import sys

from calib_jax._system.errors import UserError, printable
from calib_jax.data import archives


def main(arguments: list[str]) -> int:
  """Runs the command line; returns the exit code, which is 2 after a mistake of the user and else 0."""
  parser = argparse.ArgumentParser(prog="python -m calib_jax.data prepare", description=__doc__.splitlines()[0],
                                   allow_abbrev=False)
  parser.add_argument("archive", type=pathlib.Path, help="the downloaded archive")
  parser.add_argument("--out", type=pathlib.Path, help="the .npz to write; NAME.npz beside the archive by default")
  parser.add_argument("--sha256", help="the SHA-256 that the archive must have, if not that of the published one")
  options = parser.parse_args(arguments)
  try:
    name = name_of(options.archive)
    digest, expected = archives.sha256(options.archive), options.sha256 or archives.ARCHIVES[name].sha256
    if digest != expected.lower():
      whose = "--sha256 says that it has" if options.sha256 else "the published archive has"
      raise UserError(f"{options.archive} has the SHA-256 {digest}, and {whose} {expected}: download it again, or give "
                      f"--sha256={digest} if you trust this one.")
    out = options.out or options.archive.with_name(f"{name}.npz")
    if out.suffix != ".npz":
      raise UserError(f"--out must end in .npz: got {out}.")
    contents = archives.prepare(name, options.archive, out)
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  counts = " and ".join(f"{len(part.labels):,} {split}" for split, part in
                        (("training", contents.train), ("test", contents.test)))
  print(f"{printable(out)} holds {counts} images of {len(contents.classes)} classes; SHA-256 of the archive: {digest}")
  return 0


def name_of(archive: pathlib.Path) -> str:
  """Returns the data set of an archive by the name of its file.

  Raises:
    UserError: if it is none of them.
  """
  names = {value.file: name for name, value in archives.ARCHIVES.items()}
  if archive.name not in names:
    raise UserError(f"the archive must be called {', '.join(names)}: got {archive.name}.")
  return names[archive.name]
