"""Reads pickles of plain values and NumPy arrays; nothing that a pickle names is imported or called.

The names of NumPy by which a pickle makes an array stand here for functions of this module, and any other name, and
every operation that plain values do not need, is refused. Python's own ``pickle._Unpickler`` is used rather than the
one in C, because a pickle can make that one take memory for places of its memo which it does not use. What a pickle
makes is limited too: its operations are counted, because one byte can make a list of 56 and the same text can be
encoded again and again, and keys are texts, because the hash of a tuple in tuples takes exponential time or overflows
the stack, and integers can be chosen to share theirs.
"""

import io
import math
import pickle
import re

import numpy as np

from calib_jax._system.errors import UserError, short

MOST_OPERATIONS = 2**21  # The 50,000 names of files and two lists of labels of CIFAR-100 take a tenth of them.
MOST_AXES = 32
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
    UserError: if it is damaged, is no dict, names anything but NumPy's arrays, has another key than text, or has more
      than ``MOST_OPERATIONS``.
  """
  try:
    value = _Unpickler(content).load()
    if not isinstance(value, dict):
      raise ValueError(f"it holds a {type(value).__name__}, not a dict")
    read = {key.decode() if isinstance(key, bytes) else key: x.value if isinstance(x, _Array) else x
            for key, x in value.items()}
    if any(callable(x) or isinstance(x, _Integers) for x in read.values()):
      raise ValueError("an array is not whole")
    if len(read) < len(value):
      raise ValueError("a key stands there twice, as bytes and as text")
    return read
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
    text = code.decode("latin1") if isinstance(code, bytes) else code
    if not isinstance(text, str):  # Its text could be exponentially long.
      raise ValueError(f"the dtype of an array is a {type(code).__name__}")
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
    if not isinstance(shape, tuple) or len(shape) > MOST_AXES or not all(
        type(side) is int and 0 <= side < 2**63 for side in shape):
      raise ValueError(f"the shape of an array must be at most {MOST_AXES} integers that are not negative")
    if math.prod(shape) * integers.dtype.itemsize != len(content):
      raise ValueError(f"an array of shape {short(shape)} holds {len(content):,} bytes")
    self.value = np.frombuffer(content, integers.dtype).reshape(shape, order="F" if in_columns else "C")


_KNOWN = {("numpy", "ndarray"): "ndarray", ("numpy", "dtype"): lambda code, *_: _Integers(code),
          ("__builtin__", "bytes"): lambda: b"",  # No bytes, pickled for Python 2.
          **{(f"numpy.{core}.multiarray", "_reconstruct"): lambda *_: _Array() for core in ("core", "_core")}}


class _Counted(dict):
  """What an unpickler does for each operation; it can be asked so many times."""

  left = MOST_OPERATIONS

  def __getitem__(self, code: int) -> object:
    self.left -= 1
    if self.left < 0:
      raise ValueError(f"it has more than {MOST_OPERATIONS:,} operations")
    return super().__getitem__(code)


class _Unpickler(pickle._Unpickler):
  """Python's unpickler with the operations of plain values alone."""

  def __init__(self, content: bytes):
    """Takes the pickle."""
    super().__init__(io.BytesIO(content), encoding="bytes")
    self.dispatch, self.encodable = _Counted(self.dispatch), len(content)

  def find_class(self, module: str, name: str) -> object:
    """Returns what stands for a name; it imports nothing."""
    if (module, name) == ("_codecs", "encode"):
      return self._encoded
    if (module, name) not in _KNOWN:
      raise _Refused(f"names {short(f'{module}.{name}')}")
    return _KNOWN[module, name]

  def _encoded(self, text: str, encoding: str) -> bytes:
    """Returns the bytes that Python 3 pickles as text for Python 2; it has each text of a pickle once."""
    if not isinstance(text, str) or not isinstance(encoding, bytes | str):
      raise ValueError("what is encoded is no text")
    if encoding not in ("latin1", b"latin1"):
      raise _Refused(f"names the encoding {short(encoding)}")
    self.encodable -= len(text)
    if self.encodable < 0:
      raise ValueError("it encodes more text than it holds")
    return text.encode("latin1")

  def _build(self) -> None:
    state = self.stack.pop()
    if not isinstance(self.stack[-1], _Array | _Integers):
      raise _Refused("sets the state of something else than an array")
    self.stack[-1].build(state)

  def _set_one(self) -> None:
    self._check(self.stack[-2:-1])
    self.load_setitem()

  def _set_some(self) -> None:
    self._check(self.stack[::2])  # A mark has put all else aside.
    self.load_setitems()

  def _dict(self) -> None:
    self._check(self.stack[::2])
    self.load_dict()

  def _check(self, keys: list) -> None:
    if not all(isinstance(key, bytes | str) for key in keys):
      raise ValueError("a key of a dict is no text")

  def _refuse(self) -> None:
    raise _Refused("asks for an operation that plain values do not need")

  dispatch = dict.fromkeys(range(256), _refuse) | {
    code: pickle._Unpickler.dispatch[code] for code in (getattr(pickle, name)[0] for name in _OPERATIONS)} | {
    pickle.BUILD[0]: _build, pickle.SETITEM[0]: _set_one, pickle.SETITEMS[0]: _set_some, pickle.DICT[0]: _dict}
