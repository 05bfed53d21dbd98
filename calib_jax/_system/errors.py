"""The error that reports a user's mistake in one sentence, and what such sentences and other outputs are made of."""

from collections.abc import Iterator
import contextlib
import os

LONGEST = 200  # Characters of a user's value that a message or a table repeats.
MESSAGE = 2500  # Characters of a message.


class UserError(Exception):
  """A mistake in a config, a path or a file. ``main.py`` prints the message without a traceback and exits with 2."""

  def __init__(self, message: object = ""):
    """Takes the sentence, in which names and paths need not be ``printable`` yet."""
    super().__init__(cut(printable(message), MESSAGE))


class FileError(UserError):
  """The part of a sentence about a file that follows its path, such as ": it has no rows"; ``about`` adds the path."""


@contextlib.contextmanager
def about(path: str | os.PathLike) -> Iterator[None]:
  """Adds the path of a file to what is raised within as a ``FileError``, so that only who opens a file has its path."""
  try:
    yield
  except FileError as error:
    raise UserError(f"{path}{error}") from error


def short(value: object) -> str:
  """Returns ``repr(value)``, cut if it is long."""
  text = repr(value)
  return text if len(text) <= LONGEST else f"{cut(text)} ({len(text):,} characters)"


def cut(text: str, longest: int = LONGEST) -> str:
  """Returns a text, without its middle if it has more than ``longest`` characters."""
  return text if len(text) <= longest else f"{text[:longest * 2 // 3]}…{text[1 - longest // 3:]}"


def printable(text: object, *, lines: bool = False) -> str:
  r"""Returns a text as any terminal, table or page may show it: escapes stand for characters that are not printable.

  These are control characters, by which a file's name could move a terminal's cursor or begin a new line, characters
  that turn the direction of text, and the lone surrogates of a name that is not UTF-8, which no file can hold. Line
  ends stay if ``lines``.

  >>> printable("red: \x1b[31m, not UTF-8: \udcff, café")
  'red: \\x1b[31m, not UTF-8: \\udcff, café'
  """
  text = str(text)
  if lines:
    return "\n".join(map(printable, text.split("\n")))
  return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
