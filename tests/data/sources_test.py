import json

import pytest

from gpt1_jax.data.sources import describe_source, open_source, read_documents, sample_documents
from gpt1_jax.errors import InputError


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))


def read(source, **kwargs):
    return list(read_documents(source, **kwargs))


@pytest.fixture
def corpus(tmp_path):
    write(tmp_path / "corpus/b.txt", "second\n")
    write(tmp_path / "corpus/a.txt", b"\xef\xbb\xbffirst \xc3\xa9")
    write(tmp_path / "corpus/deep/er/c.txt", "third")
    write(tmp_path / "corpus/notes.md", "not text")
    return tmp_path / "corpus"


def test_text_files_in_the_order_of_their_paths(corpus):
    assert read(f"text:{corpus}/*.txt") == ["first é", "second\n"]
    assert read(f"text:{corpus}/**/*.txt") == ["first é", "second\n", "third"]
    assert read(f"text:{corpus}") == ["first é", "second\n", "third"]
    assert read(f"text:{corpus}/notes.md") == ["not text"]


def test_relative_globs_and_home(corpus, monkeypatch):
    monkeypatch.chdir(corpus)
    assert read("text:*.txt") == ["first é", "second\n"]
    monkeypatch.setenv("HOME", str(corpus.parent))
    assert read("text:~/corpus/b.txt") == ["second\n"]


def test_jsonl_fields(tmp_path):
    write(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"text": "one", "body": "1"}\n\n{"body": "2", "text": "two\\n"}\r\n')
    write(tmp_path / "b#1.jsonl", '{"text": "three", "body": "3"}')
    assert read(f"jsonl:{tmp_path}") == ["one", "two\n", "three"]
    assert read(f"jsonl:{tmp_path}/*.jsonl#body") == ["1", "2", "3"]
    assert read(f"jsonl:{tmp_path}/b#1.jsonl#body") == ["3"]


def test_a_list_is_its_own_source():
    assert read(["a", "b"]) == ["a", "b"]


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 8, 100])
def test_the_parts_one_after_another_are_the_whole(tmp_path, parts):
    for number in range(7):
        line = f"{number} \N{SNOWMAN}" + "\n" * (number % 2)
        write(tmp_path / f"{number}.txt", line * (60 if number == 3 else 2))
    lines = [json.dumps({"text": str(number) * (number % 5)}) + "\n" * (1 + number % 2) for number in range(40)]
    write(tmp_path / "x.jsonl", b"\xef\xbb\xbf" + "".join(lines[:30]).encode())
    write(tmp_path / "y.jsonl", "".join(lines[30:]).rstrip())
    for source in (f"text:{tmp_path}", f"jsonl:{tmp_path}", list("abcdefg")):
        whole = read(source, max_document_bytes=32)
        each = [read(source, part=part, parts=parts, max_document_bytes=32) for part in range(parts)]
        assert [text for part in each for text in part] == whole
        assert parts > 5 or all(each)  # every part has work to do


def test_no_such_part():
    with pytest.raises(InputError, match="part=3 must be from 0 to parts - 1 = 2"):
        read(["a"], part=3, parts=3)


def test_a_part_reads_its_own_bytes_only(tmp_path):
    """What is damaged in the first half is no matter to who reads the second, and lines keep their numbers."""
    good = [json.dumps({"text": "x" * 50}) + "\n"] * 100
    write(tmp_path / "a.jsonl", "".join([*good[:10], "{\n", *good[:60]]))
    assert read(f"jsonl:{tmp_path}", part=1, parts=2) == ["x" * 50] * 35
    with pytest.raises(InputError, match=r"a\.jsonl:11: not JSON"):
        read(f"jsonl:{tmp_path}", part=0, parts=2)
    write(tmp_path / "a.jsonl", "".join([*good[:60], '{"txt": ""}\n', *good[:10]]))
    with pytest.raises(InputError, match=r"a\.jsonl:61: no column 'text'.*did you mean 'txt'"):
        read(f"jsonl:{tmp_path}", part=3, parts=4)
    write(tmp_path / "a.txt", b"\xff" * 1000 + b"words and words " * 100)
    assert "".join(read(f"text:{tmp_path}", part=1, parts=2, max_document_bytes=100)).count("words") >= 150


def test_sizes_add_up_to_the_whole(tmp_path):
    write(tmp_path / "a.jsonl", "".join(json.dumps({"text": "é" * number}) + "\r\n" for number in range(40)))
    write(tmp_path / "a.txt", "word " * 99)
    for source in (f"text:{tmp_path}", f"jsonl:{tmp_path}", ["é", "xyz"]):
        opened = open_source(source, max_document_bytes=40)
        assert opened.unit == "B"
        assert sum(document.size for document in opened.read(0, 1)) == opened.size > 4


def test_a_sample_is_from_all_over_and_no_larger_than_asked(tmp_path):
    texts = [f"{number:04d}" * 20 for number in range(1000)]
    write(tmp_path / "a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))
    source = f"jsonl:{tmp_path}"
    sample = list(sample_documents(source, 8000, max_document_bytes=800))
    assert sample == list(sample_documents(source, 8000, max_document_bytes=800))
    assert 80 <= len(sample) <= 110
    places = [texts.index(text) for text in sample]
    assert places == sorted(set(places))
    assert {place // 100 for place in places} == set(range(10))
    assert list(sample_documents(source, 10**6)) == texts


@pytest.mark.parametrize("limit", [16, 17, 40, 100, 1000])
@pytest.mark.parametrize("unit", ["word ", "line\n", "paragraph\n\n", "paragraph\r\n\r\n", "unbroken", "é", "你", "🎉"])
def test_long_files_are_cut_without_loss(tmp_path, limit, unit):
    text = unit * 100
    write(tmp_path / "a.txt", text)
    pieces = read(f"text:{tmp_path}", max_document_bytes=limit)
    assert "".join(pieces) == text
    assert all(len(piece.encode("utf-8")) <= limit for piece in pieces)
    if unit[-1].isspace() and limit >= 40:
        assert all(piece.endswith(unit) for piece in pieces)


def test_max_document_bytes_has_a_lower_limit():
    with pytest.raises(InputError, match="max_document_bytes=3 must be at least 16"):
        read(["a"], max_document_bytes=3)


def test_a_byte_order_mark_is_dropped_from_the_first_piece_only(tmp_path):
    write(tmp_path / "a.txt", "\ufeff" + "x" * 40 + "\ufeff")
    assert "".join(read(f"text:{tmp_path}", max_document_bytes=16)) == "x" * 40 + "\ufeff"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("corpus/*.txt", "source='corpus/.*must be text:GLOB, jsonl:GLOB#FIELD or tfds:NAME"),
        ("csv:a.csv", "must be text:GLOB"),
        ("text:", "must be text:GLOB"),
        ("text:{0}/corpsu/*.txt", "no file matches: '.*' has no 'corpsu'; did you mean '.*/corpus'"),
        ("text:{0}/corpus/b.text", "has no 'b.text'; did you mean '.*/corpus/b.txt'"),
        ("text:{0}/corpus/*.tex", r"has no '\*.tex'; did you mean '.*/corpus/.*.txt'"),
        ("text:{0}/corpus/**/*.html", r"has no '\*.html'; it holds a.txt, b.txt, deep, notes.md"),
        ("text:{0}/*/nothing", "nothing is called 'nothing' in the folders"),
        ("text:{0}/empty", "'.*/empty' has no '[*].txt'; it holds nothing"),
        ("jsonl:{0}/corpus", "no file matches"),
    ],
)
def test_no_match_says_what_is_there(corpus, source, message):
    (corpus.parent / "empty").mkdir()
    with pytest.raises(InputError, match=message):
        read(source.format(corpus.parent))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"", "a.txt: the file is empty; remove it"),
        ("a.txt", b"\xef\xbb\xbf", "a.txt: the file is empty but for a byte-order mark"),
        ("a.txt", b"abc\xffdef", "a.txt: byte 0xff at offset 3 is not UTF-8"),
        ("a.txt", b"\xef\xbb\xbfabc\xe9 f", "a.txt: byte 0xe9 at offset 6 is not UTF-8"),
        ("a.txt", b"x" * 50 + b"\xc3", "a.txt: byte 0xc3 at offset 50 is not UTF-8"),
        ("a.txt", b"\x80" * 50, "a.txt: byte 0x80 at offset 0 is not UTF-8"),
        ("a.jsonl", b"", "a.jsonl: the file is empty"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b"\n', "a.jsonl:2: not JSON"),
        ("a.jsonl", b'{"text": "a"}\n["b"]\n', "a.jsonl:2: a JSON list, not an object"),
        ("a.jsonl", b'{"text": "a"}\n{"texts": "b", "id": 1}\n', "a.jsonl:2: no column 'text'; .*'texts', 'id'"),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"text": null}\n',
            "a.jsonl:2: field 'text' is of JSON type NoneType",
        ),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', "a.jsonl:2: byte 0xff at position 11"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "a.jsonl:1: half of a surrogate pair"),
    ],
)
def test_bad_files_are_located(tmp_path, name, data, message):
    write(tmp_path / name, data)
    with pytest.raises(InputError, match=message):
        read(f"{name.partition('.')[2].replace('txt', 'text')}:{tmp_path}/{name}", max_document_bytes=40)


def test_description_follows_the_content_not_the_place(corpus, tmp_path):
    copy = tmp_path / "elsewhere"
    for path in corpus.rglob("*.txt"):
        write(copy / path.relative_to(corpus), path.read_bytes())
    description = describe_source(f"text:{corpus}")
    assert description == describe_source(f"text:{copy}/**/*.txt")
    assert description["files"] == 3
    assert description["bytes"] == sum(path.stat().st_size for path in corpus.rglob("*.txt"))
    write(copy / "b.txt", "another second\n")
    assert description != describe_source(f"text:{copy}")
    write(tmp_path / "a.jsonl", "{}")
    assert describe_source(f"jsonl:{tmp_path}#a") != describe_source(f"jsonl:{tmp_path}#b")
    assert describe_source(["ab", "c"]) == describe_source(("ab", "c")) != describe_source(["a", "bc"])
