"""Every part runs at a tiny size and gives figures that fit each other; nothing is said of how fast it is."""

import dataclasses
import functools
import json
import math

import pytest

from gpt1_jax.benchmark import figures, peers, report, suite, yardstick
from gpt1_jax.benchmark.peers import naive
from gpt1_jax.benchmark.settings import PARTS, Settings, configs
from gpt1_jax.benchmark.text import Text
from gpt1_jax.benchmark.timing import Contestant
from gpt1_jax.benchmark.tuning import Tuning
from gpt1_jax.errors import InputError
from gpt1_jax.flops import train_flops_per_token
from gpt1_jax.model import count_parameters

MODEL = {"vocab_size": 380, "n_ctx": 16, "n_embd": 16, "n_head": 2, "n_layer": 1}
QUICK = tuple(part for part in PARTS if part != "start")


def settings(**changes):
    pretrain, finetune = configs({"model": MODEL})
    return Settings(
        pretrain, finetune, **{"batch_sizes": (8,), "decode_batch_sizes": (2,), "repeats": 2, "seconds": 0.0} | changes
    )


def measured(patch, **changes):
    patch.setattr(suite, "Text", functools.partial(Text, max_bytes=50_000))
    patch.setattr(yardstick, "_SQUARES", {"cpu": (64,), "other": (64,)})
    chosen = settings(**changes)
    cases = suite.cases(chosen)
    assert suite.plan(cases, chosen)
    for case in cases:
        suite.measure(case, chosen, say=lambda line: None)
    return chosen, cases


@pytest.fixture(scope="module")
def everything():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "load_peer", lambda name: naive)  # eight devices here, of which it takes one
        patch.setattr(suite, "apart", lambda make: make())  # see apart_test.py
        return measured(patch, parts=QUICK, peers=("naive",))


@pytest.mark.slow  # CI runs it
def test_all_parts_give_figures(everything):
    _, cases = everything
    record = figures.record(cases, command="python launch/benchmark.py", config={}, interrupted=False)
    found = json.loads(json.dumps(record, allow_nan=False))["figures"]
    assert {figure["part"] for figure in found} == set(QUICK)
    assert record["failed"] == []
    for figure in found:
        assert figure["rounds"] == len(figure["round_seconds"]) == 1
        assert figure["rate"] == pytest.approx(figure["amount"] / figure["seconds"]["median"])
        assert 0 < figure["seconds"]["q1"] <= figure["seconds"]["median"] <= figure["seconds"]["q3"] < math.inf
    assert record["loading_over_training"].keys() == {"8 x 16 tokens"}
    names = {(figure["part"], figure["name"]) for figure in found}
    assert names >= {("pretrain", "naive"), ("evaluate", "naive"), ("finetune", "padded to n_ctx")}
    assert record["device"]["platform"] == "cpu"
    assert record["versions"]["jax"]


@pytest.mark.slow  # CI runs it
def test_flops_and_ratios_are_of_the_same_work(everything):
    chosen, cases = everything
    [ours, other, product] = figures.figures(next(case for case in cases if case.part == "pretrain"))
    assert ours.flops == other.flops == 8 * 16 * train_flops_per_token(chosen.model, 16)
    assert ours.n_parameters == other.n_parameters == count_parameters(chosen.model)
    assert ours.ahead is None
    assert other.ahead.median == pytest.approx(other.seconds.median / ours.seconds.median)
    rate = product.flops / product.seconds.median
    assert ours.of_product.median == pytest.approx(ours.flops / ours.seconds.median / rate)
    assert product.of_product is product.ahead is None
    assert ours.of_peak is None  # no data sheet says a CPU's
    [ours, padded, _] = figures.figures(next(case for case in cases if case.part == "finetune"))
    assert padded.amount == 8  # one batch, against eight of an epoch
    assert ours.amount > padded.amount
    times = (ours.amount / ours.seconds.median) / (padded.amount / padded.seconds.median)
    assert padded.ahead.median == pytest.approx(times)


@pytest.mark.slow  # CI runs it
def test_a_table_and_a_drawing(everything, tmp_path):
    _, cases = everything
    record = figures.record(cases, command="python launch/benchmark.py --x", config={}, interrupted=False)
    found = [figure for case in cases for figure in figures.figures(case)]
    table = report.table(found).splitlines()
    assert len(table) == 1 + len(found)
    assert "compile" in table[0]
    assert "of peak" not in table[0]  # an empty column
    notes = report.notes(found, record)
    assert "python launch/benchmark.py --x" in notes
    assert "times as fast as an update takes the batches" in notes
    report.plot(found, tmp_path / "ratios.png")
    assert (tmp_path / "ratios.png").read_bytes().startswith(b"\x89PNG")


def test_a_peer_that_fails_is_told_and_the_others_go_on():
    def fail():
        raise RuntimeError("out of memory\nand more")

    def make(name):
        return lambda: Contestant(name, lambda: None, lambda _: None, is_warm=True)

    case = suite.Case("pretrain", "x", {"gpt1_jax": make("gpt1_jax"), "one": fail, "two": make("two")})
    suite.measure(case, settings(), say=lambda line: None)
    assert case.failed == {"one": "RuntimeError: out of memory"}
    assert [figure.name for figure in figures.figures(case)] == ["gpt1_jax", "two"]
    with pytest.raises(RuntimeError, match="out of memory"):  # ours is a bug
        suite.measure(suite.Case("pretrain", "x", {"gpt1_jax": fail}), settings(), say=lambda line: None)


def test_a_peer_of_another_size_is_refused():
    def make(name, n_parameters):
        return lambda: Contestant(name, lambda: None, lambda _: None, n_parameters=n_parameters, is_warm=True)

    case = suite.Case("pretrain", "x", {"gpt1_jax": make("gpt1_jax", 10), "other": make("other", 11)})
    with pytest.raises(InputError, match="gpt1_jax, other have 10, 11 parameters"):
        suite.measure(case, settings(), say=lambda line: None)


def test_what_was_not_measured_has_no_figures():
    [case] = suite.cases(settings(parts=("tokenize",)))
    assert figures.figures(case) == []
    record = figures.record([case], command="", config={}, interrupted=True)
    assert (record["figures"], record["interrupted"]) == ([], True)


def test_a_trace_is_written(tmp_path, monkeypatch):
    measured(monkeypatch, parts=("tokenize",), profile=str(tmp_path))
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_the_config_of_a_task_decides_both():
    pretrain, finetune = configs({"task": {"name": "custom"}, "model": MODEL, "batch_size": 3, "lm_coef": 0.0})
    assert pretrain.model == finetune.model
    assert (finetune.batch_size, finetune.lm_coef) == (3, 0.0)
    pretrain, finetune = configs({"model": MODEL, "batch_size": 5})
    assert (pretrain.batch_size, finetune.model) == (5, pretrain.model)


@pytest.mark.parametrize(
    ("task", "n_streams", "labels"),
    [
        ({"name": "sst2"}, 1, {0, 1}),
        ({"name": "race"}, 4, {0, 1, 2, 3}),
        ({"name": "mnli"}, 1, {0, 1, 2}),
        ({"name": "stsb"}, 2, None),
        ({"kind": "multiple_choice", "labels": ["A", "B", "C"]}, 3, {0, 1, 2}),
    ],
)
def test_examples_that_are_made_up_have_the_streams_of_their_task(task, n_streams, labels):
    pretrain, finetune = configs({"task": task, "model": MODEL})
    split = Tuning(Settings(pretrain, finetune), 8, Text("", None, 380))._split
    assert set(split.n_streams) == {n_streams}
    assert all(len({len(stream) for stream in split.streams(i)}) == 1 for i in range(9))
    if labels is None:
        assert split.has_scores
        assert 0 <= split.labels.min() < split.labels.max() <= 5
    else:
        assert set(split.labels.tolist()) == labels


def test_batches_of_a_cpu_are_small_where_nothing_is_said():
    default = settings(batch_sizes=())  # there are eight devices, and the recipe of fine-tuning has 32 examples
    assert (default.batches("pretrain"), default.batches("finetune")) == (
        (2 * 8,),
        (4 * 8,),
    )
    small = dataclasses.replace(default, pretrain=dataclasses.replace(default.pretrain, batch_size=1))
    assert small.batches("evaluate") == (1,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parts": ("train",)}, "--parts=train is unknown; use some of pretrain,"),
        ({"parts": ()}, "--parts is empty"),
        ({"peers": ("nanogpt",)}, "--peer=nanogpt is unknown; use some of transformers,naive,torch"),
        ({"batch_sizes": (8, 0)}, "--batch_sizes=8,0: each must be at least 1"),
        ({"batch_sizes": (8, 8)}, "--batch_sizes=8,8 names one twice"),
        ({"new_tokens": 1 << 20}, "--new_tokens=1048576 must be from 1 to"),
        ({"repeats": 0}, "--repeats=0 must be a number from 1 up"),
        ({"seconds": float("nan")}, "--seconds=nan must be a number from 0 up"),
        ({"parts": ("decode",), "decode_batch_sizes": ()}, "--decode_batch_sizes is empty"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        settings(**changes)


@pytest.mark.usefixtures("all_devices")
def test_a_peer_with_nothing_to_do_is_refused(monkeypatch):
    monkeypatch.setattr(peers, "load_peer", lambda name: naive)
    with pytest.raises(InputError, match="--peer=naive does none of --parts=kernels,load; leave one out"):
        suite.cases(settings(parts=("kernels", "load"), peers=("naive",)))


@pytest.mark.usefixtures("all_devices")
def test_sizes_that_do_not_divide_are_refused_before_anything_is_made():
    pretrain, finetune = configs({"model": MODEL, "mesh": {"data": 2, "tensor": 4}})
    for part in ("pretrain", "finetune", "evaluate"):
        with pytest.raises(InputError, match="tensor=4 does not divide n_head=2"):
            suite.cases(Settings(pretrain, finetune, parts=(part,), batch_sizes=(8,)))
