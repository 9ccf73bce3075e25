"""The task head: what it reads, and what it does not depend on."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_params

from gpt1_jax.errors import InputError
from gpt1_jax.losses import mask_answers, task_nll, task_outputs
from gpt1_jax.model import GPT1, GPT1Config, ReadOut

CONFIG = GPT1Config(
    vocab_size=50,
    n_special=3,
    n_ctx=8,
    n_embd=16,
    n_head=2,
    n_layer=1,
    **{f"{name}_pdrop": 0.0 for name in ("embd", "attn", "resid", "clf")},
)
DROPPING = dataclasses.replace(CONFIG, clf_pdrop=0.5)  # at the task head only
READ_OUTS = {
    "classification": ReadOut("classification", ("no", "yes", "maybe")),
    "entailment": ReadOut("entailment", ("entails", "neutral", "contradicts")),
    "similarity": ReadOut("similarity", ("different", "same")),
    "multiple_choice": ReadOut("multiple_choice"),
}
STREAMS = {"classification": 1, "entailment": 1, "similarity": 2, "multiple_choice": 4}


def batch(n_streams: int, n_rows: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50, (n_rows, n_streams, 8), np.int32)
    np.put_along_axis(tokens, rng.integers(2, 8, (n_rows, n_streams, 1)), CONFIG.extract_id, axis=2)
    return {
        "tokens": tokens,
        "mask": np.ones(tokens.shape, np.float32),
        "stream_mask": np.ones((n_rows, n_streams), bool),
        "label": np.zeros(n_rows, np.int32),
        "weight": np.ones(n_rows, np.float32),
    }


@functools.cache
def compiled(kind: str, config: GPT1Config = CONFIG) -> Any:
    """(batch, key) -> outputs of a model of that kind; dropout where a key is given."""
    model = GPT1(config, READ_OUTS[kind])
    params = random_params(model)
    run = jax.jit(functools.partial(task_outputs, model, params))
    return lambda batch, key=None: run(batch, key=key)


@pytest.mark.parametrize("kind", READ_OUTS)
def test_shapes(kind):
    given = batch(STREAMS[kind])
    out = compiled(kind)(given)
    assert out["logits"].shape == (5, {"similarity": 2, "multiple_choice": 4}.get(kind, 3))
    assert out["logits"].dtype == jnp.float32
    assert out["task_nll"].shape == (5,)
    assert out["lm_nll"].shape == (5, STREAMS[kind], 7)
    rounded = compiled(kind, dataclasses.replace(CONFIG, dtype="bfloat16"))(given)
    assert {x.dtype.name for x in rounded.values()} == {"float32"}
    np.testing.assert_allclose(rounded["logits"], out["logits"], rtol=0, atol=0.1)
    expected = -jax.nn.log_softmax(out["logits"])[np.arange(5), given["label"]]
    np.testing.assert_allclose(out["task_nll"], expected, rtol=1e-5)


@pytest.mark.parametrize("config", [CONFIG, DROPPING], ids=["evaluation", "training"])
def test_order_of_the_answers_does_not_matter(config):
    """Also in training: the answers of an example share the head's dropout mask."""
    run, key = compiled("multiple_choice", config), None if config == CONFIG else jax.random.key(0)
    given = batch(4)
    out = run(given, key)
    for order in ([3, 1, 0, 2], [1, 0, 2, 3]):
        shuffled = run(given | {"tokens": given["tokens"][:, order]}, key)
        np.testing.assert_allclose(shuffled["logits"], out["logits"][:, np.array(order)], rtol=0, atol=1e-6)
        assert (np.array(order)[shuffled["logits"].argmax(1)] == out["logits"].argmax(1)).all()


@pytest.mark.parametrize("config", [CONFIG, DROPPING], ids=["evaluation", "training"])
def test_similarity_is_symmetric(config):
    run, key = compiled("similarity", config), None if config == CONFIG else jax.random.key(0)
    given = batch(2)
    swapped = run(given | {"tokens": given["tokens"][:, ::-1]}, key)
    np.testing.assert_allclose(swapped["logits"], run(given, key)["logits"], rtol=0, atol=1e-6)


def test_head_dropout_differs_between_examples_and_keys():
    run = compiled("multiple_choice", DROPPING)
    same = batch(4)
    same["tokens"][:] = same["tokens"][:1]
    first, second = (run(same, jax.random.key(seed))["logits"] for seed in (0, 1))
    assert np.abs(first[1:] - first[:1]).max() > 1e-2
    assert np.abs(first - second).max() > 1e-2
    plain = run(same)["logits"]
    np.testing.assert_array_equal(plain, compiled("multiple_choice")(same)["logits"])


@pytest.mark.parametrize("kind", READ_OUTS)
def test_reads_the_first_extract_token_and_nothing_after_it(kind):
    given = batch(STREAMS[kind])
    run = compiled(kind)
    tokens = given["tokens"]
    at = (tokens == CONFIG.extract_id).argmax(-1)
    after = np.arange(8) > at[..., None]
    assert after.any()
    expected = run(given)["logits"]
    for later in (0, CONFIG.extract_id):
        out = run(given | {"tokens": np.where(after, later, tokens)})["logits"]
        np.testing.assert_array_equal(out, expected)
    before = np.where(np.arange(8) == at[..., None] - 1, (tokens + 1) % 50, tokens)
    assert (np.abs(run(given | {"tokens": before})["logits"] - expected).max(-1) > 1e-4).all()


def test_without_an_extract_token_position_zero_is_read():
    given = batch(1)
    given["tokens"] %= 50
    changed = given | {"tokens": np.where(np.arange(8) > 0, 7, given["tokens"])}
    run = compiled("classification")
    np.testing.assert_array_equal(run(changed)["logits"], run(given)["logits"])


PLAIN = dataclasses.replace(CONFIG, n_special=0)


def last_token_model(kind: str) -> GPT1:
    return GPT1(PLAIN, dataclasses.replace(READ_OUTS[kind], read_at="last"))


@pytest.mark.parametrize("kind", READ_OUTS)
def test_the_last_real_token_is_read(kind):
    """Without special tokens: what is padded neither matters nor moves what is read, on its own and in a batch."""
    model = last_token_model(kind)
    params = random_params(model)
    run = jax.jit(functools.partial(task_outputs, model, params))
    given = batch(STREAMS[kind])
    given["tokens"] %= 50
    lengths = np.random.default_rng(3).choice([1, 5, 8], given["tokens"].shape[:2])
    lengths[0] = 8
    given["mask"] = (np.arange(8) < lengths[..., None]).astype(np.float32)
    out = run(given)
    other = run(given | {"tokens": np.where(given["mask"] > 0, given["tokens"], 49 - given["tokens"])})
    np.testing.assert_allclose(other["logits"], out["logits"], rtol=0, atol=1e-6)
    scaled = run(given | {"mask": given["mask"] * 1e-3})
    np.testing.assert_array_equal(scaled["logits"], out["logits"])

    features = jax.jit(lambda tokens: model.apply({"params": params}, tokens, method=GPT1.features)[0])

    def alone(row: int) -> np.ndarray:
        """Every stream by itself, as long as it is; then W_y in NumPy."""
        read = []
        for stream, length in zip(given["tokens"][row], lengths[row], strict=True):
            read.append(features(stream[None, :length])[0, -1])
        if kind == "similarity":
            read = [sum(read)]
        logits = np.stack(read) @ params["clf"]["kernel"] + params["clf"]["bias"]
        return logits[:, 0] if kind == "multiple_choice" else logits[0]

    for row in range(3):
        np.testing.assert_allclose(out["logits"][row], alone(row), rtol=0, atol=1e-5)


def test_the_token_that_is_read_can_be_given():
    model = last_token_model("multiple_choice")
    params = random_params(model)
    tokens = batch(4)["tokens"] % 50
    h = np.random.default_rng(2).normal(size=(*tokens.shape, 16)).astype(np.float32)
    run = functools.partial(model.apply, {"params": params}, h, tokens, method=GPT1.task_logits)
    np.testing.assert_array_equal(run(), run(at=np.full((5, 4), 7)))
    at = np.random.default_rng(4).integers(0, 8, (5, 4))
    read = np.take_along_axis(h, at[..., None, None], axis=2)[:, :, 0]
    expected = read @ params["clf"]["kernel"][:, 0] + params["clf"]["bias"]
    np.testing.assert_allclose(run(at=at), expected, rtol=0, atol=1e-5)


def test_missing_answers_never_win():
    """They take no probability, whatever their logit, and neither they nor their content is noticed."""
    given, run = batch(4), compiled("multiple_choice")
    given["stream_mask"] = np.arange(4) < np.array([2, 3, 4, 1, 2])[:, None]
    full, out = run(given | {"stream_mask": np.ones((5, 4), bool)}), run(given)
    missing = ~given["stream_mask"]
    assert missing[np.arange(5), full["logits"].argmax(1)].any(), "the test needs a missing answer that would win"
    assert (~missing[np.arange(5), out["logits"].argmax(1)]).all()
    assert (np.asarray(jax.nn.softmax(out["logits"]))[missing] == 0).all()
    for row, n in enumerate(given["stream_mask"].sum(1)):
        alone = -jax.nn.log_softmax(full["logits"][row, :n])[0]
        np.testing.assert_allclose(out["task_nll"][row], alone, rtol=1e-5, atol=1e-6)
    other = run(given | {"tokens": np.where(missing[..., None], 3, given["tokens"])})
    np.testing.assert_array_equal(other["task_nll"], out["task_nll"])


def test_gradient_of_missing_answers_is_zero():
    logits, mask = jnp.array([[1.0, 2.0, 50.0]]), jnp.array([[True, True, False]])
    value, gradient = jax.value_and_grad(lambda x: task_nll(x, jnp.array([0]), mask)[0])(logits)
    assert value == pytest.approx(np.log(1 + np.e))
    np.testing.assert_allclose(gradient[0], [1 / (1 + np.e) - 1, np.e / (1 + np.e), 0], atol=1e-6)
    assert (mask_answers(logits, None) == logits).all()


def test_all_streams_of_other_kinds_are_real():
    """`stream_mask` masks answers, not classes: with one stream and three classes it is not looked at."""
    given, run = batch(1), compiled("classification")
    missing = given | {"stream_mask": np.zeros((5, 1), bool)}
    np.testing.assert_array_equal(run(missing)["logits"], run(given)["logits"])


def test_head_without_bias():
    model = GPT1(dataclasses.replace(CONFIG, clf_bias=False), READ_OUTS["classification"])
    assert set(random_params(model)["clf"]) == {"kernel"}
    assert set(random_params(GPT1(CONFIG, READ_OUTS["classification"]))["clf"]) == {"kernel", "bias"}


BAD = [
    (lambda: ReadOut("ranking"), r"kind='ranking' is unknown; use one of \['classification', .*'multiple_choice'\]"),
    (lambda: ReadOut("classification"), r"labels=\[\]: kind='classification' needs at least two label names"),
    (lambda: ReadOut("similarity", ("same",)), r"labels=\['same'\]: kind='similarity' needs at least two label names"),
    (
        lambda: random_params(GPT1(dataclasses.replace(CONFIG, n_special=0), ReadOut("multiple_choice"))),
        r"n_special=0: a model with a task head needs n_special=3, or read_at='last' in its readout",
    ),
    (lambda: ReadOut("multiple_choice", read_at="end"), r"read_at='end' is unknown; use one of \['extract', 'last'\]"),
    (
        lambda: GPT1(CONFIG).apply(
            {"params": {}}, np.zeros((1, 1, 2, 16)), np.zeros((1, 1, 2), np.int32), method=GPT1.task_logits
        ),
        r"this model has no task head; build it as GPT1\(config, readout=ReadOut\(...\)\)",
    ),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message[:25] for _, message in BAD])
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_labels_become_a_tuple():
    assert hash(ReadOut("classification", ["a", "b"])) == hash(ReadOut("classification", ("a", "b")))
    assert READ_OUTS["classification"].n_outputs == 3
    assert ReadOut("multiple_choice", ("A", "B", "C", "D")).n_outputs == 1
