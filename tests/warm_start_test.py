"""What fine-tuning starts from: which weights are kept, and which are drawn anew."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from gpt1_jax import load_pretrained, save_pretrained
from gpt1_jax.errors import InputError
from gpt1_jax.model import GPT1, GPT1Config, ReadOut
from gpt1_jax.warm_start import ModelOptions, add_special_rows, starting_point

SENTIMENT = ReadOut("classification", ("negative", "positive"))


@pytest.fixture(scope="module")
def with_head(pretrained, tmp_path_factory):
    """A folder with a model that was fine-tuned for `SENTIMENT`."""
    model, params, tokenizer = load_pretrained(pretrained)
    config, params = add_special_rows(model.config, params, seed=5)
    head = {"kernel": np.full((config.n_embd, 2), 0.25, np.float32), "bias": np.array([1.0, -1.0], np.float32)}
    folder = tmp_path_factory.mktemp("models") / "sentiment"
    save_pretrained(folder, GPT1(config, SENTIMENT), {**params, "clf": head}, tokenizer)
    return folder


def start(folder, n_transfer=None, **options):
    return starting_point(ModelOptions(**options), init_from=folder, tokenizer=None, seed=0, n_transfer=n_transfer)


def test_a_head_for_the_same_labels_is_kept(with_head, caplog):
    with caplog.at_level("INFO", logger="absl"):
        kept = start(with_head).for_task(SENTIMENT)
    assert "taken over" in caplog.text
    np.testing.assert_array_equal(kept.params["clf"]["bias"], [1.0, -1.0])
    assert kept.readout == SENTIMENT


@pytest.mark.parametrize(
    "readout",
    [
        ReadOut("classification", ("positive", "negative")),
        ReadOut("classification", ("negative", "neutral", "positive")),
        ReadOut("entailment", ("negative", "positive")),
    ],
)
def test_a_head_for_another_question_is_drawn_anew(with_head, readout, caplog):
    with caplog.at_level("INFO", logger="absl"):
        anew = start(with_head).for_task(readout)
    assert "drawn anew" in caplog.text
    assert "clf" not in anew.params
    assert "h_0" in anew.params
    assert anew.readout == readout


def test_a_head_of_another_shape_is_drawn_anew(with_head, caplog):
    with caplog.at_level("INFO", logger="absl"):
        anew = start(with_head, clf_bias=False).for_task(SENTIMENT)
    assert "drawn anew" in caplog.text
    assert "clf" not in anew.params


def test_a_language_model_has_no_head_and_gets_its_special_rows(pretrained):
    begun = start(pretrained, softmax_over_positions=True, embedding_dropout="table", n_ctx=20).for_task(SENTIMENT)
    assert "clf" not in begun.params
    config = begun.config
    assert (config.n_special, config.n_ctx, config.softmax_over_positions) == (3, 20, True)
    assert config.embedding_dropout == "table"
    shorter = begun.with_n_ctx(9)
    assert shorter.config.n_ctx == len(shorter.params["positions_embed"]["embedding"]) == 9
    shapes = jax.eval_shape(GPT1(shorter.config, shorter.readout).init, jax.random.key(0), np.zeros((1, 1), np.int32))
    for name, given in shorter.params.items():
        jax.tree.map(lambda a, b: np.testing.assert_equal(a.shape, b.shape), dict(given), dict(shapes["params"][name]))


def test_openai_s_folder_is_told_its_number_of_heads(pretrained, tmp_path):
    model, params, tokenizer = load_pretrained(pretrained)
    save_pretrained(tmp_path / "openai", model, params, tokenizer, format="openai")
    common = {"init_from": tmp_path / "openai", "tokenizer": None, "seed": 0}
    start = starting_point(ModelOptions(n_head=model.config.n_head), **common)
    assert start.config.n_head == model.config.n_head
    with pytest.raises(InputError, match="give n_head"):
        starting_point(ModelOptions(), **common)
    with pytest.raises(InputError, match=r"model\.n_head=2 contradicts"):
        starting_point(ModelOptions(n_head=2), **(common | {"init_from": pretrained}))


def test_from_scratch_everything_is_drawn(pretrained):
    scratch = starting_point(ModelOptions(n_embd=16, n_head=2), init_from=None, tokenizer=str(pretrained), seed=0)
    assert scratch.params is None
    assert scratch.with_n_ctx(7).config.n_ctx == 7
    with pytest.raises(InputError, match=r"config\.tokenizer is empty"):
        starting_point(ModelOptions(), init_from=None, tokenizer=None, seed=0)


def test_the_first_blocks_are_taken_over_and_the_rest_is_left_out(with_head):
    """Those that are not there are drawn; a task head stays with the last block."""
    _, source, tokenizer = load_pretrained(with_head)
    embeddings = {"tokens_embed", "positions_embed"}
    kept = {0: embeddings, 1: embeddings | {"h_0"}, 2: set(source), None: set(source)}
    for n_transfer, names in kept.items():
        begun = start(with_head, n_transfer)
        assert set(begun.params) == names
        for name in names:
            jax.tree.map(np.testing.assert_array_equal, dict(begun.params[name]), dict(source[name]))
        assert (begun.readout == SENTIMENT) == ("clf" in names)
        assert begun.tokenizer.fingerprint == tokenizer.fingerprint
    nothing = start(with_head, -1)
    assert (nothing.params, nothing.readout) == (None, None)
    assert nothing.config == start(with_head).config
    assert nothing.for_task(SENTIMENT).with_n_ctx(9).config.n_ctx == 9


def test_blocks_that_are_not_there(with_head, pretrained):
    with pytest.raises(InputError, match=r"n_transfer=3: .* has 2 blocks; use 0 to 2, or -1 for nothing at all"):
        start(with_head, 3)
    with pytest.raises(InputError, match="n_transfer=1: there is nothing to transfer from; give init_from"):
        starting_point(ModelOptions(), init_from=None, tokenizer=str(pretrained), seed=0, n_transfer=1)


def test_options_are_all_of_the_network_but_its_special_rows():
    fields = {field.name for field in dataclasses.fields(GPT1Config)}
    assert {field.name for field in dataclasses.fields(ModelOptions)} == fields - {"n_special"}
    config = GPT1Config(n_layer=3, dtype="bfloat16", embd_pdrop=0.0)
    assert GPT1Config(**ModelOptions.of(config).given()) == config
    assert ModelOptions().given() == {}
