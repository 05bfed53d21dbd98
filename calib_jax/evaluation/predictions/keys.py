"""The keys of examples, of groups and subgroups for instance: a missing one is no key, and 1.0 is the key 1."""

from collections.abc import Sequence
import re

import numpy as np

from calib_jax._system.errors import FileError, short

# How tools write a value that is missing, as whole texts in any case; in CSV and TSV an empty cell is one too.
MISSING = ("nan", "none", "null", "<na>", "nat")
WHOLE = re.compile(r"-?\d+\.0", re.ASCII)
EMPTY = "(empty)"


def _refuse_missing(texts: Sequence[str], name: str, start: int, is_empty_missing: bool) -> None:
  """Raises a FileError, which names the row, if a key is missing: rows without a key are not one group.

  ``start`` is the row, counted from 0, of the first key.
  """
  missing = [row for row, text in enumerate(texts) if text.strip().lower() in MISSING
             or (is_empty_missing and not text.strip())]
  if missing:
    raise FileError(f": {len(missing):,} of its {len(texts):,} rows have no {short(name)}; the first is row "
                    f"{start + missing[0]}, counted from 0, which holds {short(texts[missing[0]])}: fill them in, or "
                    "leave these rows out.")


def keys(values: np.ndarray, name: str, *, start: int = 0, is_empty_missing: bool = False) -> np.ndarray:
  """Returns keys ``[N]`` as integers or texts; "1.0" is "1", as pandas writes a column where one is missing.

  A missing key is a FileError; an empty text that is none is ``EMPTY``.
  """
  if values.dtype.kind == "f" and (np.abs(values) < 2**53).all() and (values % 1 == 0).all():
    return values.astype(np.int64)
  if values.dtype.kind not in "fU":
    return values
  texts = [str(text).strip() for text in values.tolist()]
  _refuse_missing(texts, name, start, is_empty_missing)
  return np.array([text[:-2] if WHOLE.fullmatch(text) else text or EMPTY for text in texts])
