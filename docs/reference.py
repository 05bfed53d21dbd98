"""Writes the pages of the API reference from docstrings, and refuses a public name that has none.

``conf.py`` writes the pages before Sphinx reads them; tests/test_docs.py checks the same names without Sphinx.
"""

from collections.abc import Iterator
import importlib
import inspect
import pathlib
import re
import types

import calib_jax

SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields|References):\s*(.*)")
FIELDS = {"Args": "param", "Attributes": "var", "Raises": "raises"}
SOURCES = pathlib.Path(calib_jax.__file__).parent


def pages() -> dict[str, str]:
  """Returns the text of each page of the reference as reStructuredText, by the name of its module.

  Raises: ValueError if a public name has no documentation.
  """
  return {name: "\n".join(_module(importlib.import_module(f"calib_jax.{name}"))) + "\n" for name in calib_jax.__all__}


def write(folder: pathlib.Path) -> None:
  """Writes ``folder/NAME.rst`` for each module, and leaves pages that have not changed alone."""
  folder.mkdir(exist_ok=True)
  for name, text in pages().items():
    path = folder / f"{name}.rst"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
      path.write_text(text, encoding="utf-8")


def public_names(module: types.ModuleType) -> list[str]:
  """Returns the public names of a module: its ``__all__``, or what it defines without a leading underscore."""
  if hasattr(module, "__all__"):
    return list(module.__all__)
  return [name for name, value in vars(module).items() if not name.startswith("_")
          and getattr(value, "__module__", None) == module.__name__]


def _module(module: types.ModuleType) -> Iterator[str]:
  yield from (f".. This page is made from docstrings by {pathlib.Path(__file__).name}.", "",
              module.__name__, "=" * len(module.__name__), "", f".. py:module:: {module.__name__}", "")
  yield from _body(module, module.__name__)
  for name in public_names(module):
    yield ""
    yield from _entry(getattr(module, name), name, f"{module.__name__}.{name}")


def _entry(value: object, name: str, place: str) -> Iterator[str]:
  """Yields the directive of a function, a class with its methods, or a constant or type alias."""
  if inspect.isclass(value):
    yield from (f".. py:class:: {name}{_signature(value)}", "")
    yield from _indented(_body(value, place))
    for method_name, method in vars(value).items():
      function = getattr(method, "__func__", getattr(method, "fget", method))
      is_ours = str(getattr(function, "__module__", "")).startswith("calib_jax")
      if not method_name.startswith("_") and inspect.isfunction(inspect.unwrap(function)) and is_ours:
        kind = ("classmethod" if isinstance(method, classmethod) else "staticmethod" if isinstance(method, staticmethod)
                else "property" if isinstance(method, property) else "method")
        heading = f"py:property:: {method_name}" if kind == "property" else (
          f"py:{kind}:: {method_name}{_signature(function, skip_first=kind != 'staticmethod')}")
        yield from ("", f"   .. {heading}", "")
        yield from _indented(_indented(_body(function, f"{place}.{method_name}")))
  elif callable(value) and not isinstance(value, types.GenericAlias):
    yield from (f".. py:function:: {name}{_signature(value)}", "")
    yield from _indented(_body(value, place))
  else:
    yield from (f".. py:data:: {name}", "", f"   {_comment(name, place)}")


def _signature(value: object, skip_first: bool = False) -> str:
  """Returns the names and defaults of the parameters; their types stand in the docstring."""
  try:
    parameters = list(inspect.signature(value).parameters.values())[1 if skip_first else 0:]
  except ValueError:
    return "()"
  shown = [p.replace(annotation=p.empty, default=_Shown(p.default) if p.default is not p.empty else p.empty)
           for p in parameters]
  return str(inspect.Signature(shown))


class _Shown:
  """A default that is shown by its name if it is a function, and else by its value."""

  def __init__(self, value: object):
    self.text = getattr(value, "__name__", None) or repr(value)
    self.text = "..." if re.search(r"0x[0-9a-f]+|\n", self.text) or len(self.text) > 60 else self.text

  def __repr__(self) -> str:
    return self.text


def _indented(lines: Iterator[str]) -> Iterator[str]:
  return (f"   {line}" if line else "" for line in lines)


def _body(value: object, place: str) -> Iterator[str]:
  """Yields a docstring as reStructuredText: its sections become fields."""
  text = inspect.getdoc(value) if getattr(value, "__doc__", None) else None
  if not text or "Alias for field number" in text:
    raise ValueError(f"{place} is public and has no docstring.")
  field = ""  # The field that the present line may continue.
  # Two links of the same text to different places are one name for reStructuredText, unless they have no name.
  for line in re.sub(r">`_(?!_)", ">`__", text).splitlines():
    section = SECTION.fullmatch(line)
    if section:
      field, rest = section.groups()
      yield ""
      if rest:
        yield f":{field}: {rest}"
    elif field in FIELDS and (argument := re.fullmatch(r"  ([*\w, ]+): (.*)", line)):
      yield f":{FIELDS[field]} {argument[1].replace('*', chr(92) + '*')}: {argument[2]}"
    elif field and field not in FIELDS and not rest and line:  # The section's text begins below its title.
      rest = line.strip()
      yield f":{field}: {rest}"
    elif field and (line.startswith("  ") or not line):
      yield f"  {line}" if line else ""
    else:
      if field:
        yield ""
      field = ""
      yield line


def _comment(name: str, place: str) -> str:
  """Returns the comment above or beside the line of the package that assigns a constant."""
  for path in sorted(SOURCES.rglob("*.py")):
    lines = path.read_text(encoding="utf-8").splitlines()
    for i, line in enumerate(lines):
      if re.match(rf"{name}(:.*)? = |{name}, .* = |.*, {name} = ", line):
        start = i
        while lines[start - 1].startswith("# "):
          start -= 1
        comment = " ".join(part[2:] for part in lines[start:i]) or line.partition("  # ")[2]
        if comment:
          return comment
  raise ValueError(f"{place} is public and has no comment above the line that assigns it.")
