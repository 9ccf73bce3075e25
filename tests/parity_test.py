"""The model and its training against numbers that the original program returned (see goldens/README.md).

Everything that a set of numbers may choose (sizes, names, runs, settings) is read from its files.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gpt1_jax import optim
from gpt1_jax.data.original import max_text_tokens
from gpt1_jax.interop.openai import params_from_official, params_to_official
from gpt1_jax.losses import next_token_nll, task_nll, task_objective, task_outputs
from gpt1_jax.model import GPT1, GPT1Config, ReadOut
from gpt1_jax.optim import OptimizerConfig, Schedule, make_optimizer, make_schedule
from gpt1_jax.tasks.transforms import SpecialTokens, cut_texts, to_streams
from gpt1_jax.train import TrainState, make_train_step

pytestmark = pytest.mark.parity

READOUT = ReadOut("multiple_choice")
Golden = Mapping[str, np.ndarray]


@pytest.fixture
def load(goldens: Path):
    return lambda name: np.load(goldens / f"{name}.npz")


def model_of(z: Golden, **changes: Any) -> GPT1:
    """The model of a file, with both official oddities on."""
    c = json.loads(str(z["cfg_json"]))
    config = GPT1Config(
        **{name: c[name] for name in ("n_ctx", "n_embd", "n_head", "n_layer", "n_special")},
        **{name: c.get(name, 0.0) for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop", "clf_pdrop")},
        vocab_size=c["n_vocab"],
        activation=c["afn"],
        softmax_over_positions=True,
        embedding_dropout="table",
    )
    assert config.extract_id == c["clf_token"]
    return GPT1(dataclasses.replace(config, **changes), READOUT)


def params_of(z: Golden, prefix: str, config: GPT1Config) -> dict[str, Any]:
    return params_from_official(lambda name: z[prefix + name], config, READOUT)


def batch_of(z: Golden, step: int | None = None) -> dict[str, np.ndarray]:
    """The labelled batch of a file, or of one of its steps."""
    x, mask, label = (z[f"in/{name}"] if step is None else z[f"in/{name}"][step] for name in "XMY")
    first_position = model_of(z).config.n_rows
    assert (x[..., 1] == first_position + np.arange(x.shape[2])).all()
    return {
        "tokens": x[..., 0],
        "mask": mask,
        "stream_mask": np.ones(x.shape[:2], bool),
        "label": label,
        "weight": np.ones(len(label), np.float32),
    }


def lm_losses(nll: Any, mask: np.ndarray) -> np.ndarray:
    """Mean loss of each stream, as one axis."""
    return np.ravel((nll * mask[:, :, 1:]).sum(-1) / mask[:, :, 1:].sum(-1))


def compare(actual: Any, expected: np.ndarray, atol: float, what: str) -> None:
    assert np.shape(actual) == expected.shape, what
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=atol, err_msg=what)


FORWARD = {"forward_tiny": 2e-5, "forward_medium": 2e-5, "forward_extreme_mask": 1e-2}


@pytest.mark.parametrize("name", FORWARD)
def test_forward(load, name):
    z, atol = load(name), FORWARD[name]
    model = model_of(z)
    params, batch = params_of(z, "params/", model.config), batch_of(z)
    tokens = batch["tokens"].reshape(-1, model.config.n_ctx)
    n_compared = 0

    # A model without blocks returns the embeddings.
    h_embed, _ = model_of(z, n_layer=0).apply({"params": params}, tokens, method=GPT1.features)

    @jax.jit
    def run(params: Any) -> Any:
        return model.apply({"params": params}, tokens, capture_intermediates=True), task_outputs(model, params, batch)

    (logits, state), outputs = run(params)
    inside = state["intermediates"]
    ours = {"h_embed": h_embed, "lm_logits": logits[:, :-1].reshape(-1, model.config.n_logits)}
    for i in range(model.config.n_layer):
        block = inside[f"h_{i}"]
        ours |= {
            f"h_block{i}": block["__call__"][0][0],
            f"block{i}_attn_probs": block["attn"]["probabilities"][0],
            f"block{i}_attn_out": block["attn"]["__call__"][0][0],
            f"block{i}_ln_1": block["ln_1"]["__call__"][0],
            f"block{i}_mlp_out": block["mlp"]["__call__"][0],
        }
    ours |= {f"lm_logits_seq{i}": logits[i, :-1] for i in range(len(tokens))}
    ours |= {
        "clf_logits": outputs["logits"],
        "clf_losses": outputs["task_nll"],
        "lm_losses": lm_losses(outputs["lm_nll"], batch["mask"]),
    }
    for key in z.files:
        if key.startswith("out/"):
            compare(ours[key.removeprefix("out/")], z[key], atol, key)
            n_compared += 1
    assert n_compared >= 6


def test_without_the_position_rows(load):
    """`softmax_over_positions=False` is the same model with a softmax over the other rows."""
    z = load("forward_tiny")
    model = model_of(z, softmax_over_positions=False)
    params, batch = params_of(z, "params/", model.config), batch_of(z)
    tokens = batch["tokens"].reshape(-1, model.config.n_ctx)
    n_rows = model.config.n_rows
    logits = z["out/lm_logits"][:, :n_rows].reshape(*tokens[:, 1:].shape, n_rows)

    @jax.jit
    def run(params: Any) -> Any:
        return model.apply({"params": params}, tokens), task_outputs(model, params, batch)["lm_nll"]

    our_logits, nll = run(params)
    compare(our_logits[:, :-1], logits, 2e-5, "logits")
    nll = nll.reshape(*tokens[:, 1:].shape)
    expected = -np.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1)[..., 0]
    compare(nll, expected, 2e-5, "loss of each token")


def test_activations(load):
    z = load("forward_tiny")
    keys = [match for key in z.files if (match := re.fullmatch(r"out_(\w+)/(\w+)", key))]
    assert {match[1] for match in keys} >= {"relu", "swish"}
    for activation in {match[1] for match in keys}:
        model = model_of(z, activation=activation)
        params, batch = params_of(z, "params/", model.config), batch_of(z)
        tokens = batch["tokens"].reshape(-1, model.config.n_ctx)

        @jax.jit
        def run(params: Any, model: GPT1 = model, tokens: Any = tokens, batch: Any = batch) -> Any:
            h, _ = model.apply({"params": params}, tokens, method=GPT1.features)
            return h, task_outputs(model, params, batch)

        h, outputs = run(params)
        ours = {
            "h_last": h,
            "clf_logits": outputs["logits"],
            "clf_losses": outputs["task_nll"],
            "lm_losses": lm_losses(outputs["lm_nll"], batch["mask"]),
        }
        for match in keys:
            if match[1] == activation:
                compare(ours[match[2]], z[match[0]], 2e-5, match[0])


def dropout_masks(z: Golden) -> dict[str, Any]:
    """The given masks where our modules look for theirs."""
    masks: dict[str, Any] = {}
    names = {"attn_probs": ("attn", "attn_probs"), "attn_resid": ("attn", "resid"), "mlp_resid": ("mlp", "resid")}
    for site in map(str, z["mask_sites"]):
        keep = jnp.asarray(z[f"keep_mask/{site}"])
        if match := re.fullmatch(r"h(\d+)/(\w+)", site):
            module, ours = names[match[2]]
            masks.setdefault(f"h_{match[1]}", {}).setdefault(module, {})[ours] = keep
        else:
            masks[{"we": "embd", "clf": "clf"}[site]] = keep
    return masks


def test_dropout_with_given_masks(load):
    z = load("dropout_given_masks")
    model = model_of(z)
    config, lm_coef = model.config, json.loads(str(z["cfg_json"]))["lm_coef"]
    rates = {"we": "embd_pdrop", "clf": "clf_pdrop", "attn_probs": "attn_pdrop"}
    for site in map(str, z["mask_sites"]):
        rate = getattr(config, rates.get(site.rpartition("/")[2], "resid_pdrop"))
        assert float(z[f"keep_prob/{site}"]) == pytest.approx(1 - rate, abs=1e-6), site
    params, batch = params_of(z, "params/", config), batch_of(z)
    tokens, flat = batch["tokens"], batch["tokens"].reshape(-1, config.n_ctx)

    def forward(m: GPT1) -> dict[str, jax.Array]:
        h, table = m.features(flat, deterministic=False)
        nll = next_token_nll(h, table, flat, n_rows=config.n_logits).reshape(*tokens.shape[:2], -1)
        clf_logits = m.task_logits(h.reshape(*tokens.shape, -1), tokens, deterministic=False)
        return {
            "h_last": h,
            "lm_logits": m.lm_logits(h[:, :-1], table).reshape(-1, config.n_logits),
            "lm_losses": (nll * batch["mask"][:, :, 1:]).sum(-1).ravel() / batch["mask"][:, :, 1:].sum(-1).ravel(),
            "clf_logits": clf_logits,
            "clf_losses": task_nll(clf_logits, batch["label"]),
        }

    masks = dropout_masks(z)

    def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        out = model.apply({"params": params, "dropout_masks": masks}, method=forward)
        return out["clf_losses"].mean() + lm_coef * out["lm_losses"].mean(), out

    grads, out = jax.jit(jax.grad(loss, has_aux=True))(params)
    without_blocks = model_of(z, n_layer=0)
    out["h_embed"] = without_blocks.apply(
        {"params": params, "dropout_masks": masks}, flat, deterministic=False, method=GPT1.features
    )[0]
    for key in z.files:
        if key.startswith("out/"):
            compare(out[key.removeprefix("out/")], z[key], 2e-5, key)
    ours = params_to_official(grads, config)
    for name in map(str, z["param_names"]):
        compare(ours[name], z[f"grads/{name}"], 2e-5, name)


def runs_of(z: Golden) -> dict[str, dict[str, Any]]:
    """The settings of each run of a file."""
    runs = {key.removesuffix("/hyper_json"): json.loads(str(z[key])) for key in z if key.endswith("/hyper_json")}
    assert runs
    return runs


def optimizer_of(hyper: dict[str, Any]) -> OptimizerConfig:
    """The official settings under our names."""
    return OptimizerConfig(
        learning_rate=hyper["lr"],
        schedule=hyper.get("schedule") or hyper["lr_schedule"],
        warmup_steps=None,
        warmup_fraction=hyper["warmup"] if "warmup" in hyper else hyper["lr_warmup"],
        b1=hyper["b1"],
        b2=hyper["b2"],
        eps=hyper["e"],
        weight_decay=hyper["l2"],
        clip_norm=max(hyper["max_grad_norm"], 0.0),
    )


def vectors_decay(hyper: dict[str, Any]) -> bool:
    return bool(hyper.get("vector_l2"))


@functools.cache
def train_step_of(model: GPT1, config: OptimizerConfig, decayed: tuple[str, ...]) -> Any:
    assert decayed == optim.DECAYED
    return jax.jit(make_train_step(task_objective(model), make_optimizer(config)))


@functools.cache
def all_updates_of(config: OptimizerConfig) -> Any:
    """(params, gradients of every step, rate of every step) -> (parameters after every step, final state)."""
    optimizer = make_optimizer(config)

    def one(carry: Any, given: Any) -> Any:
        (params, state), (grads, rate) = carry, given
        updates, state = optimizer.update(grads, state, params, learning_rate=rate)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    @jax.jit
    def every(params: Any, grads: Any, rates: jax.Array) -> Any:
        (_, state), history = jax.lax.scan(one, (params, optimizer.init(params)), (grads, rates))
        return history, state

    return every


def without_rate(config: OptimizerConfig) -> OptimizerConfig:
    """The settings that are compiled in; the rate is an argument, so runs that differ in it share a compilation."""
    return dataclasses.replace(config, learning_rate=0.0, schedule="constant", warmup_fraction=0.0)


def test_optimizer(load):
    """Every run: parameters after every step kept, and both moments at the end."""
    z = load("optimizer")
    names = [key.removeprefix("p0/") for key in z.files if key.startswith("p0/")]
    for run, hyper in runs_of(z).items():
        horizon = run.partition("_")[0]
        # Ours decides by name what decays, the official code by rank (or takes all of them).
        kind = {n: "kernel" if z[f"p0/{n}"].ndim > 1 or vectors_decay(hyper) else "bias" for n in names}
        params = {n: {kind[n]: z[f"p0/{n}"]} for n in names}
        grads = {n: {kind[n]: z[f"grads_{horizon}/{n}"]} for n in names}
        n_steps = len(z[f"grads_{horizon}/{names[0]}"])
        config = optimizer_of(hyper)
        rates = jax.vmap(make_schedule(config, hyper["t_total"]))(jnp.arange(n_steps))
        history, state = all_updates_of(without_rate(config))(params, grads, rates)
        key = f"steps_kept_{horizon}"
        kept = z[key] - 1 if key in z else np.arange(n_steps)
        for n in names:
            np.testing.assert_allclose(
                np.asarray(history[n][kind[n]])[kept], z[f"{run}/params/{n}"], rtol=0, atol=1e-6, err_msg=f"{run} {n}"
            )
            for theirs, ours in (("m", "mu"), ("v", "nu")):
                moment = optax.tree.get(state, ours)[n][kind[n]]
                np.testing.assert_allclose(
                    moment, z[f"{run}/{theirs}_final/{n}"], rtol=1e-5, atol=1e-9, err_msg=f"{run} {ours} of {n}"
                )


def test_schedules(load):
    z = load("optimizer")
    runs = runs_of(z)
    names = [key.removeprefix("schedule_") for key in z.files if key.startswith("schedule_")]
    assert names
    for name in names:
        hyper = runs[name]
        schedule = make_schedule(optimizer_of(hyper), hyper["t_total"])
        step = np.arange(len(z[f"schedule_{name}"]))
        rate = np.asarray(jax.vmap(schedule)(step))
        # Close to the end a rate is all rounding: x = t/T may be the float32 beside theirs, and 1 - x with it.
        rounding = {"rtol": 2e-6, "atol": hyper["lr"] * np.finfo(np.float32).eps, "err_msg": name}
        np.testing.assert_allclose(rate, hyper["lr"] * z[f"schedule_{name}"], **rounding)
        correction = np.sqrt(1 - hyper["b2"] ** (step + 1.0)) / (1 - hyper["b1"] ** (step + 1.0))
        np.testing.assert_allclose(rate * correction, z[f"lrt_{name}"], **rounding | {"rtol": 2e-5})


def without_noise(name: str, value: np.ndarray) -> np.ndarray:
    """Drops the two parameters whose true gradient is zero: Adam makes full steps of their rounding noise.

    A bias of the keys shifts all scores of a query alike, and the one of W_y all answers.
    """
    if name.endswith("attn/c_attn/b"):
        q, _, v = np.split(value, 3)
        return np.concatenate([q, v])
    return value[:0] if name == "model/clf/b" else value


def compare_trained(ours: np.ndarray, expected: np.ndarray, gradient: np.ndarray, longest: float, what: str) -> None:
    """Compares parameters after training, strictly but where a gradient was no larger than rounding.

    That is so by chance for a few, and without L1 for the bias of the last LayerNorm: it shifts all answers alike.

    Args:
      ours, expected: the parameters.
      gradient: root mean square of each one's gradients, the least that Adam had at any update.
      longest: the way that Adam can go in all updates.
      what: named in a message.
    """
    noise = gradient < 1e-6
    compare(np.where(noise, 0, ours), np.where(noise, 0, expected), 5e-6, what)
    compare(np.where(noise, ours, 0), np.where(noise, expected, 0), longest, what)


@jax.jit
def least_gradients(least: Any, nu: Any, correction: jax.Array) -> Any:
    """The smaller of `least` and the root of Adam's second moment, where that is not zero."""
    return jax.tree.map(lambda a, v: jnp.where(v > 0, jnp.minimum(a, jnp.sqrt(v / correction)), a), least, nu)


MOST_LATE = 0.1
"""Part of the updates in which the original may have read the next one's rate (see e2e_parity_test.py)."""


def test_training(load, monkeypatch):
    """Whole fine-tuning runs with our own train step: every loss and gradient norm, and the final parameters."""
    z = load("training")
    model = model_of(z)
    config, n_steps = model.config, len(z["in/X"])
    start = params_of(z, "init/", config)
    outputs = jax.jit(functools.partial(task_outputs, model))
    for run, hyper in runs_of(z).items():
        decayed = ("kernel", "embedding", *(("bias", "scale") if vectors_decay(hyper) else ()))
        monkeypatch.setattr(optim, "DECAYED", decayed)
        optimizer = without_rate(optimizer_of(hyper))
        schedules = {
            "learning_rate": make_schedule(optimizer_of(hyper), hyper["n_updates_total"]),
            "lm_coef": Schedule(np.float32(hyper["lm_coef"])),
        }
        params = jax.tree.map(jnp.asarray, start)
        before = state = TrainState(jnp.int32(0), params, make_optimizer(optimizer).init(params), jax.random.key(0))
        step = train_step_of(model, optimizer, decayed)
        n_late, least = 0, jax.tree.map(lambda x: jnp.full_like(x, jnp.inf), params)
        for i in range(n_steps):
            batch = batch_of(z, i)
            out = outputs(state.params, batch)
            expected_nll = z[f"{run}/clf_losses"][i]
            if i and not np.allclose(out["task_nll"], expected_nll, rtol=2e-5, atol=2e-5):
                late, _ = step(before.replace(step=before.step + 1), batch_of(z, i - 1), schedules)
                if np.allclose((again := outputs(late.params, batch))["task_nll"], expected_nll, rtol=2e-5, atol=2e-5):
                    state, out, n_late = late.replace(step=jnp.int32(i)), again, n_late + 1
            before = state
            state, metrics = step(state, batch, schedules)
            least = least_gradients(least, optax.tree.get(state.opt_state, "nu"), 1 - hyper["b2"] ** (i + 1))
            ours = {
                "clf_logits": out["logits"],
                "clf_losses": out["task_nll"],
                "lm_losses": lm_losses(out["lm_nll"], batch["mask"]),
                "train_loss": metrics["loss"],
                "grad_norm": metrics["grad_norm"],
            }
            for key, value in ours.items():
                expected, tolerance = z[f"{run}/{key}"][i], 2e-5
                if key == "clf_logits":  # up to their bias, see `without_noise`
                    value, expected = (x - x.mean(-1, keepdims=True) for x in (value, expected))
                if key == "lm_losses" and not hyper["lm_coef"]:  # it sees a bias that is not trained then
                    tolerance = 1e-3
                np.testing.assert_allclose(
                    value, expected, rtol=tolerance, atol=tolerance, err_msg=f"{run} step {i} {key}"
                )
        assert n_late <= MOST_LATE * n_steps
        final = params_to_official(state.params, config)
        gradients = params_to_official(least, config)
        for name in map(str, z["param_names"]):
            values = (final[name], z[f"{run}/final/{name}"], gradients[name])
            compare_trained(*(without_noise(name, v) for v in values), n_steps * hyper["lr"], f"{run} {name}")


def test_gradients_of_the_first_training_step(load):
    z = load("training")
    model = model_of(z)
    params = params_of(z, "init/", model.config)
    objective = task_objective(model)
    batch = objective.normalize({k: jnp.asarray(v) for k, v in batch_of(z, 0).items()})
    # Runs may differ in lambda; the stored gradients are those of the run that has their norm.
    expected = {name: z[f"grads_step0/{name}"] for name in map(str, z["param_names"])}
    norm = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in expected.values()))
    runs = runs_of(z)
    of = min(runs, key=lambda run: abs(z[f"{run}/grad_norm"][0] - norm))
    assert z[f"{of}/grad_norm"][0] == pytest.approx(norm, rel=1e-5)
    rows, key, lm_coef = jnp.arange(len(batch["label"])), jax.random.key(0), runs[of]["lm_coef"]
    grads = jax.jit(jax.grad(lambda p: objective.loss(p, batch, rows, key, {"lm_coef": lm_coef})[0]))(params)
    ours = params_to_official(grads, model.config)
    for name, value in expected.items():
        compare(ours[name], value, 2e-5, name)


@pytest.mark.parametrize("name", ["forward_tiny", "forward_medium"])
def test_packing(load, name):
    """The streams and masks that the original packs its texts into, from the token lists before it did."""
    z = load(name)
    config = model_of(z).config
    x, mask = z["in/X"], z["in/M"]
    for b in range(len(x) - 2 if name == "forward_tiny" else len(x)):  # two of the former are packed otherwise
        context, *answers = ([int(token) for token in z[f"in/X{i}"][b] if token >= 0] for i in (1, 2, 3))
        fields, _ = cut_texts({"context": context, "question": [], "answers": answers}, max_text_tokens(config.n_ctx))
        special = SpecialTokens.after(config.vocab_size)
        streams, n_cut = to_streams("multiple_choice", fields, special=special, n_ctx=config.n_ctx)
        assert n_cut == 0
        for stream, tokens, m in zip(streams, x[b, :, :, 0], mask[b], strict=True):
            n_left = config.n_ctx - len(stream)
            np.testing.assert_array_equal(np.pad(stream, (0, n_left)), tokens)
            np.testing.assert_array_equal(np.pad(np.ones(len(stream)), (0, n_left)), m)


@pytest.mark.parametrize("name", ["forward_tiny", "dropout_given_masks"])
def test_names_and_order_of_the_parameters(load, name):
    z = load(name)
    config = model_of(z).config
    official = params_to_official(params_of(z, "params/", config), config)
    assert list(official) == list(map(str, z["param_names"]))
    for key, value in official.items():
        assert value.dtype == z[f"params/{key}"].dtype
        assert value.tobytes() == z[f"params/{key}"].tobytes(), key
