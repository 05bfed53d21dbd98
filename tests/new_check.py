"""What a new loss, calibrator, metric, model, head, data set or augmentation still lacks, a sentence each.

``make new-check`` writes ``calib_jax/losses/__init__.pyi``, from which type checkers know every loss by its name, and
prints the sentences; none if nothing is missing.
"""

import ast
import importlib
import inspect
import re
import sys
import textwrap

from calib_jax import calibrators, losses, training
from calib_jax.calibrators.base import PARAMS
from calib_jax.training import data, models
from tests.losses import cases, references
from tests.programs import ROOT

PATH = ROOT / "calib_jax" / "losses" / "__init__.pyi"
LOSSES = {**losses.PER_EXAMPLE, **losses.PER_BATCH}
KINDS = {"_PerExample": losses.PER_EXAMPLE, "_PerBatch": losses.PER_BATCH}
HEAD = """# Written by make new-check
# ruff: noqa: I001, RUF022
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, overload
from jax import Array
from jax.typing import ArrayLike
from calib_jax import confidence as scores
from calib_jax.losses.selective import Loss"""
TYPES = """
class _PerExample(Protocol):
  def __call__(self, logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = ...) -> Array: ...

class _PerBatch(Protocol):
  def __call__(self, logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = ...,
               weights: ArrayLike | None = ..., axis_name: str | None = ...) -> Array: ...

class _TrainingLoss(Protocol):
  def __call__(self, logits: ArrayLike, labels: ArrayLike, *, where: ArrayLike | None = ...,
               weights: ArrayLike | None = ..., axis_name: str | None = ...) -> tuple[Array, dict[str, Array]]: ...

def composite(primary: _PerExampleName | _PerBatchName | Callable[..., Array],
              secondary: _PerBatchName | Callable[..., Array] | None = ..., weight: float | Array = ..., *,
              reduction: Literal["mean", "sum"] = ...) -> _TrainingLoss: ...
"""


def stub() -> str:
  """Returns the text of the stub: what ``__init__.py`` imports, the losses, and ``composite`` and ``get`` by names."""
  named, imported = ("composite", "get", "import_modules"), {}
  for node in ast.parse(PATH.with_suffix(".py").read_text(encoding="utf-8")).body:
    if isinstance(node, ast.ImportFrom):
      imported[node.module] = [x.name for x in node.names if x.name not in named]
  for name, loss in LOSSES.items():
    imported.setdefault(loss.__module__, []).append(name)
  lines = [HEAD, *(f"from {module} import ({', '.join(sorted(names))})" for module, names in sorted(imported.items())
                   if names), f"__all__ = {sorted(losses.__all__)!r}"]
  lines += [f"{kind}Name = Literal[{', '.join(map(repr, names))}]" for kind, names in KINDS.items()] + [TYPES]
  lines += [f"@overload\n{_get(name, kind)}" for kind, names in KINDS.items() for name in names]
  return "".join(f"{_wrapped(line)}\n" for text in lines for line in text.split("\n"))


def _get(name: str, kind: str) -> str:
  """Returns the signature of ``get`` for the loss of one name, whose annotations are those of the loss as written."""
  source = textwrap.dedent(inspect.getsource(inspect.unwrap(LOSSES[name])))
  arguments = ast.parse(source).body[0].args
  anything = ast.Name("object")
  options = [f"{option.arg}: {ast.unparse(option.annotation or anything)}{'' if default is None else ' = ...'}"
             for option, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
  return f"def get(name: Literal[{name!r}], *, {', '.join(options)}) -> {kind}: ..."


def _wrapped(line: str) -> str:
  """Returns a line broken after commas, so that no line is longer than 120 characters."""
  if len(line) <= 120:
    return line
  only_commas = line.replace(" ", "\0").replace(",\0", ", ")
  return textwrap.fill(only_commas, 120, subsequent_indent="  ", break_on_hyphens=False).replace("\0", " ")


def missing() -> list[str]:
  """Returns what new parts lack, a sentence each."""
  papers = (ROOT / "docs/references.bib").read_text(encoding="utf-8")
  found = [*_of_losses(), *(
    f"calib_jax/calibrators/__init__.py does not import {name}: add it there and to __all__."
    for name in calibrators.CALIBRATORS if name not in calibrators.__all__), *(
    f"{name} does not say what its params are: decorate it with @has_params(...), as calibrators/param_tables.py says."
    for name in calibrators.CALIBRATORS if name not in PARAMS)]
  known = [*(f"losses.{name}" for name in LOSSES),
           *(f"calibrators.{name}" for name in calibrators.CALIBRATORS if name != "identity")]
  found += [f"docs/references.bib does not say which paper {name} is of: name it in the note of an entry."
            for name in known if not re.search(rf"\b{re.escape(name)}\b", papers)]
  for room in ("losses", "calibrators", "metrics"):
    page = (ROOT / f"docs/api/{room}.rst").read_text(encoding="utf-8")
    module = importlib.import_module(f"calib_jax.{room}")
    found += [f"docs/api/{room}.rst does not list {name}: add it to a table." for name in module.__all__
              if not re.search(rf"^   {name}$|\.{name}$", page, re.MULTILINE)]
  registered = {"losses": LOSSES, "calibrators": calibrators.CALIBRATORS, "models": models.MODELS,
                "heads": models.HEADS, "data sources": data.SOURCES, "augmentations": data.AUGMENTATIONS,
                "schedules": training.SCHEDULES}
  return found + [f"{name}, of the {kind}, has no docstring." for kind, parts in registered.items()
                  for name, part in parts.items() if not (part.__doc__ or "").strip()]


def _of_losses() -> list[str]:
  found = []
  for name, loss in LOSSES.items():
    if name not in {**cases.PER_EXAMPLE, **cases.PER_BATCH}:
      found.append(f"tests/losses/cases.py has no case of {name}: add the options that its tests vary.")
    if not hasattr(references, name):
      found.append(f"tests/losses/references.py has no {name}: write its formula in float64 from the paper.")
    options = [p for p in inspect.signature(loss).parameters.values() if p.kind is p.KEYWORD_ONLY]
    found += [f"The option {p.name} of {name} has no type: annotate it." for p in options if p.annotation is p.empty]
  return found


if __name__ == "__main__":
  PATH.write_text(stub(), encoding="utf-8")
  sentences = missing()
  print(*sentences, sep="\n")
  sys.exit(bool(sentences))
