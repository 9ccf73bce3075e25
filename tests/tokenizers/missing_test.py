import pickle

import pytest

from gpt1_jax import tokenizers
from gpt1_jax.errors import InputError
from gpt1_jax.tokenizers import MissingTokenizer


def test_it_fulfils_the_protocol_and_survives_saving_and_pickling(tmp_path):
    tokenizer = MissingTokenizer(97, "weights/here")
    assert isinstance(tokenizer, tokenizers.Tokenizer)
    tokenizer.save(tmp_path)
    loaded = tokenizers.load(tmp_path)
    assert (type(loaded), loaded.vocab_size, loaded.fingerprint) == (MissingTokenizer, 97, tokenizer.fingerprint)
    assert loaded.fingerprint != MissingTokenizer(98, "").fingerprint
    assert pickle.loads(pickle.dumps(tokenizer)) == tokenizer
    assert tokenizer.document_separator == ()


@pytest.mark.parametrize("use", [lambda t: t.encode("a"), lambda t: t.encode_batch(["a"]), lambda t: t.decode([0])])
def test_text_is_refused_with_the_remedy(use):
    with pytest.raises(InputError, match=r"^weights/here: .*vocab_40000\.bpe.*merges\.txt.* of 97 ids"):
        use(MissingTokenizer(97, "weights/here"))


def test_a_damaged_marker_is_named(tmp_path):
    (tmp_path / "gpt1_tokenizer.json").write_text('{"type": "missing"}', encoding="utf-8")
    with pytest.raises(InputError, match=r"gpt1_tokenizer\.json: vocab_size=None"):
        tokenizers.load(tmp_path)
