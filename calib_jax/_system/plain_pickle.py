"""Reads the pickles of CIFAR, which hold plain values and NumPy arrays, with an ``Unpickler`` that knows few names.

What a pickle names is no code: each name stands for a class of this module. Before anything is made, its operations are
looked through. Those that plain values do not need are refused, and the others are counted, because a byte can make a
list of 56, and the hash of a tuple of tuples, or of integers that are chosen for it, can take exponential time.
"""

import io
import pickle
import pickletools
import re

import numpy as np

from calib_jax._system.errors import UserError, short

MOST_OPERATIONS = 2**21  # The 50,000 names of files and two lists of labels of CIFAR-100 take a tenth of them.
MOST_TUPLES = 16  # An array has six.
_OPERATIONS = (
  "PROTO", "FRAME", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "INT", "LONG", "LONG1", "BININT", "BININT1",
  "BININT2", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES",
  "SHORT_BINBYTES", "LIST", "EMPTY_LIST", "APPEND", "APPENDS", "DICT", "EMPTY_DICT", "SETITEM", "SETITEMS", "TUPLE",
  "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET",
  "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD")


def read_dict(content: bytes, place: str) -> dict[str, object]:
  """Returns the dict of a pickle, also of Python 2, whose values may be arrays of integers; its keys become text.

  Raises:
    UserError: if it is damaged, is no dict, names anything but NumPy's arrays, has another key than text, or has more
      than ``MOST_OPERATIONS``. The sentence begins with ``place``, the file.
  """
  try:
    _check_operations(content)
    value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    if not isinstance(value, dict):
      raise ValueError(f"it holds a {type(value).__name__}, not a dict")
    if not all(isinstance(key, bytes | str) for key in value):
      raise ValueError("a key of a dict is no text")
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


def _check_operations(content: bytes) -> None:
  """Raises an error if a pickle needs more than plain values do."""
  num_tuples = 0
  for number, (operation, argument, _) in enumerate(pickletools.genops(content), 1):
    if operation.name not in _OPERATIONS:
      raise _Refused("asks for an operation that plain values do not need")
    num_tuples += "TUPLE" in operation.name
    if number > MOST_OPERATIONS or num_tuples > MOST_TUPLES:
      raise ValueError(f"it has more than {MOST_OPERATIONS:,} operations, or {MOST_TUPLES} tuples")
    if isinstance(argument, int) and not -2**32 < argument < 2**32:
      raise ValueError("it has an integer of more than 32 bits")
    if "PUT" in operation.name and argument > MOST_OPERATIONS:  # The memo is as long as its last place.
      raise ValueError(f"it has more than {MOST_OPERATIONS:,} operations")


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


_KNOWN = {("numpy", "ndarray"): "ndarray", ("numpy", "dtype"): _Integers,
          ("numpy.core.multiarray", "_reconstruct"): _Array, ("numpy._core.multiarray", "_reconstruct"): _Array}


class _Unpickler(pickle.Unpickler):
  """An unpickler that imports nothing."""

  def find_class(self, module: str, name: str) -> object:
    """Returns what stands for a name."""
    if (module, name) not in _KNOWN:
      raise _Refused(f"names {short(f'{module}.{name}')}")
    return _KNOWN[module, name]
