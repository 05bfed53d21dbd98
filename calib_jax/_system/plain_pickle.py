"""Reads pickles of plain values and NumPy arrays; nothing that a pickle names is imported or called.

The names of NumPy by which a pickle makes an array stand here for functions of this module, and any other name, and
every operation that plain values do not need, is refused. Python's own ``pickle._Unpickler`` is used rather than the
one in C, because a pickle can make that one take memory for places of its memo which it does not use.
"""

import io
import math
import pickle
import re

import numpy as np

from calib_jax._system.errors import UserError, short

_OPERATIONS = (
  "PROTO", "FRAME", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "INT", "LONG", "LONG1", "BININT", "BININT1",
  "BININT2", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
  "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "LIST", "EMPTY_LIST", "APPEND", "APPENDS", "DICT",
  "EMPTY_DICT", "SETITEM", "SETITEMS", "TUPLE", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "PUT", "BINPUT",
  "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD")


def read_dict(content: bytes, place: str) -> dict[str, object]:
  """Returns the dict of a pickle, whose values may be arrays of integers, and whose keys become text.

  Args:
    content: the pickle, also of Python 2.
    place: the file, for the message.

  Raises:
    UserError: if it is damaged, is no dict, or names anything but NumPy's arrays.
  """
  try:
    value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    if not isinstance(value, dict):
      raise ValueError(f"it holds a {type(value).__name__}, not a dict")
    return {key.decode() if isinstance(key, bytes) else key: x.value if isinstance(x, _Array) else x
            for key, x in value.items()}
  except _Refused as error:
    raise UserError(f"{place} is a pickle that {error}, which is not read because it could run code.") from error
  except Exception as error:  # A damaged pickle raises exceptions of many types.
    reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"
    raise UserError(f"{place} cannot be read as a pickle of plain values ({reason}).") from error


class _Refused(Exception):
  """What a pickle asks for and does not get."""


class _Integers:
  """A dtype of integers, while a pickle is read."""

  def __init__(self, code: object):
    text = code.decode("latin1") if isinstance(code, bytes) else str(code)
    if not re.fullmatch(r"[<>=|]?[biu][1248]", text):
      raise _Refused(f"holds an array of dtype {short(text)} rather than of integers")
    self.dtype = np.dtype(text)

  def build(self, state: tuple) -> None:
    """Takes the byte order, the second part of the state of a dtype."""
    order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
    self.dtype = self.dtype.newbyteorder(order)


class _Array:
  """An array, while a pickle is read."""

  value: np.ndarray | None = None

  def build(self, state: tuple) -> None:
    """Makes the array of its shape, dtype, order and bytes, the last four parts of its state."""
    shape, integers, in_columns, content = state[-4:]
    if not isinstance(integers, _Integers) or not isinstance(content, bytes):
      raise ValueError("an array has no bytes of integers")
    if any(side < 0 for side in shape) or math.prod(shape) * integers.dtype.itemsize != len(content):
      raise ValueError(f"an array of shape {short(shape)} holds {len(content):,} bytes")
    self.value = np.frombuffer(content, integers.dtype).reshape(shape, order="F" if in_columns else "C")


def _encoded(text: str, encoding: str) -> bytes:
  """Returns the bytes that Python 3 pickles as text for Python 2."""
  if encoding not in ("latin1", b"latin1"):
    raise _Refused(f"names the encoding {short(encoding)}")
  return text.encode("latin1")


_KNOWN = {("numpy", "ndarray"): "ndarray", ("numpy", "dtype"): lambda code, *_: _Integers(code),
          ("_codecs", "encode"): _encoded, ("__builtin__", "bytes"): lambda: b"",  # No bytes, pickled for Python 2.
          **{(f"numpy.{core}.multiarray", "_reconstruct"): lambda *_: _Array() for core in ("core", "_core")}}


class _Unpickler(pickle._Unpickler):
  """Python's unpickler with the operations of plain values alone."""

  def find_class(self, module: str, name: str) -> object:
    """Returns what stands for a name; it imports nothing."""
    if (module, name) not in _KNOWN:
      raise _Refused(f"names {short(f'{module}.{name}')}")
    return _KNOWN[module, name]

  def _build(self) -> None:
    state = self.stack.pop()
    if not isinstance(self.stack[-1], _Array | _Integers):
      raise _Refused("sets the state of something else than an array")
    self.stack[-1].build(state)

  def _refuse(self) -> None:
    raise _Refused("asks for an operation that plain values do not need")

  dispatch = dict.fromkeys(range(256), _refuse) | {
    code: pickle._Unpickler.dispatch[code] for code in (getattr(pickle, name)[0] for name in _OPERATIONS)} | {
    pickle.BUILD[0]: _build}
