"""Checkpoints come back as they were, on any devices, after any fault; or they are refused with a reason."""

import asyncio
import functools
import gc
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl import logging
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from gpt1_jax.checkpoint import Checkpointer
from gpt1_jax.errors import InputError
from gpt1_jax.manifest import Manifest


@flax.struct.dataclass
class State:
    step: Any
    params: Any
    opt_state: Any
    key: Any


OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.linear_schedule(0.0, 1e-3, 10)))
SPECS = {"embed": PartitionSpec("fsdp", None), "kernel": PartitionSpec("fsdp", "data")}


def make_state(step: int, devices: int = 1, width: int = 16) -> State:
    """A state whose every number follows from `step`, on a mesh of the first devices."""
    shape = {1: (1, 1), 2: (1, 2), 4: (2, 2), 8: (2, 4)}[devices]
    mesh = jax.make_mesh(shape, ("data", "fsdp"), (AxisType.Auto,) * 2, devices=jax.devices()[:devices])

    def place(path: tuple, leaf: Any) -> Any:
        spec = SPECS.get(getattr(path[-1], "key", ""), PartitionSpec())
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    draw = np.random.default_rng(step).standard_normal
    params = {
        "embed": draw((width, 8)).astype(np.float32),
        "h_0": {"kernel": draw((8, width)).astype(np.float32), "scale": np.full((3,), step, jnp.bfloat16)},
    }
    opt_state = jax.tree.map(lambda leaf: np.full(leaf.shape, step, leaf.dtype), jax.eval_shape(OPTIMIZER.init, params))
    key = jax.random.wrap_key_data(np.array([1, step], np.uint32))
    return jax.tree_util.tree_map_with_path(place, State(np.int32(step), params, opt_state, key))


def abstract(state: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)


def assert_same(found: Any, wanted: Any) -> None:
    """Types, shardings and bits."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert one.dtype == other.dtype
        assert one.sharding == other.sharding
        if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_a_state_comes_back_with_its_types_and_its_key(tmp_path: Path):
    state = make_state(7)
    with Checkpointer(tmp_path / "c") as checkpointer:
        assert checkpointer.latest_step() is None
        assert checkpointer.save(7, state)
        found = checkpointer.restore(abstract(state))
    assert_same(found, state)
    assert isinstance(found.opt_state[1][0], optax.ScaleByAdamState)
    drawn = jax.random.bernoulli(jax.random.fold_in(found.key, 8), 0.5, (64,))
    np.testing.assert_array_equal(drawn, jax.random.bernoulli(jax.random.fold_in(state.key, 8), 0.5, (64,)))


def test_a_key_of_another_generator_is_refused(tmp_path: Path):
    state = make_state(1)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state)
        other = abstract(state).replace(key=abstract(jax.random.key(0, impl="unsafe_rbg")))
        with pytest.raises(InputError, match=r"key/unsafe_rbg: absent in the checkpoint, uint32\[4\] here"):
            checkpointer.restore(other)


def test_buffers_can_be_donated_as_soon_as_save_returns(tmp_path: Path):
    state = make_state(2, width=50_000)
    wanted = jax.tree.map(np.array, state.params)

    @functools.partial(jax.jit, donate_argnums=0)
    def next_params(params: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf * 0 - 1, params)

    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(2, state)
        params = state.params
        for _ in range(5):
            params = next_params(params)
        found = checkpointer.restore_params()
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_parameters_alone_need_no_optimizer(tmp_path: Path):
    state = make_state(3)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(3, state)
    with Checkpointer(tmp_path, read_only=True) as checkpointer:
        plain = checkpointer.restore_params()
        placed = checkpointer.restore_params(3, abstract(state.params))
        with pytest.raises(
            InputError, match=r"params/embed: float32\[16, 8\] in the checkpoint, float32\[17, 8\] here"
        ):
            checkpointer.restore_params(abstract_params=abstract(make_state(3, width=17).params))
        with pytest.raises(InputError, match="read_only"):
            checkpointer.save(4, state)
    assert isinstance(plain["embed"], np.ndarray)
    assert plain["h_0"]["scale"].dtype == jnp.bfloat16
    jax.tree.map(np.testing.assert_array_equal, plain, state.params)
    assert_same(placed, state.params)


def test_one_error_names_every_array_that_does_not_fit(tmp_path: Path):
    state = make_state(1)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state)
        other = abstract(state).replace(opt_state=())
        other.params["h_0"]["bias"] = jax.ShapeDtypeStruct((3,), jnp.float32)
        other.params["h_0"]["scale"] = jax.ShapeDtypeStruct((3,), jnp.float32)
        with pytest.raises(InputError) as caught:
            checkpointer.restore(other)
    message = str(caught.value)
    assert "params/h_0/bias: absent in the checkpoint, float32[3] here" in message
    assert "params/h_0/scale: bfloat16[3] in the checkpoint, float32[3] here" in message
    assert "opt_state/1/0/mu/embed: float32[16, 8] in the checkpoint, absent here" in message
    assert "and 5 more" in message
    assert "config.json" in message


def test_missing_checkpoints_are_named(tmp_path: Path):
    with Checkpointer(tmp_path / "nowhere", read_only=True) as checkpointer:
        assert checkpointer.all_steps() == []
        with pytest.raises(InputError, match=r"no checkpoint in .*nowhere, which does not exist"):
            checkpointer.restore_params()
    assert not (tmp_path / "nowhere").exists()
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(5, make_state(5))
        with pytest.raises(InputError, match=r"step=6: .* it has \[5\]"):
            checkpointer.restore_params(6)
        with pytest.raises(InputError, match="step 5 is the latest"):
            checkpointer.save(4, make_state(4))
    for wrong in ({"keep_latest": 0}, {"keep_every": 0}, {"best_mode": "maximum"}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Checkpointer(tmp_path, **wrong)


def test_the_latest_the_best_and_every_kth_are_kept(tmp_path: Path):
    accuracies = {10: 0.5, 20: 0.9, 30: float("nan"), 40: 0.7, 50: None, 60: 0.9, 70: 0.1, 80: 0.2}
    state = make_state(0)
    for steps in ((10, 20, 30, 40), (50, 60, 70, 80)):  # in two runs: the metrics are on the disk
        with Checkpointer(tmp_path, keep_latest=2, keep_every=40, best_metric="acc") as checkpointer:
            for step in steps:
                value = accuracies[step]
                checkpointer.save(step, state, None if value is None else {"acc": value, "loss": step})
            kept, best = checkpointer.all_steps(), checkpointer.best_step()
        if steps[0] == 10:
            assert (kept, best) == ([20, 30, 40], 20)
    assert (kept, best) == ([20, 40, 70, 80], 20)  # a later one has to be better, as in the original program
    with Checkpointer(tmp_path, read_only=True, best_metric="loss", best_mode="min") as checkpointer:
        assert checkpointer.best_step() == 20
    with Checkpointer(tmp_path, read_only=True, best_metric="f1") as checkpointer:
        assert checkpointer.best_step() is None


def test_metrics_can_follow_their_checkpoint(tmp_path: Path):
    state = make_state(0)
    with Checkpointer(tmp_path, best_metric="acc") as checkpointer:
        checkpointer.save(1, state, {"acc": 0.5})
        checkpointer.save(2, state)  # interrupted before its evaluation
    with Checkpointer(tmp_path, best_metric="acc") as checkpointer:
        assert checkpointer.best_step() == 1
        assert not checkpointer.save(2, state, {"acc": 0.6})
        assert checkpointer.best_step() == 2
    with Checkpointer(tmp_path, best_metric="acc") as checkpointer:
        assert checkpointer.best_step() == 2
        checkpointer.restore(abstract(state))


def test_a_folder_deleted_by_hand_stops_nothing(tmp_path: Path):
    state = make_state(0)
    with Checkpointer(tmp_path, keep_latest=1) as checkpointer:
        checkpointer.save(1, state)
        checkpointer.wait()
        shutil.rmtree(tmp_path / "1")
        checkpointer.save(2, state)
        assert checkpointer.all_steps() == [2]


def test_orbax_is_not_asked_about_preemption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []
    monkeypatch.setattr("jax.experimental.multihost_utils.reached_preemption_sync_point", asked.append)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, make_state(1))
    assert asked == []


def test_only_orbaxs_own_chatter_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    before = logging.get_verbosity()
    logging.set_verbosity(logging.INFO)
    logging.get_absl_logger().addHandler(caplog.handler)
    try:
        with Checkpointer(tmp_path) as checkpointer:
            checkpointer.save(1, make_state(1))
            logging.info("mine")
        messages = [record.getMessage() for record in caplog.records]
    finally:
        logging.get_absl_logger().removeHandler(caplog.handler)
        logging.set_verbosity(before)
    assert set(messages) == {"mine"}
    assert logging.get_absl_logger().filters == []


# --- Damage ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the checkpoints of steps 1 and 2."""
    directory = tmp_path_factory.mktemp("intact")
    with Checkpointer(directory, best_metric="acc") as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, make_state(step), {"acc": step / 10})
    return directory


def damaged_copies(intact: Path, tmp_path: Path):
    """For every file of step 2: a directory in which that file can be damaged."""
    names = sorted(str(path.relative_to(intact)) for path in (intact / "2").rglob("*") if path.is_file())
    assert len(names) > 10
    for number, name in enumerate(names):
        copy = tmp_path / str(number)
        shutil.copytree(intact, copy)
        yield copy, copy / name
        shutil.rmtree(copy)


@pytest.mark.parametrize("fault", ["flipped", "truncated", "missing"])
def test_every_damaged_file_is_found(intact: Path, tmp_path: Path, fault: str):
    chance = random.Random(fault)
    state = make_state(2)
    for directory, file in damaged_copies(intact, tmp_path):
        content = bytearray(file.read_bytes())
        if fault == "flipped":
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            file.write_bytes(content)
        elif fault == "truncated":
            file.write_bytes(content[: chance.randrange(len(content))])
        else:
            file.unlink()
        with Checkpointer(directory, best_metric="acc") as checkpointer:
            if file.parent == directory / "2" and file.name in ("_CHECKPOINT_METADATA", "commit_success.txt"):
                found = checkpointer.restore(abstract(state))  # nothing is read from these two
                assert_same(found, state)
                continue
            for load in (lambda c: c.restore(abstract(state)), lambda c: c.restore_params()):
                with pytest.raises(InputError) as caught:
                    load(checkpointer)
                message = str(caught.value)
                assert str(file.relative_to(directory / "2")) in message
                assert f"Delete the folder {directory / '2'}" in message
                assert "from step 1" in message
            shutil.rmtree(directory / "2")  # the remedy
            assert_same(checkpointer.restore(abstract(state)), make_state(1))


def test_of_a_damaged_checkpoint_that_is_not_the_latest_it_says_what_would_be_lost(intact: Path, tmp_path: Path):
    shutil.copytree(intact, tmp_path / "c")
    (tmp_path / "c" / "1" / "manifest.json").unlink()
    with Checkpointer(tmp_path / "c") as checkpointer:
        with pytest.raises(InputError, match=r"continues from step 2, with the best of what is left. To have step 1"):
            checkpointer.restore_params(1)
        shutil.rmtree(tmp_path / "c" / "2")
        with pytest.raises(InputError, match=r"it continues from the beginning\.$"):
            checkpointer.restore_params(1)


def test_a_renamed_or_newer_folder_is_refused(intact: Path, tmp_path: Path):
    shutil.copytree(intact / "2", tmp_path / "9")
    with Checkpointer(tmp_path) as checkpointer, pytest.raises(InputError, match="is that of step 2"):
        checkpointer.restore_params()
    manifest = json.loads((tmp_path / "9" / "manifest.json").read_text())
    assert manifest["arrays"]["params/embed"] == "float32[16, 8]"
    assert manifest["metrics"] == {"acc": 0.2}


# --- Other processes ------------------------------------------------------------------------------------------------


def start(command: str, directory: Path, argument: str = "", devices: int = 1) -> subprocess.Popen:
    """Runs this file in a fresh process."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    arguments = [sys.executable, __file__, command, str(directory), argument]
    return subprocess.Popen(arguments, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen) -> str:
    """Waits for it, and checks that it ended well and quietly."""
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    return out


def test_written_on_8_devices_loads_on_1_2_and_4_and_back_quietly(tmp_path: Path):
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(2, make_state(2))
    finish(start("read and write", tmp_path, "8", devices=8))
    readers = [start("read", tmp_path, str(devices), devices=devices) for devices in (2, 4)]
    with Checkpointer(tmp_path, read_only=True) as checkpointer:
        found = checkpointer.restore(abstract(make_state(3)))
    assert_same(found, make_state(3))
    for reader in readers:
        finish(reader)


MOMENTS = ("first file", "before the manifest", "in the manifest", "before the name", "in the deletion")


def test_kill_at_any_moment_of_a_save_loses_nothing_complete(tmp_path: Path):
    chance = random.Random(0)
    runs = {moment: start("killed", tmp_path / moment, moment) for moment in MOMENTS}
    runs |= {f"random {number}": start("killed", tmp_path / f"random {number}") for number in range(2)}
    for moment, run in runs.items():
        if moment.startswith("random"):
            assert run.stdout.readline() == "3\n"
            time.sleep(chance.uniform(0.0, 0.1))
            run.kill()
        printed = [int(step) for step in run.stdout.read().split()]
        assert run.wait(timeout=120) == -signal.SIGKILL, run.stderr.read()
        with Checkpointer(tmp_path / moment, keep_latest=1) as checkpointer:
            latest = checkpointer.latest_step()
            if moment.startswith("random"):
                assert latest - max(printed, default=3) in (0, 1)
            else:
                assert (printed, latest) == ([3], 4 if moment == "in the deletion" else 3)
            assert len(checkpointer.all_steps()) <= 2
            wanted = make_state(latest, width=5_000)
            assert_same(checkpointer.restore(abstract(wanted)), wanted)
            checkpointer.save(latest + 1, wanted)
        assert [path.name for path in (tmp_path / moment).iterdir()] == [str(latest + 1)], moment


def test_a_full_disk_is_reported_and_survived(tmp_path: Path):
    process = start("full disk", tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "step 2 could not be written" in out
    assert "File too large" in out
    assert "The last complete one is step 1." in out
    assert "ERROR" not in err
    assert "Traceback" not in err
    with Checkpointer(tmp_path, read_only=True) as checkpointer:
        assert checkpointer.all_steps() == [1, 3]


def test_asyncio_does_not_repeat_what_a_failed_save_has_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    Checkpointer(tmp_path).close()
    loop = asyncio.new_event_loop()
    for reason in (f'Error writing "w" at "{tmp_path}/2.orbax-checkpoint-tmp/state": no space', "of the user's own"):
        loop.create_future().set_exception(ValueError(reason))
        gc.collect()
    loop.close()
    told = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    assert ["of the user's own" in message for message in told] == [True]


def read_and_write(directory: str, devices: str) -> None:
    read(directory, devices)
    with Checkpointer(directory) as checkpointer:
        checkpointer.save(3, make_state(3, int(devices)))


def read(directory: str, devices: str) -> None:
    logging.set_verbosity(logging.INFO)  # as the launch programs do
    with Checkpointer(directory, read_only=True) as checkpointer:
        wanted = make_state(checkpointer.latest_step(), int(devices))
        assert_same(checkpointer.restore(abstract(wanted)), wanted)
        assert_same(checkpointer.restore_params(abstract_params=abstract(wanted.params)), wanted.params)
        jax.tree.map(np.testing.assert_array_equal, checkpointer.restore_params(), wanted.params)


def killed(directory: str, moment: str) -> None:
    """Saves steps 1, 2, ... keeping one, and dies at a moment of saving step 4; later ones are killed from outside."""

    def dies(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def dies_after(function: Any) -> Any:
        return lambda *args, **kwargs: (function(*args, **kwargs), dies())

    with Checkpointer(directory, keep_latest=1) as checkpointer:
        for step in range(1, 400 if not moment else 6):
            if step == 4 and moment == "first file":
                sys.addaudithook(
                    lambda event, args: dies() if event == "open" and ".orbax-checkpoint-tmp" in str(args[0]) else None
                )
            elif step == 4 and moment == "before the manifest":
                Manifest.of_files_in = dies
            elif step == 4 and moment == "in the manifest":
                os.fsync = dies_after(os.fsync)
            elif step == 4 and moment == "before the name":
                Manifest.write = dies_after(Manifest.write)
            elif step == 4 and moment == "in the deletion":
                os.unlink = dies_after(os.unlink)
                os.remove = dies_after(os.remove)
            checkpointer.save(step, make_state(step, width=5_000))
            checkpointer.wait()
            if step >= 3:
                print(step, flush=True)


def full_disk(directory: str, _: str) -> None:
    logging.set_verbosity(logging.INFO)
    with Checkpointer(directory) as checkpointer:
        checkpointer.save(1, make_state(1))
        checkpointer.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        checkpointer.save(2, make_state(2, width=100_000))
        try:
            checkpointer.wait()
        except InputError as error:
            print(error)
        assert checkpointer.all_steps() == [1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        checkpointer.save(3, make_state(3, width=100_000))


if __name__ == "__main__":
    globals()[re.sub(" ", "_", sys.argv[1])](*sys.argv[2:])
