"""Tables as they are: which column is what, how it becomes numbers, and that new rows are treated alike."""

import json

import numpy as np
import pytest
import sklearn

from diffclust.tables import read_table

pd = pytest.importorskip("pandas")

N = 12


def make_frame(**more):
    """Two numbers, so that there are features whatever else is in the frame."""
    width, height = np.random.default_rng(0).normal(size=(2, N)).round(2)  # few digits: pandas 2 reads others inexactly
    return pd.DataFrame({"width": width, "height": height, **more})


def features_of(name, values, **options):
    """The features that one column becomes, by name, and the sentences about the table."""
    table = read_table(make_frame(**{name: values}), **options)
    found = {
        column: table.features[:, place]
        for place, column in enumerate(table.columns)
        if column not in ("width", "height")
    }
    return found, " ".join(table.sentences)


def as_json(encoding):
    return json.loads(json.dumps(encoding))


# ----------------------------------------------------------------------------------------------------- kinds of columns


def test_a_category_becomes_a_zero_or_one_for_each_value():
    found, said = features_of("colour", ["red", "blue", ""] * 4)
    assert list(found) == ["colour = blue", "colour = red", "colour = missing"]
    assert found["colour = red"].tolist() == [1, 0, 0] * 4
    assert found["colour = missing"].tolist() == [0, 0, 1] * 4
    assert said == "Categories become a 0 or 1 for each value, blank is 'missing': 'colour'."


@pytest.mark.parametrize("values", [pd.Categorical(["1", "2"] * 6), ["none", "unknown"] * 6])
def test_categories_of_pandas_and_words_for_nothing_are_values(values):
    found, _ = features_of("kind", values)
    assert len(found) == 2
    assert sum(found.values()).tolist() == [1] * N


def test_booleans_are_numbers_and_with_gaps_categories():
    assert list(features_of("flag", [True, False] * 6)[0]) == ["flag"]
    assert list(features_of("flag", [True, False, None] * 4)[0]) == ["flag = False", "flag = True", "flag = missing"]


@pytest.mark.parametrize(
    "times",
    [
        pd.date_range("1970-01-03", periods=N),
        pd.date_range("1970-01-03", periods=N).astype(str),
        pd.date_range("1970-01-03", periods=N, tz="UTC"),
        pd.date_range("1970-01-03", periods=N).date,
        pd.to_timedelta(np.arange(2, 2 + N), unit="D"),
    ],
    ids=["times", "texts", "time zone", "dates", "spans"],
)
def test_dates_become_days(times):
    found, said = features_of("when", times)
    np.testing.assert_array_equal(found["when"], np.arange(2, 2 + N))
    assert "become days" in said


def test_missing_numbers_and_dates_become_the_median():
    found, said = features_of("size", [1.0, np.nan, 2.0, 9.0] * 3)
    assert found["size"].tolist() == [1, 2, 2, 9] * 3
    assert said == "Missing values become the median of their column: 'size'."
    found, said = features_of("when", ["1970-01-02", "", "1970-01-05", "1970-01-04"] * 3)
    assert found["when"].tolist() == [1, 3, 4, 3] * 3
    found, _ = features_of("size", ["1", "NA", "2", "?"] * 3)
    assert found["size"].tolist() == [1, 1.5, 2, 1.5] * 3
    found, _ = features_of("size", pd.array([1, None, 2, None] * 3, dtype="Int64"))
    assert found["size"].tolist() == [1, 1.5, 2, 1.5] * 3


def test_lists_of_numbers_become_features():
    vectors = np.random.default_rng(1).normal(size=(N, 3)).astype(np.float32)
    found, said = features_of("embedding", [row.tolist() for row in vectors])
    np.testing.assert_array_equal(np.stack(list(found.values()), 1), vectors)
    assert said == "Lists become a feature for each of their numbers: 'embedding'."


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([7] * N, "all values are the same"),
        (["EUR"] * N, "all values are the same"),
        ([None] * N, "they have no values"),
        (["", "NA", "nan"] * 4, "they have no values"),
        ([f"please ring {i} times" for i in range(N)], "it is text of many different values"),
        *(
            ([value.format(i + 1) for i in range(N)], "numbers and dates are read only as 1234.5 and 2024-05-31")
            for value in ("1.234,{}", "{} %", "$1,{}00.50", "€ {}", "{}.05.2024", "5/{}/24", "{}:30", "8:{} am")
        ),
    ],
)
def test_a_column_that_says_nothing_is_left_out_with_a_sentence(values, why):
    found, said = features_of("extra", values)
    assert not found
    assert f"Left out, because {why}: 'extra'." in said


def test_categories_that_look_like_numbers_come_with_a_remark():
    _, said = features_of("size", ["1,5", "2,5", "3,5"] * 4)
    assert said == (
        "Categories become a 0 or 1 for each value; numbers and dates are read only as 1234.5 and 2024-05-31: 'size'."
    )
    for values in (["18-25", "26-35"], ["2XL", "3XL"], ["A1", "A2"]):
        _, said = features_of("group", values * 6)
        assert said == "Categories become a 0 or 1 for each value: 'group'."


MISTAKES = {
    "word among numbers": ([1, 2, "red"] * 4, "column 'extra' is 'red', not a finite number, in row 2"),
    "lists of two lengths": ([[1, 2]] * (N - 1) + [[1]], "column 'extra' must have a list of 2 numbers .* row 11"),
    "a list is missing": ([[1, 2]] * (N - 1) + [None], "column 'extra' must have a list of 2 numbers .* row 11"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_column_of_two_kinds_says_where(name):
    values, message = MISTAKES[name]
    with pytest.raises(ValueError, match=message):
        features_of("extra", values)


def test_nothing_to_use_says_why():
    with pytest.raises(ValueError, match=r"no column of features\. .* it is text of many different values"):
        read_table(pd.DataFrame({"price": [1] * 8, "note": [f"note {i}" for i in range(8)]}))
    with pytest.raises(ValueError, match="several columns of the name width"):
        read_table(pd.concat([make_frame(), make_frame()], axis=1))


# ------------------------------------------------------------------------------------------------------------------ ids

NAMES = [f"item {number}" for number in range(N)]


@pytest.mark.parametrize(
    "frame",
    [
        make_frame(id=NAMES),
        make_frame(customer_id=NAMES),
        make_frame(barcode=NAMES),
        pd.DataFrame({"anything": NAMES, **make_frame()}),
        make_frame().set_axis(NAMES),
    ],
    ids=["id", "customer_id", "barcode", "first column", "index"],
)
def test_ids_are_found(frame):
    table = read_table(frame)
    assert table.row_names == NAMES
    assert table.columns == ["width", "height"]


def test_integers_that_are_all_different_are_ids_if_they_are_named_so():
    numbers = np.arange(N) * 7
    assert read_table(make_frame(id=numbers)).row_names == [str(number) for number in numbers]
    assert read_table(make_frame(year=numbers)).row_names is None
    repeated = read_table(make_frame(id=numbers % 14))
    assert (repeated.row_names, repeated.columns) == (None, ["width", "height", "id"])


def test_an_id_column_can_be_named(tmp_path):
    frame = make_frame(code=[f"{number:03}" for number in range(N)], id=NAMES)
    frame.to_csv(tmp_path / "t.csv", index=False)
    table = read_table(tmp_path / "t.csv", id_column="code")
    assert table.row_names == frame["code"].tolist()  # zeros in front are kept
    with pytest.raises(ValueError, match=r"has no column 'cod'\. It has width, height, code, id"):
        read_table(frame, id_column="cod")
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"id_column='code' is for a table with columns, but .* is an array"):
        read_table(tmp_path / "x.npy", id_column="code")


# ----------------------------------------------------------------------------------------------------- frames and files


def messy_frame():
    return make_frame(
        id=NAMES,
        when=pd.date_range("2024-01-01", periods=N).astype(str),
        colour=["red", "blue", None] * 4,
        size=[1.5, None, 2.5] * 4,
        flag=[True, False] * 6,
        kind=["a", "b", None, None] * 3,
    )


def in_polars(frame, folder):
    return pytest.importorskip("polars").from_pandas(frame)


def in_arrow(frame, folder):
    return pytest.importorskip("pyarrow").Table.from_pandas(frame)


def in_parquet(frame, folder):
    frame.to_parquet(folder / "t.parquet")
    return folder / "t.parquet"


def in_csv(frame, folder):
    frame.to_csv(folder / "t.csv.gz", index=False)
    return folder / "t.csv.gz"


@pytest.mark.parametrize("written", [in_polars, in_arrow, in_parquet, in_csv])
def test_a_table_is_the_same_in_every_form(written, tmp_path):
    expected, table = (read_table(x, "kind") for x in (messy_frame(), written(messy_frame(), tmp_path)))
    np.testing.assert_array_equal(table.features, expected.features)
    assert table.columns == expected.columns
    assert table.row_names == NAMES
    assert table.labels.tolist() == [0, 1, -1, -1] * 3
    assert table.sentences == expected.sentences
    assert table.encoding == expected.encoding


def test_sparse_arrays_are_read(tmp_path):
    from scipy import sparse

    dense = np.eye(6, dtype=np.float32)
    sparse.save_npz(tmp_path / "x.npz", sparse.csr_array(dense))
    np.testing.assert_array_equal(read_table(tmp_path / "x.npz").features, dense)
    with pytest.raises(ValueError, match="is a sparse array and has no other"):
        read_table(tmp_path / "x.npz", "y")
    sparse.save_npz(tmp_path / "large.npz", sparse.csr_array((100_000, 100_000), dtype=np.float32))
    with pytest.raises(ValueError, match=r"large\.npz: X is sparse, and as a dense array it would need 40\.0 GB"):
        read_table(tmp_path / "large.npz")


# ------------------------------------------------------------------------------------------------------------- new rows


def test_new_rows_are_treated_as_the_first_ones_were():
    table = read_table(messy_frame(), "kind")
    few = messy_frame().iloc[[4, 2]].drop(columns="kind")[["colour", "flag", "when", "size", "height", "width", "id"]]
    again = read_table(few, at_least=1, encoding=as_json(table.encoding))
    np.testing.assert_array_equal(again.features, table.features[[4, 2]])
    assert again.row_names == ["item 4", "item 2"]


def test_whole_numbers_as_categories_are_the_same_as_integers_and_as_floats():
    """pandas makes floats of integers in a column with a missing value, in the first table or in new rows."""
    integers, floats = pd.Series([1, 2, 2] * 4), pd.Series([1, 2, None] * 4)
    assert (integers.dtype.kind, floats.dtype.kind) == ("i", "f")
    for first, others in ((floats, integers), (integers, floats)):
        table = read_table(make_frame(kind=first.astype("category")))
        new = read_table(make_frame(kind=others), encoding=as_json(table.encoding))
        places = [table.columns.index(name) for name in ("kind = 1", "kind = 2")]
        assert new.features[:2, places].tolist() == [[1, 0], [0, 1]]
        assert not any("1.0" in sentence for sentence in new.sentences)


def test_labels_of_a_frame_may_be_in_a_column_whose_name_is_a_number():
    frame = make_frame(kind=["cat", None, "dog"] * 4).set_axis([0, 1, 2], axis=1)
    table = read_table(frame, "2")
    assert table.class_names == ["cat", "dog"]
    assert table.columns == ["0", "1"]


def test_two_columns_of_labels_are_an_error():
    """They were read as one, with classes such as '[1 2]'."""
    frame = make_frame(kind=["1"] * N, other=["2"] * N).set_axis(["width", "height", "kind", "kind"], axis=1)
    with pytest.raises(ValueError, match=r"several columns of the name kind\. Rename them"):
        read_table(frame, "kind")


def test_columns_that_32_bits_hardly_tell_apart_come_with_a_remark():
    seconds = 1_714_550_000 + 7 * np.arange(N)
    table = read_table(make_frame(time=seconds))
    assert [sentence for sentence in table.sentences if "'time', with values from 1714550000.0" in sentence]
    assert not any("32-bit" in said for said in read_table(make_frame(time=seconds - seconds.min())).sentences)
    minutes = pd.Timestamp("2024-05-31") + pd.to_timedelta(np.arange(N), unit="min")
    assert "hardly tell these apart" in " ".join(read_table(make_frame(time=minutes)).sentences)


def test_new_rows_with_other_values_get_a_sentence():
    encoding = as_json(read_table(messy_frame(), "kind").encoding)
    new = messy_frame().iloc[:3].assign(colour=["pink", "red", "pink"], width=[None, 1.0, 2.0])
    table = read_table(new, at_least=1, encoding=encoding)
    assert table.sentences == [
        "Column 'colour': 2 rows have a value that the run does not know (pink). It counts as none of the known ones.",
        "Missing values become the median of their column: 'width', 'size'.",
    ]
    with pytest.raises(ValueError, match="it lacks colour, flag"):
        read_table(new.drop(columns=["colour", "flag"]), at_least=1, encoding=encoding)
    with pytest.raises(ValueError, match="column 'when' is 'soon', not a date, in row 1"):
        read_table(new.assign(when=["2024-01-01", "soon", "2024-01-02"]), at_least=1, encoding=encoding)


def test_an_encoding_is_plain_json_without_the_values_of_rows():
    encoding = read_table(messy_frame(), "kind").encoding
    assert as_json(encoding) == encoding
    assert "item 3" not in json.dumps(encoding)


@pytest.mark.parametrize("write", [str, lambda row: str(np.array(row))])
def test_lists_in_csv_files_are_lists(tmp_path, write):
    rows = [[float(i), -i / 3, 1e-7 * i] for i in range(6)]
    pd.DataFrame({"embedding": [write(row) for row in rows]}).to_csv(tmp_path / "x.csv", index=False)
    table = read_table(tmp_path / "x.csv")
    np.testing.assert_allclose(table.features, rows, rtol=1e-5)
    assert table.sentences == ["Lists become a feature for each of their numbers: 'embedding'."]


def test_records_are_left_out_and_columns_of_several_levels_get_one_name():
    frame = pd.DataFrame({("a", 1): [1.0, 2.0], ("a", 2): [3.0, 5.0], ("b", 1): [{"x": 1}, {"x": 2}]})
    table = read_table(frame)
    assert table.columns == ["a 1", "a 2"]
    assert table.sentences == ["Left out, because they hold records: 'b 1'."]


@pytest.mark.parametrize("data", [np.ones((4, 2)), [[1.0], [2.0]], object()])
def test_other_objects_than_tables_say_what_to_do(data):
    with pytest.raises(ValueError, match=f"a data frame or an AnnData object, got {type(data).__name__}"):
        read_table(data)


def test_frames_as_scikit_learns_global_output_change_nothing():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"size": [1.0, None, 3.0, 4.0], "kind": ["oak", "ash", "oak", "ash"]})
    expected = read_table(frame).features
    with sklearn.config_context(transform_output="pandas"):
        np.testing.assert_array_equal(read_table(frame).features, expected)
