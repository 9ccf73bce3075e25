"""Configs at the door: what comes in, what goes out, and what is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from absl import flags
from ml_collections import config_dict, config_flags

from gpt1_jax import cli
from gpt1_jax.config import from_config, to_config_dict, to_dict
from gpt1_jax.errors import InputError
from gpt1_jax.finetune_config import FinetuneConfig, SweepConfig
from gpt1_jax.model_config import GPT1Config
from gpt1_jax.optim import OptimizerConfig
from gpt1_jax.pretrain import PretrainConfig
from gpt1_jax.tasks.config import TaskConfig


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    name: str = "adam"


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    n_steps: int | None = None
    seeds: tuple[int, ...] = (0, 1)
    inners: tuple[Inner, ...] = ()
    extra: dict[str, float] = dataclasses.field(default_factory=dict)
    fast: bool = False
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.n_steps == 0:
            raise InputError("n_steps=0 must be at least 1")


CHANGED = Outer(Inner(0.5, "sgd"), 7, (3,), (Inner(1.0), Inner()), {"a": 1.0}, True, ("x", "y"))


@pytest.mark.parametrize(
    "config", [Outer(), CHANGED, PretrainConfig(), FinetuneConfig()], ids=lambda c: type(c).__name__
)
def test_round_trips(config):
    """As itself, as a dict, through JSON and as a ConfigDict."""
    cls = type(config)
    assert from_config(cls, config) is config
    assert from_config(cls, to_dict(config)) == config
    assert from_config(cls, json.loads(json.dumps(to_dict(config)))) == config
    assert from_config(cls, to_config_dict(config)) == config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"optimizer": {"learning_rate": -1.0}}, r"^optimizer\.learning_rate=-1\.0 must"),
        ({"adapt": {"optimizer": {"learning_rate": -1.0}}}, r"^adapt\.optimizer\.learning_rate=-1\.0 must"),
        ({"adapt": {"seed": -1}}, r"^adapt\.seed=-1 must"),
    ],
)
def test_a_message_names_the_section_however_deep_it_is(config, message):
    with pytest.raises(InputError, match=message):
        from_config(FinetuneConfig, config)


def test_a_value_of_a_sweep_is_named_as_one():
    with pytest.raises(InputError, match=r"^sweep: batch_size=0 must"):
        from_config(FinetuneConfig, {"sweep": {"batch_size": [0]}}).grid()


def test_defaults():
    assert from_config(Outer) == from_config(Outer, {}) == from_config(Outer, config_dict.ConfigDict()) == Outer()


def test_a_section_given_in_part_keeps_the_rest_of_its_own_defaults():
    config = from_config(FinetuneConfig, {"optimizer": {"learning_rate": 1}})
    assert config.optimizer == dataclasses.replace(FinetuneConfig().optimizer, learning_rate=1.0)
    assert (
        config.optimizer.schedule != from_config(PretrainConfig, {"optimizer": {"learning_rate": 1}}).optimizer.schedule
    )

    @dataclasses.dataclass(frozen=True)
    class Outermost:
        outer: Outer = Outer(Inner(0.3, "sgd"), n_steps=5)
        optional: Inner | None = Inner(name="mine")

    changed = from_config(Outermost, {"outer": {"inner": {"rate": 0.4}}, "optional": {"rate": 0.5}})
    assert changed == Outermost(Outer(Inner(0.4, "sgd"), n_steps=5), Inner(0.5, "mine"))
    assert from_config(Outermost, {"outer": Outer(), "optional": None}) == Outermost(Outer(), None)


def test_part_of_the_keys_and_parts_that_are_dataclasses():
    config = from_config(Outer, {"inner": {"rate": 2}, "inners": [Inner(3.0), {"name": "b"}], "seeds": [4, 5]})
    assert config == Outer(inner=Inner(rate=2.0), inners=(Inner(3.0), Inner(name="b")), seeds=(4, 5))
    assert type(config.inner.rate) is float
    assert from_config(Outer, {"inner": Inner(0.3)}).inner.rate == 0.3


def test_numbers_of_numpy_and_paths_become_plain():
    given = {"n_steps": np.int64(7), "fast": np.True_, "inner": {"rate": np.float64(0.5), "name": Path("a/b")}}
    assert to_dict(from_config(Outer, given)) == to_dict(Outer(Inner(0.5, "a/b"), n_steps=7, fast=True))
    assert type(from_config(Outer, given).n_steps) is int


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FinetuneConfig(lm_coef=NAN), r"^lm_coef=nan must be a finite number"),
        (lambda: FinetuneConfig(epochs=2.5), r"^epochs=2.5 must be of type int"),
        (lambda: PretrainConfig(epochs=10**400), r"^epochs=10+ must be a finite number"),
        (lambda: PretrainConfig(epochs=INF), r"^epochs=inf must be a finite number"),
        (lambda: OptimizerConfig(weight_decay=NAN), r"^optimizer\.weight_decay=nan must be a finite number"),
        (lambda: PretrainConfig(optimizer={"learning_rate": NAN}), r"^optimizer\.learning_rate=nan must be a finite"),
        (lambda: SweepConfig(learning_rate=(NAN,)), r"^sweep\.learning_rate\[0\]=nan must be a finite number"),
        (lambda: GPT1Config(n_layer=1.5), r"^n_layer=1.5 must be of type int"),
        (lambda: GPT1Config(n_layer="2"), r"^n_layer='2' must be of type int"),
        (lambda: PretrainConfig(model=None), r"^model=None must be a ModelOptions or a mapping"),
        (lambda: TaskConfig(fields={3: "a"}), r"^task\.fields: the key 3 must be a text"),
        (lambda: TaskConfig(train="a.csv"), r"^task\.train='a.csv' must be a sequence, such as \['a.csv'\]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_config_that_is_made_in_python_is_checked_as_one_that_is_read(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_config_that_is_made_in_python_is_plain():
    assert GPT1Config(n_layer=np.int64(3), embd_pdrop=0) == GPT1Config(n_layer=3, embd_pdrop=0.0)
    assert FinetuneConfig(buckets=[32, 64]).buckets == (32, 64)
    assert FinetuneConfig(buckets=np.array([32, 64])).buckets == (32, 64)
    assert TaskConfig(labels=[np.int64(0), 1, "two"]).labels == ("0", "1", "two")
    assert FinetuneConfig(task={"name": "sst2"}).task == TaskConfig(name="sst2")


def test_to_dict_is_plain():
    assert to_dict(CHANGED) == {
        "inner": {"rate": 0.5, "name": "sgd"},
        "n_steps": 7,
        "seeds": [3],
        "inners": [{"rate": 1.0, "name": "adam"}, {"rate": 0.1, "name": "adam"}],
        "extra": {"a": 1.0},
        "fast": True,
        "columns": ["x", "y"],
    }


BAD: list[tuple[Any, str]] = [
    ({"n_step": 3}, r"config\.n_step is unknown; did you mean 'n_steps'\?"),
    ({"inner": {"rte": 3}}, r"config\.inner\.rte is unknown; did you mean 'rate'\?"),
    ({"inners": [{}, {"nome": 1}]}, r"config\.inners\[1\]\.nome is unknown; did you mean 'name'\?"),
    ({"zzz": 3}, r"config\.zzz is unknown; known keys: \['inner', 'n_steps', "),
    ({"inner": {"rate": "fast"}}, r"config\.inner\.rate='fast' must be of type float"),
    ({"inner": {"rate": None}}, r"config\.inner\.rate=None must be of type float"),
    ({"inner": {"rate": True}}, r"config\.inner\.rate=True must be of type float"),
    ({"inner": {"name": 3}}, r"config\.inner\.name=3 must be of type str"),
    ({"inner": 3}, r"config\.inner must be a Inner or a mapping, not int"),
    ({"n_steps": 2.5}, r"config\.n_steps=2\.5 must be of type int"),
    ({"n_steps": "10"}, r"config\.n_steps='10' must be of type int"),
    ({"n_steps": True}, r"config\.n_steps=True must be of type int"),
    ({"fast": 1}, r"config\.fast=1 must be of type bool"),
    ({"seeds": 3}, r"config\.seeds=3 must be a sequence"),
    ({"seeds": [1, "2"]}, r"config\.seeds\[1\]='2' must be of type int"),
    ({"columns": [True]}, r"config\.columns\[0\]=True must be of type str"),
    ({"columns": "text"}, r"config\.columns='text' must be a sequence, such as \['text'\]"),
    ({"extra": [1]}, r"config\.extra=\[1\] must be a mapping"),
    ({"extra": {"b": "x"}}, r"config\.extra\.b='x' must be of type float"),
    (3, r"config must be a Outer or a mapping, not int"),
    ({"n_steps": 0}, r"n_steps=0 must be at least 1"),
]


@pytest.mark.parametrize(("config", "message"), BAD, ids=[str(config) for config, _ in BAD])
def test_refused(config, message):
    with pytest.raises(InputError, match=message):
        from_config(Outer, config)


def test_the_place_can_be_named():
    with pytest.raises(InputError, match=r"run/config\.json\.n_step is unknown"):
        from_config(Outer, {"n_step": 3}, where="run/config.json")


def parse(*overrides: str) -> Outer:
    """What the launch programs do."""
    cli.register_parsers()
    values, argv = flags.FlagValues(), ["program", *overrides]
    holder = config_flags.DEFINE_config_dict("config", to_config_dict(Outer()), flag_values=values, sys_argv=argv)
    values(argv)
    return from_config(Outer, holder.value)


def test_overrides_on_the_command_line():
    """Values that are None know their type."""
    config = parse("--config.n_steps=3", "--config.inner.rate=1", "--config.fast", "--config.columns=('a', 'b')")
    assert config == Outer(Inner(1.0), n_steps=3, fast=True, columns=("a", "b"))


@pytest.mark.parametrize(
    ("value", "columns"),
    [
        ("a/b.csv,c.csv", ("a/b.csv", "c.csv")),
        ("yes, no", ("yes", "no")),
        ("0,1", ("0", "1")),
        ("007,1.50,True,-1", ("007", "1.50", "True", "-1")),
        ("('a,b', 'c')", ("a,b", "c")),
        ("'a,b'", ("a,b",)),
        ("two words", ("two words",)),
        ("", ()),
    ],
)
def test_tuples_on_the_command_line(value, columns):
    assert parse(f"--config.columns={value}").columns == columns


def test_numbers_tuples_of_them_and_none_on_the_command_line():
    assert parse("--config.seeds=8,32", "--config.n_steps=3").seeds == (8, 32)
    assert parse("--config.seeds=8", "--config.seeds=9").seeds == (8, 9)
    assert parse("--config.n_steps=3", "--config.n_steps=None").n_steps is None
    with pytest.raises(InputError, match=r"config\.inner\.rate=None must be of type float"):
        parse("--config.inner.rate=None")


def test_wrong_overrides_on_the_command_line():
    with pytest.raises(Exception, match="rte"):
        parse("--config.inner.rte=1")
    with pytest.raises(Exception, match="many"):
        parse("--config.n_steps=many")


def test_a_misspelt_key_in_a_config_file():
    config = to_config_dict(Outer())
    config.inner.rte = 1
    with pytest.raises(InputError, match=r"config\.inner\.rte is unknown; did you mean 'rate'"):
        from_config(Outer, config)


def test_placeholders_of_the_user_are_none():
    config = config_dict.ConfigDict({"n_steps": config_dict.placeholder(int)})
    assert from_config(Outer, config).n_steps is None
