"""What is built for others is complete, without the rest of the repository and without what only extras install."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import xla_flags

import gpt1_jax

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
NAME = f"gpt1_jax-{gpt1_jax.__version__}"
NOT_SOURCES = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs", "site")

CODE = """
import importlib, pkgutil, sys
from pathlib import Path
import without_extras
without_extras.hide_other_modules("gpt1-jax")
import gpt1_jax
from gpt1_jax import export, finetune, generate, load_pretrained, predict, pretrain

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

for module in pkgutil.walk_packages(gpt1_jax.__path__, "gpt1_jax."):
    if not module.name.startswith(("gpt1_jax.benchmark.peers.", "gpt1_jax.playground.")):
        importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that is made of it. No residue of other builds gets in."""
    folder = tmp_path_factory.mktemp("built")
    sources = shutil.copytree(ROOT, folder / "sources", ignore=NOT_SOURCES)
    build = [sys.executable, "-m", "build", "--no-isolation", f"--outdir={folder}", sources]  # fetches nothing
    subprocess.run(build, check=True)
    return folder


def test_contents(built):
    names = zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl").namelist()
    assert {name.split("/")[0] for name in names} == {"gpt1_jax", f"{NAME}.dist-info"}
    assert f"{NAME}.dist-info/licenses/LICENSE" in names
    here = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gpt1_jax").rglob("*.*") if path.suffix != ".pyc"}
    assert {name for name in names if name.startswith("gpt1_jax/")} == here
    assert "gpt1_jax/py.typed" in here
    with tarfile.open(built / f"{NAME}.tar.gz") as source:
        folders = {name.split("/")[1] for name in source.getnames() if name.count("/") > 1}
    assert folders == {"gpt1_jax", "gpt1_jax.egg-info"}


def test_trains_predicts_and_generates(built, corpus, tmp_path):
    installed = tmp_path / "installed"
    wheel = built / f"{NAME}-py3-none-any.whl"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={installed}", wheel]
    subprocess.run(pip, check=True)
    path = os.pathsep.join([str(installed), str(Path(__file__).parent)])
    environment = os.environ | {"PYTHONPATH": path, "XLA_FLAGS": xla_flags.quick()}
    command = [sys.executable, "-c", CODE, installed, corpus]
    subprocess.run(command, check=True, timeout=900, env=environment, cwd=tmp_path)
