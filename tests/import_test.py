"""Importing the package starts nothing."""

import os
import subprocess
import sys

CODE = """
import sys
import gpt1_jax
from gpt1_jax import GPT1, GPT1Config, load_pretrained, save_pretrained, generate, predict
from gpt1_jax import pretrain, finetune, evaluate, tokenizers
gpt1_jax.export  # an attribute without an import of its own
import jax
from absl import flags
assert not jax.distributed.is_initialized()
assert not flags.FLAGS.is_parsed()
assert "tensorflow" not in sys.modules
assert "matplotlib" not in sys.modules
assert set(dir(gpt1_jax)) >= {"GPT1", "pretrain", "predict"}
"""


def test_importing_starts_no_backend_parses_no_flag_and_needs_no_tensorflow():
    environment = os.environ | {"JAX_PLATFORMS": "none_such"}  # a backend that is started fails
    command = [sys.executable, "-W", "error::DeprecationWarning:gpt1_jax", "-c", CODE]
    subprocess.run(command, check=True, timeout=120, env=environment)
