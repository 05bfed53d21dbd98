"""Pickles of plain values and arrays are read as Python reads them; whatever else they ask for is refused."""

import collections
import os
import pickle
import struct
import time
import tracemalloc

import numpy as np
import pytest

from calib_jax._system import plain_pickle
from calib_jax._system.errors import UserError
from calib_jax._system.plain_pickle import read_dict
from tests.data.archive_files import py2

ARRAY = np.arange(24, dtype=np.uint8).reshape(4, 6)
_ARRAY_NAME = b"cnumpy.core.multiarray\n_reconstruct\n"


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("array", [ARRAY, ARRAY.T, np.arange(5, dtype=">i4"), np.zeros((0, 3), np.int64),
                                   np.array([True, False])])
def test_arrays_are_those_that_were_pickled(protocol, array):
  value = {"data": array, "labels": [1, 2, 300], "name": ("x", None, 2**31)}
  fields = read_dict((py2 if protocol < 3 else pickle.dumps)(value, protocol), "a file")
  np.testing.assert_array_equal(fields["data"], array)
  assert fields["data"].dtype == array.dtype and fields["data"].shape == array.shape
  assert fields["labels"] == [1, 2, 300] and fields["name"] == ("x", None, 2**31)


class Evil:
  """Would run a command."""

  def __init__(self, reduced):
    self.reduced = reduced

  def __reduce__(self):
    return self.reduced


def _global(module, name, rest=b")R."):
  return b"c" + f"{module}\n{name}\n".encode() + rest


@pytest.mark.parametrize("content", [
  *(pickle.dumps({"data": Evil((os.system, ("touch ran",)))}, protocol) for protocol in range(6)),
  pickle.dumps({"data": Evil((eval, ("open('ran', 'w')",)))}), pickle.dumps(collections.OrderedDict(a=1)),
  pickle.dumps({"data": np.array([{}, 1], object)}), pickle.dumps({"data": np.float64(3)}),
  pickle.dumps({"data": np.zeros(3, np.float32)}, 4), pickle.dumps({"data": ARRAY}, 5),
  pickle.dumps({"data": bytearray(b"x")}, 5), pickle.dumps({"data": {1, 2}}, 4),
  _global("numpy", "load", b"(Vran\ntR."), _global("numpy.core.multiarray", "fromfile"),
  _global("builtins", "bytearray"), _global("numpy._core.multiarray.os", "system"), b"Pran\n.", b"\x80\x02\x82\x01.",
  pickle.dumps({"a": b"x"}, 2),  # Bytes that Python 3 encodes for Python 2.
])
def test_what_is_no_plain_value_is_refused_and_nothing_is_run(content, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError, match=r"^a file is a pickle that .*, which is not read because it could run code\.$"):
    read_dict(content, "a file")
  assert not list(tmp_path.iterdir())


def _array_of(shape, content=b"ab", dtype="u1"):
  reconstruct, arguments, _ = np.zeros(1).__reduce__()
  return pickle.dumps({"data": Evil((reconstruct, arguments, (1, shape, np.dtype(dtype), False, content)))}, 3)


@pytest.mark.parametrize("content", [
  b"", b"\x80\x02", pickle.dumps([1]), pickle.dumps({"a": 1})[:-1], b"not a pickle", pickle.dumps(ARRAY, 4),
  _array_of((10**12,)), _array_of((-2, -1)), _array_of((3,)), _array_of((1,), dtype="i4"), b"I" + b"9" * 10**5 + b"\n.",
  b"\x8e" + struct.pack("<Q", 2**60) + b"ab.", b"]" + b"a" * 5 + b".", b"0.", b"h\x05.",
  # The state of what stands for a name cannot be set, nor that of a list or a dict.
  *(b"\x80\x02" + start + state for start in (b"cnumpy\ndtype\n", _ARRAY_NAME, b"]", b"}", b"cnumpy\nndarray\n")
    for state in (b"}U\x01xK\x01sb.", b"N}U\x01xK\x01s\x86b.")),
])
def test_damage_is_one_sentence(content):
  with pytest.raises(UserError, match=r"^a file (cannot be read as|is a pickle that)") as raised:
    read_dict(content, "a file")
  assert "\n" not in str(raised.value)


def _nested(times):
  """Operations that push a tuple of two of a tuple of two of ..., whose text and hash take 2**times steps."""
  return b")q\x01" + b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1])
                              for i in range(1, times + 1))


_IN_DICT = b"\x80\x02}X\x01\x00\x00\x00a"


@pytest.mark.parametrize(("content", "message"), [
  # Hashes of tuples in tuples overflow the stack, or take exponential time; those of integers can be made equal.
  (b"\x80\x02})" + b"\x85" * 60_000 + b"K\x01s.", "or 16 tuples"),
  (b"\x80\x02}(" + _nested(60) + b"K\x01u.", "or 16 tuples"), (b"\x80\x02(" + _nested(60) + b"K\x01d.", "or 16 tuples"),
  (pickle.dumps({i * (2**61 - 1): 1 for i in range(5)}, 2), "an integer of more than 32 bits"),
  (pickle.dumps({1: 1}, 2), "a key of a dict is no text"),
  (pickle.dumps({1: 2**33}, 0), "an integer of more than 32 bits"),
  (b"\x80\x02}r" + struct.pack("<I", 2**32 - 1) + b".", "more than"),  # A memo as long as its last place.
  (pickle.dumps({"a": 1, b"a": 2}, 3), "a key stands there twice"),
  # One byte makes a list, a dict, a mark or a place of the memo; three make an array.
  (_IN_DICT + b"(" + b"]" * 10**6 + b"ls.", "more than .* operations"),
  (b"(" * 10**6, "more than .* operations"),
  (b"\x80\x04}" + b"\x94" * 10**6 + b".", "more than .* operations"),
  (_IN_DICT + b"(" + _ARRAY_NAME + b"q\x00" + b"h\x00)R" * 10**5 + b"ls.", "more than .* operations"),
  # A message about a shape, or a dtype would be exponentially long.
  (_IN_DICT + _ARRAY_NAME + b")R(" + b"cnumpy\ndtype\n(U\x02u1tR\x89U\x00" + b"tb.", "not enough|shape|bytes"),
  (_IN_DICT + b"cnumpy\ndtype\n(" + _nested(60) + b"tRs.", "cannot be read"),
  (_array_of((True, 2)), "the shape of an array"), (_array_of((2.0,)), "asks for an operation"),
  (_array_of(([2],)), "the shape of an array"), (_array_of((-1,)), "the shape of an array"),
  (_array_of(2), "cannot be read"), (_array_of(None), "cannot be read"),
  (_array_of((0, 2**70), b""), "more than 32 bits"), (_array_of((1,) * 70 + (2,)), "dimension"),
  (_array_of((2**31, 2**31, 2**31, 0), b""), "cannot reshape|too big"),
  (_array_of((1,), dtype="O"), "dtype 'O8'"), (_array_of((1,), dtype="V2"), "dtype 'V2'"),
  (_array_of((1,), dtype=[("a", "u1"), ("b", "u1")]), "dtype 'V2'"), (_array_of((1,), dtype="f2"), "dtype 'f2'"),
  (_array_of((1,), b"a" * 8, dtype="M8[s]"), "dtype 'M8'"), (_array_of((1,), b"a" * 16, dtype="c16"), "dtype 'c16'"),
  # What stands for NumPy's names is no value.
  (_IN_DICT + _ARRAY_NAME + b"s.", "an array is not whole"), (_IN_DICT + b"cnumpy\ndtype\nU\x02u1\x85Rs.", "not whole"),
  (_IN_DICT + _ARRAY_NAME + b")RK\x01as.", "no attribute 'append'"), (_IN_DICT + b"K\x01)Rs.", "not callable"),
  (b"\x80\x02}\x8b\xff\xff\xff\x7f.", "not enough data"), (_IN_DICT + b"L" + b"9" * 10**6 + b"L\ns.", "digits"),
  (b"\x80\x04\x95" + b"\xff" * 8 + b"}.", "more than 32 bits"), (b"\x80\x02}T\xff\xff\xff\xff.", "byte count < 0"),
], ids=lambda value: str(len(value)))
def test_a_pickle_takes_little_time_and_memory(content, message, monkeypatch):
  monkeypatch.setattr(plain_pickle, "MOST_OPERATIONS", 2**16)  # Of 2**21, so that this is fast.
  tracemalloc.start()
  try:
    began = time.process_time()
    with pytest.raises(UserError, match=message) as raised:
      read_dict(content, "a file")
    assert time.process_time() - began < 10 and tracemalloc.get_traced_memory()[1] < 32 * 2**20
  finally:
    tracemalloc.stop()
  assert len(str(raised.value)) < 500 and "\n" not in str(raised.value)


def test_deep_values_are_read_and_can_be_dropped():
  fields = read_dict(b"\x80\x02}q\x00X\x01\x00\x00\x00a" + b"]" * 10**5 + b"a" * (10**5 - 1) + b"s.", "a file")
  assert isinstance(fields["a"], list)


def test_as_many_names_and_labels_as_the_largest_pickle_of_cifar_has():
  value = {b"filenames": [f"{i}.png".encode() for i in range(50_000)], b"fine_labels": [i % 100 for i in range(50_000)],
           b"coarse_labels": [i % 20 for i in range(50_000)]}
  for protocol in (0, 2):
    fields = read_dict(py2(value, protocol), "a file")
    assert len(fields["filenames"]) == 50_000 and fields["fine_labels"] == value[b"fine_labels"]


def test_mutated_pickles_are_read_or_refused_in_a_sentence():
  rng = np.random.default_rng(0)
  value = {"data": ARRAY, "labels": [1, 2, 300], "name": ("x", None)}
  sound = [py2(value, 0), py2(value), pickle.dumps(value, 4)]
  read = 0
  for i in range(1500):
    content = bytearray(sound[i % 3])
    for _ in range(rng.integers(1, 4)):
      place = rng.integers(len(content))
      content[place:place + rng.integers(0, 3)] = rng.bytes(rng.integers(0, 3))
    try:
      read += isinstance(read_dict(bytes(content), "a file"), dict)
    except UserError as error:
      assert str(error).startswith("a file ") and "\n" not in str(error)
  assert read > 50
