"""Rows in files: what a killed command leaves, and files that are packed."""

import gzip

import pytest

from calib_jax._system.errors import UserError
from experiments.common import rows
from experiments.common.commands import RESULTS


def test_rows_outlive_a_killed_command(tmp_path):
  path = tmp_path / "rows.csv"
  assert rows.read(path) == [] and rows.keys(rows.texts(path), ["a"]) == set()
  rows.append(path, [{"a": 1, "b": "x, y"}, {"a": 2, "b": ""}])
  path.write_text(path.read_text() + "3,hal")  # The command was killed here.
  assert rows.read(path) == [{"a": "1", "b": "x, y"}, {"a": "2", "b": ""}]
  assert rows.keys(rows.texts(path), ["b", "a"]) == {("x, y", "1"), ("", "2")}
  rows.append(path, [{"b": "z", "a": 4}])
  assert [row["a"] for row in rows.read(path)] == ["1", "2", "4"] and rows.read(path)[2]["b"] == "z"
  with pytest.raises(ValueError, match="has the columns a, b, and the new rows have a, c"):
    rows.append(path, [{"a": 5, "c": 6}])
  rows.append(path, [{"a": 5, "more": "new", "b": "y"}, {"a": 2, "more": "", "b": "w"}], replacing=["a"])
  assert [tuple(row.values()) for row in rows.read(path)] == [
    ("1", "x, y", ""), ("4", "z", ""), ("5", "y", "new"), ("2", "w", "")]
  rows.append(path, [{"c": 1, "b": text} for text in ("x, y", "z", "y", "w")], replacing=["b"])
  assert [row["c"] for row in rows.read(path)] == ["1"] * 4  # Of a file whose rows are all replaced no column stays.


def test_a_frame_has_numbers_as_they_were_written_and_names_that_are_no_missing_values(tmp_path):
  path = tmp_path / "rows.csv"
  assert rows.frame(path).empty
  rows.append(path, [{"name": "None", "size": 10, "value": 0.1 + 0.2, "note": ""},
                     {"name": "NA", "size": 20, "value": "", "note": "x, y"}])
  numbers = rows.frame(path)
  assert numbers.name.tolist() == ["None", "NA"] and numbers["size"].tolist() == [10, 20]
  assert numbers.value[0] == 0.1 + 0.2 and numbers.value.isna().tolist() == [False, True]
  assert numbers.note.isna().tolist() == [True, False]


def test_large_files_are_packed_and_go_on_unpacked(tmp_path, monkeypatch):
  path, packed = tmp_path / "rows.csv", tmp_path / "rows.csv.gz"
  rows.append(path, [{"a": 1, "b": "x, ü"}, {"a": 2, "b": ""}])
  rows.pack(path)
  assert path.exists() and not packed.exists()  # It is small.
  monkeypatch.setattr(rows, "LARGE", 10)
  text = path.read_bytes()
  rows.pack(path)
  data = packed.read_bytes()
  assert not path.exists() and rows.read(path) == [{"a": "1", "b": "x, ü"}, {"a": "2", "b": ""}]
  rows.append(path, [{"a": 3, "b": "z"}])
  assert path.read_bytes() == text + b"3,z\n" and not packed.exists()
  path.write_bytes(text)
  rows.pack(path)
  assert packed.read_bytes() == data  # Whenever it is packed.
  rows.append(path, [{"a": 1, "b": ""}], replacing=["a"])
  assert not packed.exists() and [row["a"] for row in rows.read(path)] == ["2", "1"]
  packed.write_bytes(data)  # A command was killed while it packed or unpacked: the plain file counts.
  assert [row["a"] for row in rows.read(path)] == ["2", "1"]
  path.unlink()
  packed.write_bytes(data[:-12])
  with pytest.raises(UserError, match=r"rows\.csv\.gz is damaged: delete it, and the command makes its rows anew"):
    rows.texts(path)


@pytest.mark.parametrize("name", ["leaderboard_more_data_tiny_imagenet_resnet8.csv",
                                  "mac_cal_tables_fashion_mnist_mlp.csv", "leaderboard_fashion_mnist_mlp.csv"])
def test_rows_are_written_as_they_were_read(name, tmp_path):
  rows.write(tmp_path / name, rows.read(RESULTS / name))
  packed = rows.packed(RESULTS / name)
  before = gzip.decompress(packed.read_bytes()) if packed.exists() else (RESULTS / name).read_bytes()
  assert (tmp_path / name).read_bytes() == before


def test_committed_rows_of_more_than_300_kb_are_packed():
  assert all(path.stat().st_size <= rows.LARGE for path in RESULTS.glob("*.csv")) and list(RESULTS.glob("*.csv.gz"))
