"""OpenAI's folder: every array at its place, every byte there and back, every damage named."""

import json
import math
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from helpers import random_params

from gpt1_jax.errors import InputError
from gpt1_jax.interop.openai_folder import (
    entries_from_shapes,
    is_openai_folder,
    load_openai,
    openai_folder,
    save_openai,
    shapes_text,
)
from gpt1_jax.model import GPT1, GPT1Config, ReadOut

N_CTX, VOCAB, D, HEADS, LAYERS = 5, 30, 12, 3, 2
CONFIG = GPT1Config(vocab_size=VOCAB, n_ctx=N_CTX, n_embd=D, n_head=HEADS, n_layer=LAYERS)
BLOCK = [[1, D, 3 * D], [3 * D], [1, D, D], [D], [D], [D], [1, D, 4 * D], [4 * D], [1, 4 * D, D], [D], [D], [D]]
SHAPES = [[N_CTX, D], [VOCAB, D], *BLOCK, *BLOCK]
PLACES = [  # of a block's arrays in our tree
    *(
        ("attn", "c_attn", "kernel"),
        ("attn", "c_attn", "bias"),
        ("attn", "c_proj", "kernel"),
        ("attn", "c_proj", "bias"),
    ),
    *(("ln_1", "scale"), ("ln_1", "bias")),
    *(("mlp", "c_fc", "kernel"), ("mlp", "c_fc", "bias"), ("mlp", "c_proj", "kernel"), ("mlp", "c_proj", "bias")),
    *(("ln_2", "scale"), ("ln_2", "bias")),
]


def values_of(shapes: list[list[int]]) -> np.ndarray:
    return np.random.default_rng(1).normal(size=sum(map(math.prod, shapes))).astype(np.float32)


def put(folder: Path, shapes: Any = SHAPES, n_files: int = 10) -> Path:
    """The folder as the release has it."""
    folder.mkdir(parents=True)
    (folder / "params_shapes.json").write_text(json.dumps(shapes), encoding="utf-8")
    for i, part in enumerate(np.array_split(values_of(shapes), n_files)):
        np.save(folder / f"params_{i}.npy", part)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def arrays_in_order(params: Any, config: GPT1Config) -> list[np.ndarray]:
    """Our arrays in the order of the file."""
    blocks = []
    for i in range(config.n_layer):
        for place in PLACES:
            node = params[f"h_{i}"]
            for key in place:
                node = node[key]
            blocks.append(node)
    tokens = params["tokens_embed"]["embedding"]
    np.testing.assert_array_equal(tokens[config.vocab_size :], 0)
    return [params["positions_embed"]["embedding"], tokens[: config.vocab_size], *blocks]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return put(tmp_path / "model")


# --- There and back -------------------------------------------------------------------------------------------------


def test_every_array_is_at_its_place(folder):
    config, params = load_openai(folder, n_head=HEADS)
    assert config == CONFIG
    arrays = arrays_in_order(params, config)
    assert len(arrays) == len(SHAPES) == len(jax.tree.leaves(params))
    np.testing.assert_array_equal(np.concatenate([array.reshape(-1) for array in arrays]), values_of(SHAPES))
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}


def test_the_tree_is_the_models(folder):
    config, params = load_openai(folder, n_head=HEADS)
    wanted = random_params(GPT1(config))
    assert jax.tree.structure(params) == jax.tree.structure(wanted)
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, wanted)


def test_every_byte_comes_back(folder, tmp_path):
    save_openai(tmp_path / "again", *load_openai(folder, n_head=HEADS))
    assert contents(tmp_path / "again") == contents(folder)


def test_ours_to_openai_to_ours(tmp_path):
    params = random_params(GPT1(CONFIG))
    save_openai(tmp_path / "model", CONFIG, jax.tree.map(jax.numpy.asarray, params))
    config, again = load_openai(tmp_path, n_head=HEADS)
    assert config == CONFIG
    jax.tree.map(np.testing.assert_array_equal, again, params)


@pytest.mark.parametrize("n_files", [1, 2, 13])
@pytest.mark.parametrize("n_layer", [0, 1])
def test_folders_of_other_programs(tmp_path, n_files, n_layer):
    """Any number of files, and projections without the leading 1; saved as the release would have it."""
    shapes = [[N_CTX, D], [VOCAB, D], *([shape[-2:] for shape in BLOCK] * n_layer)]
    put(tmp_path / "theirs", shapes, n_files)
    put(tmp_path / "release", [[N_CTX, D], [VOCAB, D], *BLOCK * n_layer])
    config, params = load_openai(tmp_path / "theirs")
    assert (config.n_layer, config.n_head) == (n_layer, 12)
    save_openai(tmp_path / "again", config, params)
    assert contents(tmp_path / "again") == contents(tmp_path / "release")


def test_the_folder_or_its_parent(folder, tmp_path):
    assert openai_folder(folder) == openai_folder(tmp_path) == folder
    first, second = (load_openai(path, n_head=HEADS) for path in (folder, str(tmp_path)))
    assert first[0] == second[0]
    jax.tree.map(np.testing.assert_array_equal, first[1], second[1])
    (tmp_path / "empty").mkdir()
    for path in ("empty", "nowhere", "model/params_0.npy"):
        assert not is_openai_folder(tmp_path / path)


@pytest.mark.parametrize("keep", ["params_shapes.json", "params_7.npy"])
def test_a_folder_with_a_part_is_one(folder, keep):
    for path in folder.iterdir():
        if path.name != keep:
            path.unlink()
    assert is_openai_folder(folder)
    with pytest.raises(InputError, match=r"params_0\.npy: is missing|params_shapes\.json: cannot be read"):
        load_openai(folder, n_head=HEADS)


def test_what_the_format_cannot_hold_is_dropped_with_a_warning(folder, tmp_path, caplog):
    readout = ReadOut("classification", ("a", "b"))
    config = GPT1Config(
        vocab_size=VOCAB, n_special=3, n_ctx=N_CTX, n_embd=D, n_head=HEADS, n_layer=LAYERS, activation="relu"
    )
    params = random_params(GPT1(config, readout))
    save_openai(tmp_path / "out", config, params)
    for lost in ("the 3 special rows", "the task head", "activation='relu'", "n_head=3 (give it when loading)"):
        assert f"{tmp_path / 'out'}: OpenAI's layout has no place for {lost}; left out" in caplog.text
    loaded, again = load_openai(tmp_path / "out", n_head=HEADS)
    assert loaded == CONFIG
    tokens = params["tokens_embed"]["embedding"]
    np.testing.assert_array_equal(again["tokens_embed"]["embedding"][:VOCAB], tokens[:VOCAB])
    np.testing.assert_array_equal(again["positions_embed"]["embedding"], params["positions_embed"]["embedding"])
    assert set(params) - set(again) == {"clf"}

    caplog.clear()
    save_openai(tmp_path / "again", GPT1Config(vocab_size=VOCAB, n_ctx=N_CTX, n_embd=D, n_layer=0), {
        name: value for name, value in again.items() if not name.startswith("h_")
    })  # fmt: skip
    assert "left out" not in caplog.text


# --- The released files ---------------------------------------------------------------------------------------------


@pytest.fixture
def released_shapes() -> bytes:
    folder = os.environ.get("GPT1_OPENAI_DIR")
    if not folder:
        pytest.skip("GPT1_OPENAI_DIR, the folder with the released vocabulary and shapes, is not set")
    return (Path(folder) / "params_shapes.json").read_bytes()


def test_the_released_shapes_to_the_byte(released_shapes):
    assert shapes_text(GPT1Config()).encode() == released_shapes
    entries = entries_from_shapes(json.loads(released_shapes), "here")
    assert sum(math.prod(shape) for _, shape in entries) == 116_534_784
    assert entries[-1] == ("model/h11/ln_2/b", [768])


@pytest.mark.slow
def test_the_released_size(released_shapes, tmp_path):
    put(tmp_path / "model", json.loads(released_shapes))
    config, params = load_openai(tmp_path)
    assert config == GPT1Config()
    save_openai(tmp_path / "again", config, params)
    for path in (tmp_path / "model").iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.slow
def test_a_sample_made_by_others(tmp_path):
    """AllenNLP's test fixture: two files, projections without the leading 1, width 10, two heads."""
    wheel = "allennlp==0.9.0"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries=1", "--timeout=15"]
    done = subprocess.run([*pip, f"--dest={tmp_path}", wheel], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip cannot download {wheel}: {done.stderr.strip().splitlines()[-1:]}")
    with zipfile.ZipFile(next(tmp_path.glob("allennlp-*.whl"))) as archive:
        sample = archive.extract("allennlp/tests/fixtures/openai_transformer/transformer_small.tar.gz", tmp_path)
    with pytest.raises(InputError, match=r"is a file, expected a folder .* unpack an archive first"):
        load_openai(sample)
    shutil.unpack_archive(sample, tmp_path / "sample")
    with pytest.raises(InputError, match=r"n_embd=10 is not divisible by 12, .* give n_head"):
        load_openai(tmp_path / "sample")
    config, params = load_openai(tmp_path / "sample", n_head=2)
    assert config == GPT1Config(vocab_size=50, n_ctx=50, n_embd=10, n_head=2, n_layer=2)
    theirs = np.concatenate([np.load(tmp_path / "sample" / "model" / f"params_{i}.npy") for i in range(2)])
    ours = np.concatenate([array.reshape(-1) for array in arrays_in_order(params, config)])
    np.testing.assert_array_equal(ours, theirs)
    save_openai(tmp_path / "again", config, params)
    again = np.concatenate([np.load(tmp_path / "again" / f"params_{i}.npy") for i in range(10)])
    np.testing.assert_array_equal(again, theirs)


@pytest.mark.parity
def test_the_weights_of_the_originals_run(goldens, tmp_path):
    """The files that the original program read, written as it had them: every array at its place, every byte back."""
    with np.load(goldens / "e2e" / "e2e.npz") as golden:
        shapes_json = str(golden["pretrained/shapes_json"])
        argv = json.loads(str(golden["argv_json"]))
        n_files = sum(key.startswith("pretrained/params_") for key in golden.files)
        parts = [golden[f"pretrained/params_{i}"] for i in range(n_files)]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "params_shapes.json").write_text(shapes_json, encoding="utf-8")
    for i, part in enumerate(parts):
        np.save(tmp_path / "model" / f"params_{i}.npy", part)
    n_head = int(argv[argv.index("--n_head") + 1]) if "--n_head" in argv else None
    config, params = load_openai(tmp_path, n_head=n_head)
    shapes = json.loads(shapes_json)
    assert [[config.n_ctx, config.n_embd], [config.vocab_size, config.n_embd]] == shapes[:2]
    arrays = arrays_in_order(params, config)
    vector = np.concatenate(parts)
    start = 0
    for i, (array, shape) in enumerate(zip(arrays, shapes, strict=True)):
        stop = start + math.prod(shape)
        np.testing.assert_array_equal(array.reshape(shape), vector[start:stop].reshape(shape), err_msg=f"entry {i}")
        start = stop
    assert start == len(vector)
    save_openai(tmp_path / "again", config, params)
    assert contents(tmp_path / "again") == contents(tmp_path / "model")


# --- Damage ---------------------------------------------------------------------------------------------------------


def replaced(i: int, *shapes: Any) -> list[Any]:
    return [*SHAPES[:i], *shapes, *SHAPES[i + 1 :]]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"a": 1}, r'holds {"a": 1}, expected a list of shapes'),
        ([], r"entry 0 \(position rows\) is missing, there are 0 entries, expected \[n_ctx, n_embd\]"),
        (SHAPES[:1], r"entry 1 \(token rows\) is missing, there are 1 entries, expected \[vocab_size, 12\]"),
        (replaced(0, [N_CTX]), r"entry 0 \(position rows\) is \[5\], expected \[n_ctx, n_embd\]"),
        (replaced(0, [N_CTX, 0]), r"entry 0 \(position rows\) is \[5, 0\]"),
        (replaced(0, "512"), r'entry 0 \(position rows\) is "512"'),
        (replaced(0, [True, D]), r"entry 0 \(position rows\) is \[true, 12\]"),
        (replaced(1, [VOCAB, 13]), r"entry 1 \(token rows\) is \[30, 13\], expected \[vocab_size, 12\]"),
        (replaced(1, None), r"entry 1 \(token rows\) is null"),
        (replaced(2, [1, D, 2 * D]), r"entry 2 \(model/h0/attn/c_attn/w\) is \[1, 12, 24\], expected \[1, 12, 36\]"),
        (replaced(3, [1, 3 * D]), r"entry 3 \(model/h0/attn/c_attn/b\) is \[1, 36\], expected \[36\]"),
        (replaced(3, [36.0]), r"entry 3 \(model/h0/attn/c_attn/b\) is \[36\.0\], expected \[36\]"),
        (replaced(7), r"entry 7 \(model/h0/ln_1/b\) is \[1, 12, 48\], expected \[12\]"),
        (SHAPES[:-1], r"entry 25 \(model/h1/ln_2/b\) is missing, there are 25 entries, expected \[12\]"),
        ([*SHAPES, [D, 1], [1]], r"entry 26 \(model/h2/attn/c_attn/w\) is \[12, 1\], expected \[1, 12, 36\]"),
        (replaced(4, [1] * 99), r"entry 4 \(model/h0/attn/c_proj/w\) is \[1, 1, 1, .*\.\.\., expected \[1, 12, 12\]"),
    ],
)
def test_the_first_shape_that_does_not_fit_is_named(folder, shapes, message):
    (folder / "params_shapes.json").write_text(json.dumps(shapes), encoding="utf-8")
    with pytest.raises(InputError, match=message) as error:
        load_openai(folder, n_head=HEADS)
    assert str(error.value).startswith(f"{folder}/params_shapes.json: ")
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("content", [b"", b"[[5, 12], [30", b"\xff\xfe[]", b"<html>", b"[" * 100_000])
def test_shapes_that_are_not_json(folder, content):
    (folder / "params_shapes.json").write_bytes(content)
    with pytest.raises(InputError, match=r"params_shapes\.json: is not JSON in UTF-8 .* download it again"):
        load_openai(folder, n_head=HEADS)


def test_shapes_that_are_missing(folder):
    (folder / "params_shapes.json").unlink()
    with pytest.raises(InputError, match=r"params_shapes\.json: cannot be read \(No such file or directory\)"):
        load_openai(folder, n_head=HEADS)


def test_shapes_that_ask_for_more_than_any_memory(folder):
    (folder / "params_shapes.json").write_text(json.dumps([[10**35, D], *SHAPES[1:]]))
    with pytest.raises(InputError, match=rf"hold {len(values_of(SHAPES))} values, .* asks for 12\d{{35}}; a file"):
        load_openai(folder, n_head=HEADS)


def test_the_last_file_is_missing(folder):
    (folder / "params_9.npy").unlink()
    n = len(values_of(SHAPES))
    with pytest.raises(InputError, match=rf"params_0.npy to params_8.npy hold \d+ values, .* asks for {n}; a file is"):
        load_openai(folder, n_head=HEADS)


def test_a_file_too_many(folder):
    np.save(folder / "params_10.npy", np.zeros(7, np.float32))
    n = len(values_of(SHAPES))
    with pytest.raises(
        InputError,
        match=rf"params_0.npy to params_10.npy hold {n + 7} values, .* asks for {n}; params_9.npy ends just there",
    ):
        load_openai(folder, n_head=HEADS)


def test_a_file_of_another_model(folder):
    np.save(folder / "params_4.npy", np.zeros(7, np.float32))
    with pytest.raises(InputError, match="or they belong to different models"):
        load_openai(folder, n_head=HEADS)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("file", "place", "name"),
    [
        (0, 0, "position rows"),
        (0, N_CTX * D, "token rows"),
        (5, 3, "model/h0/mlp/c_proj/w"),
        (9, -1, "model/h1/ln_2/b"),
    ],
)
def test_a_value_that_is_not_finite(folder, value, file, place, name):
    values = np.load(folder / f"params_{file}.npy")
    values[place] = value
    np.save(folder / f"params_{file}.npy", values)
    with pytest.raises(InputError, match=rf"params_{file}\.npy: {name} holds {value}, all values must be finite"):
        load_openai(folder, n_head=HEADS)


def test_heads_that_do_not_fit(tmp_path):
    put(tmp_path / "model", [[4, 10], [6, 10]])
    with pytest.raises(InputError, match=r"n_embd=10 is not divisible by 12, the released .* give n_head"):
        load_openai(tmp_path)
    with pytest.raises(InputError, match=r"n_embd=10 is not divisible by n_head=3"):
        load_openai(tmp_path, n_head=3)
    assert load_openai(tmp_path, n_head=5)[0].n_head == 5


def test_a_path_without_such_a_folder(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.tar.gz").touch()
    for name, message in {
        "empty": "has no params_shapes.json and no params_0.npy",
        "modle": f"no such folder; did you mean {folder}",
        "xyz": "no such folder; check the path",
        "model.tar.gz": "is a file, expected a folder .* unpack",
    }.items():
        with pytest.raises(InputError, match=f"{tmp_path}/{name}: {message}"):
            load_openai(tmp_path / name)


# --- Writing --------------------------------------------------------------------------------------------------------


def test_weights_are_never_written_over(folder, tmp_path):
    config, params = load_openai(folder, n_head=HEADS)
    before = contents(folder)
    for path in (folder, tmp_path):
        with pytest.raises(InputError, match=f"{folder} has weights in OpenAI's layout already; choose a new folder"):
            save_openai(path, config, params)
    assert contents(folder) == before
    with pytest.raises(InputError, match=r"path=.*: cannot create this folder"):
        save_openai(folder / "params_0.npy", config, params)


def test_the_tokenizers_files_may_be_there(folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "encoder_bpe_40000.json").write_text("{}")
    save_openai(tmp_path / "out", *load_openai(folder, n_head=HEADS))
    assert contents(tmp_path / "out") == contents(folder) | {"encoder_bpe_40000.json": b"{}"}


def test_a_crash_leaves_a_folder_without_shapes(folder, tmp_path, monkeypatch):
    config, params = load_openai(folder, n_head=HEADS)
    written = iter(range(4))

    def full_disk(descriptor):
        if next(written, None) is None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        save_openai(tmp_path / "out", config, params)
    assert {path.name for path in (tmp_path / "out").iterdir()} < {f"params_{i}.npy" for i in range(10)}
    with pytest.raises(InputError, match=r"params_shapes\.json: cannot be read"):
        load_openai(tmp_path / "out", n_head=HEADS)


def without(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name != "h_1"}


def changed(array: np.ndarray) -> Any:
    return lambda params: params | {"positions_embed": {"embedding": array}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without, "params: are not the tree of arrays of this config"),
        (lambda params: params | {"h_2": params["h_1"]}, "params: are not the tree of arrays of this config"),
        (changed(np.zeros((4, D), np.float32)), r"positions_embed/embedding is float32 \[4, 12\], .* \[5, 12\]"),
        (changed(np.zeros((N_CTX, D), np.float64)), r"positions_embed/embedding is float64 \[5, 12\], .* float32"),
        (changed(np.full((N_CTX, D), np.nan, np.float32)), "positions_embed/embedding has values that are not finite"),
    ],
)
def test_parameters_that_cannot_be_written(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        save_openai(tmp_path / "out", CONFIG, change(random_params(GPT1(CONFIG))))
    assert not (tmp_path / "out").exists()
