"""The rows of an experiment, kept in a ``.csv`` file that grows as its runs finish.

A large file of a finished experiment is packed: ``.csv.gz`` in place of ``.csv``. All functions take the path of the
``.csv``. If there is one it has the rows, and else the packed file; the first row that is appended or dropped unpacks
it. ``texts`` has each cell as it is written, so that hashes and numbers are written again as they were; ``frame`` has
numbers.
"""

from collections.abc import Mapping, Sequence
import gzip
import io
import pathlib
import zlib

import pandas as pd

from calib_jax._system.errors import UserError
from calib_jax._system.files import write as write_bytes
from calib_jax._system.files import write_text

LARGE = 300_000  # Bytes from which a finished file is packed.
Row = dict[str, str]
Rows = Sequence[Mapping[str, object]] | pd.DataFrame


def texts(path: pathlib.Path) -> pd.DataFrame:
  """Returns the rows of a file, if it exists, as texts; a last line that a killed command left is no row."""
  return _table(path, dtype=object, keep_default_na=False)


def read(path: pathlib.Path) -> list[Row]:
  """Returns the same rows, each as a dict."""
  return texts(path).to_dict("records")


def frame(path: pathlib.Path, text: Sequence[str] = ()) -> pd.DataFrame:
  """Returns the same rows with numbers in all columns but ``text``; an empty cell is NaN."""
  # Names such as "None" and "NA" are not missing values. Numbers are read to their last digit, by pandas from 3.1 on.
  return _table(path, keep_default_na=False, na_values=[""], dtype=dict.fromkeys(text, str))


def _table(path: pathlib.Path, **options: object) -> pd.DataFrame:
  if path.exists():
    text = path.read_text(encoding="utf-8")
  elif packed(path).exists():
    try:
      text = gzip.decompress(packed(path).read_bytes()).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
      raise UserError(f"{packed(path)} is damaged: delete it, and the command makes its rows anew.") from None
  else:
    return pd.DataFrame()
  text = text[:text.rfind("\n") + 1]
  return pd.read_csv(io.StringIO(text), **options) if text else pd.DataFrame()


def keys(rows: pd.DataFrame, columns: Sequence[str]) -> set[tuple[str, ...]]:
  """Returns the different texts of some columns, such as those that name a run; none of a table without rows."""
  return set() if rows.empty else set(rows[list(columns)].itertuples(index=False, name=None))


def append(path: pathlib.Path, rows: Rows, *, replacing: Sequence[str] = ()) -> None:
  """Appends rows to a file; they replace those with the same cells in the columns ``replacing``."""
  new, before = _written(rows), texts(path)
  if not len(new):
    return
  if replacing and len(before):
    replaced = keys(new, replacing)
    before = before[[key not in replaced for key in before[list(replacing)].itertuples(index=False, name=None)]]
  if len(before) and set(before.columns) - set(new.columns):
    raise ValueError(f"{path} has the columns {', '.join(before)}, and the new rows have {', '.join(new)}: "
                     "move the file away, or delete it to run everything again.")
  write(path, pd.concat([before, new]).fillna("") if len(before) else new)


def write(path: pathlib.Path, rows: Rows) -> None:
  """Writes rows in place of those of a file, which appears anew only once it is complete."""
  table = _written(rows)
  write_text(path, table.to_csv(index=False, lineterminator="\n") if len(table.columns) else "")
  packed(path).unlink(missing_ok=True)


def _written(rows: Rows) -> pd.DataFrame:
  return pd.DataFrame(rows, dtype=object).map(lambda cell: "" if cell is None else str(cell))


def pack(path: pathlib.Path) -> None:
  """Packs a file if it is large; without a time, so that the same rows are the same bytes."""
  if path.exists() and path.stat().st_size > LARGE:
    data = gzip.compress(path.read_bytes(), mtime=0)
    write_bytes(packed(path), lambda file: file.write(data))
    path.unlink()


def packed(path: pathlib.Path) -> pathlib.Path:
  """Returns the path of a packed file."""
  return path.with_name(f"{path.name}.gz")
