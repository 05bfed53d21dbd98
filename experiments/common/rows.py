"""The rows of an experiment, kept in a ``.csv`` file that grows as its runs finish."""

from collections.abc import Callable, Mapping, Sequence
import csv
import io
import pathlib

from calib_jax._system.files import write_text

Row = dict[str, str]


def read(path: pathlib.Path) -> list[Row]:
  """Returns the rows of a file, or none if it does not exist.

  A last line without its end, which a killed command leaves, is no row.
  """
  if not path.exists():
    return []
  text = path.read_text(encoding="utf-8")
  return list(csv.DictReader(io.StringIO(text[:text.rfind("\n") + 1])))


def append(path: pathlib.Path, rows: Sequence[Mapping[str, object]]) -> None:
  """Appends rows, after a header if the file is new.

  Args:
    path: the file.
    rows: dicts with the columns of the file, or with columns of their own if it is new.
  Raises: ValueError if the file has other columns.
  """
  if not rows:
    return
  text = path.read_text(encoding="utf-8") if path.exists() else ""
  if not text.endswith("\n"):  # The line that a killed command was writing.
    text = text[:text.rfind("\n") + 1]
    write_text(path, text)
  columns = next(csv.reader(io.StringIO(text)), None)
  if columns and set(columns) != set(rows[0]):
    raise ValueError(f"{path} has the columns {', '.join(columns)}, and the new rows have {', '.join(rows[0])}: "
                     "move the file away, or delete it to run everything again.")
  with path.open("a", encoding="utf-8", newline="") as file:
    writer = csv.DictWriter(file, columns or list(rows[0]), lineterminator="\n")
    if not columns:
      writer.writeheader()
    writer.writerows(rows)


def drop(path: pathlib.Path, unwanted: Callable[[Row], bool]) -> None:
  """Deletes the rows for which ``unwanted`` is true; the file appears anew only once it is complete."""
  found = read(path)
  kept = [row for row in found if not unwanted(row)]
  if len(kept) < len(found):
    file = io.StringIO()
    writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(kept)
    write_text(path, file.getvalue())
