"""Pre-training, in three sizes, and going on with a model that is trained already.

    python launch/pretrain.py --config=configs/pretrain.py:SIZE --config.source='text:books/**/*.txt' --workdir=W

gpt1 (default)  The paper's: 12 layers of 768, 512 tokens, 40,478 pieces, 116.5 M parameters; batch 64, 100 epochs,
                Adam with 2000 warm-up updates to 2.5e-4 and a cosine to 0. The paper reports perplexity 18.4 on
                BooksCorpus (800 M words, not public any more) after a month on 8 GPUs of 2018.
small           One accelerator and an afternoon: 6 layers of 384, 256 tokens, 16,000 pieces, 17 M parameters.
quickstart      A laptop's CPU and some minutes: 2 layers of 128, 96 tokens, 4,096 pieces, 0.9 M parameters.
continue        Any size: with --init_from=MODEL (a workdir, OpenAI's folder or a Hugging Face folder), on text of the
                kind that it will be used on. Three passes, a quarter of the paper's rate, nothing held out. What
                config.model leaves open is as it was. `config.adapt` of fine-tuning does the same on its way.

--config.model.trunk=lstm puts the LSTM of the paper's table 5 in place of the blocks; .model.lstm_units are 2048.
"""

from ml_collections import ConfigDict, config_dict

from gpt1_jax.config import to_config_dict
from gpt1_jax.errors import InputError, did_you_mean
from gpt1_jax.pretrain import PretrainConfig

SIZES = ("gpt1", "small", "quickstart", "continue")


def get_config(size: str = "gpt1") -> ConfigDict:
    """The config of a size; `config.source` is left to the command line."""
    if size not in SIZES:
        raise InputError(f"size {size!r} is unknown; use one of {', '.join(SIZES)}{did_you_mean(size, SIZES)}")
    config = to_config_dict(PretrainConfig())  # the paper's

    if size == "small":
        config.model.vocab_size = 16_000
        config.model.n_layer = 6
        config.model.n_embd = 384
        config.model.n_head = 6
        config.model.n_ctx = 256
        config.model.dtype = "bfloat16"
        config.epochs = 10.0
        config.optimizer.learning_rate = 6e-4
        config.optimizer.warmup_steps = config_dict.placeholder(int)
        config.optimizer.warmup_fraction = 0.02

    if size == "quickstart":
        config.model.vocab_size = 4_096
        config.model.n_layer = 2
        config.model.n_embd = 128
        config.model.n_head = 4
        config.model.n_ctx = 96
        # Less than one pass over the text: there is nothing to regularise yet.
        config.model.embd_pdrop = config.model.attn_pdrop = config.model.resid_pdrop = 0.0
        config.batch_size = 24
        config.n_steps = 3_000
        config.optimizer.learning_rate = 3e-3
        config.optimizer.warmup_steps = config_dict.placeholder(int)
        config.optimizer.warmup_fraction = 0.1
        config.loop.log_every = 50
        config.loop.eval_every = 500
        config.loop.save_every = 500
        config.max_eval_batches = 20

    if size == "continue":
        config.heldout_fraction = 0.0
        config.epochs = 3.0
        config.optimizer.learning_rate = 6.25e-5
        config.optimizer.warmup_steps = config_dict.placeholder(int)
        config.optimizer.warmup_fraction = 0.05

    return config
