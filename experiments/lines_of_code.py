"""Counts the lines of code of each directory: the lines of statements, without comments and docstrings.

Run: python -m experiments.lines_of_code [--at=REVISION]

Without --at it counts the files as they are now; with it, those of a revision of git. Every line of a text in the code
counts. The number of a directory holds those of the directories in it.
"""

from collections.abc import Iterator, Sequence
import io
import pathlib
import subprocess
import sys
import tarfile
import tokenize

from experiments.common import commands

ROOT = pathlib.Path(__file__).parents[1]
ROOMS = ("calib_jax", "configs", "experiments", "tests")


def count(text: str) -> int:
  r"""Returns the number of lines of a module's source that hold code.

  >>> count('"What it is for."\n\nx = (1,  # Why.\n     # And why.\n     2)\n')
  2
  """
  lines, statement = set(), []
  for token in tokenize.generate_tokens(io.StringIO(text).readline):
    if token.type == tokenize.NEWLINE:
      if [part.type for part in statement] != [tokenize.STRING]:  # Which would be a docstring.
        for part in statement:
          lines.update(range(part.start[0], part.end[0] + 1))
      statement = []
    elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
      statement.append(token)
  return len(lines)


def sources(revision: str | None) -> Iterator[tuple[pathlib.PurePath, str]]:
  """Yields the path of each module, from the root of the repository, and its source."""
  if revision is None:
    for room in ROOMS:
      for path in (ROOT / room).rglob("*.py"):
        yield path.relative_to(ROOT), path.read_text(encoding="utf-8")
    return
  archive = subprocess.run(["git", "archive", revision, *ROOMS], cwd=ROOT, stdout=subprocess.PIPE)
  if archive.returncode:
    raise SystemExit(f"git cannot read the revision {revision!r}.")
  with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
    for file in files:
      if file.name.endswith(".py"):
        yield pathlib.PurePath(file.name), files.extractfile(file).read().decode("utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
  """Prints the number of lines of each directory."""
  parser = commands.parser(__spec__.name, __doc__)
  parser.add_argument("--at", metavar="REVISION", help="a revision of git, such as main; if absent, the files now")
  lines: dict[str, int] = {}
  for path, text in sources(parser.parse_args(arguments).at):
    for room in {path.parts[0], "/".join(path.parts[:-1][:2])}:
      lines[room] = lines.get(room, 0) + count(text)
  print("\n".join(f"{lines[room]:7,}  {room}" for room in sorted(lines)))
  return 0


if __name__ == "__main__":
  sys.exit(main())
