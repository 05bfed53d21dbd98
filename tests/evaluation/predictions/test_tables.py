"""Tables of predictions: CSV, TSV, JSON lines and Parquet, their headers, and what is refused in one sentence."""

import numpy as np
import pytest

from calib_jax import evaluation
from calib_jax._system import capacity
from calib_jax._system.errors import UserError
from tests.evaluation.predictions.data import (
  LABELS,
  LOGITS,
  NAMES,
  PROBS,
  TABLES,
  assert_same,
  columns_of,
  load,
  written,
)


@pytest.mark.parametrize("suffix", TABLES)
def test_every_table_holds_the_same_predictions(suffix, tmp_path):
  columns = [("label", NAMES[LABELS]), *columns_of("logit", LOGITS, NAMES), ("patient", np.arange(12) // 4)]
  loaded, _ = load(tmp_path, columns, suffix, groups="patient")
  assert_same(loaded, classes=NAMES)
  np.testing.assert_array_equal(loaded.groups, np.arange(12) // 4)


def test_one_column_says_which_class_is_positive_and_may_name_it(tmp_path):
  odds, labels, numbers = LOGITS[:, 0], np.where(LABELS > 0, "yes", "no"), LABELS.clip(0, 1)
  probs = 1 / (1 + np.exp(-odds))
  for column, of_column, wanted in (("prob_yes", labels, ("no", "yes")), ("prob_yes", numbers, ("not yes", "yes")),
                                    ("prob_1", numbers, None), ("prob", numbers, None)):
    part, notes = load(tmp_path, {column: probs, "label": of_column}, "csv")
    np.testing.assert_array_equal(part.labels, LABELS > 0)
    np.testing.assert_allclose(part.logits[:, 1] - part.logits[:, 0], odds, atol=1e-5)
    assert part.classes == wanted and f"is of class {wanted[1] if wanted else 1}, the positive one" in notes
  with pytest.raises(UserError, match="column is of 'yes', and its labels are also maybe, no: a binary problem"):
    load(tmp_path, {"prob_yes": probs, "label": np.where(LABELS == 2, "maybe", labels)}, "csv")
  with pytest.raises(UserError, match="its labels are text.* or name the column by the positive one, as prob_yes"):
    load(tmp_path, {"prob": probs, "label": labels}, "csv")
  # Numbers in [0, 1] may be log-odds, which has to be said by the name or by the option.
  for name, options in (("scores", {}), ("scores", {"logits": True}), ("logit", {})):
    part, _ = load(tmp_path, {name: probs, "label": numbers}, "csv", **options)
    shown = part.logits[:, 1] - part.logits[:, 0]
    np.testing.assert_allclose(shown, probs if options or name == "logit" else odds, atol=1e-5)
  with pytest.raises(UserError, match="its prob are probabilities by their name: leave out --logits"):
    load(tmp_path, {"prob": probs, "label": numbers}, "csv", logits=True)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_names_of_classes_may_stand_in_a_column(suffix, tmp_path):
  columns = {"label": LABELS, **dict(columns_of("logit", LOGITS)), "class_name": NAMES[LABELS]}
  assert load(tmp_path, columns, suffix)[0].classes == tuple(NAMES)
  columns |= {"class_name": NAMES[LABELS[::-1]], "label": LABELS % 2}
  with pytest.raises(UserError, match="must have one name for each label, an integer, and no name twice"):
    load(tmp_path, columns, suffix)


@pytest.mark.parametrize(("outputs", "labels", "message"), [
  ("logit_0 logit_1 logit_1", "label", "columns 'logit_1' and 'logit_1' for one class"),
  ("logit_0 logit_1 logit_01", "label", "columns 'logit_1' and 'logit_01' for one class"),
  ("logit_0 logit_1 Logit_0", "label", "columns 'logit_0' and 'Logit_0' for one class"),
  ("logit_a logit_b logit.a", "label", "columns 'logit_a' and 'logit.a' for one class"),
  ("logit_0 logit_2 logit_5", "label", "numbered from 0 without gaps; they are logit_0, logit_2, logit_5"),
  ("logit_2 logit_3 logit_4", "label", "numbered from 0 without gaps; they are logit_2"),
  ("logit_0 logit_1 logit", "label", "not of one kind, such as logit, logit_0"),
  ("logit_0 logit_1 logit_max", "label", "not of one kind, such as logit_max, logit_0"),
  ("prob_0", "label", "has one column of scores, prob_0: one column is of class 1, such as prob_1"),
  ("logit_0 logit_1 logit_2", "label Label", "holds label and Label, which differ"),
  ("logit_0 logit_1 logit_2", "label target", "holds label and target, which differ"),
  ("logit_0 logit_1 logit_2", "label label", "has 2 columns called 'label'"),
  ("logit_1 logit_2 logit_3", "label", r"numbered from 1 \('logit_1' to 'logit_3'\), and its labels go from 0 to 2"),
])
def test_ambiguous_columns_are_refused(outputs, labels, message, tmp_path):
  columns = [*zip(outputs.split(), LOGITS.T, strict=False),
             *((name, (LABELS + i) % 3) for i, name in enumerate(labels.split()))]
  with pytest.raises(UserError, match=message):
    load(tmp_path, columns, "csv")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_numbered_from_1_have_labels_from_1_and_it_is_said(suffix, tmp_path):
  columns = [("problem", LABELS), ("y", LABELS + 1), ("label", LABELS + 1), *(
    (f"logit_{k + 1}", LOGITS[:, k]) for k in (2, 0, 1))]
  loaded, notes = load(tmp_path, columns, suffix)
  assert_same(loaded, classes=(1, 2, 3))  # Two columns of labels that are equal are one.
  assert notes.endswith("p." + suffix + ": its columns are numbered from 1, so its labels are too: label 1 is logit_1.")


def test_classes_are_those_of_the_outputs_that_are_used(tmp_path):
  columns = [("label", NAMES[LABELS]), *columns_of("logit", LOGITS, NAMES), *columns_of("prob", PROBS[:, ::-1],
                                                                                        NAMES[::-1])]
  assert_same(load(tmp_path, columns, "csv")[0], classes=NAMES)


@pytest.mark.parametrize(("suffix", "labels"), [*((suffix, LABELS.astype(np.float32)) for suffix in ("npz", *TABLES)),
                                                ("npz", LABELS.astype("U1")), ("jsonl", LABELS.astype("U1"))])
def test_labels_that_are_whole_numbers_are_integers_in_every_file(suffix, labels, tmp_path):
  if suffix == "npz":
    assert_same(load(tmp_path, {"logits": LOGITS, "label_ids": labels})[0])
    return
  labels = (labels.astype(int) + 1).astype(labels.dtype)  # Columns that are numbered from 1 have labels from 1.
  loaded, _ = load(tmp_path, [*columns_of("logit", LOGITS, (1, 2, 3)), ("label_ids", labels)], suffix)
  assert_same(loaded, classes=(1, 2, 3))


@pytest.mark.parametrize("suffix", TABLES)
def test_true_and_false_are_labels_of_two_classes_and_may_be_their_names(suffix, tmp_path):
  true, p = LABELS > 0, PROBS[:, 0]
  for names, classes in ((["prob"], None), (["prob_yes"], ("not yes", "yes")), (["prob_True", "prob_False"],
                                                                                ("True", "False"))):
    loaded, _ = load(tmp_path, [("label", true), *zip(names, (p, 1 - p), strict=False)], suffix)
    np.testing.assert_array_equal(loaded.labels, ~true if len(names) == 2 else true)
    assert loaded.classes == classes


@pytest.mark.parametrize("suffix", TABLES)
def test_numbers_that_are_names_of_classes_are_no_places(suffix, tmp_path):
  """Ratings, whose columns are in any order."""
  ratings = np.array([2.0, 1.0, 1.5])
  for names in (ratings, ratings[:2]):
    labels = LABELS % len(names)
    loaded, _ = load(tmp_path, [("label", names[labels]), *columns_of("logit", LOGITS, names)], suffix)
    assert_same(loaded, LOGITS[:, :len(names)], labels, names)


@pytest.mark.parametrize("suffix", ["npz", *TABLES])
def test_rows_of_a_label_that_is_not_scored_are_left_out_whatever_they_hold(suffix, tmp_path):
  is_table = suffix != "npz"
  labels = np.where(np.arange(12) < 4, -100, LABELS + is_table)  # Labels from 1, as the columns of a table are.
  logits = np.where(labels[:, None] < 0, -np.inf if suffix != "csv" else np.nan, LOGITS)
  outputs = columns_of("logit", logits, (1, 2, 3)) if is_table else [("logits", logits)]
  columns = [*outputs, ("label", labels), ("patient", np.arange(12) // 2)]
  loaded, notes = load(tmp_path, columns, suffix, groups="patient", ignore_label=-100)
  assert_same(loaded, LOGITS[4:], LABELS[4:], (1, 2, 3) if is_table else None)
  np.testing.assert_array_equal(loaded.groups, np.arange(8) // 2)
  assert f"{tmp_path}/p.{suffix}: 4 of its 12 rows have the label -100 and are left out." in notes
  with pytest.raises(UserError, match="all labels are 0, which is to be ignored, so that no row is left"):
    load(tmp_path, {"prob": PROBS[:, 0], "label": 0 * LABELS}, suffix, ignore_label=0)


def test_columns_that_are_class_numbers_are_outputs_and_it_is_said(tmp_path):
  for outputs, kind in ((PROBS, "probabilities"), (LOGITS, "logits")):
    loaded, notes = load(tmp_path, {**{str(k): outputs[:, k] for k in (2, 0, 1)}, "label": LABELS}, "csv")
    np.testing.assert_allclose(loaded.logits, np.log(PROBS) if outputs is PROBS else LOGITS, rtol=1e-5, atol=1e-6)
    assert "columns '2' to '1' are taken for the scores" in notes and f"taken for {kind}" in notes


@pytest.mark.parametrize("break_", ["\n", "\r\n", "\n\n", '""\n', ", "])
def test_texts_of_csv_may_hold_line_breaks_commas_and_quotation_marks(break_, tmp_path):
  (tmp_path / "p.csv").write_bytes((
    f'text,prob_0,prob_1,label\n"good{break_}film",0.25,0.75,1\n5" wide,0.5,0.5,0\n').encode())
  loaded = evaluation.load(tmp_path / "p.csv")
  np.testing.assert_array_equal(loaded.probs, [[0.25, 0.75], [0.5, 0.5]])
  np.testing.assert_array_equal(loaded.labels, [1, 0])


HEAD = "label,logit_0,logit_1\n"


@pytest.mark.parametrize(("name", "content", "message"), [
  ("p.jsonl", "", "it has no rows"), ("p.jsonl", "{", "line 1 cannot be"),
  ("p.jsonl", "[1]", "line 1 cannot be read as JSON .it holds a list where"),
  ("p.jsonl", '{"prob": 0.5, "label": 1, "label": 0}', "it has the key 'label' twice"),
  ("p.jsonl", '{"prob": 0.5, "label": 1}\n{"prob": 0.5}', "line 2 has no 'label': leave this row out"),
  ("p.jsonl", '{"prob": 0.5, "label": 1}\n{"prob": null, "label": 1}', "line 2 has no 'prob': leave"),
  ("p.jsonl", '{"probs": [0.5, 0.5], "label": 1}\n{"probs": 1, "label": 0}', "lists of 'probs' must all have one"),
  ("p.jsonl", '{"probs": [[1], 2], "label": 1}', "cannot be read as JSON .setting an array"),
  ("p.jsonl", '{"prob": 0.5, "label": 1}\n{"prob": 0.5, "label": "a"}', "'label' must hold numbers, or texts, in all"),
  ("p.jsonl", '{"prob": {"a": 1}, "label": 1}', "'prob' must hold numbers"),
  ("p.jsonl", '{"text": "a"}', "must have a header with a column"),
  ("p.csv", "", "must have a header with a column label"),
  ("p.csv", "0.1,0.9,1\n0.2,0.8,0\n", "must have a header with a column label"),
  ("p.csv", "label;logit_0;logit_1\n0;1,5;2\n", "its columns are separated by ';': separate them by commas"),
  ("p.csv", "label\tlogit_0\tlogit_1\n0\t1\t2\n", r"its columns are separated by '\\t': separate them by commas"),
  ("p.csv", HEAD + "0.0,1,2\n0.5,1,2\n", "such as 2: that of row 1, counted from 0, is '0.5'"),
  ("p.csv", HEAD + "0.0,1,2\n,1,2\n1.0,1,2\n", "1 of the 3 labels are no integers, .* is row 1, .*''"),
  ("p.csv", HEAD + "0,a,b\n", "cannot be read as CSV"), ("p.csv", HEAD + "0,1,2\n0,1\n", "cannot be read as CSV"),
  ("p.csv", HEAD + "0,1,2\n0,nan,2\n",
   r"1 of the 2 rows of its logit hold NaN, \+inf, or -inf in every class; the first is row 1, counted from 0: "),
  ("p.csv", "label,logit_cat,logit_dog\n0,1,2\n,1,2\n1,2,3\n",
   "1 of the 3 labels are no integers, as the others are; the first is row 1, counted from 0: ''"),
  ("p.csv", HEAD, "it has no rows"),
  ("p.csv", HEAD + "0,1,2\n1,0,5,1\n", "line 3 has 4 fields and the header has 3"),  # A comma within a number.
  ("p.csv", HEAD + '0,1,2\n"1,1,2\n0,1,2\n', r"line 3: unexpected end of data; is a quotation mark not closed\?"),
  ("p.csv", HEAD + '0,1,2\n"1' + ",1,2\n" * 30_000, r"line 3: field larger than field limit \(131072\); is a"),
  ("p.csv", HEAD + '0,"1,5",2\n', "a number is missing, or has a comma in place of a point"),
  ("p.csv", HEAD + "0,1,2\n0,1,2\nnan,1,2\n", "the first is row 2, counted from 0: 'nan'"),
  ("p.parquet", "PAR1PAR1", "cannot be read as Parquet|pyarrow must be installed"),
  ("a.npy,b.npy", None, "there is no file"),
  *((name, content, r"files of this ending are not read, but .npz, .* \.csv, \.tsv, \.jsonl") for name, content in (
    ("p.txt", "prob,label\n0.5,1\n"), ("p", "prob,label\n0.5,1\n"), ("p.xlsx", "PK"))),
], ids=lambda value: str(value)[:20])
def test_bad_files_are_one_sentence(tmp_path, name, content, message):
  if content is not None:
    (tmp_path / name).write_bytes(content.encode())
  with pytest.raises(UserError, match=message):
    evaluation.load(str(tmp_path / name))


def test_an_npz_may_have_any_name(tmp_path):
  written(tmp_path / "p.npz", {"logits": LOGITS, "labels": LABELS}).rename(tmp_path / "p")
  assert_same(evaluation.load(tmp_path / "p"))


def test_csv_and_json_lines_are_read_only_if_they_are_small(tmp_path, monkeypatch):
  path = tmp_path / "p.csv"

  def refused(content, message):
    path.write_text(content)
    with pytest.raises(UserError, match=message):
      evaluation.load(path)

  with monkeypatch.context() as patch:
    patch.setattr("calib_jax.evaluation.predictions.text_files.LINE", 100)
    refused(HEAD + "0,1,2\n0,1," + " " * 100 + "2\n", "line 3 is longer than 100 characters")
  monkeypatch.setattr(capacity, "memory", lambda: 10**6)
  monkeypatch.setattr("calib_jax.evaluation.predictions.text_files.CHECKED", 0)
  # A row takes 100 + 1 + 2 * 4 bytes.
  refused(HEAD + "0,1,2\n" * 6000, "p.csv: 4,588 of its rows would take 500 KB of memory")
  refused(HEAD + "0,1,2\n" * 4000 + "x" * 100 + ",1,2\n", "p.csv would take 1.6 MB")
  monkeypatch.setattr(capacity, "memory", lambda: 10)
  path = tmp_path / "p.jsonl"
  refused('{"prob": 0.5, "label": 1}', "p.jsonl: 1 of its rows would take 216 bytes of memory")


def test_parquet_without_pyarrow_is_one_sentence(tmp_path, monkeypatch):
  (tmp_path / "p.parquet").write_bytes(b"PAR1")
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  with pytest.raises(UserError, match="to read Parquet, pyarrow must be installed"):
    evaluation.load(tmp_path / "p.parquet")


def test_parquet_is_decoded_only_if_it_is_small_and_whole(tmp_path, monkeypatch):
  pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow, which is optional.")

  def refused(message, **columns):
    with pytest.raises(UserError, match=message):
      load(tmp_path, columns, "parquet")

  labels, logits = pyarrow.array(LABELS), list(LOGITS)
  refused("column 'label' has 1 missing values", label=pyarrow.array([None, *LABELS[1:]]), logits=logits)
  refused("column 'label' has 1 missing values", label=pyarrow.array([None, *NAMES[LABELS[1:]]]), logits=logits)
  refused("column 'logits' has 1 missing values", label=labels, logits=pyarrow.array([None, *LOGITS[1:]]))
  refused("column 'logits' has 1 missing values", label=labels,
          logits=pyarrow.array([[None, 1.0, 2.0], *map(list, LOGITS[1:])]))
  refused("lists of the column 'logits' must all have one length", label=labels,
          logits=pyarrow.array([[[1.0]], *([list(row)] for row in LOGITS[1:])]))
  refused("column 'logits' must hold numbers or texts", label=labels, logits=pyarrow.array([{"a": 1.0}] * 12))
  refused("labels must be in .* 18446744073709551615", logits=logits,
          label=pyarrow.array([2**64 - 1] * 12, pyarrow.uint64()))
  half, _ = load(tmp_path, {"label": labels.cast("uint8"), "logits": list(LOGITS.astype(np.float16))}, "parquet")
  np.testing.assert_array_equal(half.logits, LOGITS.astype(np.float16))
  many, texts = np.zeros(10**5), ["x" * 500] * 10**5  # A few bytes in the file, and 0.8 to 200 MB decoded.
  monkeypatch.setattr(capacity, "memory", lambda: 9 * 10**6)
  for columns, message in (({"label": many.astype(int), "logit_0": many, "logit_1": many}, "would take 4.8 MB"),
                           ({"label": texts, "logit": many}, "label would take 200 MB")):
    refused(message, **columns)
    assert (tmp_path / "p.parquet").stat().st_size < 20_000
  monkeypatch.setattr(pyarrow, "__version__", "14.0.0")
  refused("not read with pyarrow 14.0.0, because a file could run code", label=labels, logits=logits)


def test_parquet_with_a_damaged_footer_does_not_end_the_process(tmp_path):
  """Histograms of a wrong size, as in some of these files, end the process if pyarrow 26 reads them as metadata."""
  path = written(tmp_path / "p.parquet", {"label": LABELS, "logits": LOGITS})
  from pyarrow import parquet

  content, reasons = path.read_bytes(), []
  for place in range(parquet.ParquetFile(path).metadata.row_group(0).total_byte_size, len(content)):
    path.write_bytes(content[:place] + bytes([content[place] ^ 8]) + content[place + 1:])
    try:
      evaluation.load(path)
    except UserError as error:
      reasons.append(str(error))
  assert len(reasons) > 100
