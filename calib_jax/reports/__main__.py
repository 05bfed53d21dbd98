"""Compares finished runs on one page: python -m calib_jax.reports compare RUN RUN."""

import sys

from calib_jax.cli import compare


def main(arguments: list[str] | None = None) -> int:
  """Runs the command line; returns the exit code, which is 2 after a mistake of the user and else 0."""
  name, *options = (sys.argv[1:] if arguments is None else arguments) or [""]
  if name == "compare":
    return compare.main(options)
  print("usage: python -m calib_jax.reports compare RUN_OR_FILE RUN_OR_FILE … [--out DIR]; compare --help says more.",
        file=sys.stderr)
  return 0 if name in ("-h", "--help") else 2


if __name__ == "__main__":
  sys.exit(main())
