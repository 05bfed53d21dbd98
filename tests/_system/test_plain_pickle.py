"""Pickles of plain values and arrays are read as Python reads them; whatever else they ask for is refused."""

import collections
import os
import pickle
import struct

import numpy as np
import pytest

from calib_jax._system.errors import UserError
from calib_jax._system.plain_pickle import read_dict
from tests.data.archive_files import py2

ARRAY = np.arange(24, dtype=np.uint8).reshape(4, 6)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("array", [ARRAY, ARRAY.T, np.arange(5, dtype=">i4"), np.zeros((0, 3), np.int64),
                                   np.array([True, False])])
def test_arrays_are_those_that_were_pickled(protocol, array):
  value = {"data": array, "labels": [1, 2, 300], "name": ("x", None, 2**70)}
  found = read_dict(pickle.dumps(value, protocol), "a file")
  np.testing.assert_array_equal(found["data"], array)
  assert found["data"].dtype == array.dtype and found["data"].shape == array.shape
  assert found["labels"] == [1, 2, 300]


def test_pickles_of_python_2_are_read_whose_texts_are_bytes():
  found = read_dict(py2({b"data": ARRAY, b"labels": [0, 1]}), "a file")
  np.testing.assert_array_equal(found["data"], ARRAY)
  assert list(found) == ["data", "labels"]


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
  # The state of what stands for a name cannot be set, nor that of a list.
  _global("numpy", "dtype", b"}(Vx\nI1\nub."), b"]}(Vx\nI1\nub.",
])
def test_what_is_no_plain_value_is_refused_and_nothing_is_run(content, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError, match=r"^a file is a pickle that .*, which is not read because it could run code\.$"):
    read_dict(content, "a file")
  assert not list(tmp_path.iterdir())


def _array_of(shape, content=b"ab", dtype="u1"):
  reconstruct, arguments, _ = np.zeros(1).__reduce__()
  return pickle.dumps({"data": Evil((reconstruct, arguments, (1, shape, np.dtype(dtype), False, content)))}, 2)


@pytest.mark.parametrize("content", [
  b"", b"\x80\x02", pickle.dumps([1]), pickle.dumps({"a": 1})[:-1], b"not a pickle", pickle.dumps(ARRAY, 4),
  _array_of((10**12,)), _array_of((-2, -1)), _array_of((3,)), _array_of((1,), dtype="i4"), b"I" + b"9" * 10**5 + b"\n.",
  b"\x8e" + struct.pack("<Q", 2**60) + b"ab.", b"]" + b"a" * 5 + b".", b"0.", b"h\x05.",
])
def test_damage_is_one_sentence(content):
  with pytest.raises(UserError, match=r"^a file (cannot be read as|is a pickle that)") as raised:
    read_dict(content, "a file")
  assert "\n" not in str(raised.value)


def test_a_place_of_the_memo_far_away_takes_no_memory():
  assert read_dict(b"\x80\x02}r" + struct.pack("<I", 2**32 - 1) + b".", "a file") == {}


def test_mutated_pickles_are_read_or_refused_in_a_sentence():
  rng = np.random.default_rng(0)
  value = {"data": ARRAY, "labels": [1, 2, 300], "name": ("x", None)}
  sound = [pickle.dumps(value, protocol) for protocol in (0, 2, 4)]
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
