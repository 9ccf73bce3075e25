"""One run on every mesh: the same numbers, no more communication than it needs, and checkpoints that fit all."""

import logging
import math
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from jobs import LM, N_STEPS, SCHEDULES, TASK, Job, Layout, compiled, max_difference, on_one_device, train
from mesh_table import JOBS, LAYOUTS

from gpt1_jax import pretrain
from gpt1_jax.checkpoint import Checkpointer
from gpt1_jax.model import GPT1Config, param_shapes
from gpt1_jax.train import make_train_step


def collectives(text: str, kind: str) -> list[list[int]]:
    """Sizes, in entries, of what each collective of a compiled program gives."""
    lines = re.findall(rf"= (.*?) {kind}(?:-start)?\(", text)
    return [[math.prod(map(int, filter(None, s.split(",")))) for s in re.findall(r"\w\[([\d,]*)\]", x)] for x in lines]


def gathered(job: Job, layout: Layout) -> set[int]:
    """Sizes of the arrays that are brought together on a device."""
    return {n for sizes in collectives(compiled(job, layout).as_text(), "all-gather") for n in sizes}


def check_gathers(job: Job, layout: Layout) -> None:
    """What is brought together on a device are single parameters, none larger than a layer or the tied table.

    That is, nothing of the batch: its sequences have nine tokens, so that no size of it is that of a parameter's part.
    """
    sizes = [x.size for x in jax.tree.leaves(param_shapes(job.model.config, job.model.readout))]
    _, fsdp, tensor = layout.mesh
    parts = {size // n for size in sizes for n in (1, tensor, fsdp, fsdp * tensor)}
    assert gathered(job, layout) <= parts
    assert gathered(job, layout) or (fsdp == 1 and not layout.zero)


def check_run(job: Job, layout: Layout, capfd: pytest.CaptureFixture[str]) -> None:
    (history, state), (expected, expected_params) = train(job, layout), on_one_device(job)
    for i, (metrics, wanted) in enumerate(zip(history, expected, strict=True)):
        assert metrics == pytest.approx(wanted, abs=1e-5, rel=0), i
    assert max_difference(jax.device_get(state.params), expected_params) <= 1e-5
    assert "rematerialization" not in capfd.readouterr().err  # of an array that no other way leads to its new layout


QUICK = {
    "lm-8x1x1-zero-accumulated": (LM, Layout((8, 1, 1), zero=True, accumulation=4)),
    "lm-1x8x1": (LM, Layout((1, 8, 1))),
    "lm-2x4x1": (LM, Layout((2, 4, 1))),
    "lm-1x1x8": (LM, Layout((1, 1, 8))),
    "task-2x2x2-zero-accumulated": (TASK, Layout((2, 2, 2), zero=True, accumulation=4)),
    "task-1x2x4": (TASK, Layout((1, 2, 4))),
}
ALL = [
    pytest.param(job, layout, id=f"{name}-{layout.mesh}-{layout.zero}")
    for name, job in JOBS.items()
    for layout in LAYOUTS
    if (job, layout) not in QUICK.values()
]


@pytest.mark.parametrize(("job", "layout"), QUICK.values(), ids=QUICK)
def test_same_run_on_every_mesh(job, layout, capfd):
    """Dropout included: which entries fall does not depend on where they are computed, nor in how many pieces."""
    check_run(job, layout, capfd)
    check_gathers(job, layout)


@pytest.mark.slow
@pytest.mark.parametrize(("job", "layout"), ALL)
def test_same_run_on_every_other_mesh(job, layout, capfd):
    check_run(job, layout, capfd)
    check_gathers(job, layout)


def test_gradients_are_summed_over_data_once():
    """Also those of four micro-batches, and of the tied table, which is used twice."""
    without_layers = LM.changed(n_layer=0, dtype="bfloat16")
    for job, layout in (QUICK["lm-8x1x1-zero-accumulated"], (without_layers, Layout((8, 1, 1)))):
        text = compiled(job, layout).as_text()
        n_parameters = sum(x.size for x in jax.tree.leaves(param_shapes(job.model.config)))
        reduced = sum(map(sum, collectives(text, "all-reduce")))
        assert n_parameters <= reduced <= n_parameters + 100  # and the loss


@pytest.mark.parametrize(
    ("asked", "accumulation", "travels"),
    [("auto", 1, "bfloat16"), ("auto", 4, "float32"), ("float32", 1, "float32"), ("bfloat16", 4, "bfloat16")],
)
def test_gradients_travel_in_the_dtype_that_is_asked_for(asked, accumulation, travels):
    """Those of matrices, as the program says before a compiler has changed it; biases travel in float32."""
    job, layout = LM.changed(n_layer=1, dtype="bfloat16"), Layout((8, 1, 1))
    step = make_train_step(
        job.objective(job.model), layout.optimizer(), accumulation_steps=accumulation, gradient_dtype=asked
    )
    with jax.set_mesh(layout.devices):
        text = str(jax.make_jaxpr(step)(layout.abstract_state(job), job.batch(0), SCHEDULES))
    c = job.model.config

    def summed(*shape: int) -> str:
        """In which dtype; the loss may sum its parts before."""
        return re.findall(rf"(\w+)\[{','.join(map(str, shape))}\] = reduce(?:_sum)?\[", text)[-1]

    assert summed(c.padded_rows, c.n_embd) == {"bfloat16": "bf16", "float32": "f32"}[travels]
    assert summed(3, c.n_head, c.head_dim) == "f32"


@pytest.mark.parametrize("mesh", [(2, 4, 1), (2, 2, 2)], ids=str)
def test_zero_halves_what_a_device_keeps_of_the_optimizer(mesh):
    """Every matrix lies over `data`, too, and so do its moments."""
    plain, zero = (Layout(mesh, zero).abstract_state(LM) for zero in (False, True))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), zero) == jax.tree.map(lambda x: (x.shape, x.dtype), plain)

    def kept(state: object) -> dict[str, int]:
        leaves = jax.tree_util.tree_leaves_with_path((state.params, state.opt_state))
        return {jax.tree_util.keystr(path): math.prod(x.sharding.shard_shape(x.shape)) for path, x in leaves}

    before, after = kept(plain), kept(zero)
    matrices = [name for name in before if re.search("kernel|embedding", name)]
    assert len(matrices) == 3 * 6
    assert all(after[name] * 2 == before[name] for name in matrices)


def test_compiled_memory_falls():
    """What the compiler says that the state takes on a device."""
    one, fsdp, zero = (
        compiled(LM, layout).memory_analysis().argument_size_in_bytes
        for layout in (Layout(), QUICK["lm-1x8x1"][1], QUICK["lm-8x1x1-zero-accumulated"][1])
    )
    assert max(fsdp, zero) < 0.25 * one  # 1/8, and what is not sharded


@pytest.mark.slow
@pytest.mark.parametrize("form", ["output", "table"])
@pytest.mark.parametrize("over_positions", [False, True])
def test_the_original_s_oddities_need_no_more_communication(form, over_positions, capfd):
    """Dropout on the whole table, logits over the positions: rows that no mesh divides evenly."""
    job, layout = (
        LM.changed(embedding_dropout=form, softmax_over_positions=over_positions),
        Layout((2, 2, 2), zero=True),
    )
    check_run(job, layout, capfd)
    config = job.model.config
    assert max(gathered(job, layout)) <= (config.padded_rows + config.n_ctx) * config.n_embd  # half of a batch is more


@pytest.mark.slow
@pytest.mark.parametrize("n_head", [3, 5, 6, 12])
def test_any_divisor_of_the_heads_divides_the_vocabulary(n_head, capfd):
    job = LM.changed(n_head=n_head, n_embd=4 * n_head)
    for tensor in {d for d in range(2, 9) if n_head % d == 0}:
        check_run(job, Layout((1, 1, tensor)), capfd)


@pytest.mark.parametrize("n_head", range(1, 26))
def test_the_table_divides_by_every_divisor_of_the_heads(n_head):
    config = GPT1Config(n_head=n_head, n_embd=4 * n_head)
    assert config.padded_rows % n_head == config.padded_rows % 128 == 0
    assert 0 <= config.padded_rows - config.n_rows < math.lcm(128, n_head)


HALF = N_STEPS // 2
LATER = [
    Layout(),
    Layout((1, 2, 4)),
    pytest.param(Layout((1, 8, 1)), marks=pytest.mark.slow),
    pytest.param(Layout((2, 1, 1), zero=True), marks=pytest.mark.slow),
    pytest.param(Layout((1, 2, 1)), marks=pytest.mark.slow),
    pytest.param(Layout((1, 2, 2)), marks=pytest.mark.slow),
    pytest.param(Layout((1, 1, 8)), marks=pytest.mark.slow),
    pytest.param(Layout((2, 4, 1)), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of half a run on 2x2x2 devices with the optimizer over all of them."""
    folder = tmp_path_factory.mktemp("written")
    _, state = train(TASK, Layout((2, 2, 2), zero=True, accumulation=4), until=HALF)
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(HALF, state)
    return folder


@pytest.mark.parametrize("layout", LATER, ids=lambda layout: f"{layout.mesh}-{layout.zero}")
def test_a_checkpoint_goes_on_quietly_on_any_other_mesh(written, layout, caplog, capfd, recwarn):
    expected, expected_params = on_one_device(TASK)
    capfd.readouterr()
    with caplog.at_level(logging.WARNING), Checkpointer(written, read_only=True) as checkpointer:
        wanted = layout.abstract_state(TASK)
        state = checkpointer.restore(wanted)
        params = checkpointer.restore_params(abstract_params=wanted.params)
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(lambda x: x.sharding, wanted)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), jax.device_get(state.params))
    assert (caplog.messages, capfd.readouterr(), [str(w.message) for w in recwarn]) == ([], ("", ""), [])
    history, state = train(TASK, layout, state)
    for metrics, wanted_metrics in zip(history, expected[HALF:], strict=True):
        assert metrics == pytest.approx(wanted_metrics, abs=1e-5, rel=0)
    assert max_difference(jax.device_get(state.params), expected_params) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
def test_a_run_goes_on_with_the_optimizer_over_data_or_without(pretrain_settings, tmp_path, before):
    whole = pretrain.run(pretrain_settings(), tmp_path / "whole").metrics
    meshes = [{"data": 4, "tensor": 2, "shard_optimizer": zero} for zero in (before, not before)]
    pretrain.run(pretrain_settings(mesh=meshes[0]), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "10")
    assert pretrain.run(pretrain_settings(mesh=meshes[1]), tmp_path / "run").metrics == pytest.approx(whole, rel=1e-5)
