"""Applies a fitted calibrator to new predictions: calib-jax apply --calibrator FILE --predictions FILE --out FILE.

The calibrator is an ``.npz`` that ``evaluate --out`` or ``calibrators.save`` wrote. The predictions are a .csv, .tsv,
.json, .jsonl, .parquet or .npz with logits or probabilities, with or without labels; all but a .json may be larger than
the memory. The result has the probabilities in place of the outputs, and everything else of each row; its ending says
what it is. A calibrator that was fitted to records takes a column ``confidence``, and writes one. Answers of decision
models and logs of evaluations keep their form.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
import itertools
import json
import pathlib
from typing import Any

import jax
import numpy as np

from calib_jax import calibrators
from calib_jax._checks import class_names
from calib_jax._system.errors import FileError, UserError, about, printable
from calib_jax._system.files import check_local, write_text
from calib_jax.calibrators import param_tables
from calib_jax.cli import parsers, shared
from calib_jax.evaluation.predictions import (
  covariates,
  headers,
  log_forms,
  logs,
  masks,
  pieces,
  row_options,
  streaming,
  subgroup_fits,
  writing,
)
from calib_jax.evaluation.predictions.keys import keys
from calib_jax.evaluation.predictions.logits import EXACT, as_logits
from calib_jax.evaluation.predictions.text_files import SEPARATORS

HAVE_LISTS = (".jsonl", ".json", ".parquet", ".pq")  # Files whose rows hold lists of names.


def main(arguments: list[str] | None = None) -> int:
  """Runs the command line; returns the exit code, which is 2 after a mistake of the user and else 0."""
  parser = parsers.parser("apply", __doc__, "--calibrator FILE --predictions FILE --out FILE [options]")
  parser.add_argument("--calibrator", metavar="FILE", required=True, help="a fitted calibrator, such as calibrator.npz")
  parser.add_argument("--predictions", metavar="FILE", required=True,
                      help="the predictions to calibrate, with or without labels")
  parser.add_argument("--out", metavar="FILE", required=True, help="the file to write, of any of these kinds: "
                      f"{', '.join(streaming.SUFFIXES)}")
  parser.add_argument("--temperatures", metavar="FILE", help="also writes the temperatures as JSON that servers read, "
                      "such as {\"choice\": 2.7, \"noul\": 0.8} of temperature_scaling that was fitted to each type")
  parser.add_argument("--form", choices=(*log_forms.FORMS, logs.TABLE), default="",
                      help="what a log is, or table for none, where its keys do not tell")
  parser.add_argument("--logits", action="store_true", help="reads scores as logits, even if they seem probabilities")
  parser.add_argument("--percent", action="store_true", help="reads probabilities as percentages, from 0 to 100")
  options = parser.parse_args(arguments)
  return shared.answered(lambda: _applied(options), options.out)


def _applied(options: argparse.Namespace) -> None:
  """Applies the calibrator, and says how many rows were written."""
  check_local("--out", options.out)
  out = pathlib.Path(options.out)
  if out.suffix.lower() not in streaming.SUFFIXES:
    raise UserError(f"--out {options.out}: its ending must be one of {', '.join(streaming.SUFFIXES)}.")
  if out.exists() and out.samefile(options.predictions):
    raise UserError(f"--out {options.out} is the file of the predictions, which it would replace: name another one.")
  if pathlib.Path(options.calibrator, shared.FITTED).is_file():
    raise UserError(f"--calibrator {options.calibrator} is a directory: name the file in it, "
                    f"{pathlib.Path(options.calibrator, shared.FITTED)}.")
  fitted, by = calibrators.load(options.calibrator), {}
  if not isinstance(fitted, calibrators.Fitted) and subgroup_fits.NAME in fitted:
    with about(options.calibrator):
      fitted, by = subgroup_fits.load(fitted)
  if not isinstance(fitted, calibrators.Fitted):
    raise UserError(f"{options.calibrator} holds params without the name of their calibrator: write it by "
                    "calibrators.save(path, calibrator.fitted(logits, labels)).")

  def say(text: str) -> None:
    shared.note(f"{options.predictions}{text}")

  temperatures = _temperatures(fitted, by, options.calibrator) if options.temperatures else {}
  if by:
    by["is_csv"] = pathlib.Path(options.predictions).suffix.lower() in SEPARATORS
  with about(options.predictions):
    if (log := logs.editable(options.predictions, options.form)) is not None:
      number, noun = _mended(log, fitted, options, say, by), "answers"
    else:
      number, noun = _written(out, fitted, options, say, by), "rows"
  calibrator = fitted.calibrator.options["base"] if fitted.calibrator.records else fitted.calibrator
  fitted_to = f", fitted to each {by['column']}" if by else ""
  print(printable(f"{options.out} has the probabilities of {number:,} {noun} by {calibrator.name}{fitted_to}."))
  if temperatures:
    write_text(pathlib.Path(options.temperatures), json.dumps(temperatures, indent=2, ensure_ascii=False) + "\n")
    print(printable(f"{options.temperatures} has the temperature of each {by['column']}."))


def _written(out: pathlib.Path, fitted: calibrators.Fitted, options: argparse.Namespace, say: Callable[[str], None],
             by: Mapping[str, Any]) -> int:
  """Writes a file of rows with other probabilities, and returns their number."""
  with streaming.opened(options.predictions, say, at_once=fitted.calibrator.together,
                        records=fitted.calibrator.records) as source:
    rows = calibrated(fitted, source, options, say, by)
    if (first := next(rows, None)) is None:
      raise FileError(" holds no rows.")
    if source.is_mixed and out.suffix.lower() not in HAVE_LISTS:
      raise UserError(f"--out {options.out}: each row has the classes in an order of its own, which only "
                      f"{', '.join(HAVE_LISTS)} can hold.")
    return writing.write(out, source, itertools.chain([first], rows))


def _temperatures(fitted: calibrators.Fitted, by: Mapping[str, Any], path: str) -> dict[str, float]:
  """Returns the temperature of each subgroup; a UserError where there are none."""
  if not by or fitted.calibrator.name != "temperature_scaling":
    raise UserError(f"--temperatures has one number for each subgroup, and {path} holds {fitted.calibrator.name}"
                    f"{'' if by else ' of all examples'}: fit it by evaluate --calibrators temperature_scaling "
                    "--fit_by type, where that lowers the log loss.")
  return {name: float(params["temperature"]) for name, params in by["own"].items()}


def _mended(log: tuple[Any, list[log_forms.Slot]], fitted: calibrators.Fitted, options: argparse.Namespace,
            say: Callable[[str], None], by: Mapping[str, Any]) -> int:
  """Writes a log with other probabilities and all else as it was, and returns the number of its rows."""
  whole, slots = log
  suffix = pathlib.Path(options.predictions).suffix.lower()
  if pathlib.Path(options.out).suffix.lower() != suffix:
    raise UserError(f"--out {options.out}: logs are written as they are read, as {suffix}.")
  if not slots:
    raise FileError(" holds no answers.")
  kinds = {slot.kind for slot in slots}
  if len(kinds) > 1 or (kinds == {"confidence"}) != fitted.calibrator.records:
    raise FileError(f" holds {' and '.join(sorted(kinds))}, and the calibrator was fitted to "
                    f"{'records' if fitted.calibrator.records else 'predictions of classes'}.")
  (kind,), values = kinds, np.concatenate([slot.values for slot in slots]).astype(float)
  lengths = np.array([len(slot.values) for slot in slots])
  outputs = values if fitted.calibrator.records else masks.padded(values, lengths, kind, say)
  classes, is_mixed = row_options.classes_of(slot.more.get("choices") for slot in slots)
  row_options.say_classes(classes, is_mixed, outputs.shape[-1], say)
  places = row_options.places_of([slot.more["choices"] for slot in slots], classes) if is_mixed else None
  names = set.intersection(*(set(slot.more) for slot in slots)) - {"choices"}
  others = {name: np.array([slot.more[name] for slot in slots]) for name in names}
  source = pieces.Source(kind, classes, iter([pieces.Rows(outputs, others, places)]),
                         ragged=bool(lengths.min() < lengths.max()), is_mixed=is_mixed)
  ((new, _),) = calibrated(fitted, source, options, say, by)
  for slot, row, length in zip(slots, new, lengths, strict=True):
    slot.put(row[-1:].astype(float).tolist() if fitted.calibrator.records else row[:length].astype(float).tolist())
  text = "\n".join(json.dumps(x, ensure_ascii=False) for x in (whole if suffix == ".jsonl" else [whole])) + "\n"
  write_text(pathlib.Path(options.out), text)
  return len(slots)


def _covariates(fitted: calibrators.Fitted, others: Mapping[str, Any], number: int, count: int) -> list[np.ndarray]:
  """Returns the covariates of ``number`` rows, padded to ``count`` of them, if the calibrator takes any."""
  if not (of := covariates.names_of(fitted.calibrator)):
    return []
  columns = dict.fromkeys(map(covariates.column_of, of))
  arrays = {name: np.asarray(others[name]) for name in columns if name in others}
  x = covariates.matrix(of, covariates.read(arrays, list(columns), number))
  return [np.concatenate([x, np.zeros((count - number, len(of)), np.float32)])]


def _subgroups(others: Mapping[str, Any], by: Mapping[str, Any], number: int, unknown: set[str],
               say: Callable[[str], None], row: int) -> list[str]:
  """Returns the subgroup of each row, and adds those that were not fitted to ``unknown`` and says so."""
  column = by["column"]
  if column not in others or len(others[column]) != number:
    raise UserError(f"the calibrator was fitted to each {column}, and the predictions have no column {column}: add it.")
  values = ["null" if x is None else str(x) for x in np.asarray(others[column]).tolist()]
  names = keys(np.array(values, str), column, start=row, is_empty_missing=by["is_csv"]).tolist()
  if new := sorted(set(names) - by["own"].keys() - unknown):
    say(f": the calibrator was not fitted to {column} {headers.listed(new)}, so that these rows have that of all "
        "examples.")
    unknown.update(new)
  return names


def _places(fitted: calibrators.Fitted, source: pieces.Source, num_classes: int, options: argparse.Namespace,
            say: Callable[[str], None]) -> np.ndarray:
  """Returns for each class of the calibrator its place among the columns, by name where both sides have names."""
  places = np.arange(num_classes)
  if fitted.calibrator.records:
    return places
  names = source.classes and ([f"not {source.classes[0]}", *source.classes] if len(source.classes) == 1 else
                              source.classes)
  if names and fitted.classes:
    try:
      places = np.array(class_names.places(names, fitted.classes, (options.predictions, options.calibrator)))
    except ValueError as error:
      raise UserError(str(error)) from None
    if (places != np.arange(num_classes)).any():
      say(f" has its classes in another order than {options.calibrator}: they are joined by name.")
    return places
  number = param_tables.check(fitted.calibrator, fitted.params)
  if number not in (None, num_classes):
    raise UserError(f"{options.calibrator} was fitted to {number} classes, and {options.predictions} has "
                    f"{num_classes}.")
  if fitted.num_classes not in (None, num_classes):
    say(f" has {num_classes} classes, and {options.calibrator} was fitted to {fitted.num_classes}.")
  if fitted.classes:
    say(f" names no classes, so they are taken in the order of those of {options.calibrator}: the first is "
        f"{fitted.classes[0]}.")
  elif names:
    say(f": {options.calibrator} names no classes, so they are taken in the order of the predictions: {names[0]} is "
        "its class 0.")
  return places


def _taken(columns: np.ndarray, at: np.ndarray) -> np.ndarray:
  """Returns columns ``at`` places that are the same in all rows, ``[K]``, or of each row, ``[n, K]``."""
  return columns[:, at] if at.ndim == 1 else np.take_along_axis(columns, at, axis=1)


def calibrated(fitted: calibrators.Fitted, source: pieces.Source, options: argparse.Namespace,
               say: Callable[[str], None], by: Mapping[str, Any]) -> Iterator[tuple[np.ndarray, Mapping[str, Any]]]:
  """Yields calibrated probabilities ``[n, K]`` of some rows, or ``[n, 1]`` of one column, and what else these hold."""
  kind, apply, size, row = source.kind, jax.jit(fitted.calibrator.apply), 0, 0
  unknown: set[str] = set()
  for outputs, others, own in source.rows:
    with pieces.from_row(row):
      logits, probs = as_logits(kind, outputs, pieces.of_first(say, row), options.logits and kind == source.kind,
                                options.percent)
    if not row and not options.percent and not fitted.calibrator.records:  # The first rows decide what outputs are.
      kind = "logits" if probs is None else "probs"
    if not row:
      places = _places(fitted, source, logits.shape[1], options, say)
    at = places if own is None else own[:, places]
    logits, size = _taken(logits, at), size or len(logits)
    padded = np.concatenate([logits, np.zeros((size - len(logits), logits.shape[1]), np.float32)])  # One program.
    more = _covariates(fitted, others, len(logits), len(padded))
    try:
      every, place = [fitted.params], np.zeros(len(logits), int)
      if by:
        every, place = subgroup_fits.places(by, _subgroups(others, by, len(logits), unknown, say, row))
      new = np.empty(logits.shape, np.float32)
      for k in np.unique(place):
        new[place == k] = np.exp(np.asarray(apply(every[k], padded, *more)))[:len(logits)][place == k]
      new = _taken(new, np.argsort(at, axis=-1))
    except (TypeError, ValueError) as error:
      raise UserError(f"{options.calibrator} cannot be applied to {logits.shape[1]} classes: "
                      f"{str(error).splitlines()[0][:200]}") from error
    if not np.isfinite(new).all():
      bad = row + int(np.isnan(new).any(axis=1).argmax())
      raise UserError(f"{options.calibrator} gives no probabilities for row {bad:,}, counted from 0: its fit failed.")
    if (is_off := np.abs(new.sum(1, dtype=np.float64) - 1) > EXACT).any():
      bad = int(is_off.argmax())
      raise UserError(f"{options.calibrator} gives row {row + bad:,}, counted from 0, probabilities that sum to "
                      f"{new[bad].sum():.4g} in place of 1: the file is damaged, or of another version.")
    if source.ragged:
      new[np.isneginf(outputs)] = np.nan  # Options that a row does not have.
    yield new[:, 1:] if outputs.ndim == 1 or outputs.shape[1] == 1 else new, others
    row += len(logits)
