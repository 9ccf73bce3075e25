import json
import shutil

import pytest
from absl import logging

from gpt1_jax import tokenizers
from gpt1_jax.errors import InputError
from gpt1_jax.tokenizers import SPECIAL_TOKENS, OpenAITokenizer

IDS = {"<unk>": 0, "a": 1, "b</w>": 2, "ab</w>": 3, "\n</w>": 4}
MERGES = "#version: 0.2\na b</w>\n"


@pytest.fixture
def folder(tmp_path):
    """OpenAI's folder, with the files in `model/`."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "encoder_bpe_1.json").write_text(json.dumps(IDS), encoding="utf-8")
    (tmp_path / "model" / "vocab_1.bpe").write_text(MERGES, encoding="utf-8")
    return tmp_path


@pytest.fixture
def tokenizer(folder) -> OpenAITokenizer:
    return tokenizers.load(folder)


@pytest.fixture
def exported(tokenizer, tmp_path):
    """A folder of Hugging Face."""
    tokenizer.save_huggingface(tmp_path / "hf")
    return tmp_path / "hf"


def rewrite(path, **changes):
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, **changes}), encoding="utf-8")


def test_files_are_found_in_the_folder_and_in_model(folder, tokenizer):
    assert tokenizers.load(folder / "model") == tokenizer
    assert (tokenizer.files.encoder_name, tokenizer.vocab_size) == ("encoder_bpe_1.json", 5)


def test_incomplete_and_ambiguous_folders_are_explained(folder):
    shutil.copy(folder / "model" / "vocab_1.bpe", folder / "model" / "vocab_2.bpe")
    with pytest.raises(InputError, match=r"of \*vocab\*\.bpe there is 'vocab_1\.bpe', 'vocab_2\.bpe'"):
        tokenizers.load(folder)
    for path in (folder / "model").glob("*.bpe"):
        path.unlink()
    with pytest.raises(InputError, match=r"of \*vocab\*\.bpe there is none"):
        tokenizers.find(folder)


def test_a_folder_without_a_tokenizer_is_none_or_an_error_that_names_all_kinds(tmp_path):
    assert tokenizers.find(tmp_path) is None
    assert tokenizers.find(tmp_path / "absent") is None
    for name in ("gpt1_tokenizer.json", r"\*encoder_bpe\*\.json", r"merges\.txt", r"tokenizer\.json"):
        with pytest.raises(InputError, match=rf"^tokenizer='{tmp_path}': has no .*{name}"):
            tokenizers.load(tmp_path)


def test_malformed_files_are_refused_when_loading(folder):
    (folder / "model" / "vocab_1.bpe").write_text(MERGES + "a\n", encoding="utf-8")
    with pytest.raises(InputError, match=rf"^{folder}/model/vocab_1\.bpe, line 3: 'a' is no merge"):
        tokenizers.load(folder)


@pytest.mark.parametrize("removed", [[], ["vocab.json"], ["merges.txt", "vocab.json"], ["tokenizer.json"]])
def test_exports_to_hugging_face_come_back(tokenizer, exported, removed):
    if "vocab.json" in removed:
        (exported / "merges.txt").unlink()
    for name in removed:
        (exported / name).unlink(missing_ok=True)
    loaded = tokenizers.load(exported)
    assert loaded == tokenizer  # names included: they count the merges


def test_both_files_are_copied_byte_for_byte(tokenizer, exported, folder):
    assert (exported / "vocab.json").read_bytes() == (folder / "model" / "encoder_bpe_1.json").read_bytes()
    assert (exported / "merges.txt").read_bytes() == (folder / "model" / "vocab_1.bpe").read_bytes()


def test_special_tokens_follow_the_vocabulary_and_belong_to_the_model(tokenizer, tmp_path, caplog):
    tokenizer.save_huggingface(tmp_path, SPECIAL_TOKENS)
    added = {"_start_": 5, "_delimiter_": 6, "_classify_": 7}
    assert json.loads((tmp_path / "added_tokens.json").read_text(encoding="utf-8")) == added
    logging.set_verbosity(logging.INFO)
    with caplog.at_level("INFO"):
        assert tokenizers.load(tmp_path) == tokenizer
    assert str(added) in caplog.text
    with pytest.raises(InputError, match=r"special_tokens=\['a'\]: names must differ"):
        tokenizer.save_huggingface(tmp_path / "again", ["a"])
    with pytest.raises(InputError, match="names must differ"):
        tokenizer.save_huggingface(tmp_path / "again", ["x", "x"])
    assert not (tmp_path / "again").exists()


def test_other_added_tokens_are_refused(exported):
    (exported / "added_tokens.json").write_text('{"[PAD]": 7}', encoding="utf-8")
    with pytest.raises(InputError, match=r"has added tokens {'\[PAD\]': 7}; only ids that follow .*\(from 5\)"):
        tokenizers.load(exported)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("tokenizer.json", {"added_tokens": [3]}),
        ("tokenizer.json", {"added_tokens": [{"content": "x"}]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"5": "a"}}),
    ],
)
def test_damaged_added_tokens_are_refused(exported, name, damage):
    rewrite(exported / name, **damage)
    with pytest.raises(InputError, match=rf"{name}: the added token .* is damaged; it should be"):
        tokenizers.load(exported)


def test_other_tokenizers_of_hugging_face_are_refused(exported):
    rewrite(exported / "tokenizer_config.json", tokenizer_class="CLIPTokenizer")
    with pytest.raises(InputError, match="tokenizer_class='CLIPTokenizer' is not GPT-1's"):
        tokenizers.load(exported)
    rewrite(exported / "tokenizer_config.json", tokenizer_class="OpenAIGPTTokenizer")
    (exported / "merges.txt").unlink()
    with_suffix = json.loads((exported / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    for changes in ({"end_of_word_suffix": None}, {"type": "WordPiece"}):
        rewrite(exported / "tokenizer.json", model={**with_suffix, **changes})
        with pytest.raises(InputError, match=r"tokenizer\.json: is not a GPT-1 tokenizer"):
            tokenizers.load(exported)
    rewrite(exported / "tokenizer.json", model={**with_suffix, "merges": [["a", "b</w>"], ["a"]]})
    with pytest.raises(InputError, match=r"tokenizer\.json: merge 1 is \['a'\]"):
        tokenizers.load(exported)
    (exported / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"tokenizer\.json: is not a JSON object"):
        tokenizers.load(exported)
    (exported / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"vocab\.json: without merges\.txt beside it"):
        tokenizers.load(exported)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ({"a": 1, "b</w>": 2, "ab</w>": 0}, "needs '<unk>' with id 0"),
        ({"<unk>": 0, "a": 1, "b</w>": 2, "ab</w>": 0}, "needs '<unk>' with id 0, and that id for nothing else"),
        ({"<unk>": 0, "ab</w>": 1}, "missing are 'a', 'b</w>'"),
    ],
)
def test_what_transformers_cannot_read_is_not_exported(folder, ids, message):
    (folder / "model" / "encoder_bpe_1.json").write_text(json.dumps(ids), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        tokenizers.load(folder).save_huggingface(folder / "hf")
    assert not (folder / "hf").exists()


@pytest.mark.parity
@pytest.mark.parametrize("special_tokens", [(), SPECIAL_TOKENS])
def test_transformers_loads_what_was_exported(toy, cases, tmp_path, special_tokens):
    transformers = pytest.importorskip("transformers", reason="the round trip needs transformers")
    toy.save_huggingface(tmp_path, special_tokens)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(theirs) == toy.vocab_size + len(special_tokens)
    assert theirs.convert_tokens_to_ids(list(special_tokens)) == [
        toy.vocab_size + i for i in range(len(special_tokens))
    ]
    case = next(case for case in cases if case["text"].isascii() and case["ids"] == case["hf_fast_ids"])
    assert theirs(case["text"])["input_ids"] == case["toy_ids"]
