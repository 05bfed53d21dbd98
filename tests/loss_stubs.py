"""Writes ``calib_jax/losses/__init__.pyi``, from which type checkers know every loss by its name.

python -m tests.loss_stubs
"""

import ast
import inspect
import textwrap

from calib_jax import losses
from tests.programs import ROOT

PATH = ROOT / "calib_jax" / "losses" / "__init__.pyi"
KINDS = {"_PerExample": losses.PER_EXAMPLE, "_PerBatch": losses.PER_BATCH}
HEAD = """# Written by python -m tests.loss_stubs
# ruff: noqa: I001
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
  """Returns the text of the stub: the imports of ``__init__.py``, and ``composite`` and ``get`` by names."""
  body = ast.parse(PATH.with_suffix(".py").read_text(encoding="utf-8")).body
  lines = [HEAD]
  for node in body:
    if isinstance(node, ast.ImportFrom):
      names = [x.name for x in node.names if x.name not in ("composite", "get", "import_modules")]
      lines += [f"from {node.module} import ({', '.join(names)})"] if names else []
    elif isinstance(node, ast.Assign):
      lines.append(ast.unparse(node))
  lines += [f"{kind}Name = Literal[{', '.join(map(repr, names))}]" for kind, names in KINDS.items()] + [TYPES]
  lines += [f"@overload\n{_get(name, kind)}" for kind, names in KINDS.items() for name in names]
  return "".join(f"{_wrapped(line)}\n" for text in lines for line in text.split("\n"))


def _get(name: str, kind: str) -> str:
  """Returns the signature of ``get`` for the loss of one name, whose annotations are those of the loss as written."""
  source = textwrap.dedent(inspect.getsource(inspect.unwrap({**losses.PER_EXAMPLE, **losses.PER_BATCH}[name])))
  arguments = ast.parse(source).body[0].args
  options = [f"{option.arg}: {ast.unparse(option.annotation)}{'' if default is None else ' = ...'}"
             for option, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
  return f"def get(name: Literal[{name!r}], *, {', '.join(options)}) -> {kind}: ..."


def _wrapped(line: str) -> str:
  """Returns a line broken after commas, so that no line is longer than 120 characters."""
  if len(line) <= 120:
    return line
  only_commas = line.replace(" ", "\0").replace(",\0", ", ")
  return textwrap.fill(only_commas, 120, subsequent_indent="  ", break_on_hyphens=False).replace("\0", " ")


if __name__ == "__main__":
  PATH.write_text(stub(), encoding="utf-8")
