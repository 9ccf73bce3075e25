"""The commands in the documentation of the programs and their configs: each runs as it is written, on miniature data.

Their paths are relative, and the test's folder has small files of these names; numbers that take hours are replaced by
flags at the end. A command that needs another file, or a further flag, fails here until it has one.
"""

import ast
import csv
import json
import re
import shlex
from pathlib import Path
from types import ModuleType

import jax
import pytest
from programs import program

from gpt1_jax import finetune, load_pretrained, save_pretrained
from gpt1_jax.aot.programs import make_program
from gpt1_jax.aot.topologies import parse_topology
from gpt1_jax.config import from_config
from gpt1_jax.data.corpus import make_tokenizer
from gpt1_jax.data.prepare import prepare_shards
from gpt1_jax.data.split import Split
from gpt1_jax.finetune import FinetuneConfig
from gpt1_jax.tasks.config import make_spec
from gpt1_jax.tasks.submission import GLUE_FILES

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *sorted((ROOT / "launch").glob("*.py")),
    *sorted((ROOT / "configs").glob("*.py")),
    ROOT / "gpt1_jax" / "tasks" / "zero_shot.py",
]

SMALL = {
    "pretrain": "--config.batch_size=8 --config.n_steps=2 --config.model.embd_pdrop=0.0",
    "pretrain new": "--config.model.vocab_size=380 --config.model.n_layer=1 --config.model.n_embd=32 "
    "--config.model.n_head=4 --config.model.n_ctx=32 --config.optimizer.warmup_steps=1 "
    "--config.heldout_fraction=0.1",
    "finetune": "--config.batch_size=8 --config.epochs=1 --config.n_buckets=1",
    "generate": "--max_new_tokens=5",
    "benchmark": "--repeats=1 --batch_sizes=8 --decode_batch_sizes=1 --config.model.vocab_size=380 "
    "--config.model.n_layer=1 --config.model.n_embd=32 --config.model.n_head=4 --config.model.n_ctx=32",
    "prepare": "--vocab_size=380 --heldout_fraction=0.1 --workers=1",
    "reproduce": "--dry_run",
}
"""Program -> what makes it quick."""

STANDS_FOR = {",...": "", ":SIZE": ":quickstart"}
"""What is not meant literally."""

PARSED = {"configs/finetune.py:story_cloze"}
"""Config -> only its flags and its task are made: the model is of the published size."""


def documentation(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or ""


def commands() -> list[str]:
    """All indented commands, each on one line."""
    joined = "\n".join(re.sub(r"\\\n\s*", "", documentation(path)) for path in DOCUMENTS)
    return [line.strip() for line in joined.splitlines() if re.match(r"\s+python launch/", line)]


def recipes() -> list[str]:
    """The flags that configs/finetune.py lists beside whole commands."""
    found = re.findall(r"^ +((?:--config\.\S+ ?)+)(?: |$)", documentation(ROOT / "configs" / "finetune.py"), re.M)
    continued = " ".join(commands())
    return [recipe.strip() for recipe in found if recipe.strip() not in continued]


@pytest.fixture(scope="module")
def models(corpus, pretrained, tmp_path_factory) -> dict[str, Path]:
    """The folders of models that commands start from."""
    folder = tmp_path_factory.mktemp("models")
    task = {"train": [str(corpus / "train.csv")], "test": [str(corpus / "test.csv")]}
    finetune.run({"task": task, "batch_size": 8, "epochs": 1, "n_buckets": 1}, folder / "reviews", pretrained)
    save_pretrained(folder / "openai", *load_pretrained(pretrained), format="openai")
    split, source = Split(0.1), f"jsonl:{corpus}/corpus.jsonl"
    tokenizer = make_tokenizer(folder / "shards", source, split, path=str(pretrained))
    prepare_shards(source, tokenizer, folder / "shards", split=split)
    return {
        "runs/books": pretrained,
        "MODEL": pretrained,
        "runs/reviews": folder / "reviews",
        "finetune-transformer-lm/model": folder / "openai",
        "SHARDS": folder / "shards",
    }


@pytest.fixture
def desk(models, corpus, tmp_path, monkeypatch) -> Path:
    """The current folder, with a file for every name in the commands."""
    texts = [json.loads(line)["text"] for line in (corpus / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    for folder, n in {"books": 120, "reports": 20, "other": 20}.items():
        for i, text in enumerate(texts[:n]):
            write(tmp_path / folder / f"{i}.txt", text)
    (tmp_path / "corpus").symlink_to(corpus)
    with open(corpus / "test.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for name in ("reviews.csv", "other.csv", "new.csv"):
        table(tmp_path / name, rows)
    for name in ("train", "dev"):
        write(tmp_path / "glue" / "CoLA" / f"{name}.tsv", "x\t1\t\tA warm film .\nx\t0\t*\tFilm a warm .\n")
    for name in ("val", "test"):
        write(tmp_path / "FOLDER" / f"cloze_test_{name}__spring2016.csv", "InputStoryid\n")
    for run, file in {"cola": "CoLA", "sst2": "SST-2", "mnli": "MNLI-m"}.items():
        label = "neutral" if run == "mnli" else "0"
        lines = "".join(f"{i}\t{label}\n" for i in range(GLUE_FILES[f"{file}.tsv"].n_rows))
        write(tmp_path / "runs" / run / "submission" / f"{file}.tsv", f"index\tprediction\n{lines}")
    write(tmp_path / "WNLI.tsv", "index\tprediction\n" + "".join(f"{i}\t0\n" for i in range(146)))
    for name, target in {"configs": ROOT / "configs", **models}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(target)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def table(path: Path, rows: list[dict[str, str]], names: tuple[str, str] = ("negative", "positive")) -> None:
    """Reviews under all names that columns have in the commands."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "review", "sentiment"])
        for row in rows:
            label = names[row["label"] == "positive"]
            writer.writerow([row["text"], label, row["text"], label])


def run_here(command: str) -> object:
    """A parameter with the command in full as its name, where pytest itself has a short one."""
    slow = "launch/benchmark.py" in command  # of which benchmark_test.py has one
    return pytest.param(command, id=command, marks=pytest.mark.slow if slow else ())


@pytest.mark.slow  # a minute for all of them
@pytest.mark.parametrize("command", [*map(run_here, commands())])
def test_a_command_runs_as_it_is_documented(command, desk, models, monkeypatch, capsys):
    for placeholder, value in STANDS_FOR.items():
        command = command.replace(placeholder, value)
    python, *arguments = shlex.split(command, comments=True)
    assert python == "python"
    if "--label_words=0=bad" in arguments:  # of labels that are numbers
        with open("reviews.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        table(desk / "reviews.csv", rows, names=("0", "1"))
    for argument in arguments:
        if argument.startswith("--workdir=") and (made := desk / argument.removeprefix("--workdir=")).is_symlink():
            made.unlink()
    if "--init_from=W" in arguments:  # elsewhere it is the run that is made
        (desk / "W").symlink_to(models["runs/books"])
    name = Path(arguments[0]).stem
    if name == "prepare" and "--verify" not in arguments:
        (desk / "SHARDS").unlink()  # it is what is made
    arguments += SMALL.get(name, "").split()
    if name == "pretrain" and not any(argument.startswith("--init_from=") for argument in arguments):
        arguments += SMALL["pretrain new"].split()
    if name == "convert" and "--source=finetune-transformer-lm/model" in arguments:
        arguments += ["--n_head=4"]  # OpenAI's has 12, which is the default
    if name == "reproduce" and "--pretrained=finetune-transformer-lm/model" in arguments:
        arguments += ["--config.finetune.model.n_head=4"]
    with program(arguments, monkeypatch) as module:
        if any(f"--config={config}" in arguments for config in PARSED):
            check(module)
        elif name == "compile":
            check_program(module)
        elif name == "playground":
            assert module.CHECKPOINT.value  # playground_test.py serves
        else:
            module.main()
            assert capsys.readouterr().out


def check(module: ModuleType) -> None:
    """The config that the flags make is one of fine-tuning, and its task is complete."""
    config = from_config(FinetuneConfig, module.CONFIG.value)
    assert config.grid()
    assert make_spec(config.task).metrics


def check_program(module: ModuleType) -> None:
    """The step that would be compiled is made, on as many devices of the CPU: not everybody has the compilers."""
    for name in module.TOPOLOGY.value:
        devices = jax.devices("cpu")[: parse_topology(name).n_chips]
        assert make_program(module.CONFIG.value, devices, length=module.LENGTH.value).flops > 0


@pytest.mark.parametrize("recipe", recipes())
def test_a_recipe_is_one(recipe, desk, monkeypatch):
    config = ["--config=configs/finetune.py:custom", "--config.task.train=reviews.csv", "--workdir=NEW"]
    with program(["launch/finetune.py", *config, *shlex.split(recipe)], monkeypatch) as module:
        check(module)


def shown() -> list[str]:
    """The commands in the code blocks of README.md and launch/README.md, each on one line."""
    pages = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "launch/README.md"))
    blocks = re.findall(r"^```\w*\n(.*?)^```", pages, re.M | re.S)
    joined = re.sub(r"\\\n\s*", "", "".join(blocks))
    return [line for line in joined.splitlines() if line.startswith("python launch/") and "FLAGS" not in line]


@pytest.mark.parametrize("command", shown())
def test_a_command_on_a_page_has_flags_and_keys_that_are_there(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    with program(shlex.split(command, comments=True)[1:], monkeypatch) as module:
        assert module.main.__doc__


def test_all_are_found():
    text = "".join(map(documentation, DOCUMENTS))
    assert len(commands()) == text.count("python launch/")
    assert all(any(config in command for command in commands()) for config in PARSED)
    assert all(any(placeholder in command for command in commands()) for placeholder in STANDS_FOR)
    assert len(shown()) > 15
    assert {command.split()[1].removeprefix("launch/") for command in commands()} == {
        path.name for path in (ROOT / "launch").glob("*.py")
    }
    assert len(recipes()) >= 10
