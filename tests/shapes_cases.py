"""What shapes_test.py runs with the annotations checked (see shapes.py): wrong calls, and all that a run calls."""

import importlib

import jax
import jax.numpy as jnp
import pytest
import shapes
from jaxtyping import TypeCheckError

from gpt1_jax import (
    attention,
    cross_entropy,
    drawing,
    finetune,
    generate,
    load_pretrained,
    losses,
    optim,
    predict,
    pretrain,
    scores,
)
from gpt1_jax.dropout import keep_mask
from gpt1_jax.kernels.xla import visible
from gpt1_jax.model import GPT1, GPT1Config
from gpt1_jax.model_config import ReadOut

X = jnp.zeros((2, 5, 2, 4))
HIDDEN, TABLE, TOKENS = jnp.zeros((2, 5, 8)), jnp.zeros((30, 8)), jnp.zeros((2, 5), jnp.int32)
ONE = jnp.ones(())
SIZES = {"vocab_size": 30, "n_ctx": 8, "n_embd": 8, "n_head": 2, "n_layer": 1}


def call_model(tokens: jax.Array) -> None:
    jax.eval_shape(GPT1(GPT1Config(**SIZES)).init_with_output, jax.random.key(0), tokens)


WRONG = {
    "heads of q and k": lambda: attention.causal_attention(X, X[:, :, :1], X),
    "tokens and hidden states": lambda: cross_entropy.next_token_nll(HIDDEN, TABLE, TOKENS[:, :4], n_rows=30),
    "weights of all tokens": lambda: cross_entropy.weighted_nll(HIDDEN, TABLE, TOKENS, jnp.ones((2, 5)), 30),
    "labels of other examples": lambda: losses.task_nll(jnp.zeros((2, 3)), jnp.zeros((1,), jnp.int32)),
    "scores as a column": lambda: scores.soft_targets(
        jnp.zeros((2, 1)), ReadOut("similarity", score_range=(0.0, 5.0), score_points=6)
    ),
    "one key for two rows": lambda: drawing.draw(
        TABLE[:2], jax.random.split(jax.random.key(0), 1), ONE, TOKENS[0, 0], ONE
    ),
    "rows without a batch": lambda: keep_mask(jnp.zeros((2,), jnp.uint32), TOKENS, (2, 5), 0.1),
    "a mask of other slots": lambda: visible(None, 5, jnp.ones((2, 4), bool)),
    "several steps": lambda: optim.make_schedule(optim.OptimizerConfig(), 3000)(jnp.arange(2)),
    "tokens that are no numbers of a row": lambda: call_model(TOKENS[0]),
    "tokens that are no integers": lambda: call_model(jnp.zeros((2, 5))),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_wrong_shapes_and_types_are_refused(call):
    with pytest.raises(TypeCheckError):
        call()


@pytest.mark.parametrize("changes", [{}, {"trunk": "lstm", "lstm_units": 16}], ids=str)
def test_a_run(changes, pretrain_settings, corpus, tmp_path):
    """Right calls are not: pre-training, evaluation, fine-tuning, generation, prediction."""
    settings = pretrain_settings(model=changes, n_steps=2, optimizer={"warmup_steps": 1})
    pretrain.run(settings, tmp_path / "books")
    model, params, tokenizer = load_pretrained(tmp_path / "books")
    assert isinstance(generate(model, params, tokenizer, "a film", max_new_tokens=3, top_k=5, top_p=0.9, seed=0), str)
    task = {"train": [str(corpus / "validation.csv")], "validation_fraction": 0.5, "fields": {"text": "text"}}
    config = {"task": task, "epochs": 1, "batch_size": 8, "optimizer": {"warmup_fraction": 0.5}}
    result = finetune.run(config, tmp_path / "labels", init_from=tmp_path / "books")
    labels, _ = predict(result.model, result.params, result.tokenizer, ["a wonderful film"])
    assert labels[0] in ("negative", "positive")


@pytest.mark.parametrize("name", shapes.MODULES)
def test_every_module_there_is_checked(name):
    """A name that is misspelt there would check nothing."""
    module = importlib.import_module(f"gpt1_jax.{name}")
    assert "jaxtyping" in type(module.__spec__.loader).__module__
