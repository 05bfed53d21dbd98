"""Strategies for the bytes of damaged and hostile files: edits, headers that lie, JSON; and no file at all."""

import copy
import io
import json
import os
import pathlib
import socket
from typing import Any
import warnings
import zipfile

from hypothesis import strategies as st
import numpy as np

DESCRS = ("<f4", ">f4", "<f8", "<f2", "<i4", ">i8", "|O", "|V0", "<U0", "|S0", "<U1", "<U1000000", "|b1", "<M8[s]",
          "<c16", "|u1", [("a", "<f4")], [("a", "|O")], "|V1000000000", "<f16", ("<f4", (3,)), ("<i4", (0,)), "zz")
SHAPES = ((), (0,), (8,), (8, 3), (3, 8), (-4, -4), (-8, 3), (10**10,), (10**12, 3), (0, 10**18), (10**18, 0),
          (2**31, 2**31, 4), (True, 4), "ab", [8, 3], (8.0, 3), (None,), (8, 3, 1), (2**64,), (1,) * 40)
HEADERS = ("(" * 3000, "{'descr': " + "[" * 400, "{", "\x00\x01", "{'shape': (8, 3)}", "'''",
           "{'descr': __import__('os').system('true')}")
VALUES = (None, True, False, 0, -1, 3, 10**12, 10**40, 0.5, 1e308, float("nan"), float("inf"), "", "focal", "x" * 5000,
          "\x1b[31m", "\u202e", "a\nb", [], [[1]], ["a", 1], {}, {"a": 1}, {"name": "focal"}, {"name": 1}, "/dev/zero")
KEYS = ("x", "", "name", "\x1b[2J", "a.b", "__class__", "é" * 300)
BROKEN = (b"[" * 100_000, b'{"a":' * 100_000, b"", b"null", b"[]", b"1", b'"x"', b"\xff\xfe", b"{", b"1" * 5000, b"-",
          b"NaN", b"[1e999]", b"\xef\xbb\xbf{}", b"{}{}", b"\x00", b'{"a": [' + b"0," * 10**5 + b"0]}", b'"\\ud800"')
# What may stand in place of a file.
PLACES = ("pipe", "folder", "absent", "loop", "empty", "/dev/zero", "/dev/full", "socket", "gone")

edits = st.lists(st.tuples(st.sampled_from(("put", "cut", "add", "copy", "end")), st.integers(-300, 3000),
                           st.binary(min_size=1, max_size=8) | st.sampled_from((b"9", b"(", b"O", b"-", b"'", b","))),
                 min_size=1, max_size=4)
lying_headers = st.sampled_from(HEADERS) | st.builds(
  "{{'descr': {!r}, 'fortran_order': {!r}, 'shape': {!r}, }}".format, st.sampled_from(DESCRS),
  st.sampled_from((True, False, 2)), st.sampled_from(SHAPES))


def edited(content: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
  """Returns ``content`` with bytes replaced, cut out, added, copied from the beginning, or cut off at the end."""
  for way, place, new in changes:
    place %= len(content) or 1
    added = {"put": new, "add": new, "copy": content[:len(new)]}.get(way, b"")
    skipped = {"add": 0, "cut": 5 * len(new), "end": len(content)}.get(way, len(new))
    content = content[:place] + added + content[place + skipped:]
  return content


def npy(array: np.ndarray) -> bytes:
  """Returns the bytes of an ``.npy`` file."""
  file = io.BytesIO()
  np.save(file, array, allow_pickle=True)
  return file.getvalue()


def with_header(text: str, rest: bytes = b"") -> bytes:
  """Returns an ``.npy`` file of this header, followed by ``rest``."""
  content = text.encode("latin1", "replace")
  content += b" " * (-(len(content) + 11) % 64) + b"\n"
  return b"\x93NUMPY\x01\x00" + (len(content) % 2**16).to_bytes(2, "little") + content + rest


def zipped(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
  """Returns an archive of these members, in this order."""
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w") as archive, warnings.catch_warnings(action="ignore"):  # A name may stand there twice.
    for name, content in members:
      archive.writestr(zipfile.ZipInfo(name), content, method)
  return file.getvalue()


def npz(*twice: tuple[str, np.ndarray], **arrays: np.ndarray) -> bytes:
  """Returns an ``.npz`` of arrays, of which those of ``twice`` come last."""
  return zipped([(f"{name}.npy", npy(x)) for name, x in (*arrays.items(), *twice)])


@st.composite
def archives(draw: st.DrawFn, **arrays: np.ndarray) -> bytes:
  """Draws an ``.npz`` of ``arrays`` of which one is edited, lies, is there twice or has another name."""
  members = [(f"{name}.npy", npy(array)) for name, array in arrays.items()]
  place = draw(st.integers(0, len(members) - 1))
  name, content = members[place]
  way = draw(st.sampled_from(("edited", "lies", "twice", "renamed", "all")))
  if way == "edited":
    members[place] = name, edited(content, draw(edits))
  elif way == "lies":
    members[place] = name, with_header(draw(lying_headers), content[128:] if draw(st.booleans()) else b"")
  elif way == "twice":
    members.append((name, npy(np.flip(arrays[name[:-4]]))))
  elif way == "renamed":
    members[place] = draw(st.sampled_from(("labels", "../x.npy", "y.npy", "x/y.npy", "", "\x1b[2J.npy"))), content
  content = zipped(members, draw(st.sampled_from((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))))
  return edited(content, draw(edits)) if way == "all" else content


def places(value: Any) -> list[tuple[Any, Any]]:
  """Returns every place in dicts and lists within ``value``, each as what holds it and the key."""
  pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
  return [place for key, child in pairs for place in ((value, key), *places(child))]


def twice(value: dict, key: str, other: Any) -> bytes:
  """Returns JSON of ``value`` in which ``key`` stands a second time, with ``other``."""
  return json.dumps(value).replace("{", f'{{{json.dumps(key)}: {json.dumps(other)}, ', 1).encode()


@st.composite
def json_texts(draw: st.DrawFn, value: dict) -> bytes:
  """Draws JSON like that of ``value`` with other values, other keys or a key twice, and edited or broken JSON."""
  text = json.dumps(value, indent=2)
  way = draw(st.sampled_from(("values", "values", "values", "edited", "twice", "broken")))
  if way == "edited":
    return edited(text.encode(), draw(edits))
  if way == "broken":
    return draw(st.sampled_from((*BROKEN, text.encode("utf-16"))))
  if way == "twice":
    return twice(value, draw(st.sampled_from(list(value))), draw(st.sampled_from(VALUES)))
  value = json.loads(text)
  for _ in range(draw(st.integers(1, 3))):
    parent, key = draw(st.sampled_from(places(value) or [([0], 0)]))
    child = parent.pop(key)
    number = child if isinstance(child, int | float) else 0
    new = copy.deepcopy(draw(st.sampled_from((child, *VALUES, number + 1, -number, str(number), [number]))))
    if isinstance(parent, list):
      parent.insert(key, new)
    elif draw(st.integers(0, 3)):
      parent[key if new != child else draw(st.sampled_from((*KEYS, f"{key} ")))] = new
  return json.dumps(value, indent=2).encode()


def put_in_place(path: pathlib.Path, thing: str) -> None:
  """Puts something else in place of a file: a pipe, a link to a device that never ends."""
  path.unlink(missing_ok=True)
  if thing == "pipe":
    os.mkfifo(path)
  elif thing == "folder":
    path.mkdir()
  elif thing in ("empty", "sparse"):
    path.touch()
    os.truncate(path, 2**28 if thing == "sparse" else 0)
  elif thing == "socket":
    with socket.socket(socket.AF_UNIX) as bound:
      bound.bind(os.path.relpath(path))  # The path of a socket is short.
  elif thing != "gone":
    path.symlink_to({"absent": path.with_name("absent"), "loop": path}.get(thing, thing))
