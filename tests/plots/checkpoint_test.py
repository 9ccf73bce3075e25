"""Pictures of what a model has learned and does with a prompt."""

import numpy as np
import pytest
from helpers import random_params

from gpt1_jax import GPT1, GPT1Config, load_pretrained, save_pretrained
from gpt1_jax.errors import InputError
from gpt1_jax.plots.checkpoint import prompt_figures, write_plots

PNG = b"\x89PNG\r\n\x1a\n"
RUN = ["gradient_norm", "loss", "perplexity", "speed"]


def names(paths):
    assert all(path.read_bytes().startswith(PNG) for path in paths)
    return sorted(path.stem for path in paths)


@pytest.fixture(scope="module")
def openai(small_run, tmp_path_factory):
    """The folder of another program's weights, as the release has it."""
    folder = tmp_path_factory.mktemp("openai") / "model"
    save_pretrained(folder, *load_pretrained(small_run), format="openai")
    return folder


def test_a_run_its_model_and_a_prompt(small_run, tmp_path):
    odd = "the $x$ <b>\U0001f600 שלום"
    paths = write_plots(small_run, tmp_path / "new", [odd])
    prompts = [f"prompt_1_{name}" for name in ("heads", "layers", "next")]
    assert names(paths) == sorted([*RUN, "positions", "tokens", "token_norms", *prompts])
    assert all(path.parent == tmp_path / "new" for path in paths)
    paths[0].with_name("prompt_2_next.png").touch()  # of a time before, with more prompts
    assert names(write_plots(small_run, tmp_path / "new", ["the"])) == names(list(tmp_path.glob("new/*.png")))
    with pytest.raises(InputError, match=r"output=.*is a file; name a folder"):
        write_plots(small_run, paths[0])


def test_a_folder_without_a_run_needs_one_for_the_pictures(openai, tmp_path):
    with pytest.raises(InputError, match=r"output: .* is no workdir on this machine"):
        write_plots(openai)
    with pytest.raises(InputError, match="n_head"):  # the release has 12, which is taken for granted
        write_plots(openai, tmp_path)


def test_a_prompt_that_is_too_long_is_refused_before_anything_is_drawn(small_run, tmp_path):
    with pytest.raises(InputError, match="tokens long, and n_ctx=32"):
        write_plots(small_run, tmp_path, ["the film", "the " * 40])
    assert not list(tmp_path.iterdir())


def test_the_figures_of_a_prompt_show_the_models_numbers(small_run):
    model, params, tokenizer = load_pretrained(small_run)
    tokens = tokenizer.encode("the film ,")
    figures = dict(prompt_figures(model, params, tokenizer, tokens))
    heads = figures["heads"].axes
    assert len([axes for axes in heads if axes.images and axes.images[0].get_array().shape == (len(tokens),) * 2]) == 8
    assert [axes.get_title() for axes in figures["layers"].axes[:2]] == ["layer 1", "layer 2"]
    texts = [text.get_text() for text in figures["next"].axes[0].texts]
    logits = np.asarray(model.apply({"params": params}, np.array([tokens])))[0]
    first = tokenizer.decode([*tokens, int(logits[-1].argmax())])[len(tokenizer.decode(tokens)) :]
    assert first.strip() in "".join(texts)
    assert "rank" in texts


def test_a_model_without_attention(small_run):
    model = GPT1(GPT1Config(vocab_size=300, n_ctx=8, n_embd=8, n_head=2, trunk="lstm", lstm_units=8))
    tokenizer = load_pretrained(small_run)[2]
    assert [name for name, _ in prompt_figures(model, random_params(model), tokenizer, [1, 2, 3])] == ["next"]
