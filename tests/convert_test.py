"""Between the three formats and back: every byte returns, logits are compared, and what is left out is said."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from gpt1_jax import GPT1, InputError, ReadOut, convert, load_pretrained, save_pretrained
from gpt1_jax.pretrained import format_of
from gpt1_jax.warm_start import add_special_rows


@pytest.fixture(scope="module")
def openai_folder(goldens: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The weights that the original program started from, in its files, and the number of heads."""
    z = np.load(goldens / "e2e" / "e2e.npz")
    folder = tmp_path_factory.mktemp("openai") / "model"
    folder.mkdir()
    (folder / "params_shapes.json").write_text(str(z["pretrained/shapes_json"]))
    for key in z.files:
        if key.startswith("pretrained/params_"):
            np.save(folder / f"{key.removeprefix('pretrained/')}.npy", z[key])
    for name in ("toy_encoder_bpe.json", "toy_vocab.bpe"):
        shutil.copy(goldens / name, folder)
    arguments = json.loads(str(z["argv_json"]))
    return folder, int(arguments[arguments.index("--n_head") + 1])


@pytest.mark.parametrize("between", ["gpt1_jax", "huggingface"])
def test_openai_to_another_format_and_back_returns_every_byte(openai_folder, tmp_path, between):
    folder, n_head = openai_folder
    done = convert.run(folder, tmp_path / "other", between, n_head=n_head)
    assert (done.source_format, format_of(tmp_path / "other")) == ("openai", between)
    assert done.left_out == ()
    back = convert.run(tmp_path / "other", tmp_path / "back", "openai")
    assert "tokenizer" not in {path.name for path in (tmp_path / "back").iterdir()}
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "back" / path.name).read_bytes(), path.name
    assert f"n_head={n_head}" in str(back)


@pytest.mark.parametrize("between", ["huggingface", "openai"])
def test_ours_to_another_format_and_back_returns_every_byte(pretrained, tmp_path, between):
    convert.run(pretrained, tmp_path / "other", between)
    n_head = load_pretrained(pretrained)[0].config.n_head
    convert.run(tmp_path / "other", tmp_path / "back", "gpt1_jax", n_head=n_head)
    model, params, tokenizer = load_pretrained(pretrained)
    again, again_params, again_tokenizer = load_pretrained(tmp_path / "back")
    jax.tree.map(np.testing.assert_array_equal, params, again_params)
    assert again_tokenizer.fingerprint == tokenizer.fingerprint
    assert again.config == model.config


def fine_tuned(pretrained: Path, kind: str, labels: tuple[str, ...] = ()):
    model, params, tokenizer = load_pretrained(pretrained)
    config, params = add_special_rows(model.config, jax.device_get(params), 0)
    readout = ReadOut(kind, labels)
    clf = GPT1(config, readout).init(jax.random.key(0), np.zeros((1, 1), np.int32))["params"]["clf"]
    return GPT1(config, readout), {**params, "clf": clf}, tokenizer


@pytest.mark.parametrize("kind", ["classification", "multiple_choice"])
def test_a_fine_tuned_model_comes_back_from_hugging_face_whole(pretrained, tmp_path, kind):
    model, params, tokenizer = fine_tuned(pretrained, kind, ("no", "yes"))
    save_pretrained(tmp_path / "ours", model, params, tokenizer)
    convert.run(tmp_path / "ours", tmp_path / "theirs", "huggingface")
    again, again_params, _ = load_pretrained(tmp_path / "theirs")
    assert again == model
    jax.tree.map(np.testing.assert_array_equal, params, again_params)


def test_openai_s_layout_has_no_room_for_what_fine_tuning_adds(pretrained, tmp_path):
    model, params, tokenizer = fine_tuned(pretrained, "classification", ("no", "yes"))
    save_pretrained(tmp_path / "ours", model, params, tokenizer)
    done = convert.run(tmp_path / "ours", tmp_path / "theirs", "openai")
    assert done.model.config.n_special == 0
    assert "left out" in str(done)
    assert "special rows" in str(done)
    assert "the task head" in str(done)


@pytest.mark.parametrize("format", ["gpt1_jax", "huggingface", "openai"])
def test_the_approximate_tokenizer_stays_approximate(openai_folder, tmp_path, format):
    folder, n_head = openai_folder
    done = convert.run(folder, tmp_path / "target", format, n_head=n_head, approximate=True)
    assert done.tokenizer.variant == "approximate"


def test_a_model_that_the_format_cannot_express_leaves_nothing(pretrained, tmp_path):
    model, params, tokenizer = fine_tuned(pretrained, "similarity", ("no", "yes"))
    with pytest.raises(InputError, match="kind='similarity'"):
        save_pretrained(tmp_path / "theirs", model, params, tokenizer, format="huggingface")
    save_pretrained(tmp_path / "theirs", model, params, tokenizer)  # the folder can be used


def test_an_activation_that_the_layout_does_not_say_is_named(pretrained, tmp_path):
    model, params, tokenizer = load_pretrained(pretrained)
    model = GPT1(dataclasses.replace(model.config, activation="relu"))
    save_pretrained(tmp_path / "ours", model, params, tokenizer)
    done = convert.run(tmp_path / "ours", tmp_path / "theirs", "openai")
    assert "activation='relu'" in str(done)
    assert done.model == model


@pytest.mark.parametrize("setting", [{"softmax_over_positions": True}, {"dtype": "bfloat16"}, {"embd_pdrop": 0.3}])
def test_settings_that_the_layout_does_not_say_are_named_and_not_taken_for_other_weights(pretrained, tmp_path, setting):
    model, params, tokenizer = load_pretrained(pretrained)
    model = GPT1(dataclasses.replace(model.config, **setting))
    save_pretrained(tmp_path / "ours", model, params, tokenizer)
    [(name, value)] = setting.items()
    assert f"of the config {name}={value!r}" in str(convert.run(tmp_path / "ours", tmp_path / "theirs", "openai"))


def test_weights_that_compute_something_else_are_found(pretrained):
    model, params, _ = load_pretrained(pretrained)
    other = jax.tree.map(lambda x: x + 0, params)
    other["h_1"]["mlp"]["c_fc"]["bias"] = other["h_1"]["mlp"]["c_fc"]["bias"] + 1e-3
    with pytest.raises(RuntimeError, match="self-check"):
        convert._compare(model, params, model, other)


def test_weights_without_a_tokenizer_are_loaded_and_say_so_when_text_is_wanted(openai_folder, tmp_path):
    folder, n_head = openai_folder
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare, ignore=shutil.ignore_patterns("*bpe*"))
    _, _, tokenizer = load_pretrained(bare, n_head=n_head)
    with pytest.raises(InputError, match="tokenizer"):
        tokenizer.encode("a text")
    convert.run(bare, tmp_path / "ours", "gpt1_jax", n_head=n_head)
    with pytest.raises(InputError, match="tokenizer"):
        load_pretrained(tmp_path / "ours")[2].encode("a text")
    convert.run(bare, tmp_path / "whole", "gpt1_jax", n_head=n_head, tokenizer=folder)
    assert load_pretrained(tmp_path / "whole")[2].vocab_size == tokenizer.vocab_size


def test_what_contradicts_the_weights_is_refused(openai_folder, pretrained, tmp_path):
    folder, n_head = openai_folder
    with pytest.raises(InputError, match="step=3"):
        load_pretrained(folder, n_head=n_head, step=3)
    convert.run(folder, tmp_path / "ours", "gpt1_jax", n_head=n_head)
    with pytest.raises(InputError, match=r"n_head=1: .* n_head="):
        load_pretrained(tmp_path / "ours", n_head=1)
    with pytest.raises(InputError, match="vocab_size"):
        load_pretrained(folder, n_head=n_head, tokenizer=load_pretrained(pretrained)[2])
