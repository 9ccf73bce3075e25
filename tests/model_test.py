"""The network as a function: what depends on what, which numbers it has, and how exact they are."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from helpers import random_params

from gpt1_jax import block
from gpt1_jax import model as model_module
from gpt1_jax.errors import InputError
from gpt1_jax.losses import next_token_nll
from gpt1_jax.model import GPT1, GPT1Config, ReadOut, count_parameters
from gpt1_jax.sharding import RULES

CONFIG = GPT1Config(
    vocab_size=50,
    n_ctx=12,
    n_embd=16,
    n_head=2,
    n_layer=1,
    **{f"{name}_pdrop": 0.0 for name in ("embd", "attn", "resid", "clf")},
)
LM = GPT1(CONFIG)
TOKENS = np.random.default_rng(0).integers(0, 50, (3, 12), np.int32)


def model_of(**changes: Any) -> GPT1:
    return GPT1(dataclasses.replace(CONFIG, **changes))


PARAMS = random_params(LM)


@functools.cache
def logits_of(model: GPT1, deterministic: bool = True) -> Any:
    """Compiled (params, tokens, key=..., **arguments) -> logits."""

    def apply(params: Any, tokens: Any, key: Any = None, **arguments: Any) -> jax.Array:
        rngs = None if key is None else {"dropout": key}
        return model.apply({"params": params}, tokens, deterministic=deterministic, rngs=rngs, **arguments)

    return jax.jit(apply)


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr, inner ones included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, list | tuple) else (value,):
                if hasattr(inner, "eqns"):
                    yield from equations(inner)
                elif hasattr(inner, "jaxpr"):
                    yield from equations(inner.jaxpr)


# What depends on what


def test_no_output_depends_on_a_later_token():
    """Exactly: the outputs before a changed token are the same bits, those from it on are not."""
    forward = logits_of(LM)
    before = forward(PARAMS, TOKENS)
    for t in range(TOKENS.shape[1]):
        changed = TOKENS.copy()
        changed[:, t] = (changed[:, t] + 7) % 50
        after = forward(PARAMS, changed)
        np.testing.assert_array_equal(after[:, :t], before[:, :t])
        assert (np.abs(after[:, t:] - before[:, t:]).max((0, 2)) > 1e-3).all(), t


def test_rows_are_independent():
    forward = logits_of(LM)
    changed = TOKENS.copy()
    changed[1] = 3
    np.testing.assert_array_equal(forward(PARAMS, changed)[::2], forward(PARAMS, TOKENS)[::2])


def test_order_of_the_tokens_matters():
    """Positions are added: the last output sees the same set of tokens in another order."""
    swapped = TOKENS.copy()
    swapped[:, [2, 5]] = swapped[:, [5, 2]]
    forward = logits_of(LM)
    assert np.abs(forward(PARAMS, swapped) - forward(PARAMS, TOKENS))[:, -1].max() > 1e-3


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padding_changes_no_real_token(side):
    lengths, total = (4, 7, 12), 12
    mask = np.zeros((3, total), bool)
    for row, n in enumerate(lengths):
        first = {"left": total - n, "right": 0, "both": (total - n) // 2}[side]
        mask[row, first : first + n] = True
    tokens = np.full((3, total), 9, np.int32)
    for row, n in enumerate(lengths):
        tokens[row, mask[row]] = TOKENS[row, :n]
    padded = np.asarray(logits_of(LM)(PARAMS, tokens, attention_mask=mask))
    whole = np.asarray(logits_of(LM)(PARAMS, TOKENS))
    for row, n in enumerate(lengths):
        np.testing.assert_allclose(padded[row, mask[row]], whole[row, :n], rtol=0, atol=1e-5)
    assert np.isfinite(padded).all()


def test_positions_may_be_given():
    forward = logits_of(LM)
    default = forward(PARAMS, TOKENS)
    positions = np.broadcast_to(np.arange(12), TOKENS.shape)
    np.testing.assert_array_equal(forward(PARAMS, TOKENS, positions=positions), default)
    assert np.abs(forward(PARAMS, TOKENS, positions=positions[:, ::-1]) - default).max() > 1e-2


def test_gradient_of_the_tied_table_is_that_of_the_look_up_plus_that_of_the_head():
    def loss(look_up: jax.Array, head: jax.Array) -> jax.Array:
        params = PARAMS | {"tokens_embed": {"embedding": look_up}}
        h, _ = LM.apply({"params": params}, TOKENS, method=GPT1.features)
        return next_token_nll(h, head, TOKENS, n_rows=CONFIG.n_logits).mean()

    def tied(table: jax.Array) -> jax.Array:
        params = PARAMS | {"tokens_embed": {"embedding": table}}
        h, head = LM.apply({"params": params}, TOKENS, method=GPT1.features)
        return next_token_nll(h, head, TOKENS, n_rows=CONFIG.n_logits).mean()

    table = PARAMS["tokens_embed"]["embedding"]
    look_up, head = jax.jit(jax.grad(loss, (0, 1)))(table, table)
    assert np.abs(look_up).max() > 1e-3
    assert np.abs(head).max() > 1e-3
    np.testing.assert_allclose(jax.jit(jax.grad(tied))(table), look_up + head, rtol=1e-5, atol=1e-7)


# Rows that pad the table


def loud_padding(model: GPT1, params: Any) -> Any:
    """As `params`, with rows beyond the vocabulary that would win everything."""
    table = params["tokens_embed"]["embedding"].copy()
    table[model.config.n_rows :] = 100.0
    return params | {"tokens_embed": {"embedding": table}}


@pytest.mark.parametrize("changes", [{}, {"n_special": 3}, {"softmax_over_positions": True}, {"dtype": "bfloat16"}])
def test_padded_rows_are_never_seen(changes):
    model = model_of(**changes)
    params = random_params(model)
    assert model.config.padded_rows == 128
    width = 50 + changes.get("n_special", 0) + (12 if "softmax_over_positions" in changes else 0)
    outputs = []

    @jax.jit
    def run(params: Any) -> tuple[jax.Array, jax.Array]:
        h, table = model.apply({"params": params}, TOKENS, method=GPT1.features)
        nll = next_token_nll(h, table, TOKENS, n_rows=model.config.n_logits)
        return model.apply({"params": params}, TOKENS), nll

    for p in (params, loud_padding(model, params)):
        logits, nll = run(p)
        assert logits.shape == (*TOKENS.shape, width)
        assert logits.dtype == nll.dtype == jnp.float32
        expected = -jax.nn.log_softmax(logits)[:, :-1]
        expected = np.take_along_axis(np.asarray(expected), TOKENS[:, 1:, None], -1)[..., 0]
        np.testing.assert_allclose(nll, expected, rtol=1e-5, atol=1e-5 if model.config.dtype == "float32" else 0.05)
        outputs.append((logits, nll))
    for a, b in zip(*outputs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_padded_rows_begin_at_zero_and_get_no_gradient():
    params = jax.jit(LM.init)(jax.random.key(0), TOKENS)["params"]
    assert (params["tokens_embed"]["embedding"][50:] == 0).all()
    assert (np.abs(params["tokens_embed"]["embedding"][:50]).max(1) > 0).all()

    def loss(params: Any) -> jax.Array:
        h, table = LM.apply({"params": params}, TOKENS, method=GPT1.features)
        return next_token_nll(h, table, TOKENS, n_rows=CONFIG.n_logits).mean()

    gradient_of = jax.jit(jax.grad(loss))
    for p in (PARAMS, loud_padding(LM, PARAMS)):
        gradient = np.asarray(gradient_of(p)["tokens_embed"]["embedding"])
        assert (gradient[50:] == 0).all()
        assert (np.abs(gradient[:50]).max(1) > 0).all()


# Parameters


def test_the_paper_s_size(capsys):
    assert count_parameters(GPT1Config()) == 116_534_784
    fine_tuned = GPT1Config(n_special=3)
    assert count_parameters(fine_tuned, ReadOut("multiple_choice")) == 116_534_784 + 3 * 768 + 768 + 1
    model_module.main()
    printed = capsys.readouterr().out
    assert "116.5 M parameters" in printed
    assert "h_11/mlp/c_fc/kernel" in printed
    params = jax.eval_shape(GPT1(GPT1Config()).init, jax.random.key(0), TOKENS)["params"]
    assert params["tokens_embed"]["embedding"].shape == (40704, 768)


def test_init_returns_plain_arrays_as_in_the_paper():
    """N(0, 0.02), biases 0, gains 1, all float32 whatever the compute dtype."""
    config = GPT1Config(vocab_size=1000, n_special=3, n_ctx=64, n_embd=64, n_head=4, n_layer=1, dtype="bfloat16")
    variables = jax.jit(GPT1(config, ReadOut("classification", ("a", "b"))).init)(jax.random.key(0), TOKENS)
    assert set(variables) == {"params"}
    for path, x in flatten_dict(variables["params"]).items():
        assert isinstance(x, jax.Array)
        assert x.dtype == jnp.float32
        x = np.asarray(x)[: config.n_rows]
        if path[-1] in ("bias", "scale"):
            assert (x == (path[-1] == "scale")).all(), path
        else:
            assert abs(x.mean()) < 5 * 0.02 / np.sqrt(x.size), path
            assert abs(x.std() / 0.02 - 1) < 4 / np.sqrt(2 * x.size), path


def test_every_parameter_has_logical_axis_names():
    model = GPT1(dataclasses.replace(CONFIG, n_special=3), ReadOut("multiple_choice"))
    boxed = jax.eval_shape(model.init_partitioned, jax.random.key(0))
    names = {}
    for path, box in flatten_dict(boxed).items():
        assert isinstance(box, nn.LogicallyPartitioned), path
        assert len(box.names) == box.value.ndim, path
        assert set(box.names) <= {None, *RULES}, path
        names["/".join(path)] = box.names
    assert names == {
        "tokens_embed/embedding": ("vocab", "embed"),
        "positions_embed/embedding": (None, "embed"),
        "h_0/attn/c_attn/kernel": ("embed", None, "heads", None),
        "h_0/attn/c_attn/bias": (None, "heads", None),
        "h_0/attn/c_proj/kernel": ("heads", None, "embed"),
        "h_0/attn/c_proj/bias": ("embed",),
        "h_0/mlp/c_fc/kernel": ("embed", "mlp"),
        "h_0/mlp/c_fc/bias": ("mlp",),
        "h_0/mlp/c_proj/kernel": ("mlp", "embed"),
        "h_0/mlp/c_proj/bias": ("embed",),
        **{f"h_0/ln_{i}/{name}": ("embed",) for i in (1, 2) for name in ("scale", "bias")},
        "clf/kernel": ("embed", None),
        "clf/bias": (None,),
    }


# Exactness


@pytest.mark.parametrize("chunk", [0, 4])
def test_float32_products_are_in_full_precision_also_on_accelerators(chunk):
    """Forward and backward: TPUs and recent GPUs would otherwise multiply in bfloat16 or TF32."""

    def loss(params: Any) -> jax.Array:
        h, table = LM.apply({"params": params}, TOKENS, method=GPT1.features)
        return next_token_nll(h, table, TOKENS, n_rows=CONFIG.n_logits, chunk=chunk).mean()

    for jaxpr in (jax.make_jaxpr(jax.grad(loss))(PARAMS), jax.make_jaxpr(logits_of(LM))(PARAMS, TOKENS)):
        products = [e for e in equations(jaxpr.jaxpr) if e.primitive.name == "dot_general"]
        assert len(products) >= 7
        for product in products:
            precision = product.params["precision"]
            assert precision is not None
            assert {jax.lax.Precision(p) for p in precision} == {jax.lax.Precision.HIGHEST}


def test_bfloat16_is_close_to_float32():
    """Logits within 4 %, loss within 1 %, gradients within 4 % of their norm; outputs and parameters stay float32."""
    params = random_params(LM, scale=0.1)

    def loss(params: Any, model: GPT1) -> tuple[jax.Array, jax.Array]:
        h, table = model.apply({"params": params}, TOKENS, method=GPT1.features)
        assert h.dtype == table.dtype == model.config.dtype
        nll = next_token_nll(h, table, TOKENS, n_rows=CONFIG.n_logits).mean()
        return nll, model.apply({"params": params}, h, method=GPT1.lm_logits)

    run = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    (exact, exact_logits), exact_grads = run(params, LM)
    (rounded, logits), grads = run(params, model_of(dtype="bfloat16"))
    assert rounded.dtype == logits.dtype == jnp.float32
    assert 1e-5 < np.abs(logits - exact_logits).max() / np.abs(exact_logits).max() < 0.04
    assert abs(rounded - exact) / exact < 0.01
    for path, x in flatten_dict(grads).items():
        expected = flatten_dict(exact_grads)[path]
        assert x.dtype == jnp.float32
        if path[-2:] == ("c_attn", "bias"):  # without that of the keys, whose true gradient is zero
            x, expected = x[::2], expected[::2]
        assert np.linalg.norm(x - expected) < 0.04 * np.linalg.norm(expected), path


@pytest.mark.parametrize(("dtype", "offset", "step"), [("float32", 5000, 1), ("bfloat16", 300, 2)])
def test_layer_norm_keeps_its_digits(dtype, offset, step):
    """A large common offset, which E[x^2] - E[x]^2 does not survive, nor do statistics in bfloat16."""
    norm = block._layer_norm(dataclasses.replace(CONFIG, dtype=dtype))
    x = jnp.asarray(offset + step * np.random.default_rng(0).integers(0, 2, (4, 16)), dtype)
    variables = norm.init(jax.random.key(0), x)
    exact = np.float64(x) - np.float64(x).mean(-1, keepdims=True)
    exact /= np.sqrt(exact.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(np.float32(norm.apply(variables, x)), exact, atol=0.02)


def test_remat_changes_nothing_but_memory():
    """Same loss and gradients, with dropout on: the recomputed masks are the same."""
    config = dataclasses.replace(CONFIG, attn_pdrop=0.3, resid_pdrop=0.3, embd_pdrop=0.3)

    def run(remat: str) -> Any:
        model = GPT1(dataclasses.replace(config, remat=remat))

        def loss(params: Any) -> jax.Array:
            rngs = {"dropout": jax.random.key(1)}
            h, table = model.apply({"params": params}, TOKENS, deterministic=False, rngs=rngs, method=GPT1.features)
            return next_token_nll(h, table, TOKENS, n_rows=CONFIG.n_logits).mean()

        names = [e.primitive.name for e in equations(jax.make_jaxpr(loss)(PARAMS).jaxpr)]
        assert names.count("remat2") + names.count("checkpoint") == (0 if remat == "none" else CONFIG.n_layer)
        return jax.jit(jax.value_and_grad(loss))(PARAMS)

    expected = run("none")
    for remat in ("full", "dots"):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), run(remat), expected)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_scanned_layers_compute_the_same_from_the_same_parameters(remat):
    """With given masks; drawn ones fall elsewhere."""
    plain = model_of(n_layer=3, resid_pdrop=0.3, remat=remat)
    scanned = model_of(n_layer=3, resid_pdrop=0.3, remat=remat, scan_layers=True)
    params = random_params(plain)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y), random_params(scanned), params)
    keep = jax.random.bernoulli(jax.random.key(1), 0.7, (3, 2, *TOKENS.shape, CONFIG.n_embd))
    masks = {f"h_{i}": {part: {"resid": keep[i, j]} for j, part in enumerate(("attn", "mlp"))} for i in range(3)}

    def run(model: GPT1) -> Any:
        def loss(params: Any) -> jax.Array:
            given, rngs = {"params": params, "dropout_masks": masks}, {"dropout": jax.random.key(5)}
            return jnp.square(model.apply(given, TOKENS, deterministic=False, rngs=rngs)).mean()

        names = [e.primitive.name for e in equations(jax.make_jaxpr(loss)(params).jaxpr)]
        assert ("scan" in names) == model.config.scan_layers
        return jax.jit(jax.value_and_grad(loss))(params)

    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), run(scanned), run(plain))


# Dropout

SITES = {
    ("embd",): (3, 12, 16),
    ("h_0", "attn", "attn_probs"): (3, 2, 12, 12),
    ("h_0", "attn", "resid"): (3, 12, 16),
    ("h_0", "mlp", "resid"): (3, 12, 16),
}
RATES = {"embd_pdrop": 0.2, "attn_pdrop": 0.3, "resid_pdrop": 0.4}
DROPPING = model_of(**RATES)


@functools.cache
def with_masks(*drawn: tuple[str, ...]) -> Any:
    """Compiled (masks of all sites but the `drawn` ones, key) -> logits."""

    def apply(masks: Any, key: Any) -> jax.Array:
        variables = {"params": PARAMS, "dropout_masks": unflatten_dict(masks)}
        return DROPPING.apply(variables, TOKENS, deterministic=False, rngs={"dropout": key} if drawn else None)

    return jax.jit(apply)


@pytest.mark.parametrize("site", SITES, ids="/".join)
def test_every_site_is_live_in_training(site):
    """With given masks at all other sites: what is drawn at this one depends on the key, and decides the output."""
    everything = {s: np.ones(shape, bool) for s, shape in SITES.items()}
    others = {s: mask for s, mask in everything.items() if s != site}
    first, again, second = (with_masks(site)(others, jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - second).max() > 1e-3

    one_dropped = everything[site].copy()
    one_dropped[(0, -1, *[0] * (one_dropped.ndim - 2))[: one_dropped.ndim]] = False
    kept = with_masks()(everything, None)
    assert np.abs(with_masks()(everything | {site: one_dropped}, None) - kept).max() > 1e-4
    assert np.abs(first - kept).max() > 1e-3


def test_all_sites_are_known():
    """No site is left that would draw: with masks for those above, no random key is needed."""
    masks = {s: np.ones(shape, bool) for s, shape in SITES.items()}
    assert np.isfinite(with_masks()(masks, None)).all()
    for site in SITES:
        with pytest.raises(Exception, match="dropout"):
            with_masks()({s: mask for s, mask in masks.items() if s != site}, None)


def test_each_rate_alone():
    """Live in training, dead in evaluation, which is the very program of a model without dropout."""

    def evaluation(model: GPT1) -> str:
        return str(jax.make_jaxpr(lambda params: model.apply({"params": params}, TOKENS))(PARAMS))

    plain = logits_of(LM)(PARAMS, TOKENS)
    for name, rate in RATES.items():
        model = model_of(**{name: rate})
        assert evaluation(model) == evaluation(LM)
        training = logits_of(model, deterministic=False)
        outputs = [training(PARAMS, TOKENS, jax.random.key(seed)) for seed in (0, 0, 1)]
        np.testing.assert_array_equal(outputs[0], outputs[1])
        for a, b in ((outputs[0], plain), (outputs[0], outputs[2])):
            assert np.abs(a - b).max() > 1e-3, name


def test_dropout_of_a_row_does_not_depend_on_its_batch():
    """Row 7 of a global batch in any micro-batch; another number is another mask."""
    training = logits_of(DROPPING, deterministic=False)
    key = jax.random.key(0)
    whole = training(PARAMS, TOKENS, key, rows=np.array([3, 7, 5]))
    part = training(PARAMS, TOKENS[1:2], key, rows=np.array([7]))
    np.testing.assert_allclose(part[0], whole[1], rtol=0, atol=1e-5)
    other = training(PARAMS, TOKENS[1:2], key, rows=np.array([8]))
    assert np.abs(other[0] - whole[1]).max() > 1e-2
    np.testing.assert_array_equal(training(PARAMS, TOKENS, key), training(PARAMS, TOKENS, key, rows=np.arange(3)))


@pytest.mark.parametrize("over_positions", [False, True])
@pytest.mark.parametrize("form", ["output", "table"])
def test_embedding_dropout_forms(form, over_positions):
    """By hand, without blocks: "output" masks the sum of the embeddings, "table" the table of look-up and head."""
    model = model_of(
        n_layer=0, n_special=3, embd_pdrop=0.2, embedding_dropout=form, softmax_over_positions=over_positions
    )
    params, n_rows = random_params(model), model.config.n_rows
    training = jax.jit(functools.partial(model.apply, deterministic=False))
    tokens, positions = params["tokens_embed"]["embedding"][:n_rows], params["positions_embed"]["embedding"]
    shape = (n_rows + 12, 16) if form == "table" else (*TOKENS.shape, 16)
    keep = np.random.default_rng(2).random(shape) > 0.2
    logits = training({"params": params, "dropout_masks": {"embd": keep}}, TOKENS)
    if form == "table":
        tokens, positions = np.split(np.concatenate([tokens, positions]) * keep / 0.8, [n_rows])
        h = tokens[TOKENS] + positions
    else:
        h = (tokens[TOKENS] + positions) * keep / 0.8
    head = np.concatenate([tokens, positions]) if over_positions else tokens
    assert logits.shape == (*TOKENS.shape, n_rows + 12 * over_positions)
    np.testing.assert_allclose(logits, h @ head.T, rtol=1e-5, atol=1e-5)

    drawn = training({"params": params}, TOKENS, rngs={"dropout": jax.random.key(0)})
    assert drawn.shape == logits.shape
    assert np.abs(drawn - logits).max() > 1e-2


# Bad input

BAD_CONFIGS = [
    ({"vocab_size": 0}, r"vocab_size=0 must be at least 1"),
    ({"n_ctx": -1}, r"n_ctx=-1 must be at least 1"),
    ({"n_embd": 0}, r"n_embd=0 must be at least 1"),
    ({"n_head": 0}, r"n_head=0 must be at least 1"),
    ({"n_layer": -2}, r"n_layer=-2 must be at least 0"),
    ({"n_head": 5}, r"n_embd=768 is not divisible by n_head=5; use a multiple of 5 .*\[1, 2, 3, 4, 6, 8, 12"),
    ({"n_special": 2}, r"n_special=2 is unknown; use one of \[0, 3\]"),
    ({"embd_pdrop": 1.0}, r"embd_pdrop=1.0 must be at least 0 and below 1"),
    ({"attn_pdrop": -0.1}, r"attn_pdrop=-0.1 must be at least 0 and below 1"),
    ({"resid_pdrop": 10}, r"resid_pdrop=10.0 must be at least 0 and below 1"),
    ({"clf_pdrop": math.nan}, r"clf_pdrop=nan must be a finite number"),
    ({"activation": "silu"}, r"activation='silu' is unknown; use one of \['gelu', 'relu', 'swish'\]"),
    ({"embedding_dropout": "both"}, r"embedding_dropout='both' is unknown; use one of \['output', 'table'\]"),
    ({"attention": "flash"}, r"attention='flash' is unknown; use 'auto' or one of \["),
    ({"dtype": "float16"}, r"dtype='float16' is unknown; use one of \['float32', 'bfloat16'\]"),
    ({"dtype": "fp32"}, r"dtype='fp32' is unknown; use one of \['float32', 'bfloat16'\]"),
    ({"remat": "some"}, r"remat='some' is unknown; use one of \['none', 'full', 'dots'\]"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_CONFIGS, ids=[str(fields) for fields, _ in BAD_CONFIGS])
def test_bad_config(fields, message):
    with pytest.raises(InputError, match=message):
        GPT1Config(**fields)


def test_dtype_may_be_a_dtype():
    assert GPT1Config(dtype=jnp.bfloat16) == GPT1Config(dtype="bfloat16")


def test_longer_than_the_context():
    with pytest.raises(InputError, match=r"tokens are 13 long, n_ctx=12: .* shorten the input or use a sliding window"):
        LM.apply({"params": PARAMS}, np.zeros((1, 13), np.int32))
