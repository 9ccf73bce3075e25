"""Rows from CSV, TSV and JSONL: what is read exactly, and that nothing is ever lost silently."""

import csv
import gzip
import io
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt1_jax.data.tables import read_rows
from gpt1_jax.errors import InputError

quick = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def values(path, **kwargs):
    return [row.values for row in read_rows(path, **kwargs)]


def error_of(path, **kwargs):
    with pytest.raises(InputError) as caught:
        list(read_rows(path, **kwargs))
    return str(caught.value)


def rows_or_error(path, **kwargs):
    try:
        return list(read_rows(path, **kwargs)), ""
    except InputError as error:
        return [], str(error)


def test_csv_quotes_embedded_newlines_and_line_numbers(tmp_path):
    path = write(tmp_path, "a.csv", 'text,label\n"one, ""two""\nthree",x\nfour,y\n')
    rows = list(read_rows(path, columns=("text", "label")))
    assert [row.values for row in rows] == [
        {"text": 'one, "two"\nthree', "label": "x"},
        {"text": "four", "label": "y"},
    ]
    assert [row.line for row in rows] == [2, 4]
    assert rows[1].where == f"{path}:4"


def test_bom_and_crlf(tmp_path):
    path = write(tmp_path, "a.csv", b'\xef\xbb\xbftext,label\r\n"a\r\nb",x\r\n')
    assert values(path) == [{"text": "a\r\nb", "label": "x"}]  # inside quotes the line end is content


def test_tsv_takes_quotes_but_no_quoted_field_over_several_lines(tmp_path):
    path = write(tmp_path, "a.tsv", 'text\tlabel\n"a, ""b"""\tx\n')
    assert values(path) == [{"text": 'a, "b"', "label": "x"}]
    stray = write(tmp_path, "stray.tsv", 'label\ttext\nx\t"never closed\ny\tand here a quote"\n')
    assert re.search(r"stray\.tsv:2: .*line 3.*quoting", error_of(stray))
    assert [row["text"] for row in values(stray, quoting="none")] == ['"never closed', 'and here a quote"']
    assert [row["text"] for row in values(stray, quoting="csv")] == ["never closed\ny\tand here a quote"]


def test_without_quotes_a_row_is_a_line_and_all_else_is_text(tmp_path):
    path = write(tmp_path, "a.tsv", b'text\tlabel\n "a\rb\xc2\x85" \tx\r\n\n"\ty\n')
    rows = list(read_rows(path, quoting="none"))
    assert [(row.line, row.values) for row in rows] == [
        (2, {"text": ' "a\rb\x85" ', "label": "x"}),
        (4, {"text": '"', "label": "y"}),
    ]


def test_the_format_may_differ_from_the_suffix(tmp_path):
    path = write(tmp_path, "a.txt", "text\tlabel\na,b\tx\n")
    assert values(path, format="tsv") == [{"text": "a,b", "label": "x"}]
    assert values(write(tmp_path, "b.txt", '{"text": "a"}\n'), format="jsonl") == [{"text": "a"}]
    with pytest.raises(InputError, match="format='xml'"):
        read_rows(path, format="xml")


def test_rows_of_a_wrong_number_of_fields_are_left_out_when_asked_for_and_counted(tmp_path, caplog):
    path = write(tmp_path, "a.tsv", "text\tlabel\na\tx\nhalf of\na row\ty\tz\nb\ty\n")
    with pytest.raises(InputError, match=r"a\.tsv:3: too few columns"):
        values(path, quoting="none")
    assert [row["text"] for row in values(path, quoting="none", repair="drop_rows")] == ["a", "b"]
    assert "2 rows left out for not having 2 fields: line 3, 4" in caplog.text
    none = write(tmp_path, "b.tsv", "text\tlabel\na\nb\n")
    with pytest.raises(InputError, match=r"b\.tsv:2: none of the 2 rows has 2 fields \('text', 'label'\)"):
        values(none, repair="drop_rows")
    with pytest.raises(InputError, match="repair='skip'"):
        read_rows(path, repair="skip")


def test_surplus_fields_are_left_out_when_asked_for_and_counted(tmp_path, caplog):
    path = write(tmp_path, "a.tsv", "a\tx\thttp://a\thttp://b\nb\ty\n")
    options = {"header": ("text", "label"), "repair": "drop_fields"}
    assert values(path, **options) == [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    assert "1 rows lost their surplus fields for not having 2 fields: line 1" in caplog.text
    short = write(tmp_path, "b.tsv", "a\tx\nb\n")
    with pytest.raises(InputError, match=r"b\.tsv:2: too few columns"):
        values(short, **options)


def test_jsonl_keeps_json_types(tmp_path):
    path = write(
        tmp_path, "a.jsonl", '{"text": "a\\u00e9\\ud83d\\ude00", "label": 1, "answers": ["x"]}\n\n{"text": null}'
    )
    rows = list(read_rows(path, columns=("text",)))
    assert [row.values for row in rows] == [{"text": "aé😀", "label": 1, "answers": ["x"]}, {"text": None}]
    assert [row.line for row in rows] == [1, 3]


def test_several_files_in_order_and_a_header_of_ones_own(tmp_path):
    a, b = write(tmp_path, "a.csv", "x,1\n"), write(tmp_path, "b.CSV", "y,2\n")
    assert values([a, b], header=("text", "label")) == [{"text": "x", "label": "1"}, {"text": "y", "label": "2"}]


def test_blank_lines_are_counted_in_the_log(tmp_path, caplog):
    path = write(tmp_path, "a.csv", "text,label\n\na,x\n\n\n")
    with caplog.at_level("INFO", logger="absl"):
        assert len(values(path)) == 1
    assert "3 blank lines" in caplog.text


def test_a_field_longer_than_the_csv_modules_limit(tmp_path):
    text = "word " * 50_000
    assert values(write(tmp_path, "a.csv", f"text,label\n{text},x\n"))[0]["text"] == text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\na,x\nb\n", r"a\.csv:3: too few columns: 1 .* 2 .*'text', 'label'"),
        ("a.csv", "text,label\na,b,x\n", r"a\.csv:2: too many columns: 3"),
        ("a.csv", "text,text\na,b\n", r"a\.csv:1: duplicate column names 'text'"),
        ("a.csv", "", "is empty"),
        ("a.csv", b"\xef\xbb\xbf", "is empty"),
        ("a.csv", "\n\n", "is empty"),
        ("a.jsonl", " \n", "is empty"),
        ("a.csv", "text,label\n", "has a header and no rows"),
        ("a.csv", b"text,label\nok,x\ncaf\xe9,y\n", r"a\.csv:3: byte 0xe9 at position 4"),
        ("a.csv", "text,label\na\0,x\n", r"a\.csv:2: a NUL"),
        ("a.csv", "text,label\n".encode("utf-16"), r"a\.csv:1: the file is UTF-16"),
        ("a.csv", gzip.compress(b"text,label\n", mtime=0), r"a\.csv:1: the file is compressed by gzip"),
        ("a.jsonl", b"PK\x03\x04\x14\0", r"a\.jsonl:1: the file is a zip archive"),
        ("a.jsonl", b'{"text": "abc\n', r"a\.jsonl:1: not JSON: Invalid control character at column 14;"),
        ("a.csv", 'text,label\na,x\n"never closed,y\nb,z\n', r"a\.csv:3: a quoted field .* never closed"),
        ("a.csv", 'text,label\n"a" b,x\n', r"a\.csv:2: text after a closing quote"),
        ("a.csv", "text,label\ra,x\rb,y\r", r"a\.csv:1: a carriage return"),
        ("a.csv", "texts,label\na,x\n", r"a\.csv:1: no column 'text'.*'texts', 'label'; did you mean 'texts'"),
        ("a.tsv", "text,label\na,x\n", r"a\.tsv:1: no column 'text'"),
        ("a.csv", "text;label\na;x\n", r"a\.csv:1: no column 'text'.* semicolons .*save it with commas"),
        ("a.csv", "text\tlabel\na\tx\n", r"a\.csv:1: no column 'text'.* tabs .*format='tsv'"),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", '{"text": "a"}\n["a"]\n', r"a\.jsonl:2: a JSON list"),
        ("a.jsonl", '{"text": "a", "text": "b"}\n', r"a\.jsonl:1: duplicate keys 'text'"),
        ("a.jsonl", '{"text": NaN}\n', r"a\.jsonl:1: NaN"),
        ("a.jsonl", '{"text": "\\u0000"}\n', r"a\.jsonl:1: a NUL"),
        ("a.jsonl", '{"text": ["\\ud800"]}\n', r"a\.jsonl:1: half of a surrogate pair"),
        ("a.jsonl", '{"text": ' + "[" * 100_000, r"a\.jsonl:1: nested too deeply"),
        ("a.jsonl", '{"text": ' + "1" * 5000 + "}", r"a\.jsonl:1: "),
        ("a.jsonl", '{"texts": "a"}\n', r"a\.jsonl:1: no column 'text'; the object has 'texts'; did you mean 'texts'"),
        ("a.txt", "a\n", r"suffix '\.txt' is not one of \.csv, \.tsv, \.jsonl"),
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path, name, content, message):
    assert re.search(message, error_of(write(tmp_path, name, content), columns=("text",)), re.DOTALL)


def test_paths_that_cannot_be_read_fail_at_once_with_a_suggestion(tmp_path):
    path = write(tmp_path, "reviews.csv", "text\na\n")
    with pytest.raises(InputError, match=r"no such file; did you mean .*reviews\.csv\?"):
        read_rows(tmp_path / "review.csv")
    with pytest.raises(InputError, match=r"its folder .*nowhere does not exist"):
        read_rows(tmp_path / "nowhere" / "deep" / "reviews.csv")
    with pytest.raises(InputError, match="is a folder"):
        read_rows(tmp_path)
    with pytest.raises(InputError, match="listed twice"):
        read_rows([path, tmp_path / "." / "reviews.csv"])
    with pytest.raises(InputError, match="no file given"):
        read_rows([])
    with pytest.raises(InputError, match="quoting"):
        read_rows(path, quoting="minimal")


# Any text that UTF-8 can hold, with what CSV cares about made likely.
cells = st.text(
    st.one_of(st.sampled_from('",\t\r\n a'), st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    max_size=8,
)


@quick
@given(rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=6), suffix=st.sampled_from([".csv", ".tsv"]))
def test_what_a_csv_writer_wrote_is_read_back(tmp_path, rows, suffix):
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter="," if suffix == ".csv" else "\t", quoting=csv.QUOTE_ALL)
    writer.writerows([("a", "b"), *rows])
    path = write(tmp_path, "a" + suffix, text.getvalue())
    assert [(row["a"], row["b"]) for row in values(path, quoting="csv")] == rows


@quick
@given(
    content=st.one_of(
        st.binary(max_size=60),
        st.text(st.sampled_from('ab",\r\n é\0'), max_size=40).map(str.encode),
        st.text(st.sampled_from('ab",\n'), max_size=40).map(lambda text: b"x,y\n" + text.encode()),
    ),
    quoting=st.sampled_from([None, "csv", "none"]),
)
def test_damaged_tables_give_an_error_or_all_that_is_in_them(tmp_path, content, quoting):
    for name in ("a.csv", "a.tsv"):
        path = write(tmp_path, name, content)
        rows, error = rows_or_error(path, quoting=quoting)
        if error:
            assert re.match(re.escape(str(path)) + r"(:\d+: |: the file (is empty|has a header))", error)
            continue
        # Apart from what the format is made of, every character of the file is in the names or in the rows, in order.
        markup = str.maketrans("", "", '",\t\r\n')
        names = list(rows[0].values)
        read = "".join([*names, *(cell for row in rows for cell in row.values.values())]).translate(markup)
        assert read == content.removeprefix(b"\xef\xbb\xbf").decode().translate(markup)


@quick
@given(
    lines=st.lists(
        st.one_of(
            st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")),
            st.dictionaries(
                cells, st.one_of(cells, st.integers(), st.none(), st.lists(cells, max_size=2)), max_size=3
            ).map(lambda item: json.dumps(item).encode()),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_damaged_json_lines_give_an_error_or_a_row_each(tmp_path, lines):
    path = write(tmp_path, "a.jsonl", b"\n".join(lines))
    rows, error = rows_or_error(path)
    if error:
        assert re.match(re.escape(str(path)) + r"(:\d+: |: the file is empty)", error)
        return
    full = [(i, line) for i, line in enumerate(lines, 1) if line.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r")]
    assert [(row.line, row.values) for row in rows] == [
        (i, json.loads(line.removeprefix(b"\xef\xbb\xbf"))) for i, line in full
    ]
