"""Files are replaced whole or not at all, also on a disk that takes no more."""

import errno
import io

import numpy as np
import pytest

from calib_jax import files
import calib_jax.run
from calib_jax.training import processes
from main import main
from tests.programs import python

LIMITED = """
import pathlib, resource, sys
import numpy as np
from calib_jax import files
path = pathlib.Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # The system refuses to let a file grow beyond, as a full disk.
for write in (lambda: files.write_npz(path / "a.npz", x=np.zeros(9999)),
              lambda: files.write_text(path / "a", "x" * 9999)):
  try:
    write()
  except OSError as error:
    print(error.errno)
"""


def test_a_file_that_does_not_fit_leaves_the_one_before(tmp_path):
  files.write_npz(tmp_path / "a.npz", x=np.arange(3))
  files.write_text(tmp_path / "a", "before")
  done = python("-c", LIMITED, tmp_path, tmp_path=tmp_path)
  assert done.stdout.split() == [str(errno.EFBIG)] * 2, done.stderr
  np.testing.assert_array_equal(files.read_npz(tmp_path / "a.npz")["x"], [0, 1, 2])
  assert (tmp_path / "a").read_text() == "before"
  files.write_text(tmp_path / "a", "after")  # When there is space again.
  assert (tmp_path / "a").read_text() == "after"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_one_sentence_and_exit_code_2(number, tmp_path, monkeypatch, capsys):
  def full(*_):
    raise OSError(number, "No space left on device", str(tmp_path / "results.json"))

  monkeypatch.setattr(calib_jax.run, "execute", full)
  monkeypatch.setattr(processes, "connect", lambda *_: None)  # JAX runs already, with the devices of the tests.
  assert main(["--config=configs/digits_savuc.py", f"--workdir={tmp_path}"]) == 2
  assert capsys.readouterr().err == (f"error: {tmp_path}/results.json: No space left on device; free some space and "
                                     "run the same command again.\n")


def test_a_write_that_fails_at_any_byte_leaves_the_one_before(tmp_path, monkeypatch):
  path, whole = tmp_path / "a.npz", io.BytesIO()
  files.write_npz(path, x=np.arange(3))
  np.savez(whole, x=np.arange(50))
  for size in range(0, len(whole.getvalue()), 97):
    def cut(file, size=size, **_):
      file.write(whole.getvalue()[:size])
      raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
      patch.setattr(files.np, "savez", cut)
      files.write_npz(path, x=np.arange(50))
    np.testing.assert_array_equal(files.read_npz(path)["x"], [0, 1, 2])
