"""Files are replaced whole or not at all, also on a full disk, and sizes are checked before anything is made."""

import errno
import io
import os
import pickle
import resource
import zipfile

import numpy as np
import pytest

from calib_jax._system import capacity, files
from calib_jax._system.errors import UserError
from calib_jax.training.distributed import processes
import calib_jax.training.run
from main import main


def test_a_file_that_does_not_fit_leaves_the_one_before(tmp_path):
  files.write_npz(tmp_path / "a.npz", x=np.arange(3))
  files.write_text(tmp_path / "a", "before")
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  for write in (lambda: files.write_npz(tmp_path / "a.npz", x=np.zeros(9999)),
                lambda: files.write_text(tmp_path / "a", "x" * 9999)):
    # The system refuses to let a file grow beyond, as a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
      with pytest.raises(OSError, match="File too large"):
        write()
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  np.testing.assert_array_equal(files.read_npz(tmp_path / "a.npz")["x"], [0, 1, 2])
  assert (tmp_path / "a").read_text() == "before"
  files.write_text(tmp_path / "a", "after")  # When there is space again.
  assert (tmp_path / "a").read_text() == "after"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_one_sentence_and_exit_code_2(number, tmp_path, monkeypatch, capsys):
  def full(*_, **options):
    raise OSError(number, "No space left on device", str(tmp_path / "results.json"))

  monkeypatch.setattr(calib_jax.training.run, "execute", full)
  monkeypatch.setattr(processes, "connect", lambda *_: None)  # JAX runs already, with the devices of the tests.
  assert main(["--config=configs/digits_savuc.py", f"--workdir={tmp_path}"]) == 2
  assert capsys.readouterr().err == (f"error: {tmp_path}/results.json: No space left on device; free some space and "
                                     "run the same command again.\n")


@pytest.mark.parametrize(("text", "message"), [
  ("[" * 100_000, "nested more than 64 levels deep"),
  ('{"a":' * 100 + "1" + "}" * 100, "nested more than 64 levels deep"),
  ("[1, 2]", "it holds a list where an object belongs"), ('"a"', "it holds a str where"), ("", "Expecting value"),
  ('{"a": 1, "a": 2}', "it has the key 'a' twice"), ('{"a": [{"b": 1, "b": 1}]}', "it has the key 'b' twice"),
  ('{"a": 1' + "0" * 5000 + "}", "an integer of 5001 digits"), ("\udcff", "is not UTF-8"),
  ('{"a": "' + "x" * files.SMALL + '"}', "has more than 67.1 MB"),
], ids=lambda value: value[:12])
def test_json_that_is_no_small_object_is_one_sentence(text, message, tmp_path):
  (tmp_path / "a.json").write_text(text, errors="surrogateescape")
  with pytest.raises(UserError, match=message) as raised:
    files.read_json(tmp_path / "a.json")
  assert "\n" not in str(raised.value) and "a.json" in str(raised.value)


def test_json_is_read_of_regular_files_alone(tmp_path):
  (tmp_path / "a.json").write_text('{"a": [NaN, 18446744073709551615, {"é": null}]}', encoding="utf-8")
  assert str(files.read_json(tmp_path / "a.json")) == "{'a': [nan, 18446744073709551615, {'é': None}]}"
  os.mkfifo(tmp_path / "pipe")  # Reading it would wait for a writer.
  for path, message in ((tmp_path, "is a directory"), (tmp_path / "pipe", "is a pipe"), ("/dev/zero", "a device"),
                        (tmp_path / "absent", "there is no file"), (tmp_path / "a.json" / "b", "cannot be read")):
    with pytest.raises(UserError, match=message):
      files.read_json(path)


def _npy(array, **header):
  file = io.BytesIO()
  np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array) | header)
  return file.getvalue() + array.tobytes()


@pytest.mark.parametrize(("dtype", "shape"), [("<U0", (10**10,)), ("<f4", (10**12, 0)), ("<U0", (10**5, 0, 10**5))])
def test_arrays_without_bytes_have_few_elements(dtype, shape, tmp_path):
  content = _npy(np.empty(0), descr=dtype, shape=shape)
  with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
    archive.writestr("x.npy", content)
  (tmp_path / "a.npy").write_bytes(content)
  for read, name in ((files.read_npz, "a.npz"), (files.read_npy, "a.npy")):
    with pytest.raises(UserError, match="holds no bytes"):
      read(tmp_path / name)


def test_the_sum_of_what_is_read_is_limited_before_it_is_read(tmp_path, monkeypatch):
  monkeypatch.setattr(capacity, "memory", lambda: 3000)
  x = np.zeros(300, np.float32)
  np.savez_compressed(tmp_path / "a.npz", x=x, y=x, z=np.zeros(10**6))
  monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("an array was read"))
  with pytest.raises(UserError, match="a.npz: x, y would take 2.4 KB of memory, .* may take 1.5 KB, 50% of"):
    files.read_npz(tmp_path / "a.npz", ["x", "y"])
  monkeypatch.undo()
  monkeypatch.setattr(capacity, "memory", lambda: 3000)
  assert list(files.read_npz(tmp_path / "a.npz", ["x", "absent"])) == ["x"]  # What nobody reads may be large.


def test_the_suggested_conversion_replaces_no_file(tmp_path):
  for name in ("x.npz", "x.pkl", "it's {0} \" $HOME.npz"):
    content = pickle.dumps({"logits": np.ones((2, 2)), "labels": np.arange(2)})
    (tmp_path / name).write_bytes(content)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    exec(files.conversion(tmp_path / name).split("convert it: ")[1], {})
    (made,) = set(tmp_path.iterdir()) - before.keys()
    assert files.read_npz(made).keys() == {"logits", "labels"}
    assert all(path.read_bytes() == was for path, was in before.items())


def test_texts_with_numbers_that_are_no_characters_are_refused(tmp_path):
  for order in "<>":
    texts = np.array([0x110000, 65], f"{order}u4").view(f"{order}U1")
    np.savez(tmp_path / "file.npz", classes=texts)
    with pytest.raises(UserError, match="classes is damaged: it holds texts with numbers that are no characters"):
      files.read_npz(tmp_path / "file.npz")
