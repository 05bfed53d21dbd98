"""The parsers of the commands: options in groups, examples below them, and one line for a wrong option."""

import argparse
from collections.abc import Sequence
import re

from calib_jax._checks.limits import suggestion
from calib_jax._system.errors import printable

GROUPS = ("files", "calibration", "subgroups", "cuts", "output")


def parser(name: str, text: str, usage: str, examples: Sequence[str] = ()) -> argparse.ArgumentParser:
  """Returns the parser of ``calib-jax NAME``, which answers a wrong option with one line and the exit code 2."""
  made = argparse.ArgumentParser(prog=f"calib-jax {name}", usage=f"%(prog)s {usage}", description=text.splitlines()[0],
                                 epilog="\n  ".join(["examples:", *examples]) if examples else None,
                                 formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)

  def error(message: str) -> None:
    unknown = re.match(r"unrecognized arguments: (--\w+)", message)
    near = suggestion(unknown[1], made._option_string_actions) if unknown else ""
    made.exit(2, f"error: {printable(message)}.{near or f' {made.prog} --help lists the options.'}\n")

  made.error = error
  return made


def groups(of: argparse.ArgumentParser) -> dict[str, argparse._ArgumentGroup]:
  """Returns new groups of options by title, in the order in which the help shows them."""
  return {title: of.add_argument_group(title) for title in GROUPS}
