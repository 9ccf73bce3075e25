"""The command-line programs: they run, and bad input ends with one line and status 2."""

import re
import shlex
import signal
import subprocess
import sys

import pytest
from programs import ENVIRONMENT, ROOT, launch

from gpt1_jax import cli


@pytest.mark.slow  # documented_commands_test runs them all in one process; CI runs this too
def test_finetune_evaluate_and_generate(corpus, pretrained, tmp_path):
    finetuned = launch(
        "finetune",
        "--config=configs/finetune.py:custom",
        f"--config.task.train={corpus}/train.csv",
        f"--config.task.test={corpus}/test.csv",
        "--config.task.fields.text=text",
        "--config.batch_size=16",
        "--config.epochs=1",
        "--config.n_buckets=1",
        f"--init_from={pretrained}",
        f"--workdir={tmp_path}/a run",
    )
    assert finetuned.returncode == 0, finetuned.stderr
    assert "test accuracy" in finetuned.stdout
    assert "validation is 1" in finetuned.stderr  # a tenth was held out, and the log says how much that is
    assert "2 layers, 4 heads, width 32, n_ctx 32, 380 tokens" in finetuned.stderr
    assert re.search(r"memory of a device: \d+\.\d MiB of \d+\.\d\d GiB at most: params 0\.\d MiB", finetuned.stderr)
    assert f"results go to {tmp_path}/a run" in finetuned.stderr
    assert re.search(r"done in \d\d:\d\d\n$", finetuned.stderr)
    next_command = finetuned.stdout.splitlines()[-1].strip()  # with a space in a path
    pasted = subprocess.run(
        next_command.replace("OTHER.csv", f"{corpus}/test.csv"),
        shell=True,
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert pasted.returncode == 0, pasted.stderr
    assert pasted.stdout.startswith("test accuracy")
    assert f"model of {tmp_path}/a run (step " in pasted.stderr
    (tmp_path / "a run").rename(tmp_path / "run")

    output = tmp_path / "results.json"
    evaluated = launch("evaluate", f"--checkpoint={tmp_path}/run", "--split=test,validation", f"--output={output}")
    assert evaluated.returncode == 0, evaluated.stderr
    shown = [line for line in finetuned.stdout.splitlines() if line.startswith("test accuracy")]
    assert shown[0] in evaluated.stdout
    assert output.exists()

    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("x\t1\t\tA warm film .\nx\t0\t*\tFilm a warm .\n", encoding="utf-8")
    named = launch("evaluate", f"--checkpoint={pretrained}", "--zero_shot=cola", "--task=cola", f"--data={tmp_path}")
    assert named.returncode == 0, named.stderr
    assert named.stdout.startswith("validation matthews")

    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tA film .\n", encoding="utf-8")
    small = ("--config.batch_size=8", "--config.epochs=1", f"--workdir={tmp_path}/cola")
    cola = f"--config.task.data={tmp_path}"
    sent = launch("finetune", "--config=configs/finetune.py:cola", cola, f"--init_from={pretrained}", *small)
    assert sent.returncode == 0, sent.stderr
    assert f"are in {tmp_path}/cola, and for the benchmark's server submission/CoLA.tsv\n" in sent.stdout
    assert f"launch/submission.py --runs={tmp_path}/cola,OTHER_RUNS --target=glue.zip" in sent.stdout
    assert (tmp_path / "cola" / "submission" / "CoLA.tsv").exists()
    assert "split test has 1 example without labels" in sent.stderr

    generated = launch(
        "generate", f"--checkpoint={pretrained}", "--prompt=the film", "--samples=2", "--max_new_tokens=5"
    )
    assert generated.returncode == 0, generated.stderr
    assert generated.stdout.count("the film") == 2


@pytest.mark.slow  # CI runs it
def test_what_convert_suggests_works_for_any_number_of_heads(pretrained, tmp_path):
    there = launch("convert", f"--source={pretrained}", f"--target={tmp_path}/openai", "--format=openai")
    assert there.returncode == 0, there.stderr
    back = there.stdout.splitlines()[-1].strip()  # OpenAI's layout does not say that there are 4
    assert "launch/convert.py" in back
    pasted = subprocess.run(back, shell=True, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert pasted.returncode == 0, pasted.stderr
    assert "2 layers, 4 heads" in pasted.stdout


BAD_INPUT = [
    ("pretrain", ["--config=configs/pretrain.py:smal"], "quickstart, continue; did you mean 'small'?"),
    ("pretrain", ["--config=configs/pretrian.py:small"], "no such file; did you mean configs/pretrain.py?"),
    ("pretrain", ["--config", "cfg/pretrain.py"], f"no such file; did you mean {ROOT}/configs/pretrain.py?"),
    (
        "pretrain",
        ["--config=configs/pretrain.py", "--config.modle.n_layer=2"],
        "error: --config.modle.n_layer: config has no key 'modle'; did you mean 'model'?",
    ),
    (
        "pretrain",
        ["--config=configs/pretrain.py", "--config.model.n_layerz=2"],
        "error: --config.model.n_layerz: config.model has no key 'n_layerz'; did you mean 'n_layer'?",
    ),
    ("pretrain", ["--config=configs/pretrain.py", "--config.n_step=2"], "did you mean 'n_steps'?"),
    ("pretrain", ["--config=configs/pretrain.py", "--config.n_steps=two"], "error: flag --config.n_steps=two"),
    ("pretrain", ["--config=configs/pretrain.py:small"], "error: config.source is empty"),
    ("pretrain", ["--config.source=text:a"], "error: --config is missing, of which a key is given"),
    ("generate", ["--checkpoint=nothing"], "error: nothing is not a workdir"),
    ("export", ["--checkpoint=nothing"], "error: missing: --target; --help says what to give"),
    ("evaluate", ["--checkpoint=nothing", "stray"], "error: unexpected argument 'stray'"),
    ("evaluate", ["--checkpoint=nothing", "--output=gpt1_jax"], "error: output=gpt1_jax: is a folder"),
    ("evaluate", ["--checkpoint=nothing", "--label_words=a"], "error: --label_words=a: name=value is expected"),
]


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [pytest.param(*case, marks=pytest.mark.slow if i % 3 else ()) for i, case in enumerate(BAD_INPUT)],  # CI runs all
)
def test_bad_input_ends_with_one_message(program, arguments, message, tmp_path):
    result = launch(program, *arguments, *([f"--workdir={tmp_path}/run"] if program == "pretrain" else []))
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_ctrl_c_twice_ends_without_a_trace():
    """The second one comes while the program ends, and what ends it is not done yet."""
    code = """
import atexit, signal, time
from gpt1_jax import cli
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it starts with "&" ignore it
def show_and_wait(text):
    print(text, flush=True)
    time.sleep(100)
atexit.register(show_and_wait, "ending")
cli.run(lambda: show_and_wait("running"))
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in ("running\n", "ending\n"):
            assert process.stdout.readline() == line
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
        assert process.stderr.read().strip() == "interrupted"


def test_memory_that_is_full_ends_with_one_message():
    code = """
import jax
from gpt1_jax import cli
cli.run(lambda: jax.numpy.zeros(1 << 55).block_until_ready())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: the memory of a device is full: ")
    assert "config.accumulation_steps" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_is_for_the_shell(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["launch/pretrain.py"])
    monkeypatch.chdir(ROOT)
    values = {"checkpoint": "my run's", "prompt": "it was $HOME", "data": ("a.csv", "b c.csv"), "output": ""}
    _, script, *given = shlex.split(cli.command("generate", values))
    assert script == "launch/generate.py"
    assert given == ["--checkpoint=my run's", "--prompt=it was $HOME", "--data=a.csv,b c.csv", "--output="]
    monkeypatch.setattr(sys, "argv", [str(ROOT / "launch" / "pretrain.py")])
    monkeypatch.chdir(ROOT / "tests")
    assert shlex.split(cli.command("generate", {}))[1] == str(ROOT / "launch" / "generate.py")
