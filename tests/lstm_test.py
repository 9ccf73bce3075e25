"""The LSTM in place of the blocks: the equations in NumPy, padding, decoding, meshes, and a start that learns."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from helpers import random_params
from jobs import LM, N_ROWS, TASK, Layout, compiled, max_difference, on_one_device, train

from gpt1_jax import introspection, lstm
from gpt1_jax.aot import hlo
from gpt1_jax.aot.collectives import find_collectives
from gpt1_jax.benchmark.settings import Settings, configs
from gpt1_jax.block import Context
from gpt1_jax.caches import LSTMCache, empty_cache
from gpt1_jax.errors import InputError
from gpt1_jax.flops import train_flops_per_token
from gpt1_jax.interop.huggingface import save_huggingface
from gpt1_jax.interop.openai_folder import save_openai
from gpt1_jax.losses import task_outputs
from gpt1_jax.model import GPT1, GPT1Config, ReadOut, count_parameters, param_shapes
from gpt1_jax.optim import OptimizerConfig, decays, make_optimizer, make_schedule
from gpt1_jax.sampling import generate_tokens
from gpt1_jax.sharding import MeshConfig, check_mesh, make_mesh
from gpt1_jax.train import initial_state, make_train_step

CONFIG = GPT1Config(vocab_size=50, n_ctx=12, n_embd=16, trunk="lstm", lstm_units=24)
MODEL = GPT1(CONFIG)
TOKENS = np.random.default_rng(0).integers(0, 50, (3, 12), np.int32)
PARAMS = random_params(MODEL)


@functools.cache
def forward(model: GPT1 = MODEL) -> Any:
    """Compiled (params, tokens, **arguments) -> hidden states."""

    def apply(params: Any, tokens: Any, **arguments: Any) -> jax.Array:
        return model.apply({"params": params}, tokens, **arguments, method=GPT1.features)[0]

    return jax.jit(apply)


def in_numpy(params: Any, tokens: np.ndarray) -> np.ndarray:
    """The equations of the module's docstring, one row and one token after another, in float64."""
    p = {"/".join(path): np.float64(x) for path, x in flatten_dict(params).items()}

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    out = np.zeros((*tokens.shape, CONFIG.n_embd))
    for row, ids in enumerate(tokens):
        c = h = np.zeros(CONFIG.lstm_units)
        for t, token in enumerate(ids):
            x = p["tokens_embed/embedding"][token] + p["positions_embed/embedding"][t]
            i, f, g, o = (
                x @ p[f"lstm/cell/i{gate}/kernel"] + h @ p[f"lstm/cell/h{gate}/kernel"] + p[f"lstm/cell/h{gate}/bias"]
                for gate in "ifgo"
            )
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            out[row, t] = h @ p["lstm/c_proj/kernel"] + p["lstm/c_proj/bias"]
    return out


def test_the_equations():
    expected = in_numpy(PARAMS, TOKENS)
    np.testing.assert_allclose(forward()(PARAMS, TOKENS), expected, rtol=0, atol=2e-5)
    logits = MODEL.apply({"params": PARAMS}, TOKENS)
    np.testing.assert_allclose(logits, expected @ PARAMS["tokens_embed"]["embedding"][:50].T, rtol=0, atol=1e-4)


@pytest.mark.parametrize("padded", [False, True])
def test_values_and_gradients_are_those_of_flaxs_cell(padded):
    """By its parameters, its input and the state before; with padding in the middle, too."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3, 12, 16)).astype(np.float32)
    state = tuple(rng.normal(size=(3, 24)).astype(np.float32) for _ in range(2))
    real = rng.random((3, 12)) < 0.7 if padded else None
    weights = rng.normal(size=(3, 12, 16)).astype(np.float32)
    context = Context(rows=np.arange(3), kv_mask=real, start=None, deterministic=True)

    def ours(params: Any, x: jax.Array, state: Any) -> jax.Array:
        out, last = lstm.LSTM(CONFIG).apply({"params": params}, x, context, state)
        return (out * weights).sum() + last[0].sum() - 2 * last[1].sum(), out

    def flaxs(params: Any, x: jax.Array, state: Any) -> jax.Array:
        units = []
        for t in range(x.shape[1]):
            new, h = nn.OptimizedLSTMCell(24).apply({"params": params["cell"]}, state, x[:, t])
            if real is not None:
                new = jax.tree.map(lambda after, before, t=t: jnp.where(real[:, t, None], after, before), new, state)
                h = new[1]
            state = new
            units.append(h)
        out = jnp.stack(units, 1) @ params["c_proj"]["kernel"] + params["c_proj"]["bias"]
        return (out * weights).sum() + state[0].sum() - 2 * state[1].sum(), out

    with jax.default_matmul_precision("highest"):
        (_, out), found = jax.jit(jax.value_and_grad(ours, (0, 1, 2), has_aux=True))(PARAMS["lstm"], x, state)
        (_, wanted), expected = jax.jit(jax.value_and_grad(flaxs, (0, 1, 2), has_aux=True))(PARAMS["lstm"], x, state)
    np.testing.assert_allclose(out, wanted, rtol=0, atol=1e-5)
    scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(expected))
    assert max_difference(found, expected) < 1e-6 * scale


@pytest.mark.parametrize("kind", ["classification", "entailment", "similarity", "multiple_choice"])
def test_every_kind_of_task_reads_it_at_the_extract_token(kind):
    model = GPT1(dataclasses.replace(CONFIG, n_special=3), ReadOut(kind, ("A", "B", "C")))
    params, n_streams = random_params(model), model.readout.n_streams
    tokens = np.random.default_rng(0).integers(0, 50, (2, n_streams, 12), np.int32)
    tokens[0, :, 7] = tokens[1, :, 11] = model.config.extract_id  # what comes after is padding
    outputs = jax.jit(functools.partial(task_outputs, model))(
        params,
        {
            "tokens": tokens,
            "mask": np.ones(tokens.shape, np.float32),
            "stream_mask": np.ones((2, n_streams), bool),
            "label": np.zeros(2, np.int32),
            "weight": np.ones(2, np.float32),
        },
    )
    hidden = in_numpy(params, tokens.reshape(-1, 12)).reshape(2, n_streams, 12, -1)
    read = np.stack([hidden[0, :, 7], hidden[1, :, 11]])
    if kind == "similarity":
        read = read.sum(axis=1, keepdims=True)
    expected = read @ params["clf"]["kernel"] + params["clf"].get("bias", 0)
    expected = expected[:, :, 0] if kind == "multiple_choice" else expected[:, 0]
    np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-4, atol=1e-4)


def test_no_output_depends_on_a_later_token_and_all_later_ones_do():
    before = forward()(PARAMS, TOKENS)
    changed = TOKENS.copy()
    changed[:, 4] = (changed[:, 4] + 7) % 50
    after = forward()(PARAMS, changed)
    np.testing.assert_array_equal(after[:, :4], before[:, :4])
    assert (np.abs(after[:, 4:] - before[:, 4:]).max((0, 2)) > 1e-4).all()


@pytest.mark.parametrize("side", ["left", "right", "between"])
def test_padding_changes_no_real_token(side):
    mask = np.zeros((3, 12), bool)
    for row, n in enumerate((4, 7, 12)):
        places = {"left": range(12 - n, 12), "right": range(n), "between": np.linspace(0, 11, n).round().astype(int)}
        mask[row, list(places[side])] = True
    tokens = np.full((3, 12), 9, np.int32)
    for row, n in enumerate(mask.sum(1)):
        tokens[row, mask[row]] = TOKENS[row, :n]
    padded, whole = np.asarray(forward()(PARAMS, tokens, attention_mask=mask)), forward()(PARAMS, TOKENS)
    for row, n in enumerate(mask.sum(1)):
        np.testing.assert_allclose(padded[row, mask[row]], whole[row, :n], rtol=0, atol=1e-6)
    assert np.isfinite(padded).all()


@functools.cache
def decode() -> Any:
    return jax.jit(lambda *arguments: MODEL.apply({"params": PARAMS}, *arguments, method=GPT1.decode))


def test_in_pieces_of_unequal_lengths():
    """Every row continues where its own real tokens end; of padding nothing is left in the state."""
    expected, cache = forward()(PARAMS, TOKENS), empty_cache(CONFIG, 3)
    assert isinstance(cache, LSTMCache)
    done = np.zeros(3, int)
    for lengths in ([2, 4, 0], [4, 1, 3], [4, 4, 4], [2, 3, 4]):
        window = np.full((3, 4), 49, np.int32)
        for row, n in enumerate(lengths):
            window[row, :n] = TOKENS[row, done[row] : done[row] + n]
        h, cache = decode()(window, cache, jnp.asarray(lengths))
        for row, n in enumerate(lengths):
            np.testing.assert_allclose(h[row, :n], expected[row, done[row] : done[row] + n], rtol=0, atol=1e-6)
        done += lengths
        assert cache.length.tolist() == done.tolist()


def test_a_row_of_no_tokens_begins_anew_whatever_its_state_is():
    _, used = decode()(TOKENS, empty_cache(CONFIG, 3))
    h, _ = decode()(TOKENS[:, :4], used.replace(length=used.length.at[1].set(0)))
    fresh, _ = decode()(TOKENS[:, :4], empty_cache(CONFIG, 3))
    np.testing.assert_array_equal(h[1], fresh[1])
    assert np.abs(h[0] - fresh[0]).max() > 1e-3


@pytest.mark.parametrize("stride", [6, 12], ids=["half a window", "a whole one"])
def test_generation_is_the_greedy_text_of_the_whole_forward_pass(stride):
    """Prompts of different lengths at once, one longer than the context, beyond which the window moves."""
    prompts, n_new, n_ctx = [[5], [1, 2, 3, 4, 5, 6, 7], list(range(20, 37))], 14, CONFIG.n_ctx
    found = generate_tokens(MODEL, PARAMS, prompts, max_new_tokens=n_new, temperature=0, stride=stride)
    for prompt, new in zip(prompts, found, strict=True):
        ids = list(prompt)
        for token in new:
            start = stride * -(-max(0, len(ids) - n_ctx) // stride)
            window = np.zeros((3, n_ctx), np.int32)  # as many rows as elsewhere: one compilation
            window[0, : len(ids) - start] = ids[start:]
            h = forward()(PARAMS, window)[0, len(ids) - start - 1]
            assert token == int((PARAMS["tokens_embed"]["embedding"][:50] @ h).argmax())
            ids.append(token)
        assert len(new) == n_new
    assert len({token for row in found for token in row}) > 3  # else little was shown


def test_bfloat16_rounds_products_and_not_the_state():
    model = GPT1(dataclasses.replace(CONFIG, dtype="bfloat16"))
    exact, rounded = forward()(PARAMS, TOKENS), forward(model)(PARAMS, TOKENS)
    assert rounded.dtype == jnp.bfloat16
    assert np.abs(np.float32(rounded) - exact).max() < 0.03 * np.abs(exact).max()  # seen: 0.01
    cache = jax.eval_shape(lambda: model.apply({"params": PARAMS}, TOKENS, empty_cache(CONFIG, 3), method="decode"))[1]
    assert cache.c.dtype == cache.h.dtype == jnp.float32


def test_float32_products_are_float32_on_every_device():
    text = jax.jit(forward()).lower(PARAMS, TOKENS).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert products
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)


# Training

LSTM = {"trunk": "lstm", "lstm_units": 24}
LAYOUTS = {
    "data, optimizer over it, micro-batches": (LM, Layout((8, 1, 1), zero=True, accumulation=4)),
    "fsdp": (LM, Layout((1, 8, 1))),
    "both, of a task": (TASK, Layout((2, 4, 1), zero=True)),
}


QUICK = "fsdp"


@pytest.mark.parametrize(
    ("job", "layout"),
    [pytest.param(*case, id=name, marks=() if name == QUICK else pytest.mark.slow) for name, case in LAYOUTS.items()],
)
def test_the_same_run_on_every_mesh(job, layout, capfd):
    """Dropout included. What is shared out is brought together once, and not in every step of the scan."""
    job = job.changed(**LSTM)
    (history, state), (expected, expected_params) = train(job, layout), on_one_device(job)
    for metrics, wanted in zip(history, expected, strict=True):
        assert metrics == pytest.approx(wanted, abs=1e-5, rel=0)
    assert max_difference(jax.device_get(state.params), expected_params) <= 1e-5
    assert "rematerialization" not in capfd.readouterr().err
    found = find_collectives(hlo.parse_module(compiled(job, layout).as_text()), dict(layout.devices.shape))
    gathers = sum(one.count for one in found if one.kind == "all-gather")
    n_matrices = sum(x.ndim > 1 for x in jax.tree.leaves(param_shapes(job.model.config, job.model.readout)))
    assert 0 < gathers <= 3 * n_matrices  # each way once or so, and not in each step of the scan


def test_dropout_falls_on_what_leaves_the_units_and_on_the_embeddings():
    job = LM.changed(**LSTM)
    rates = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0)

    def first_loss(**changes: float) -> float:
        model = job.changed(**(rates | changes)).model
        loss = job.objective(model).loss
        params = model.init(jax.random.key(0), np.zeros((1, 1), np.int32))["params"]
        return float(jax.jit(loss)(params, job.batch(0), np.arange(N_ROWS), jax.random.key(1), {})[0])

    none = first_loss()
    assert first_loss(attn_pdrop=0.5) == none
    assert len({none, first_loss(embd_pdrop=0.5), first_loss(resid_pdrop=0.5)}) == 3


def test_it_learns_to_remember():
    """The last token is the first one again, which the state has to carry past five others."""
    config = GPT1Config(vocab_size=12, n_ctx=7, n_embd=16, embd_pdrop=0, resid_pdrop=0, trunk="lstm", lstm_units=32)
    model, optimizer = GPT1(config), make_optimizer(OptimizerConfig(weight_decay=0.0))
    n_steps = 200
    schedules = {"learning_rate": make_schedule(OptimizerConfig(learning_rate=1e-2, warmup_steps=10), n_steps)}
    step = make_train_step(LM.objective(model), optimizer)

    def batch(key: jax.Array) -> dict[str, jax.Array]:
        tokens = jax.random.randint(key, (32, 7), 0, 12)
        return {"tokens": tokens.at[:, -1].set(tokens[:, 0]), "mask": jnp.zeros((32, 7)).at[:, -1].set(1.0)}

    @jax.jit
    def run(state: Any) -> jax.Array:
        keys = jax.random.split(state.key, n_steps)
        return jax.lax.scan(lambda state, key: step(state, batch(key), schedules), state, keys)[1]["loss"]

    losses = run(nn.unbox(initial_state(model, optimizer, 0)))
    assert losses[0] == pytest.approx(np.log(12), abs=0.1)
    assert losses[-20:].mean() < 1.2  # seen: 0.8, and falling


# Numbers

PAPER = GPT1Config(trunk="lstm")


def test_parameters_of_the_paper_s_size():
    d, u = 768, 2048
    matrices = 4 * u * (d + u) + u * d
    assert count_parameters(PAPER) == (40478 + 512) * d + matrices + 4 * u + d
    assert train_flops_per_token(PAPER, 512) == 6 * (matrices + 40478 * d)
    assert train_flops_per_token(PAPER, 512, frozen_trunk=True, with_lm=False) == 4 * matrices
    assert PAPER.trunk_summary == "an LSTM of 2,048 units"


def test_flops_are_those_of_the_compiled_products():
    """Times the steps of the scan; that of the first token's gradient by its state, which is zero, is left out."""
    job = LM.changed(**LSTM)
    c = job.model.config
    by_hand = train_flops_per_token(c, c.n_ctx) * N_ROWS * c.n_ctx
    padded = 6 * (c.padded_rows - c.n_rows) * c.n_embd * N_ROWS * c.n_ctx
    assert hlo.matmul_flops(hlo.parse_module(compiled(job, Layout()).as_text())) == pytest.approx(
        by_hand + padded, rel=0.1
    )


def test_matrices_decay_and_biases_do_not():
    kept = {"/".join(path): value for path, value in flatten_dict(decays(PARAMS)).items()}
    assert {name for name, value in kept.items() if not value} == {
        *(f"lstm/cell/h{gate}/bias" for gate in "ifgo"),
        "lstm/c_proj/bias",
    }
    assert len(kept) == 5 + 9 + 2


# What cannot be


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "xla"}, r"attention='xla' is of the Transformer's blocks, .* leave attention out \('auto'\)"),
        ({"remat": "full"}, "remat='full' is of"),
        ({"scan_layers": True}, "scan_layers=True is of"),
        ({"activation": "relu"}, "activation='relu' is of"),
        ({"lstm_units": 0}, "lstm_units=0 must be at least 1"),
        ({"trunk": "gru"}, r"trunk='gru' is unknown; use one of \['transformer', 'lstm'\]"),
        ({"trunk": "transformer", "n_head": 4}, "lstm_units=24 is of an LSTM; set trunk='lstm'"),
    ],
)
def test_refused_configs(changes, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(CONFIG, **changes)


def test_what_only_blocks_have_may_stay_in_the_config():
    """So that a recipe differs in the trunk alone; the width need not divide by heads that are not there."""
    config = GPT1Config(n_embd=100, n_head=12, n_layer=6, attn_pdrop=0.2, trunk="lstm")
    assert config.padded_rows == GPT1Config(trunk="lstm").padded_rows


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ({"data": 4, "tensor": 2}, r"mesh tensor=2: an LSTM \(trunk='lstm'\) has no heads to share out; use tensor=1"),
        ({"data": 1, "fsdp": 8}, r"fsdp=8 does not divide lstm_units=20; use one of \[1, 2, 4, 5, 10, 20\]"),
        ({"data": 8, "shard_optimizer": True}, r"shard_optimizer=True: .* does not divide lstm_units=20"),
    ],
)
def test_refused_meshes(devices, mesh, message):
    config, mesh = dataclasses.replace(CONFIG, lstm_units=20), MeshConfig(**mesh)
    with pytest.raises(InputError, match=message):
        check_mesh(
            make_mesh(mesh, devices=devices), batch_size=8, shard_optimizer=mesh.shard_optimizer, **config.mesh_sizes
        )


def test_formats_and_figures_of_blocks_are_refused(tmp_path):
    with pytest.raises(InputError, match="trunk='lstm': OpenAI's layout has a place for the Transformer's blocks"):
        save_openai(tmp_path / "openai", CONFIG, PARAMS)
    with pytest.raises(InputError, match=r"trunk='lstm': transformers' GPT-1 .* use format='gpt1_jax'"):
        save_huggingface(tmp_path / "theirs", MODEL, PARAMS)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="trunk='lstm' has no attention to show"):
        introspection.attention_maps(MODEL, PARAMS, TOKENS)


@pytest.mark.parametrize("asked", [{"parts": ("kernels",)}, {"peers": ("naive",)}], ids=str)
def test_a_benchmark_against_transformers_is_refused(asked):
    pretrain, finetune = configs({"model": {"trunk": "lstm"}})
    Settings(pretrain, finetune)
    with pytest.raises(InputError, match=r"model.trunk='lstm': peers and the part 'kernels' are of the Transformer"):
        Settings(pretrain, finetune, **asked)
