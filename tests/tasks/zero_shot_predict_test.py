"""Thresholds, labels and metrics; and a language model that has read enough to answer."""

import dataclasses
import functools
import json

import jax
import numpy as np
import optax
import pytest

from gpt1_jax import GPT1, GPT1Config
from gpt1_jax.errors import InputError
from gpt1_jax.losses import lm_nll_sum
from gpt1_jax.tasks.examples import Example
from gpt1_jax.tasks.metrics import METRICS
from gpt1_jax.tasks.zero_shot import make_heuristic, prompt
from gpt1_jax.tasks.zero_shot_predict import choose_threshold, zero_shot, zero_shot_task

GOOD, BAD = ("lovely", "warm", "superb"), ("dull", "cold", "stale")
THINGS = ("film", "cast", "music")
WORDS = ("<end>", *GOOD, *BAD, *THINGS, "a", "with", "very", "positive", "negative", "so", "it", "pleased", "bored")


@dataclasses.dataclass(frozen=True)
class WordTokenizer:
    """The words above; any other is the last one."""

    document_separator: tuple[int, ...] = (0,)
    vocab_size: int = len(WORDS) + 1

    def encode_batch(self, texts):
        return [[WORDS.index(w) if w in WORDS else len(WORDS) for w in text.split()] for text in texts]


def review(rng, words):
    a, b = rng.choice(words, 2)
    x, y = rng.choice(THINGS, 2)
    return f"a {a} {x}" + rng.choice(["", f" with {b} {y}"])


def documents(n, seed):
    """Reviews that end with what they say."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        word, verb, words = (("negative", "bored", BAD), ("positive", "pleased", GOOD))[i % 2]
        yield f"{review(rng, words)} " + (f"very {word}" if i // 2 % 2 else f"so it {verb}")


@pytest.fixture(scope="module")
def reader():
    """A model that has read 1600 of them five times."""
    tokenizer = WordTokenizer()
    model = GPT1(GPT1Config(vocab_size=tokenizer.vocab_size, n_ctx=16, n_embd=32, n_head=2, n_layer=1))
    params = model.init(jax.random.key(0), np.zeros((1, 1), np.int32))["params"]
    optimizer = optax.adam(optax.cosine_decay_schedule(2e-2, 250))
    loss = jax.value_and_grad(functools.partial(lm_nll_sum, model))

    @jax.jit
    def step(params, state, tokens):
        _, grads = loss(params, {"tokens": tokens, "mask": np.ones(tokens.shape, np.float32)})
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state

    rows = np.zeros((1600, 11), np.int32)
    for row, ids in zip(rows, tokenizer.encode_batch(list(documents(1600, 0))), strict=True):
        row[1 : len(ids) + 1] = ids
    state = optimizer.init(params)
    for batch in np.tile(rows, (5, 1)).reshape(-1, 32, 11):
        params, state = step(params, state, batch)
    return model, params, tokenizer


def reviews(n=20, seed=1):
    rng = np.random.default_rng(seed)
    labels = ("negative", "positive")
    return [
        Example(str(i), {"text": review(rng, (BAD, GOOD)[i % 2])}, labels[i % 2], f"r.csv:{i + 2}") for i in range(n)
    ]


def test_sentiment_is_read_off_the_next_word(reader):
    result = zero_shot(*reader, reviews(), "sst2", metrics=("accuracy", "f1"))
    assert result.metrics["accuracy"] == 1.0
    assert result.labels == ["negative", "positive"] * 10
    assert result.threshold is None
    # The model's own distribution after "very", restricted to the two words.
    model, params, tokenizer = reader
    ids = [0, *tokenizer.encode_batch([reviews()[0].fields["text"] + " very"])[0]]
    logits = np.asarray(model.apply({"params": params}, np.array([ids])))[0, -1].astype(np.float64)
    pair = logits[[WORDS.index("negative"), WORDS.index("positive")]]
    np.testing.assert_allclose(result.probabilities[0], np.exp(pair) / np.exp(pair).sum(), atol=1e-5)
    np.testing.assert_allclose(result.scores[0], pair - np.log(np.exp(logits).sum()), atol=1e-5)


def test_a_prompt_of_the_users_own(reader):
    heuristic = prompt("{text} so it {label}", {"-": "bored", "+": "pleased"})
    texts = [example.fields["text"] for example in reviews()]
    result = zero_shot(*reader, texts, heuristic)
    assert result.labels == ["-", "+"] * 10
    assert result.metrics == {}  # texts have no labels
    assert zero_shot(*reader, texts, heuristic, labels=("+", "-")).labels == result.labels


def test_the_label_may_come_first(reader):
    heuristic = prompt("{label} film with {text}", {"-": "a dull", "+": "a lovely"})
    texts = ["cold music so it bored", "warm cast very positive"]
    assert zero_shot(*reader, texts, heuristic).labels == ["-", "+"]


def test_answers_may_be_ragged_and_in_any_order(reader):
    questions = [("a lovely film with warm cast", 1), ("a dull film with stale music", 0)]
    answers = ["negative", "positive", "it film"]
    values = [
        {"context": text, "question": "very", "answers": answers[: 2 + i]} for i, (text, _) in enumerate(questions)
    ]
    result = zero_shot(*reader, values, "race")
    assert result.labels == ["1", "0"]
    assert result.probabilities[0, 2] == 0
    assert result.scores[0, 2] == -np.inf
    np.testing.assert_allclose(result.probabilities.sum(axis=1), 1)

    turned = zero_shot(*reader, [value | {"answers": value["answers"][::-1]} for value in values], "race")
    np.testing.assert_array_equal(turned.scores[1], result.scores[1, ::-1])
    np.testing.assert_array_equal(turned.scores[0, :2], result.scores[0, 1::-1])
    assert turned.labels == ["0", "2"]


def test_mean_and_total(reader):
    values = [{"context": "a lovely film with warm cast", "question": "", "answers": ["very positive", "so"]}]
    total, mean = (
        zero_shot(*reader, values, make_heuristic("multiple_choice", score=score)).scores[0]
        for score in ("total", "mean")
    )
    np.testing.assert_allclose(mean, total / [2, 1], rtol=1e-6)


def test_winograd_compares_the_rest_of_the_text(reader):
    values = [
        {"context": "a [it] film very positive", "question": "", "answers": ["dull", "warm"]},
        {"context": "a _ cast so it bored", "question": "", "answers": ["stale", "superb"]},
    ]
    result = zero_shot(*reader, values, "winograd")
    assert result.labels == ["1", "0"]
    model, params, tokenizer = reader
    (ids,) = tokenizer.encode_batch(["<end> a warm film very positive"])
    log_p = np.asarray(jax.nn.log_softmax(model.apply({"params": params}, np.array([ids])))[0])
    assert result.scores[0, 1] == pytest.approx(np.mean([log_p[t - 1, ids[t]] for t in (3, 4, 5)]), rel=1e-4)


def sentences(n, seed):
    """Reviews, and the same words in any order."""
    rng = np.random.default_rng(seed)
    for i, text in enumerate(documents(n, seed)):
        words = text.split()
        yield (" ".join(rng.permutation(words)) if i % 3 else text), str(int(i % 3 == 0))


def test_acceptability_by_a_threshold_of_the_training_rows(custom, reader, tmp_path, caplog):
    for name, n, seed in (("train", 60, 3), ("dev", 30, 4)):
        rows = [json.dumps({"text": text, "label": int(label)}) for text, label in sentences(n, seed)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    spec = custom(train=tmp_path / "train.jsonl", validation=tmp_path / "dev.jsonl", metrics=("matthews", "accuracy"))
    with caplog.at_level("INFO", logger="absl"):
        result = zero_shot_task(*reader, spec, "cola", ("validation",))
    assert list(result) == ["validation"]
    assert result["validation"].metrics["matthews"] > 0.9
    assert "on 60 training examples" in caplog.text

    labelled = [Example(str(i), {"text": text}, label) for i, (text, label) in enumerate(sentences(60, 3))]
    texts = [text for text, _ in sentences(30, 4)]
    again = zero_shot(*reader, texts, "cola", train=labelled)
    assert again.threshold == pytest.approx(result["validation"].threshold, rel=1e-5)
    assert again.labels == result["validation"].labels
    assert again.probabilities.shape == (30, 2)
    given = zero_shot(*reader, texts, "cola", threshold=again.scores[7, 0])
    assert given.labels == [str(int(score > again.scores[7, 0])) for score in again.scores[:, 0]]
    assert given.labels[7] == "0"


@pytest.mark.parametrize(
    ("scores", "labels", "metric", "threshold"),
    [
        ([-4.0, -3.0, -2.0, -1.0], [0, 0, 1, 1], "matthews", -2.5),
        ([-1.0, -3.0, -2.0, -4.0], [1, 0, 1, 0], "accuracy", -2.5),  # the order says nothing
        ([-4.0, -2.0, -3.0, -1.0], [0, 0, 1, 1], "accuracy", -3.5),  # -3.5 and -1.5 both give 3 of 4
        ([-2.0, -2.0, -1.0], [0, 1, 1], "accuracy", -3.0),  # equal scores stay together; 2 of 3 either way
        ([-3.0, -2.0, -1.0], [0, 0, 0], "accuracy", 0.0),
        ([-3.0, -2.0, -1.0], [1, 1, 1], "f1", -4.0),
        ([-3.0, -2.0], [1, 0], "matthews", -4.0),  # nothing is better than 0
    ],
)
def test_thresholds_by_hand(scores, labels, metric, threshold):
    assert choose_threshold(np.array(scores), np.array(labels), metric) == threshold


@pytest.mark.parametrize("metric", ["matthews", "accuracy", "f1"])
def test_no_threshold_is_better(metric):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 40)
    scores = np.round(labels + 1.5 * rng.standard_normal(40), 1)  # with ties
    grid = np.linspace(scores.min() - 0.5, scores.max() + 0.5, 1001)

    def value(threshold):
        above = scores > threshold
        return METRICS[metric](labels, np.stack([~above, above], axis=1).astype(float))

    best = max(map(value, grid))
    chosen = choose_threshold(scores, labels, metric)
    assert value(chosen) == pytest.approx(best)
    assert all(value(threshold) < best - 1e-9 for threshold in np.unique(scores) - 0.05 if threshold < chosen - 0.06)


def test_what_cannot_be_asked(custom, reader, tmp_path):
    with pytest.raises(InputError, match="single example"):
        zero_shot(*reader, "a film", "sst2")
    with pytest.raises(InputError, match="no examples"):
        zero_shot(*reader, [], "sst2")
    with pytest.raises(InputError, match="needs training examples with labels, or the threshold itself"):
        zero_shot(*reader, ["a film"], "cola")
    with pytest.raises(InputError, match="at least two names are needed"):
        zero_shot(*reader, ["a film"], "{text} {label}")
    with pytest.raises(InputError, match="the first, which may be 'matthews', 'accuracy', 'f1'"):
        zero_shot(*reader, ["a film"], "cola", train=reviews(2), labels=("negative", "positive"), metrics=("pearson",))
    with pytest.raises(InputError, match=r"r.csv:2: label 'negative' is not one of '0', '1'"):
        zero_shot(*reader, reviews(2), "sst2", labels=("0", "1"))
    model, params, tokenizer = reader
    with pytest.raises(InputError, match="the tokenizer has 5 tokens"):
        zero_shot(model, params, dataclasses.replace(tokenizer, vocab_size=5), ["a film"], "sst2")
    for bad, message in [(reviews(0), "there are none"), ([2, 0], "two classes")]:
        with pytest.raises(InputError, match=message):
            choose_threshold(np.zeros(len(bad)), np.array(bad))
    with pytest.raises(InputError, match="metric='pearson'"):
        choose_threshold(np.zeros(2), np.array([0, 1]), "pearson")
    (tmp_path / "a.csv").write_text("text,label\na film,0\n")
    spec = custom(test=tmp_path / "a.csv", labels=("0", "1"))
    with pytest.raises(InputError, match="'custom' is 'classification'; choose another heuristic"):
        zero_shot_task(*reader, spec, "race", ("test",))
    with pytest.raises(InputError, match="chooses its threshold on training rows"):
        zero_shot_task(*reader, spec, "cola", ("test",))
