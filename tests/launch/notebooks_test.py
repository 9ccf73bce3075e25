"""The notebooks: small, without outputs, and each runs twice in one kernel."""

import copy
import os
import re
from pathlib import Path

import nbclient
import nbformat
import pytest
from helpers import random_params

from gpt1_jax import load_pretrained, save_pretrained
from gpt1_jax.model import GPT1, GPT1Config
from gpt1_jax.tokenizers import train_sentencepiece

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "launch" / "notebooks").glob("*.ipynb"))}

ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(ROOT),
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
}


def read(name):
    return nbformat.read(NOTEBOOKS[name], as_version=4)


def sources(name, kind="code"):
    return [cell.source for cell in read(name).cells if cell.cell_type == kind]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_valid_and_holds_no_outputs(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert NOTEBOOKS[name].stat().st_size < 30_000
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_begins_with_the_install_for_the_machine_and_has_its_settings_in_one_cell(name):
    first = sources(name)[0]
    assert all(word in first for word in ("tpu]", "cuda12]", "%pip install", "REPOSITORY"))
    tagged = [cell.source for cell in read(name).cells if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    for source in sources(name):
        assert not re.search(r"\babsl\b|\bsys\.argv\b|\bargparse\b", source)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_links_and_commands_exist(name):
    for text in sources(name, "markdown"):
        for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
            assert (NOTEBOOKS[name].parent / link).exists(), link
        for program in re.findall(r"launch/[\w/]+\.(?:py|md)", text):
            assert (ROOT / program).exists(), program


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A folder in OpenAI's layout: 12 heads, which it does not say, and random weights."""
    text = "the film is bright , and a story of two dull hours . it was a i watched this tender cast\n" * 20
    tokenizer = train_sentencepiece([text], tmp_path_factory.mktemp("tokenizer"), vocab_size=300)
    config = GPT1Config(vocab_size=300, n_ctx=48, n_embd=24, n_head=12, n_layer=1)
    folder = tmp_path_factory.mktemp("openai") / "model"
    save_pretrained(folder, GPT1(config), random_params(GPT1(config)), tokenizer, format="openai")
    return folder


def run_twice(name, folder, **parameters):
    """Runs all cells in a new kernel, and then all of them again; returns what was printed."""
    notebook = read(name)
    at = next(i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    settings = "\n".join(f"{key} = {value!r}" for key, value in parameters.items())
    notebook.cells.insert(at + 1, nbformat.v4.new_code_cell(settings))
    notebook.cells += copy.deepcopy(notebook.cells)
    client = nbclient.NotebookClient(
        notebook, timeout=1200, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    with client.setup_kernel(env=ENVIRONMENT, cwd=str(folder)):
        for i, cell in enumerate(notebook.cells):
            client.execute_cell(cell, i)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.output_type == "error"]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    return "".join(output.text for output in outputs if output.get("name") == "stdout"), len(pictures)


@pytest.mark.slow  # a kernel of its own, and everything compiled in it
def test_inside_the_model(weights, tmp_path):
    text, n_pictures = run_twice(
        "inside_the_model", tmp_path, MODEL=str(weights), PROMPT="the film , bright", NEW_TOKENS=3
    )
    assert text.count("the same as the model's") == 2 * 4
    assert n_pictures == 2 * 3


@pytest.mark.slow  # a kernel of its own, and everything compiled in it
def test_fine_tuning_a_csv(weights, tmp_path):
    settings = {"batch_size": 8, "epochs": 1, "n_buckets": 1, "model": {"dtype": "float32"}}
    text, n_pictures = run_twice("finetune_your_csv", tmp_path, WEIGHTS=str(weights), SETTINGS=settings)
    assert text.count("32 rows") == 2
    assert text.count("validation {'accuracy'") == 2
    assert n_pictures >= 2 * 3
    assert load_pretrained(tmp_path / "runs" / "my_csv")[0].readout.labels == ("negative", "positive")


@pytest.mark.slow  # a kernel of its own, and everything compiled in it
def test_pre_training(corpus, tmp_path):
    text, n_pictures = run_twice(
        "pretrain_on_tpu",
        tmp_path,
        SOURCE=f"jsonl:{corpus}/corpus.jsonl#text",
        SIZE={"vocab_size": 380, "n_ctx": 32, "n_embd": 32, "n_head": 4, "n_layer": 1},
        SETTINGS={"batch_size": 8, "n_steps": 4, "heldout_fraction": 0.1, "optimizer": {"warmup_steps": 1}},
    )
    assert text.count("'heldout_perplexity'") == 2
    assert text.count("the film is") == 2
    assert n_pictures == 2 * 4
