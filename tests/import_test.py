"""Importing the package starts nothing."""

import os
import subprocess
import sys

CODE = """
import sys
import warnings
warnings.simplefilter("error", DeprecationWarning)
import gpt1_jax
warnings.simplefilter("default", DeprecationWarning)  # what libraries do to each other is theirs
warnings.filterwarnings("error", category=DeprecationWarning, module=r"gpt1_jax\\b")
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
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=120, env=environment)
