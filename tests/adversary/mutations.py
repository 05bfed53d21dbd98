"""Changes of bytes, of arrays, of archives and of JSON, and what may stand in place of a file."""

from collections.abc import Sequence
import io
import json
import os
import pathlib
import random
import socket
from typing import Any
import zipfile

import numpy as np

FLOOD = 400 * 2**20  # Bytes of what is large when it is decompressed.
WORDS = ("", "0", "-1", "1", "3", "0.5", "1e30", "nan", "inf", "-inf", "None", "True", "false", "''", "()", "(1,)",
         "(0.5, 0.2)", "('a',)", "(None,)", "{}", "{'name': 'focal'}", "{'a': 1}", "{1: 2}", "[]", "((", "1" * 30,
         "99999999999", "(99999999999,)", "x" * 5000, "(" * 500, "é", "a.b", "name", "focal", "mlp", "best",
         "__class__", "2147483648", "(-1,)", "(0,)", "1e400", "0x10", "1_0", "\x00", "a=b", "lambda: 0", "1" * 5000,
         "__import__('os').system('touch canary')", "{'__class__': 1}", "\x1b[2J", "\ud800", "a\nb", "../../x",
         "/dev/zero", "\u202egpj", "[" * 100_000, "1000000000000", "-0", "1e-400", "(1, 'a')", "~", "$HOME", "`id`")
VALUES = (None, True, False, 0, 1, -1, 3, 10**12, 10**40, -(10**12), 0.5, 1e308, float("nan"), float("inf"), "", "x",
          "focal", "mlp", "x" * 5000, "\x1b[31m", "\u202e", "<b>", "a\nb", [], [1], [[1]], ["a", 1], {}, {"a": 1},
          {"name": "focal"}, {"name": 1}, {"name": "os:system", "command": "touch canary"}, "../..", "/dev/zero")
HEADERS = ("((((((((((", "(" * 3000, "{'descr': " + "[" * 400, "{", "\x00\x01", "{'shape': (8, 3)}", "'''",
           "{'descr': 'zz', 'fortran_order': 0, 'shape': (4,), }", "{'descr': __import__('os').system('true')}")
DTYPES = ("<f4", ">f4", "<f8", "<f2", ">f8", "<i4", ">i8", "|O", "|V0", "<U0", "|S0", "<U1", "<U1000000", "|b1",
          "<M8[s]", "<c16", "|u1", [("a", "<f4")], [("a", "|O")], "|V1000000000", "<f16", ("<f4", (3,)), ("<i4", (0,)))
SHAPES = ((), (0,), (8,), (8, 3), (3, 8), (-4, -4), (-8, 3), (10**10,), (10**12, 3), (0, 10**18), (10**18, 0),
          (2**31, 2**31, 4), (True, 4), "ab", [8, 3], (8.0, 3), (None,), (8, 3, 1), (2**64,), (1,) * 40)


def changed(content: bytes, draw: random.Random, end: int | None = None) -> bytes:
  """Returns ``content`` with one to four changes in its first ``end`` bytes."""
  content = bytearray(content)
  for _ in range(draw.randint(1, 4)):
    place = draw.randrange(len(content[:end]) or 1)
    match draw.randrange(6):
      case 0 | 1:
        content[place:place + 1] = draw.randbytes(1)
      case 2:
        del content[place:place + draw.randint(1, 40)]
      case 3:
        content[place:place] = draw.randbytes(draw.randint(1, 20))
      case 4:
        content[place:place + 1] = draw.choice((b"9", b"(", b"O", b"-", b"'", b"V", b"f", b",", b"\n", b'"', b"{"))
      case 5:
        other = draw.randrange(len(content) or 1)
        content[place:place + 8] = content[other:other + 8]
  return bytes(content) if draw.random() > 0.05 else bytes(content[:draw.randrange(len(content) or 1)])


def npy(array: np.ndarray) -> bytes:
  """Returns the bytes of an ``.npy`` file."""
  file = io.BytesIO()
  np.save(file, array, allow_pickle=True)
  return file.getvalue()


def with_header(text: str, rest: bytes) -> bytes:
  """Returns an ``.npy`` file of this header, followed by ``rest``."""
  text = text.encode("latin1", "replace")
  text += b" " * (-(len(text) + 11) % 64) + b"\n"
  return b"\x93NUMPY\x01\x00" + (len(text) % 2**16).to_bytes(2, "little") + text + rest


def lying(draw: random.Random, content: bytes) -> bytes:
  """Returns an ``.npy`` file whose header does not describe its numbers."""
  rest = content[128:] if draw.random() < 0.8 else b""
  if draw.random() < 0.3:
    return with_header(draw.choice(HEADERS), rest)
  return with_header(f"{{'descr': {draw.choice(DTYPES)!r}, 'fortran_order': {draw.choice((True, False, 2))!r}, "
                     f"'shape': {draw.choice(SHAPES)!r}, }}", rest)


def zipped(members: Sequence[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
  """Returns an archive of these members, in this order; a name may stand there twice."""
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w", method) as archive:
    for name, content in members:
      info = zipfile.ZipInfo(name)
      info.compress_type = method
      archive.writestr(info, content)
  return file.getvalue()


def archive(draw: random.Random, arrays: dict[str, np.ndarray], floods: Sequence[bytes]) -> bytes:
  """Returns a mutated ``.npz`` of ``arrays``.

  Args:
    draw: what is drawn from.
    arrays: the arrays by name.
    floods: archives with a member that is large when it is decompressed, which are given now and then.
  """
  members = [(f"{name}.npy", npy(array)) for name, array in arrays.items()]
  place = draw.randrange(len(members))
  name, content = members[place]
  way = draw.randrange(8)
  if way == 0:
    return changed(zipped(members), draw)
  if way == 1:
    members[place] = name, changed(content, draw, 130)
  elif way == 2:
    members[place] = name, changed(content, draw)
  elif way == 3:
    members[place] = name, lying(draw, content)
  elif way == 4:
    members.insert(draw.randrange(len(members) + 1), (name, changed(content, draw) if draw.random() < 0.3 else npy(
      np.flip(np.load(io.BytesIO(content), allow_pickle=True)))))
  elif way == 5:
    return _sizes_changed(draw, zipped(members, draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))))
  elif way == 6:
    members[place] = draw.choice(("logits.npy", "labels", "../x.npy", "y.npy", "label.npy", "x/y.npy", "kind.npy",
                                  "probs.npy", "", "classes.npy", "\x1b[2J.npy", "features.npy")), content
  elif draw.random() < 0.1:
    return draw.choice(floods)
  return zipped(members, draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))


def bombs(arrays: dict[str, np.ndarray], names: Sequence[str]) -> list[bytes]:
  """Returns archives of ``arrays``, each with one of ``names`` that is ``FLOOD`` zeros when it is decompressed."""
  found = []
  for large in names:
    file = io.BytesIO(zipped([(f"{name}.npy", npy(x)) for name, x in arrays.items() if name != large]))
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive_, archive_.open(f"{large}.npy", "w") as member:
      member.write(with_header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({FLOOD},), }}", b""))
      for _ in range(0, FLOOD, 2**22):
        member.write(b"\0" * min(FLOOD, 2**22))
    found.append(file.getvalue())
  return found


def _sizes_changed(draw: random.Random, content: bytes) -> bytes:
  """Returns an archive whose directory claims other sizes."""
  content = bytearray(content)
  place = content.find(b"PK\x01\x02", draw.randrange(len(content) // 2))
  field = place + draw.choice((10, 16, 20, 24, 42))  # Method, checksum, both sizes, and where the member begins.
  if place >= 0:
    content[field:field + 4] = draw.choice((0, 1, 2**31, 2**32 - 1, 2**32 - 2, draw.randrange(2**32))).to_bytes(
      4, "little")
  return bytes(content)


def json_text(draw: random.Random, value: Any) -> bytes:
  """Returns JSON like that of ``value``, with changed values, keys or bytes."""
  way = draw.randrange(10)
  if way == 0:
    return changed(json.dumps(value, indent=2).encode(), draw)
  if way == 1:
    return draw.choice((b"[" * 100_000, b"{\"a\":" * 100_000, b"", b"null", b"[]", b"1", b"\"x\"", b"\xff\xfe", b"{",
                        b"1" * 5000, b"-", b"NaN", b"[1e999]", b"\xef\xbb\xbf{}", b"{}" * 3, b"\x00",
                        json.dumps(value).encode("utf-16"), b"[" + b"0," * 10**6 + b"0]", b'"\\ud800"'))
  if way == 2:
    text = json.dumps(value)
    return text.replace("{", "{" + f'"{draw.choice(_keys(value) or ["a"])}": {json.dumps(draw.choice(VALUES))}, ',
                        1).encode()
  for _ in range(draw.randint(1, 3)):
    value = _replaced(draw, value)
  return json.dumps(value, indent=2).encode()


def _keys(value: Any) -> list[str]:
  return [str(key) for key in value] if isinstance(value, dict) else []


def _replaced(draw: random.Random, value: Any) -> Any:
  """Returns ``value`` with one change somewhere within it."""
  if isinstance(value, dict) and value and draw.random() < 0.93:
    key = draw.choice(list(value))
    way = draw.random()
    if way < 0.75:
      return {**value, key: _replaced(draw, value[key])}
    rest = {name: child for name, child in value.items() if name != key}
    if way < 0.85:
      return rest
    new = draw.choice(("x", "", "name", "\x1b[2J", "a.b", "__class__", key + " ", key.upper(), "0", "é" * 300))
    return {**rest, new: value[key]} if way < 0.95 else {**value, new: draw.choice(VALUES)}
  if isinstance(value, list) and value and draw.random() < 0.7:
    place = draw.randrange(len(value))
    return [*value[:place], _replaced(draw, value[place]), *value[place + 1:]]
  if isinstance(value, int | float) and not isinstance(value, bool) and draw.random() < 0.4:
    return draw.choice((value + 1, -value, value * 1000, str(value), [value], float(value), 10**12))
  return draw.choice(VALUES)


def in_place_of(draw: random.Random, path: pathlib.Path, *, is_small: bool = False) -> bool:
  """Now and then puts something else in place of a file; returns whether it did.

  Where the project reads only small files, ``is_small``, this may also be a file of 2 GiB that takes no space.
  """
  if draw.random() > 0.04:
    return False
  if path.is_dir() and not path.is_symlink():
    path.rename(path.with_name(f"{path.name}.before"))
  path.unlink(missing_ok=True)
  match draw.randrange(10 if is_small else 9):
    case 0:
      os.mkfifo(path)
    case 1:
      path.mkdir()
    case 2:
      path.symlink_to(path.with_name("absent"))
    case 3:
      path.symlink_to(path)
    case 4:
      path.write_bytes(b"")
    case 5:
      path.symlink_to("/dev/zero")
    case 6:
      path.symlink_to("/dev/full")
    case 7:
      here = os.getcwd()
      os.chdir(path.parent)  # The path of a socket is short.
      try:
        with socket.socket(socket.AF_UNIX) as bound:
          bound.bind(path.name)
      finally:
        os.chdir(here)
    case 8:
      pass  # It is absent.
    case 9:
      with path.open("wb") as file:
        file.truncate(2**31)
  return True
