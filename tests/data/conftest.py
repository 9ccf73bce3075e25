"""A small corpus, and a tokenizer trained on it."""

import random

import pytest

from gpt1_jax.tokenizers import Tokenizer, train_sentencepiece

_WORDS = [
    *("the", "a", "this", "that", "old", "new", "red", "blue", "small", "large", "house", "river", "morning", "window"),
    *("letter", "garden", "friend", "captain", "story", "night", "walked", "said", "saw", "opened", "remembered"),
    *("carried", "lost", "found", "gave", "quietly", "slowly", "never", "always", "again", "and", "but", "then"),
]


def make_texts(n: int, seed: int = 0) -> list[str]:
    """Makes documents of one to a few sentences, some of them with line ends and letters beyond ASCII."""
    rng = random.Random(seed)
    texts = []
    for number in range(n):
        sentences = [
            " ".join(rng.choices(_WORDS, k=rng.randint(3, 12))).capitalize() + "." for _ in range(rng.randint(1, 5))
        ]
        texts.append(rng.choice([" ", "\n"]).join(sentences) + rng.choice(["", " Café.", f" No. {number}."]))
    return texts


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return make_texts(300)


@pytest.fixture(scope="session")
def tokenizer(texts, tmp_path_factory) -> Tokenizer:
    return train_sentencepiece(texts, tmp_path_factory.mktemp("tokenizer"), vocab_size=400)
