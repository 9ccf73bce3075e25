import functools
import json
import os
import pickle
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt1_jax import tokenizers
from gpt1_jax.errors import InputError
from gpt1_jax.tokenizers import OpenAITokenizer, openai
from gpt1_jax.tokenizers.bpe import NEWLINE
from gpt1_jax.tokenizers.parallel import encode_documents, ordered_map
from gpt1_jax.tokenizers.words import SpacyWords

pytest.importorskip("ftfy")
pytest.importorskip("spacy")

PROSE = (
    "The boy who had a dog , a cat and seven birds ran to the old house near the river because she said it was cold "
    "when people came home with no word for hours o'clock twenty-five isn't don't you'll they're John's 1912 3.5 "
    '(perhaps) "never" stop. stop! stop? stop; stop: stop, - ... really quite'
)


@pytest.fixture(scope="module")
def approximate(goldens) -> OpenAITokenizer:
    return tokenizers.load(goldens, "approximate")


@pytest.mark.parity
def test_ids_are_the_recorded_ones(toy, cases):
    for case in cases:
        assert toy.encode(case["text"]) == case["toy_ids"], case["text"]
    assert toy.encode_batch([case["text"] for case in cases]) == [case["toy_ids"] for case in cases]


@pytest.mark.parity
def test_original_ids_are_the_recorded_ones(original, cases):
    for case in cases:
        ids = original.encode(case["text"])
        assert ids == case["ids"], case["text"]
        if 0 not in ids:
            assert [original.pairs.subwords[i] for i in ids] == case["tokens"]


@pytest.mark.parity
def test_original_text_comes_back_as_recorded(original, recorded):
    for case in recorded["cases"]:
        assert original.decode(case["ids"]) == case["decode"]
    lists = recorded["decode_of_ids"]
    assert [original.decode(ids) for ids in lists["ids"]] == lists["hf_slow"]


@pytest.mark.parity
@pytest.mark.parametrize("folder", ["hf_toy_tokenizer_v4", "hf_toy_tokenizer_v5"])
def test_hugging_face_folders_give_the_original_tokenization(goldens, toy, cases, folder):
    tokenizer = tokenizers.load(goldens / folder)
    assert tokenizer.fingerprint == toy.fingerprint
    assert [tokenizer.encode(case["text"]) for case in cases] == [case["toy_ids"] for case in cases]


def is_clean(words: SpacyWords, found: list[str]) -> bool:
    """Whether each word is one word also by itself and in lower case, as it is in decoded text."""
    return all(word == "\n " or words.of_chunk(word.lower()) == [word.lower()] for word in found)


@pytest.mark.parity
@pytest.mark.parametrize("vocabulary", ["toy", "original"])
def test_clean_text_survives_decoding(vocabulary, cases, request):
    tokenizer, words, n = request.getfixturevalue(vocabulary), SpacyWords(), 0
    for case in cases:
        ids = tokenizer.encode(case["text"])
        if 0 not in ids and is_clean(words, case["words"]):
            assert tokenizer.encode(tokenizer.decode(ids)) == ids, case["text"]
            n += 1
    assert n > len(cases) / 2


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(PROSE.split(" ")) | st.sampled_from(["\n", "\n\n"]), max_size=40))
def test_english_prose_survives_decoding(toy, plain_encode, words):
    text = " ".join(words)
    ids = toy.encode(text)
    assert ids == plain_encode(toy, text)
    if 0 not in ids:
        assert toy.encode(toy.decode(ids)) == ids


@settings(deadline=None, max_examples=500)
@given(
    st.text()
    | st.lists(st.sampled_from(["foo:co.", "_", ".", " ", "a.m.", ":)", "\n", "É", "don't", "x", "''"])).map("".join)
)
def test_any_text_has_the_ids_of_the_steps_one_after_another(toy, plain_encode, text):
    assert toy.encode(text) == plain_encode(toy, text)


@pytest.mark.slow
def test_megabytes_of_text_have_the_ids_of_the_steps_one_after_another(toy, plain_encode):
    """The source files of Python: English, code, and text in many scripts and encodings."""
    n_bytes = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts or n_bytes > 6e6:
            continue
        data = path.read_bytes()
        for text in (data.decode("utf-8", "replace"), data.decode("latin-1").replace("\n", " ")):
            assert toy.encode(text) == plain_encode(toy, text), path
            n_bytes += len(data)
    assert n_bytes > 5e6


def test_forgetting_changes_nothing(toy, cases, monkeypatch):
    monkeypatch.setattr(openai, "_MAX_CACHED", 20)
    monkeypatch.setattr(openai, "_MAX_CACHED_CHUNK", 5)
    tokenizer = OpenAITokenizer(toy.files)
    for case in cases[:60]:
        assert tokenizer.encode(case["text"]) == case["toy_ids"]


def test_newline_separates_documents_and_stands_between_lines_only(toy):
    [newline] = toy.document_separator
    assert toy.pairs.subwords[newline] == NEWLINE
    assert newline not in toy.encode("\n one line\n\n")
    assert toy.encode("one\n\n \n line") == [*toy.encode("one"), newline, *toy.encode("line")]


def small(ids: dict[str, int], folder: Path) -> OpenAITokenizer:
    """A vocabulary without merges, written as raw UTF-8."""
    (folder / "encoder_bpe.json").write_bytes(json.dumps(ids, ensure_ascii=False).encode("utf-8"))
    (folder / "vocab.bpe").write_bytes(b"#version: 0.2\n")
    return tokenizers.load(folder)


def test_without_a_newline_token_the_separator_is_empty_and_line_ends_are_unknown(tmp_path):
    tokenizer = small({"<unk>": 0, "a</w>": 1}, tmp_path)
    assert (tokenizer.document_separator, tokenizer.encode("a\nA")) == ((), [1, 0, 1])


def test_text_has_spaces_after_words_and_none_at_the_ends(tmp_path):
    tokenizer = small({"<unk>": 0, "a</w>": 1, "a": 2, "\n</w>": 3, ",</w>": 4}, tmp_path)
    assert tokenizer.decode([3, 2, 1, 4, 0, 1, 3, 1, 2, 3]) == "aa , <unk>a \n a a"
    assert tokenizer.decode([]) == tokenizer.decode([3]) == ""


def test_it_fulfils_the_protocol_and_is_the_same_when_pickled(toy):
    assert isinstance(toy, tokenizers.Tokenizer)
    assert toy.vocab_size == len(toy.pairs.ids)
    toy.encode("a")
    copy = pickle.loads(pickle.dumps(toy))
    assert copy == toy
    assert "_encoder" not in vars(copy)
    assert copy.encode("Copied words.") == toy.encode("Copied words.")


def test_worker_processes_give_the_same_tokens(toy, cases):
    batches = [[case["text"] for case in cases[i : i + 20]] for i in range(0, 60, 20)]
    with ordered_map(functools.partial(encode_documents, toy), workers=2) as encode:
        for found, texts in zip(encode(batches), batches, strict=True):
            assert found.tokens.tolist() == encode_documents(toy, texts).tokens.tolist()


def test_ids_out_of_range_are_refused(toy):
    for wrong in (-1, toy.vocab_size):
        with pytest.raises(InputError, match=f"{wrong} is not in the vocabulary"):
            toy.decode([0, wrong])


def test_files_are_utf_8_in_any_locale(tmp_path):
    """With a locale of ASCII, text files without an encoding would be read as ASCII."""
    small({"<unk>": 0, "é</w>": 1}, tmp_path)
    code = (
        "import locale; from gpt1_jax import tokenizers\n"
        f"tokenizer = tokenizers.load({str(tmp_path)!r}); tokenizer.save({str(tmp_path / 'saved')!r})\n"
        f"print(locale.getencoding(), tokenizers.load({str(tmp_path / 'saved')!r}).encode('\\xe9'))"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert result.stdout == "ANSI_X3.4-1968 [1]\n"


def test_without_spacy_everything_but_encoding_works(goldens, toy, cases):
    code = f"""
import sys
sys.modules["spacy"] = None
from gpt1_jax import tokenizers
from gpt1_jax.errors import InputError
tokenizer = tokenizers.load({str(goldens)!r})
print(tokenizer.vocab_size, tokenizer.fingerprint, tokenizer.decode({cases[0]["toy_ids"]}))
try:
    tokenizer.encode("text")
except InputError as error:
    print(error)
print(tokenizers.load({str(goldens)!r}, "approximate").encode("of the"))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, error, ids = result.stdout.splitlines()
    assert first == f"{toy.vocab_size} {toy.fingerprint} {toy.decode(cases[0]['toy_ids'])}"
    assert "spacy, which is not installed: pip install 'gpt1-jax[openai]'" in error
    assert "tokenizers.load(path, 'approximate')" in error
    assert ids == str(toy.encode("of the"))
    assert result.stderr.count("The approximate tokenizer gives other ids") == 1


def test_importing_loads_neither_spacy_nor_ftfy(goldens):
    code = f"""
import sys
from gpt1_jax import tokenizers
tokenizers.load({str(goldens)!r}).decode([1])
tokenizers.load({str(goldens)!r}, "approximate").encode("text")
print([name for name in ("spacy", "ftfy", "tokenizers", "transformers") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_the_approximate_one_is_only_had_by_name(toy, approximate, goldens, tmp_path, caplog):
    assert (toy.variant, approximate.variant) == ("exact", "approximate")
    assert approximate.fingerprint != toy.fingerprint
    assert tokenizers.load(goldens, "exact") == toy
    approximate.save(tmp_path)
    assert tokenizers.load(tmp_path) == approximate
    assert tokenizers.load(tmp_path, "exact") == toy
    with pytest.raises(InputError, match=r"variant='fast': known are 'exact', 'approximate'"):
        tokenizers.load(goldens, "fast")
    tokenizers.MissingTokenizer(9, "x").save(tmp_path / "missing")
    with pytest.raises(InputError, match=r"variant='exact': only the original .* this is a MissingTokenizer"):
        tokenizers.load(tmp_path / "missing", "exact")


def test_saved_and_loaded_is_the_same(toy, goldens, tmp_path):
    toy.save(tmp_path / "run" / "tokenizer")
    for path in (tmp_path / "run", str(tmp_path / "run" / "tokenizer")):
        loaded = tokenizers.load(path)
        assert (loaded, loaded.fingerprint) == (toy, toy.fingerprint)
    loaded.save_openai(tmp_path / "again")
    for name in (toy.files.encoder_name, toy.files.merges_name):
        assert (tmp_path / "again" / name).read_bytes() == (goldens / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == sorted(
        [toy.files.encoder_name, toy.files.merges_name]
    )


def test_a_damaged_copy_is_refused(toy, tmp_path):
    toy.save(tmp_path)
    merges, marker = tmp_path / toy.files.merges_name, tmp_path / "gpt1_tokenizer.json"
    lines = toy.files.merges.split(b"\n")
    merges.write_bytes(b"\n".join([*lines[:-2], b""]))
    with pytest.raises(InputError, match="are not the files that"):
        tokenizers.load(tmp_path)
    merges.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        tokenizers.load(tmp_path)
    marker.write_text('{"type": "openai", "variant": "exact", "encoder": "../a", "merges": "b"}', encoding="utf-8")
    with pytest.raises(InputError, match="is damaged"):
        tokenizers.load(tmp_path)
