"""`launch/export.py`, and an export where there is only JAX, what JAX installs, and the tokenizer's package."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import random_params

from gpt1_jax import GPT1, ReadOut, export, load_pretrained, predict, save_pretrained

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ("jax", "jaxlib", "ml_dtypes", "numpy", "numpy.libs", "opt_einsum", "scipy", "scipy.libs")


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Runs Python where nothing else than these packages can be imported; the first argument may add to them."""
    site, folder = Path(np.__file__).parents[1], tmp_path_factory.mktemp("bare")

    def run(packages, *arguments, **options):
        for name in (*INSTALLED, *packages):
            if (site / name).exists() and not (folder / name).exists():
                (folder / name).symlink_to(site / name)
        environment = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(folder), "PATH": os.environ["PATH"]}
        command = [sys.executable, "-S", *map(str, arguments)]  # -S: no site-packages
        return subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False, **options
        )

    return run


IDS_ALONE = """
import importlib.util, json, sys
assert [name for name in ("gpt1_jax", "flax", "flatbuffers", "sentencepiece") if importlib.util.find_spec(name)] == []
sys.path.insert(0, sys.argv[1])
import predict
print(json.dumps(predict.load().predict_ids([[[380, 1, 2, 382]]]).tolist()))
"""


def test_ids_need_jax_and_numpy_and_text_its_tokenizer(bare, pretrained, tmp_path):
    language_model, params, tokenizer = load_pretrained(pretrained)
    config = dataclasses.replace(language_model.config, n_special=3)
    model = GPT1(config, ReadOut("entailment", ("no", "yes")))
    params = random_params(model)
    save_pretrained(tmp_path / "model", model, params, tokenizer)
    export.run(tmp_path / "model", tmp_path / "exported")

    ids = bare([], "-c", IDS_ALONE, tmp_path / "exported")
    assert ids.returncode == 0, ids.stderr
    assert sum(json.loads(ids.stdout)[0]) == pytest.approx(1)

    examples = [{"premise": "a warm film .", "hypothesis": "{ dull"}, {"premise": "dull !", "hypothesis": "so it is"}]
    lines = [f"\ufeff{json.dumps(examples[0])}", "dull !\tso it is"]  # some programs begin a file with that mark
    packages = ["sentencepiece", "sentencepiece.libs"]
    said = bare(packages, tmp_path / "exported" / "predict.py", input="\n".join(lines) + "\n")
    assert said.returncode == 0, said.stderr
    answers = [json.loads(line) for line in said.stdout.splitlines()]
    labels, probabilities = predict(model, params, tokenizer, examples)
    assert [answer["label"] for answer in answers] == labels
    found = [[answer["probabilities"][name] for name in ("no", "yes")] for answer in answers]
    np.testing.assert_allclose(found, probabilities, rtol=0, atol=1e-6)  # float32; another padding

    refused = bare(packages, tmp_path / "exported" / "predict.py", "a text alone")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "error: 'a text alone': 1 columns; give ['premise', 'hypothesis'] with tabs" in refused.stderr


def test_bad_input_ends_with_one_message(tmp_path):
    command = [sys.executable, "launch/export.py", f"--checkpoint={tmp_path}/nothing", f"--target={tmp_path}/new"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "is not a workdir" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "new").exists()
