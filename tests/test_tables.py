"""Files → arrays: every form that is read, and every mistake in one of them named."""

import numpy as np
import pytest

from diffclust.files import spreadsheet_text
from diffclust.tables import encode_labels, read_labels, read_pairs, read_table

pd = pytest.importorskip("pandas")

KINDS = np.array(["cat", "", "dog", "cat", "", "eel"])
CODES = [0, -1, 1, 0, -1, 2]
X = np.arange(12, dtype=np.float32).reshape(6, 2) / 4


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes text, bytes, an array or a dictionary of arrays; names are relative, as in the messages."""
    monkeypatch.chdir(tmp_path)

    def write_file(name, content):
        path = tmp_path / name
        if isinstance(content, np.ndarray):
            np.save(path, content)
        elif isinstance(content, dict):
            np.savez(path, **content)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path.relative_to(tmp_path)

    return write_file


def make_frame():
    frame = pd.DataFrame(X, columns=["width", "height"])
    frame["kind"] = KINDS
    return frame


# ---------------------------------------------------------------------------------------------------------- features


def write_csv(path, **options):
    make_frame().to_csv(path, index=False, **options)


TABLES = {
    "t.csv": write_csv,
    "semicolons.csv": lambda path: write_csv(path, sep=";"),
    "tabs.csv": lambda path: write_csv(path, sep="\t"),
    "t.tsv": lambda path: write_csv(path, sep="\t"),
    "LOUD.CSV": write_csv,
    "bom.csv": lambda path: write_csv(path, encoding="utf-8-sig"),
    "spaces.csv": lambda path: path.write_text(_spaced()),
    "pandas_index.csv": lambda path: make_frame().to_csv(path),
    "r_index.csv": lambda path: make_frame().set_axis(range(1, 7)).to_csv(path),
    "part_of_a_frame.csv": lambda path: make_frame().set_axis([7, 2, 9, 150, 4, 3]).to_csv(path),
    "blank_line_first.csv": lambda path: path.write_text("\n" + make_frame().to_csv(index=False, sep=";")),
    "t.parquet": lambda path: make_frame().to_parquet(path),
    "none.parquet": lambda path: make_frame().replace("", None).to_parquet(path),
    "category.parquet": lambda path: make_frame().replace("", None).astype({"kind": "category"}).to_parquet(path),
}


def _spaced():
    return "width, height, kind\n" + "".join(f"{a}, {b}, {kind}\n" for (a, b), kind in zip(X, KINDS, strict=True))


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_every_form_are_the_same(name, tmp_path):
    TABLES[name](tmp_path / name)
    table = read_table(tmp_path / name, "kind")
    np.testing.assert_array_equal(table.features, X)
    assert table.features.dtype == np.float32
    assert table.labels.tolist() == CODES
    assert table.class_names == ["cat", "dog", "eel"]


def test_arrays_of_every_form(write):
    np.testing.assert_array_equal(read_table(write("x.npy", X)).features, X)
    for features in ("x", "data", "whatever"):
        table = read_table(write("x.npz", {features: X, "y": np.array(CODES)}), "y")
        np.testing.assert_array_equal(table.features, X)
        assert table.labels.tolist() == CODES
    images = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4)
    assert read_table(write("images.npy", images)).features.dtype == np.uint8
    assert read_table(write("numbers.npy", images.astype(np.int64))).features.dtype == np.float32


@pytest.mark.parametrize("shape", [(6, 3, 9, 8), (6, 1, 28, 28), (6, 9, 8, 3), (6, 3, 4, 4), (6, 9, 8)])
def test_images_have_their_channels_first(shape, write):
    images = np.random.default_rng(0).random(shape, np.float32)
    expected = np.moveaxis(images, -1, 1) if shape[-1] <= 4 < shape[1] else images
    np.testing.assert_array_equal(read_table(write("images.npy", images)).features, expected)


def test_a_folder_of_arrays_is_read_in_the_order_of_the_names(write, tmp_path):
    (tmp_path / "rows").mkdir()
    for row in (2, 0, 1):
        write(f"rows/{row}.npy", X[row])
    np.testing.assert_array_equal(read_table(tmp_path / "rows").features, X[:3])


def test_one_column_of_decimals_is_one_column(write):
    assert read_table(write("one.csv", "value\n1.25\n2.25\n3.25\n")).features.tolist() == [[1.25], [2.25], [3.25]]


def test_classes_that_differ_in_case_only_come_with_a_remark(write):
    content = "".join(f"{kind}\n" for kind in ("cat", "Cat ", "dog", " dog", "new york", "New  York"))
    table = read_table(write("x.npy", X), write("y.csv", content))
    assert table.class_names == ["Cat", "New  York", "cat", "dog", "new york"]
    said = "differ only in case or blanks count as different: 'Cat' and 'cat', 'New  York' and 'new york'."
    assert table.sentences == [f"Classes that {said}"]


def test_labels_go_by_ids_where_their_file_has_them(write):
    write("x.csv", "customer,a\n" + "".join(f"c{row},{row}\n" for row in range(4)))
    expected = ["", "dog", "", "cat"]
    for content in ("customer,kind\nc3,cat\nc1,dog\n", "kind;customer\ncat;c3\n;c0\ndog;c1\n;c2\n"):
        table = read_table("x.csv", write("y.csv", content))
        assert [table.class_names[label] if label >= 0 else "" for label in table.labels] == expected
    with pytest.raises(ValueError, match=r"y\.csv, line 2: no row of the data has the id 'c9'"):
        read_table("x.csv", write("y.csv", "customer,kind\nc9,cat\n"))
    with pytest.raises(ValueError, match=r"y\.csv, line 3: 'c1' has two labels, 'cat' and 'dog'"):
        read_table("x.csv", write("y.csv", "customer,kind\nc1,cat\nc1,dog\n"))
    table = read_table("x.csv", write("y.csv", "other,kind\nc3,a\nc2,b\nc1,c\nc0,d\n"))  # of another name: in order
    assert table.labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_labels_go_by_the_index_that_pandas_writes(ending, tmp_path):
    """They were read in the order of lines, which is another one where only one of the two files was shuffled."""
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    pandas, places = pytest.importorskip("pandas"), [2, 0, 3, 1]
    rows, labels = pandas.DataFrame({"a": [0.5, 1.5, 2.5, 3.5]}), pandas.DataFrame({"kind": ["p", "q", "", "s"]})
    expected = np.array(["p", "q", "", "s"], object)[places].tolist()

    def read(rows, labels):
        for frame, name in ((rows, "x"), (labels, "y")):
            getattr(frame, f"to_{ending}")(tmp_path / f"{name}.{ending}")
        table = read_table(tmp_path / f"x.{ending}", str(tmp_path / f"y.{ending}"))
        return [table.class_names[label] if label >= 0 else "" for label in table.labels]

    in_order = [labels] if ending == "csv" else []  # such an index is not written to parquet
    for given in (*in_order, labels.iloc[places], labels.iloc[::-1]):
        assert read(rows.iloc[places], given) == expected
    named = rows.iloc[places].set_axis(["u", "v", "w", "x"])
    with pytest.raises(ValueError, match=r"does not count up. If labels are in the order of the data, leave it out"):
        read(named, labels.iloc[::-1])
    assert read(named, labels) == ["p", "q", "", "s"]
    assert read(named, labels.set_axis(["x", "w", "v", "u"])) == ["s", "", "q", "p"]


def test_labels_that_look_like_no_classes_come_with_a_remark(write):
    values = [f"{number * 1.37}" for number in range(12)]
    write("x.csv", "a,y\n" + "".join(f"{row},{value}\n" for row, value in enumerate(values)))
    said = "The 12 labels are of 12 classes. Are they numbers or ids, not classes?"
    assert said in read_table("x.csv", "y").sentences
    assert said not in read_table("x.csv", "y", encoding=read_table("x.csv", "y").encoding).sentences


def test_negative_labels_come_with_a_remark(write):
    """-1 among -2, 0, 1 is unknown, and -100 is a class, which torch's users may not expect."""
    write("x.csv", "a,y\n1,-2\n2,-1\n3,1\n4,-100\n")
    said = "Labels that are negative numbers are classes, except -1, which means unknown: '-100', '-2'."
    assert said in read_table("x.csv", "y").sentences
    assert not any("negative" in each for each in read_table(write("z.csv", "a,y\n1,-1\n2,b\n"), "y").sentences)


def test_separators_at_the_ends_of_lines_move_no_column(write):
    for end in (",", ",,"):
        content = "a,b,kind\n" + "".join(f"{a},{b},{kind}{end}\n" for (a, b), kind in zip(X, KINDS, strict=True))
        table = read_table(write("x.csv", content), "kind")
        np.testing.assert_array_equal(table.features, X)
        assert table.class_names == ["cat", "dog", "eel"]


def test_a_row_has_as_many_values_as_there_are_names_or_its_own_name_too(write):
    table = read_table(write("r.csv", '"a","b"\n"x1",1,2\n"x2",3,4\n'))  # as R's write.table has it
    assert (table.columns, table.row_names) == (["a", "b"], ["x1", "x2"])
    for content in ("a,b\n1,5,7\n1,6,7\n", "a,b\n1,5,7,1\n2,6,7,1\n"):  # decimal commas without quotes
        with pytest.raises(ValueError, match=r"^x\.csv: the first line names 2 columns, but .* has \d values"):
            read_table(write("x.csv", content))
    with pytest.raises(ValueError, match=r"names 1 column, but .* The first line must name every column"):
        read_table(write("x.csv", "Sales 2024\n\na,b,kind\n1,2,x\n3,4,y\n"), "kind")


def test_a_text_longer_than_csv_fields_may_be_is_read(write):
    assert read_table(write("x.csv", "a,b\n1," + "x" * 200_000 + "\n2,y\n")).columns[0] == "a"


def test_a_column_that_counts_but_has_a_name_is_a_feature(write):
    assert read_table(write("year.csv", "year,value\n0,5\n1,6\n2,7\n")).features.shape == (3, 2)


def test_a_column_without_a_name_is_a_feature_where_numbers_repeat_or_are_decimals(write):
    assert read_table(write("repeat.csv", ",value\n3,5\n1,6\n3,7\n")).features.tolist() == [[3, 5], [1, 6], [3, 7]]
    assert read_table(write("decimals.csv", ",value\n.5,5\n1,6\n2,7\n")).features.shape == (3, 2)


@pytest.mark.parametrize("names", ["0,1,2", "1,2,3", "400.5,401,402", "402,401,400.5", "0,1", "0", "1;2", "a,1", ",0"])
def test_numbers_can_be_names_of_columns(names, write):
    separator = ";" if ";" in names else ","
    rows = [separator.join([value] * len(names.split(separator))) + "\n" for value in "56"]
    assert len(read_table(write("x.csv", names + "\n" + "".join(rows)))) == 2


WRONG_FILES = {
    "missing": ("gone.npy", None, "does not exist"),
    "ending": ("x.xlsx", "x", r"cannot read \.xlsx. Give one of \.npy"),
    "no ending": ("x", "x", "without ending"),
    "not NumPy": ("x.npy", "hello", "x.npy cannot be read"),
    "not a zip": ("x.npz", "hello", "x.npz cannot be read"),
    "empty array": ("x.npy", "", "x.npy cannot be read"),
    "objects": ("x.npy", np.array([{}, {}], object), "objects"),
    "zip as npy": ("x.npy", b"PK\x05\x06" + b"\0" * 18, r"should end in \.npz"),
    "text": ("x.npy", np.array([["a"], ["b"]]), "must hold numbers"),
    "complex": ("x.npy", X.astype(complex), "must hold numbers"),
    "flat": ("x.npy", X[:, 0], r"got shape \(6,\)"),
    "one row": ("x.npy", X[:1], "1 rows: at least 2"),
    "no features": ("x.npy", X[:, :0], "without features"),
    "nan": ("x.npy", np.where(X == 1, np.nan, X), "row 2 has a value that is not a finite number"),
    "too large": ("x.npy", X.astype(np.float64) * 1e300, "row 0 has a value"),
    "not parquet": ("x.parquet", "hello", "x.parquet cannot be read as a table"),
    "empty csv": ("x.csv", "", "x.csv is empty"),
    "header only": ("x.csv", "a,b\n", "0 rows"),
    "word": ("x.csv", "a,b\n1,2\n3,red\n", "column 'b' is 'red', not a finite number, in row 1"),
    "infinite": ("x.csv", "a,b\n1,inf\n3,4\n", "column 'b' is 'inf', not a finite number, in row 0"),
    "latin-1": ("x.csv", "a,b\n1,\xe9\n".encode("latin-1"), "not a text file in UTF-8"),
    "no header": ("x.csv", "1.5,2.5\n3.5,4.5\n5.5,6.5\n", "x.csv starts with a row of numbers, not with the names"),
    "no header, equal": ("x.csv", "0,0,0\n1,2,3\n4,5,6\n", "starts with a row of numbers"),
    "no header, byte order mark": ("x.csv", "\ufeff1.5,2.5\n3.5,4.5\n", "starts with a row of numbers"),
    "no header, one column": ("x.csv", "1.5\n2\n3\n", "starts with a row of numbers"),
    "ragged": ("x.csv", "a,b\n1,2\n3,4,5,6\n1,2\n", "cannot be read as a table"),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_file_that_cannot_be_used_says_why(name, write):
    file, content, message = WRONG_FILES[name]
    path = write(file, content) if content is not None else write("other", "").with_name(file)
    with pytest.raises(ValueError, match=message):
        read_table(path)


@pytest.mark.parametrize(("name", "share"), [("x.npy", 0.6), ("x.npz", 0.5), ("x.parquet", 0.5)])
def test_half_a_file_is_an_error(name, share, write, tmp_path):
    if name.endswith("parquet"):
        make_frame().to_parquet(tmp_path / name)
    else:
        write(name, np.zeros((50, 50)) if name.endswith("npy") else {"x": np.zeros((50, 50))})
    whole = (tmp_path / name).read_bytes()
    with pytest.raises(ValueError, match="cannot be read"):
        read_table(write(name, whole[: int(share * len(whole))]))


def test_rows_of_a_folder_must_be_alike(write, tmp_path):
    (tmp_path / "rows").mkdir()
    with pytest.raises(ValueError, match=r"no \.npy files"):
        read_table(tmp_path / "rows")
    write("rows/a.npy", X[0])
    write("rows/b.npy", X[0, :1])
    with pytest.raises(ValueError, match=r"b\.npy has shape \(1,\)"):
        read_table(tmp_path / "rows")
    with pytest.raises(ValueError, match="has no columns"):
        read_table(tmp_path / "rows", "kind")


# ------------------------------------------------------------------------------------------------------------ labels


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["cat", "", "dog", "cat", None, "eel"], ["cat", "dog", "eel"]),
        (["cat", "?", "dog", " cat ", "Unknown", "eel"], ["cat", "dog", "eel"]),
        ([2, -1, 10, 2, -1, 30], ["2", "10", "30"]),  # by size, not by letters
        ([2.0, np.nan, 10.0, 2.0, -1.0, 30.0], ["2", "10", "30"]),
        (["2.0", "nan", "10", "2", "-1.0", "30"], ["2", "10", "30"]),
        (["2.000e+00", "-1.000e+00", "1.000e+01", "2.000e+00", "nan", "3.000e+01"], ["2", "10", "30"]),  # np.savetxt
        (["02", "", "3E5", "02", "", "4E5"], ["02", "3E5", "4E5"]),
        ([0.5, np.nan, 1.5, 0.5, np.nan, 2.5], ["0.5", "1.5", "2.5"]),
        ([False, None, True, False, None, "x"], ["False", "True", "x"]),
        (["cat", "N/A", "dog", "cat", "#N/A", "eel"], ["cat", "dog", "eel"]),
        ([b"cat", b"", b"dog", b"cat", b"-1", b"\xc3\xa9"], ["cat", "dog", "é"]),
    ],
)
def test_labels_of_every_kind(values, names):
    codes, found = encode_labels(np.array(values, object))
    assert codes.tolist() == CODES
    assert found == names


LABEL_FILES = {
    "y.npy": np.array(CODES),
    "column.npy": np.array(CODES)[:, None],
    "floats.npy": np.where(np.array(CODES) < 0, np.nan, CODES),
    "y.npz": {"anything": np.array(CODES)},
    "lines.txt": "0\n\n1\n0\n\n2\n",
    "no_newline.txt": "0\n\n1\n0\n-1\n2",
    "header.csv": "kind\n0\n\n1\n0\n\n2\n",
    "header_of_words.csv": "kind\na\n\nb\na\n\nc\n",
    "windows.csv": "kind\r\na\r\n\r\nb\r\na\r\n\r\nc\r\n",
    "last_column.csv": "row,kind\n0,a\n1,\n2,b\n3,a\n4,\n5,c\n",
    "semicolons.csv": "row;kind\n0;a\n1;\n2;b\n3;a\n4;\n5;c\n",
    "tabs.csv": "0\ta\n1\t\n2\tb\n3\ta\n4\t\n5\tc\n",
    "blank_line_at_the_end.txt": "a\n\nb\na\n\nc\n\n",
    "number_and_blank_line_at_the_end.txt": "0\n\n10\n0.0\n\n20\n\n",
    "header_and_blank_lines_at_the_end.csv": "kind\na\n\nb\na\n\nc\n\n\n",
    "two_lines.csv": 'kind\n"a\n1"\n\nb\n"a\n1"\n\nc\n',
    "quoted.csv": '"a, ""1"""\n""\nb\n"a, ""1"""\n""\nc\n',
    "t.tsv": "row\tkind\n0\ta\n1\t\n2\tb\n3\ta\n4\t\n5\tc\n",
}


@pytest.mark.parametrize("name", LABEL_FILES)
def test_files_of_labels(name, write):
    table = read_table(write("x.npy", X), str(write(name, LABEL_FILES[name])))
    assert table.labels.tolist() == CODES


def test_a_header_and_no_label_for_the_last_row(write):
    assert read_labels(write("y.csv", "kind\na\nb\n\n"), 3).tolist() == ["a", "b", ""]


def test_a_parquet_file_of_labels(tmp_path):
    pd.DataFrame({"kind": pd.array([0, None, 1, 0, None, 2], dtype="Int64")}).to_parquet(tmp_path / "y.parquet")
    assert encode_labels(read_labels(tmp_path / "y.parquet", 6))[0].tolist() == CODES


WRONG_LABELS = {
    "missing": ("gone.csv", None, "gone.csv does not exist"),
    "no column": ("kind", None, r"x\.npy has no columns"),
    "too few": ("y.npy", np.array(CODES[:3]), r"y\.npy has 3 labels, x\.npy has 6 rows"),
    "too many": ("y.txt", "1\n" * 9, r"y\.txt has 9 labels"),
    "two columns": ("y.npy", np.zeros((6, 2)), r"got \(6, 2\)"),
    "several arrays": ("y.npz", {"a": X, "b": X}, "has the arrays a, b"),
    "not text": ("y.csv", bytes(range(256)), "not a text file in UTF-8"),
    "open quote": ("y.csv", '"' + "a\n" * 100_000, r"y\.csv cannot be read as labels: field larger"),
}


@pytest.mark.parametrize("name", WRONG_LABELS)
def test_labels_that_do_not_fit_say_why(name, write):
    file, content, message = WRONG_LABELS[name]
    if content is not None:
        write(file, content)
    with pytest.raises(ValueError, match=message):
        read_table(write("x.npy", X), file)


def test_a_missing_column_names_those_there_are(write, tmp_path):
    write_csv(tmp_path / "t.csv")
    with pytest.raises(ValueError, match=r"no column 'sort'\. It has width, height, kind"):
        read_table(tmp_path / "t.csv", "sort")
    with pytest.raises(ValueError, match=r"no column 'Knid'\. It has .*\. Did you mean 'kind'\?"):
        read_table(tmp_path / "t.csv", "Knid")
    with pytest.raises(ValueError, match=r"Did you mean 'kind '\?"):
        read_table(write("blank.csv", "a,kind \n1,x\n2,y\n"), "kind")
    with pytest.raises(ValueError, match=r"no array 'sort'\. It has x, y"):
        read_table(write("x.npz", {"x": X, "y": X}), "sort")
    with pytest.raises(ValueError, match="labels='kind' and id_column or text name the same column"):
        read_table(tmp_path / "t.csv", "kind", id_column="kind")
    with pytest.raises(ValueError, match="has several columns of the name kind"):  # one would be a feature
        read_table(write("twice.csv", "a,kind,kind\n1,x,x\n2,y,y\n"), "kind")
    with pytest.raises(ValueError, match="no column of features"):
        read_table(write("y.csv", "kind\na\nb\n"), "kind")


# ------------------------------------------------------------------------------------------------------------- pairs


@pytest.mark.parametrize(
    "content",
    [
        "0,1\n2,3\n",
        "i,j\n0,1\n2,3\n",
        "0 1\n\n2;3",
        "\ufefffirst second\r\n0\t1\r\n2\t3\r\n",
        '"i1","i2"\n"0","1"\n"2","3"\n',
    ],
)
def test_pairs(content, write):
    assert read_pairs(write("pairs.csv", content), 6, "must_link")[0] == [(0, 1), (2, 3)]


def test_pairs_of_an_array(write):
    assert read_pairs(write("pairs.npy", np.array([[0, 1], [2, 3]])), 6, "must_link")[0] == [(0, 1), (2, 3)]


WRONG_PAIRS = {
    "missing": ("gone.csv", None, "does not exist"),
    "out of range": ("p.csv", "0,6\n", r"pair \(0, 6\) is out of range, rows are numbered 0 to 5"),
    "negative": ("p.csv", "0,-1\n", r"pair \(0, -1\) is out of range"),
    "four": ("p.csv", "0,1,2,3\n", "line 1: expected two row numbers and perhaps a weight, got '0,1,2,3'"),
    "negative weight": ("p.csv", "0,1,-2\n", "line 1: expected two row numbers and perhaps a weight, got '0,1,-2'"),
    "word": ("p.csv", "i,j\n0,1\n0,x\n", "line 3: expected two row numbers"),
    "decimals": ("p.csv", "0.0,1.0\n", "line 1: expected two row numbers"),
    "JSON": ("p.csv", "[[0, 1]]", "line 1: expected two row numbers"),
    "row numbers of pandas": ("p.csv", ",i,j\n0,1,2\n1,3,4\n", "line 1: the first column has no name"),
    "row names of R": ("p.csv", '"","i","j"\n"0",1,2\n', "line 1: the first column has no name"),
    "power": ("p.csv", "i,j\n0,²\n", "line 2: expected two row numbers"),
    "floats": ("p.npy", np.zeros((2, 2)), "must be integers"),
    "not text": ("p.csv", bytes(range(256)), "not a text file in UTF-8"),
}


@pytest.mark.parametrize("name", WRONG_PAIRS)
def test_pairs_that_cannot_be_used_say_why(name, write):
    file, content, message = WRONG_PAIRS[name]
    path = write(file, content) if content is not None else write("other", "").with_name(file)
    with pytest.raises(ValueError, match=message):
        read_pairs(path, 6, "must_link")


@pytest.mark.parametrize("digits", [400, 5000])
def test_integers_of_hundreds_of_digits(digits, tmp_path):
    """A sentence that is not as long as the number; as labels they are names like any other."""
    table, labels, pairs = tmp_path / "t.csv", tmp_path / "y.txt", tmp_path / "pairs.csv"
    number = "9" * digits
    table.write_text(f"u,v\n1,2\n{number},3\n")
    with pytest.raises(ValueError, match=r"t\.csv: .*row 1") as caught:
        read_table(table)
    assert len(str(caught.value)) < 300 + len(str(tmp_path))
    pairs.write_text(f"0,1\n{number},1\n")
    with pytest.raises(
        ValueError, match=r"pairs\.csv, line 2: expected two row numbers and perhaps a weight, got '9+\.\.\.'"
    ):
        read_pairs(pairs, 2, "must_link")
    table.write_text(f"u,v,k\n1,2,{number}\n4,3,7\n")
    assert read_table(table, "k").class_names == ["7", number]
    labels.write_text(f"{number}\n7\n")
    table.write_text("u,v\n1,2\n4,3\n")
    assert read_table(table, str(labels)).labels.tolist() == [1, 0]


@pytest.mark.parametrize("text", ["=1+1", "+1+1", "-x", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "-", "+", "\uff1d1", "--1"])
def test_a_cell_that_would_be_a_formula_gets_a_quote(text):
    assert spreadsheet_text(text) == f"'{text}"


@pytest.mark.parametrize("text", ["-1", "+3.5", "-.5e-3", "-2.", "cat", "'=1", "a=1", "", "1-2"])
def test_other_cells_stay_as_they_are(text):
    assert spreadsheet_text(text) == text
