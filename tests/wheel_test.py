"""What is installed from a wheel is complete without the rest of the repository: `launch/` and `configs/`."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from helpers import pip_install

import gpt1_jax

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
CODE = """
import sys
from pathlib import Path
import gpt1_jax
from gpt1_jax import finetune, generate, load_pretrained, predict, pretrain

installed, corpus = sys.argv[1:]
assert Path(gpt1_jax.__file__).is_relative_to(installed), gpt1_jax.__file__
size = {"vocab_size": 300, "n_layer": 1, "n_embd": 16, "n_head": 2, "n_ctx": 32}
steps = {"batch_size": 4, "n_steps": 4, "optimizer": {"warmup_steps": 1}}
pretrain.run({"source": f"jsonl:{corpus}/corpus.jsonl#text", "heldout_fraction": 0.1, "model": size, **steps}, "books")
task = {"train": [f"{corpus}/train.csv"], "fields": {"text": "text"}, "label": "label"}
finetune.run({"task": task, "epochs": 1}, "labels", init_from="books")
assert generate(*load_pretrained("books"), "a film", max_new_tokens=4, temperature=0.8, top_k=40, seed=0)
labels, probabilities = predict(*load_pretrained("labels"), ["wonderful film", "dull story"])
assert set(labels) <= {"negative", "positive"} and probabilities.shape == (2, 2)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that is made of it."""
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", f"--outdir={folder}", str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if "pip failed" in result.stdout or "No matching distribution" in result.stdout:
        pytest.skip("the build's own requirements cannot be fetched")
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def wheel(folder: Path) -> Path:
    return folder / f"gpt1_jax-{gpt1_jax.__version__}-py3-none-any.whl"


def test_contents(built):
    names = zipfile.ZipFile(wheel(built)).namelist()
    info = f"gpt1_jax-{gpt1_jax.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"gpt1_jax", info}
    assert {"gpt1_jax/py.typed", f"{info}/licenses/LICENSE"} <= set(names)
    here = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gpt1_jax").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == here
    with tarfile.open(built / f"gpt1_jax-{gpt1_jax.__version__}.tar.gz") as source:
        assert not [name for name in source.getnames() if "/tests" in name]


def test_trains_predicts_and_generates(built, corpus, tmp_path):
    installed = tmp_path / "installed"
    pip_install(installed, "--no-deps", str(wheel(built)))
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", CODE, str(installed), str(corpus)]
    subprocess.run(command, check=True, timeout=300, env=environment, cwd=tmp_path)
