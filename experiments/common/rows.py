"""The rows of an experiment, kept in a ``.csv`` file that grows as its runs finish.

A large file of a finished experiment is packed: ``.csv.gz`` in place of ``.csv``. All functions take the path of the
``.csv``. If there is one it has the rows, and else the packed file; the first row that is appended or dropped unpacks
it.
"""

from collections.abc import Callable, Mapping, Sequence
import csv
import gzip
import io
import pathlib
import zlib

import pandas as pd

from calib_jax._system.errors import UserError
from calib_jax._system.files import write as write_bytes
from calib_jax._system.files import write_text

Row = dict[str, str]
LARGE = 300_000  # Bytes from which a finished file is packed.


def read(path: pathlib.Path) -> list[Row]:
  """Returns the rows of a file, or none if it does not exist.

  A last line without its end, which a killed command leaves, is no row.

  Raises:
    UserError: if a packed file is damaged.
  """
  return list(csv.DictReader(io.StringIO(_lines(path))))


def frame(path: pathlib.Path, text: Sequence[str] = ()) -> pd.DataFrame:
  """Returns the same rows as a table whose columns of numbers are numbers; an empty cell is missing (NaN).

  Args:
    path: the file.
    text: columns that are text even if all that they hold are numbers.
  """
  lines = _lines(path)
  if not lines:
    return pd.DataFrame()
  # Names such as "None" and "NA" are not missing values. Numbers are read to their last digit, by pandas from 3.1 on.
  return pd.read_csv(io.StringIO(lines), keep_default_na=False, na_values=[""], dtype=dict.fromkeys(text, str))


def append(path: pathlib.Path, rows: Sequence[Mapping[str, object]]) -> None:
  """Appends rows, after a header if the file is new.

  Args:
    path: the file.
    rows: dicts with the columns of the file, or with columns of their own if it is new. Further columns are empty in
      the rows that the file has.

  Raises:
    ValueError: if the file has columns that they lack.
  """
  if not rows:
    return
  text = _lines(path)
  columns = next(csv.reader(io.StringIO(text)), None)
  if columns and set(columns) - set(rows[0]):
    raise ValueError(f"{path} has the columns {', '.join(columns)}, and the new rows have {', '.join(rows[0])}: "
                     "move the file away, or delete it to run everything again.")
  if columns and (more := [name for name in rows[0] if name not in columns]):
    write(path, [row | dict.fromkeys(more, "") for row in read(path)])
    text, columns = _lines(path), [*columns, *more]
  if not path.exists() or path.stat().st_size > len(text.encode()):  # Packed, or cut in a line by a kill.
    write_text(path, text)
  packed(path).unlink(missing_ok=True)
  with path.open("a", encoding="utf-8", newline="") as file:
    _fill(file, columns or list(rows[0]), rows, header=not columns)


def write(path: pathlib.Path, rows: Sequence[Mapping[str, object]]) -> None:
  """Writes rows in place of those of a file, which appears anew only once it is complete."""
  file = io.StringIO()
  _fill(file, list(rows[0]) if rows else [], rows, header=bool(rows))
  write_text(path, file.getvalue())
  packed(path).unlink(missing_ok=True)


def drop(path: pathlib.Path, unwanted: Callable[[Row], bool]) -> None:
  """Deletes the rows for which ``unwanted`` is true."""
  rows = read(path)
  wanted = [row for row in rows if not unwanted(row)]
  if len(wanted) < len(rows):
    write(path, wanted)


def pack(path: pathlib.Path) -> None:
  """Packs a file if it is large; without a time, so that the same rows are the same bytes."""
  if path.exists() and path.stat().st_size > LARGE:
    data = gzip.compress(path.read_bytes(), mtime=0)
    write_bytes(packed(path), lambda file: file.write(data))
    path.unlink()


def packed(path: pathlib.Path) -> pathlib.Path:
  """Returns the path of a packed file."""
  return path.with_name(f"{path.name}.gz")


def _lines(path: pathlib.Path) -> str:
  """The whole lines of a file, packed or not."""
  if path.exists():
    text = path.read_text(encoding="utf-8")
  elif packed(path).exists():
    try:
      text = gzip.decompress(packed(path).read_bytes()).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
      raise UserError(f"{packed(path)} is damaged: delete it, and the command makes its rows anew.") from None
  else:
    text = ""
  return text[:text.rfind("\n") + 1]


def _fill(file: io.TextIOBase, columns: Sequence[str], rows: Sequence[Mapping[str, object]], *, header: bool) -> None:
  writer = csv.DictWriter(file, columns, lineterminator="\n")
  if header:
    writer.writeheader()
  writer.writerows(rows)
