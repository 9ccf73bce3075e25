"""The help of every program fits a screen, has all of its flags, and config keys with the defaults that they have."""

import re
import subprocess
import sys

import pytest
from absl import flags
from programs import ROOT, program

from gpt1_jax import cli_help
from gpt1_jax.config import flatten, to_dict
from gpt1_jax.finetune_config import FinetuneConfig
from gpt1_jax.model_config import GPT1Config
from gpt1_jax.pretrain import PretrainConfig

PROGRAMS = sorted(path.stem for path in (ROOT / "launch").glob("*.py"))
REQUIRED = ("config=configs/pretrain.py", "workdir=W", "checkpoint=W", "source=S", "target=T", "folder=F", "runs=R")
REQUIRED += ("topology=v5e:2x4", "format=openai")


def page(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, set[str]]:
    """The help of a program, and the names of its flags."""
    text = (ROOT / "launch" / f"{name}.py").read_text(encoding="utf-8")
    defined = re.findall(r'DEFINE_\w+\(\s*"(\w+)"', text)
    given = [f"--{value}" for value in REQUIRED if value.partition("=")[0] in defined]
    monkeypatch.chdir(ROOT)
    with program([f"launch/{name}.py", *given], monkeypatch) as module:
        by = flags.FLAGS.find_module_defining_flag(defined[0])
        own = {flag.name for flag in flags.FLAGS.get_key_flags_for_module(by)}
        assert own >= set(defined)
        return cli_help.page(by, module.__doc__, getattr(module, "KEYS", None)), own


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_fits_a_screen_and_has_all_flags(name, monkeypatch):
    text, own = page(name, monkeypatch)
    lines = text.splitlines()
    assert len(lines) <= 39  # and one for --distributed
    assert max(map(len, lines)) <= cli_help.WIDTH
    named = {
        line.split()[0].removeprefix("--").removeprefix("[no]").partition("=")[0] for line in lines if line[2:4] == "--"
    }
    assert own <= named
    assert "  --help" not in text


@pytest.mark.parametrize(("name", "config"), [("pretrain", PretrainConfig()), ("finetune", FinetuneConfig())])
def test_the_defaults_of_config_keys_are_the_real_ones(name, config, monkeypatch):
    text, _ = page(name, monkeypatch)
    _, _, keys = text.partition("--config.KEY=VALUE:")
    shown = dict(re.findall(r"^  ([\w.]+)=(\S*)", keys, re.M))
    assert len(shown) > 8
    real = flatten(to_dict(config)) | {f"model.{key}": value for key, value in to_dict(GPT1Config()).items()}
    for key, value in shown.items():
        if key.endswith(".NAME"):  # of a mapping, whose names are many
            assert (value, real[key.replace("NAME", "text")]) == ("", "")
            continue
        assert value == ("" if real[key] in ([], "") else str(real[key]))


def test_a_description_is_the_first_sentence_of_the_docstring():
    class Config:
        """A config.

        Attributes:
          one: how many, and
            a line more. And a second sentence.
          b1, b2: rates.

        Raises:
          InputError: never.
        """

    assert cli_help.field_docs(Config) == {
        "one": "how many, and a line more. And a second sentence.",
        "b1": "rates.",
        "b2": "rates.",
    }


def test_help_ends_well():
    command = [sys.executable, "launch/finetune.py", "--workdir=W", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Fine-tunes GPT-1 on labelled examples")
    assert "--distributed=auto|off" in done.stdout
    assert "n_transfer=None" in done.stdout
