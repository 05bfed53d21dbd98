"""Reads the pickles of CIFAR, which hold plain values and NumPy arrays; nothing that a pickle names is called.

``find_class`` maps NumPy's names to the classes of this module and refuses all others, and operations that plain values
do not need are refused. Python's own ``pickle._Unpickler`` is used, because the one in C has no table of operations and
allocates memory for any place of its memo. What a pickle makes is limited: its operations are counted, because a byte
can make a list of 56, and keys are texts, because hashing a tuple of tuples can take exponential time or overflow the
stack.
"""

import io
import pickle
import re

import numpy as np

from calib_jax._system.errors import UserError, short

MOST_OPERATIONS = 2**21  # The 50,000 names of files and two lists of labels of CIFAR-100 take a tenth of them.
_OPERATIONS = (
  "PROTO", "FRAME", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "INT", "LONG", "LONG1", "BININT", "BININT1",
  "BININT2", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
  "BINBYTES", "SHORT_BINBYTES", "LIST", "EMPTY_LIST", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "TUPLE",
  "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET",
  "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD")


def read_dict(content: bytes, place: str) -> dict[str, object]:
  """Returns the dict of a pickle, whose values may be arrays of integers, and whose keys become text.

  Args:
    content: the pickle, also of Python 2.
    place: the file, for the message.

  Raises:
    UserError: if it is damaged, is no dict, names anything but NumPy's arrays, has another key than text, or has more
      than ``MOST_OPERATIONS``.
  """
  try:
    value = _Unpickler(content).load()
    if not isinstance(value, dict):
      raise ValueError(f"it holds a {type(value).__name__}, not a dict")
    fields = {key.decode() if isinstance(key, bytes) else key: x.value if isinstance(x, _Array) else x
              for key, x in value.items()}
    if any(isinstance(x, type | _Integers) for x in fields.values()):
      raise ValueError("an array is not whole")
    if len(fields) < len(value):
      raise ValueError("a key stands there twice, as bytes and as text")
    return fields
  except _Refused as error:
    raise UserError(f"{place} is a pickle that {error}, which is not read because it could run code.") from error
  except Exception as error:  # A damaged pickle raises exceptions of many types.
    reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"
    raise UserError(f"{place} cannot be read as a pickle of plain values ({reason}).") from error


class _Refused(Exception):
  """What a pickle asks for and does not get."""


class _Integers:
  """A dtype of integers, while a pickle is read."""

  def __init__(self, code: bytes | str, *_):
    text = code.decode("latin1") if isinstance(code, bytes) else code
    if not re.fullmatch(r"[<>=|]?[biu][1248]", text):
      raise _Refused(f"holds an array of dtype {short(text)} rather than of integers")
    self.dtype = np.dtype(text)

  def __setstate__(self, state: tuple):
    order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
    self.dtype = self.dtype.newbyteorder(order)


class _Array:
  """An array, while a pickle is read; its state ends with its shape, dtype, order and bytes."""

  value: np.ndarray | None = None

  def __init__(self, *_):
    pass

  def __setstate__(self, state: tuple):
    shape, integers, in_columns, content = state[-4:]
    if not isinstance(integers, _Integers) or not isinstance(content, bytes):
      raise ValueError("an array has no bytes of integers")
    if not all(type(side) is int and side >= 0 for side in shape):
      raise ValueError("the shape of an array must be integers that are not negative")
    self.value = np.frombuffer(content, integers.dtype).reshape(shape, order="F" if in_columns else "C")


class _Fields(dict):
  """A dict whose keys are texts, while a pickle is read; it has no attributes that a pickle could set."""

  __slots__ = ()

  def __setitem__(self, key: object, value: object):
    if not isinstance(key, bytes | str):
      raise ValueError("a key of a dict is no text")
    super().__setitem__(key, value)


class _Counted(dict):
  """What an unpickler does for each operation; it can be asked so many times."""

  left = MOST_OPERATIONS

  def __getitem__(self, code: int) -> object:
    self.left -= 1
    if self.left < 0:
      raise ValueError(f"it has more than {MOST_OPERATIONS:,} operations")
    return super().__getitem__(code)


_KNOWN = {("numpy", "ndarray"): "ndarray", ("numpy", "dtype"): _Integers,
          ("numpy.core.multiarray", "_reconstruct"): _Array, ("numpy._core.multiarray", "_reconstruct"): _Array}


class _Unpickler(pickle._Unpickler):
  """Python's unpickler with the operations of plain values alone."""

  def __init__(self, content: bytes):
    super().__init__(io.BytesIO(content), encoding="bytes")
    self.dispatch = _Counted(self.dispatch)

  def find_class(self, module: str, name: str) -> object:
    """Returns what stands for a name; it imports nothing."""
    if (module, name) not in _KNOWN:
      raise _Refused(f"names {short(f'{module}.{name}')}")
    return _KNOWN[module, name]

  def _refuse(self) -> None:
    raise _Refused("asks for an operation that plain values do not need")

  def _dict(self) -> None:
    items, fields = self.pop_mark(), _Fields()
    for key, value in zip(items[::2], items[1::2], strict=True):
      fields[key] = value
    self.append(fields)

  dispatch = dict.fromkeys(range(256), _refuse) | {
    code: pickle._Unpickler.dispatch[code] for code in (getattr(pickle, name)[0] for name in _OPERATIONS)} | {
    pickle.DICT[0]: _dict, pickle.EMPTY_DICT[0]: lambda self: self.append(_Fields())}
