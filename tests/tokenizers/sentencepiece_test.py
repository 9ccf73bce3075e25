import concurrent.futures
import json
import pickle
import random
import subprocess
import sys
import unicodedata

import pytest
from absl import logging
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt1_jax import tokenizers
from gpt1_jax.errors import InputError
from gpt1_jax.tokenizers.sentencepiece import SentencePieceTokenizer, _sample, train_sentencepiece

SENTENCES = [
    f"The {a} {b} {c} the {d}." + end
    for a in ("old", "young", "quiet")
    for b in ("captain", "gardener", "teacher", "miller")
    for c in ("opened", "painted", "left", "remembered")
    for d in ("window", "garden", "letter", "house")
    for end in ("", " Nobody knew why.\nThen it rained.")
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizer")


@pytest.fixture(scope="module")
def tokenizer(directory) -> SentencePieceTokenizer:
    return train_sentencepiece(SENTENCES, directory, vocab_size=360)


@pytest.fixture(scope="module")
def cased(tmp_path_factory) -> SentencePieceTokenizer:
    return train_sentencepiece(SENTENCES, tmp_path_factory.mktemp("cased"), vocab_size=360, lowercase=False)


def test_fulfils_the_protocol(tokenizer):
    assert isinstance(tokenizer, tokenizers.Tokenizer)
    assert tokenizer.vocab_size == 360


def test_decoding_gives_the_training_text_back_but_for_case(tokenizer, cased):
    for text in SENTENCES:
        assert tokenizer.decode(tokenizer.encode(text)) == text.lower()
        assert cased.decode(cased.encode(text)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("  two  spaces, and one at the end ", None),
        ("\n\nblank lines\n\n\n", None),
        ("unseen: 你好 🎉 Ωμέγα naïve", None),
        ("</s> and <unk> and <0x41> are text", None),
        ("tab\there", "tab here"),
        ("two\r\nlines", "two\nlines"),
        ("ﬁne ｗｉｄｅ", "fine wide"),
        ("a\u2581b", "a b"),
    ],
)
def test_normalisation_is_the_documented_one(cased, text, expected):
    assert cased.decode(cased.encode(text)) == (text if expected is None else expected)


@settings(deadline=None, max_examples=200)
@given(st.text(st.characters(categories=("L", "N", "P", "S"), include_characters=" \n", exclude_characters="\u2581")))
def test_any_text_survives_up_to_nfkc(cased, text):
    assert unicodedata.normalize("NFKC", cased.decode(cased.encode(text))) == unicodedata.normalize("NFKC", text)


def test_case_is_folded_only_if_asked(tokenizer, cased):
    assert tokenizer.encode("THE OLD Captain") == tokenizer.encode("the old captain")
    assert cased.encode("THE OLD Captain") != cased.encode("the old captain")


def test_line_end_is_one_token(tokenizer):
    with_line_end, without = tokenizer.encode("the house.\nthe"), tokenizer.encode("the house. the")
    assert with_line_end != without
    [line_end] = set(with_line_end) - set(tokenizer.encode("the house.the"))
    assert tokenizer.decode([line_end]) == "\n"


def test_separator_is_in_no_text_and_decodes_to_nothing(tokenizer):
    [separator] = tokenizer.document_separator
    assert not any(separator in tokenizer.encode(text) for text in [*SENTENCES, "</s>", "<s>"])
    assert tokenizer.decode([separator]) == ""
    ids = tokenizer.encode("the house.")
    assert tokenizer.decode([*ids, separator]) == "the house."


def test_long_texts_have_the_ids_that_sentencepiece_gives(tokenizer, cased, tmp_path):
    """Cutting a text for speed changes nothing, wherever the cuts fall."""
    rng = random.Random(0)
    spaced = [sentence.replace(" ", " " * rng.randint(1, 8)) for sentence in SENTENCES]
    with_runs_of_spaces = train_sentencepiece(spaced, tmp_path, vocab_size=360)
    assert len(with_runs_of_spaces.encode("the" + " " * 8 + "house")) < 8
    plain = map(chr, range(ord("!"), ord("~") + 1))
    pieces = [
        *plain,
        "the",
        "house",
        "Captain",
        '"the',
        "(a)",
        "\r\n",
        "\t",
        "\u2581",
        "ö",
        "e\u0301",
        "\u0301",
        "ﬁ",
        "１",
        " ",
        "   ",
        "\n",
        "a" * 30,
    ]
    for trained in (tokenizer, cased, with_runs_of_spaces):
        for text in [*(" ".join(rng.choices(pieces, k=3000)) for _ in range(20)), "house " * 3000, "house" * 2000]:
            assert trained.encode(text) == trained._processor.Encode(text.replace("\r\n", "\n"))


def test_few_words_are_kept_and_threads_share_them(tokenizer, directory, monkeypatch):
    monkeypatch.setattr("gpt1_jax.tokenizers.sentencepiece._KEPT_BYTES", 1000)
    fresh = tokenizers.load(directory)  # which remembers nothing yet
    texts = [f"{sentence} {i}" for i, sentence in enumerate(SENTENCES)]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(fresh.encode, texts))
    assert ids == tokenizer._processor.Encode(texts)
    assert fresh.encode(texts[0]) == ids[0]
    assert 0 < len(fresh._words._ids) < len(set(" ".join(texts).split()))  # 1000 bytes are not all words


def test_batch_is_one_by_one(tokenizer):
    texts = [SENTENCES[0], "", "house " * 3000, SENTENCES[1]]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch([]) == []


def test_training_is_deterministic_and_the_fingerprint_tells_models_apart(tokenizer, cased, tmp_path):
    again = train_sentencepiece(iter(SENTENCES), tmp_path, vocab_size=360)
    assert again.model == tokenizer.model
    assert again.fingerprint == tokenizer.fingerprint
    other = train_sentencepiece(SENTENCES, tmp_path, vocab_size=350)
    assert len({tokenizer.fingerprint, cased.fingerprint, other.fingerprint}) == 3


def test_saved_loaded_and_pickled_is_the_same(tokenizer, directory, tmp_path):
    assert tokenizers.load(directory) == tokenizer
    tokenizer.save(tmp_path / "workdir" / "tokenizer")
    for path in (tmp_path / "workdir", str(tmp_path / "workdir" / "tokenizer")):
        assert tokenizers.load(path).fingerprint == tokenizer.fingerprint
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode(SENTENCES[0]) == tokenizer.encode(SENTENCES[0])


def test_load_says_what_is_wrong(tokenizer, tmp_path):
    with pytest.raises(InputError, match="no folder"):
        tokenizers.load(tmp_path / "absent")
    with pytest.raises(InputError, match=r"has no gpt1_tokenizer\.json"):
        tokenizers.load(tmp_path)
    tokenizer.save(tmp_path)
    model, marker = tmp_path / "sentencepiece.model", tmp_path / "gpt1_tokenizer.json"
    good = model.read_bytes()
    model.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(InputError, match="is not the model that"):
        tokenizers.load(tmp_path)
    model.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        tokenizers.load(tmp_path)
    marker.write_text(json.dumps({"type": "morse"}), encoding="utf-8")
    with pytest.raises(InputError, match=r"type='morse', known are .*sentencepiece"):
        tokenizers.load(tmp_path)
    marker.write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="damaged"):
        tokenizers.load(tmp_path)


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
        ([], {}, "no text"),
        ([" \n "], {}, "no text"),
        (SENTENCES, {"vocab_size": 40_000}, r"vocab_size=40000: too large for this text .* at most \d+ pieces"),
        (SENTENCES, {"vocab_size": 200}, r"vocab_size=200: too small for this text: \d+ are needed"),
    ],
)
def test_impossible_training_is_explained(tmp_path, texts, settings, message):
    with pytest.raises(InputError, match=message):
        train_sentencepiece(texts, tmp_path / "tokenizer", **settings)
    assert not (tmp_path / "tokenizer").exists()


def test_the_largest_vocabulary_that_is_named_can_be_had(tmp_path):
    with pytest.raises(InputError) as error:
        train_sentencepiece(SENTENCES, tmp_path)
    largest = int(str(error.value).split("at most ")[1].split()[0])
    assert train_sentencepiece(SENTENCES, tmp_path, vocab_size=largest).vocab_size == largest


def test_ids_out_of_range_are_refused(tokenizer):
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(InputError, match=f"{wrong} is not in the vocabulary"):
            tokenizer.decode([0, wrong])


def test_sample_is_uniform_capped_and_in_order():
    units = [f"{i:010d}" for i in range(1000)]
    everything, total = _sample(units, 10_000, seed=0)
    assert (everything, total) == (units, 10_000)
    sample, total = _sample(units, 3_000, seed=0)
    assert (len(sample), total) == (300, 10_000)
    assert sample == sorted(sample)
    assert sample == _sample(iter(units), 3_000, seed=0)[0] != _sample(units, 3_000, seed=1)[0]
    assert 100 < sum(int(unit) < 500 for unit in sample) < 200


def test_a_capped_sample_is_logged(tmp_path, caplog):
    logging.set_verbosity(logging.INFO)
    with caplog.at_level("INFO"):
        train_sentencepiece(SENTENCES, tmp_path, vocab_size=330, max_training_bytes=4000)
    assert "learning from a sample of 0.00398 of 0.0201 MB (max_training_bytes=4000)" in caplog.text


def test_importing_starts_nothing():
    code = """
import sys
import gpt1_jax.tokenizers
import gpt1_jax.data.windows, gpt1_jax.data.prepare, gpt1_jax.data.sources, gpt1_jax.data.tfds_source
assert "tensorflow" not in sys.modules and "tensorflow_datasets" not in sys.modules
from jax.extend import backend
import jax
jax.config.update("jax_platforms", "no_such_platform")  # too late once a backend was started
try:
    jax.devices()
except RuntimeError:
    print("nothing was started")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "nothing was started\n"


def test_half_of_a_surrogate_pair_is_refused(tokenizer, tmp_path):
    with pytest.raises(InputError, match=r"texts\[1\]: 'the .ud83d house' holds half of a surrogate pair"):
        tokenizer.encode_batch(["the house", "the \ud83d house"])
    with pytest.raises(InputError, match=r"texts\[1\]: .* holds half of a surrogate pair"):
        train_sentencepiece(["the house", "the \ud83d house"], tmp_path, vocab_size=300)
