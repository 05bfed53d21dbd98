"""Logs of evaluations and answers of decision models, as the programs write them, as the rows of a table.

A form (``log_forms``) is told by the keys of the first object of a file. Rows have ``probs`` or ``logits`` with their
``choices`` and a ``label``, or a ``confidence`` and whether the answer was ``correct``, and an ``id``: rows of one id
depend on each other. Answers of decision models have their ``question``, ``type`` and number of ``options`` too, and
samples of the harness the ``task`` in the name of their file, for ``--by`` and ``--fit_by``. Texts of questions are not
kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import itertools
import os
import pathlib
import re
from typing import Any
import zipfile

from calib_jax._system import capacity
from calib_jax._system.errors import FileError, UserError, short
from calib_jax._system.json_objects import parse_json
from calib_jax.evaluation.predictions import headers
from calib_jax.evaluation.predictions.log_forms import FORMS, Form, Slot
from calib_jax.evaluation.predictions.text_files import as_json, objects_of_lines

ID = "id"
ENDINGS = (".json", ".eval")  # Files that hold one object, or a list of them, and archives of Inspect.
GROWTH = 10  # Times the bytes of a file that its objects take in memory, at most.
Row = dict[str, Any]


_COLUMNS = {*headers.OUTPUTS, *headers.LABELS, *headers.CONFIDENCES, *headers.CORRECT}
TABLE = "table"  # No log: each object is a row.
TASK = re.compile(r"samples_(.+?)(_\d{4}-\d\d-\d\dT[\d.:-]+)?")  # The name of a file of the harness.


def rows(objects: Iterable[tuple[str, Any]], say: Callable[[str], None], form: str = "", name: str = ""
         ) -> tuple[bool, Iterator[tuple[str, Any]]]:
  """Returns whether objects, each after its place in the file, are of a form, and their rows, or else themselves.

  Where several forms fit, or one and the columns of a table, ``form`` must say which. ``name`` is that of the file,
  without its ending.
  """
  objects = iter(objects)
  first = next(objects, None)
  if first is None:
    return False, iter(())
  form = told(first[1], form)
  every = itertools.chain([first], objects)
  if form == TABLE:
    return False, every
  say(f": it holds {FORMS[form].title}; rows of one {ID} depend on each other, so they are one group, unless --groups "
      "names others.")
  task = TASK.fullmatch(name) if form == "lm_eval" else None
  return True, _of_form(FORMS[form], every, say, {"task": task[1]} if task else {})


def told(first: Any, form: str = "", has_labels: bool = True) -> str:
  """Returns the form that an object has, or ``TABLE``; a FileError where it may be of several, or not of ``form``."""
  fits = [name for name, x in FORMS.items() if x.fits(first, has_labels)]
  if isinstance(first, dict) and (not fits or _is_row(first)):
    fits.append(TABLE)
  if form and form not in fits:
    raise FileError(f" is not of the form {form}: its objects have {headers.listed(first)}.")
  if not form and len(fits) > 1:
    raise FileError(f" can be read in several ways: say which by --form, one of {', '.join(fits)}.")
  return form or next(iter(fits), TABLE)


def _is_row(value: Mapping[str, Any]) -> bool:
  """Whether an object has the columns of a table: outputs or confidences, and labels or whether answers were right."""
  names = {name.lower() for name, x in value.items() if isinstance(x, int | float | str)}
  has_outputs = any(_are_numbers(x) for name, x in value.items() if name.lower() in headers.OUTPUTS)
  return (has_outputs and not names.isdisjoint(headers.LABELS)) or all(headers.record_names(names))


def _are_numbers(value: Any) -> bool:
  values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
  return bool(values) and all(isinstance(x, int | float) for x in values)


def _of_form(form: Form, objects: Iterator[tuple[str, Any]], say: Callable[[str], None], more: Row
             ) -> Iterator[tuple[str, Row]]:
  number_without = 0
  for number, (place, value) in enumerate(objects):
    with _as(form, place):
      own = [{ID: id_of(value, number)} | _row(slot, form.label(value, slot)) | more for slot in form.slots(value)]
    number_without += not own or len(own) < len(value.get("answers", own))
    yield from ((place, row | {ID: str(row[ID]), headers.IDS[0]: _row_id(row)}) for row in own)
  if number_without:
    say(f": {number_without:,} of its objects have refusals, which do not count.")


def id_of(value: Row, number: int) -> str:
  """Returns the id of an object: that of a request, which its answer repeats, its own or, without any, its number."""
  return str(value.get("custom_id", value.get(ID, number)))


def _row_id(row: Row) -> str:
  return f"{row[ID]} {row['question']}" if "question" in row else str(row[ID])


def _row(slot: Slot, label: Row) -> Row:
  return {slot.kind: slot.values[0] if slot.kind == "confidence" else slot.values} | slot.more | label


@contextlib.contextmanager
def _as(form: Form, place: str) -> Iterator[None]:
  """Makes errors of an object that is not as its form says a FileError."""
  try:
    yield
  except (KeyError, IndexError, TypeError, ValueError, AttributeError, StopIteration) as error:
    missing = f"it lacks {short(error.args[0])}" if isinstance(error, KeyError) else str(error)[:200]
    raise FileError(f"{place} is not as {form.title} are ({missing}).") from error


def editable(path: str | os.PathLike[str], form: str = "") -> tuple[Any, list[Slot]] | None:
  """Returns what a log holds, with labels or without, and the slots of its rows; None of another file.

  What is put into the slots stands in what it holds. ``form`` is as in ``rows``.
  """
  path = pathlib.Path(path)
  if path.suffix.lower() not in (".jsonl", ".json") or not path.is_file():
    return None
  is_lines = path.suffix.lower() == ".jsonl"
  with as_json():
    places = objects_of_lines(path) if is_lines else None
    if is_lines and told(next(places, ("", None))[1], form, has_labels=False) == TABLE:
      return None
    whole = [x for _, x in objects_of_lines(path)] if is_lines else _whole(path)
  objects, _ = _objects(whole)
  if (form := told(objects[0] if objects else None, form, has_labels=False)) == TABLE:
    return None
  slots = []
  for number, value in enumerate(objects):
    with _as(FORMS[form], f": object {number:,}, counted from 0,"):
      slots += [slot._replace(more={ID: id_of(value, number)} | slot.more) for slot in FORMS[form].slots(value)]
  return whole, slots


def objects_of(path: str | os.PathLike[str]) -> Iterator[tuple[str, Any]]:
  """Yields the objects of a ``.json`` file (``_objects``), or of an ``.eval``."""
  path = pathlib.Path(path)
  if path.suffix.lower() == ".eval":
    yield from _archived(path)
    return
  objects, ids = _objects(_whole(path))
  for number, x in enumerate(objects):
    yield f": object {number:,}, counted from 0,", x | {ID: ids[number]} if ids and isinstance(x, dict) else x


def _whole(path: pathlib.Path) -> Any:
  """Returns what a ``.json`` file holds."""
  capacity.check_read("", GROWTH * path.stat().st_size)
  try:
    return parse_json(f'{{"all": {path.read_text(encoding="utf-8-sig")}}}', "")["all"]  # Or a list.
  except UnicodeDecodeError:
    raise FileError(" is not UTF-8 text.") from None


def _objects(whole: Any) -> tuple[list[Any], list[str]]:
  """Returns the objects of a list, alone or under one key, of columns, or of answers by id, which come second."""
  if isinstance(whole, dict):
    of_objects = [x for name, x in whole.items() if name.lower() not in headers.OUTPUTS
                  and isinstance(x, list) and x and all(isinstance(y, dict) for y in x)]
    if isinstance(whole.get("samples"), list):  # The log of an evaluation, which may have other lists.
      return whole["samples"], []
    if len(of_objects) == 1:
      return of_objects[0], []
    if rows := _of_columns(whole):
      return rows, []
    if all(isinstance(x, dict) for x in whole.values()):
      return list(whole.values()), list(whole)
  if not isinstance(whole, list):
    raise FileError(" must hold a list of objects, alone or under one key, an object of columns, the log of an "
                    "evaluation, or answers by id.")
  return whole, []


def _of_columns(whole: Row) -> list[Row]:
  """Returns the rows of an object of columns, as lists or by index as pandas writes them; none of another object.

  One of them must be called as outputs, labels or records are. A list of classes counts for each row, and what stands
  beside lists and is none, such as a config, for none.
  """
  columns = {name: x for name, x in whole.items() if isinstance(x, list)}
  classes = {name: columns.pop(name) for name in headers.OPTIONS
             if name in columns and all(isinstance(x, str) for x in columns[name])}
  columns = columns or {name: x for name, x in whole.items() if isinstance(x, dict)}
  own, inner = ({name.lower() for name in names} for names in (
    columns, [name for x in columns.values() if isinstance(x, dict) for name in x]))
  if own.isdisjoint(_COLUMNS) or not inner.isdisjoint(_COLUMNS):
    return []  # The second are answers by id.
  index = list(next(iter(columns.values())))
  if any(len(x) != len(index) or (isinstance(x, dict) and list(x) != index) for x in columns.values()):
    lengths = ", ".join(f"{name} has {len(x):,}" for name, x in columns.items())
    raise FileError(f": its columns must have the same rows: {lengths}.")
  values = (x.values() if isinstance(x, dict) else x for x in columns.values())
  return [dict(zip(columns, row, strict=True)) | classes for row in zip(*values, strict=True)]


def _zipfile():
  """Returns the module that reads archives: Python's own from 3.14 on, and before that its backport if it is there."""
  try:
    from backports.zstd import zipfile as backport
    return backport
  except ImportError:
    return zipfile


def _archived(path: pathlib.Path) -> Iterator[tuple[str, Any]]:
  """Yields the samples of an archive of Inspect."""
  try:
    with _zipfile().ZipFile(path) as archive:
      members = [x for x in archive.infolist() if x.filename.startswith("samples/") and x.filename.endswith(".json")]
      capacity.check_read("", GROWTH * sum(x.file_size for x in members))
      for member in members:
        yield f": {short(member.filename)}", parse_json(archive.read(member).decode("utf-8"), "")
  except NotImplementedError:
    raise FileError(" is compressed by zstd, which Python reads from 3.14 on: pip install backports.zstd, or write its "
                    ".json by `inspect log convert --to json`.") from None
  except UserError:
    raise
  except Exception as error:  # Damaged archives raise many types, which differ with what compresses them.
    raise FileError(f" is no archive of Inspect ({error}).") from error
