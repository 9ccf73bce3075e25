"""What is measured: from the config files of training, and the command line, to the configs of both workflows."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from gpt1_jax.benchmark import peers
from gpt1_jax.config import from_config
from gpt1_jax.errors import InputError
from gpt1_jax.finetune_config import FinetuneConfig
from gpt1_jax.model_config import GPT1Config
from gpt1_jax.pretrain import PretrainConfig

PARTS = ("pretrain", "finetune", "evaluate", "decode", "tokenize", "prepare", "load", "start")
"""In this order. Beside them there is "kernels", for where attention has several."""

_WITH_PEERS = ("pretrain", "evaluate")  # that every one of them can do
_PROMPT = 16  # tokens
_CPU_BATCH = {"pretrain": 2, "finetune": 8, "evaluate": 8, "load": 2, "kernels": 2}
"""Of each device: a recipe's batch takes a CPU minutes for one update."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The command line, checked.

    Attributes:
      pretrain: the config of the parts that know no task.
      finetune: that of fine-tuning; the network, the mesh and the loss are the same.
      parts: see `PARTS`.
      peers: who else does the same work, see `peers.PEERS`.
      batch_sizes: rows of a batch; empty: the config's, on a CPU fewer.
      decode_batch_sizes: texts that are continued at once.
      new_tokens: that each of them gets; None: 256, or as many as n_ctx has room for.
      repeats: most rounds of a case.
      seconds: after which no further round of a case begins.
      source: text to tokenize; "" makes some up.
      tokenizer: a folder with one; None learns one from the text.
      profile: folder for traces; None makes none.
    """

    pretrain: PretrainConfig
    finetune: FinetuneConfig
    parts: tuple[str, ...] = PARTS
    peers: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    decode_batch_sizes: tuple[int, ...] = (1, 8)
    new_tokens: int | None = None
    repeats: int = 10
    seconds: float = 60.0
    source: str = ""
    tokenizer: str | None = None
    profile: str | None = None

    def __post_init__(self) -> None:
        """Checks names and ranges."""
        for name, values, known in (
            ("parts", self.parts, (*PARTS, "kernels")),
            ("peer", self.peers, tuple(peers.PEERS)),
        ):
            unknown = [value for value in values if value not in known]
            if unknown:
                raise InputError(f"--{name}={','.join(unknown)} is unknown; use some of {','.join(known)}")
        if not self._is_transformer and (self.peers or "kernels" in self.parts):
            raise InputError(
                f"model.trunk={self.pretrain.model.trunk!r}: peers and the part 'kernels' are of the Transformer; "
                "leave them out"
            )
        if not self.parts:
            raise InputError(f"--parts is empty; use some of {','.join((*PARTS, 'kernels'))}")
        for name in ("batch_sizes", "decode_batch_sizes"):
            if any(size < 1 for size in getattr(self, name)):
                raise InputError(f"--{name}={','.join(map(str, getattr(self, name)))}: each must be at least 1")
        for name, least in (("repeats", 1), ("seconds", 0)):
            if not least <= getattr(self, name) < math.inf:
                raise InputError(f"--{name}={getattr(self, name)} must be a number from {least} up")
        fit = self.model.n_ctx - self.n_prompt
        if self.new_tokens is not None and not 1 <= self.new_tokens <= fit:
            raise InputError(
                f"--new_tokens={self.new_tokens} must be from 1 to {fit}, which n_ctx={self.model.n_ctx} has room for "
                f"beside a prompt of {self.n_prompt}"
            )
        for name in ("parts", "peers", "batch_sizes", "decode_batch_sizes"):
            given = getattr(self, name)
            if len(set(given)) < len(given):
                flag = "peer" if name == "peers" else name
                raise InputError(f"--{flag}={','.join(map(str, given))} names one twice; leave it out")
        if "decode" in self.parts and not self.decode_batch_sizes:
            raise InputError("--decode_batch_sizes is empty; name some, such as 1,8, or leave 'decode' out of --parts")

    @property
    def _is_transformer(self) -> bool:
        return (self.pretrain.model.trunk or GPT1Config.trunk) == "transformer"

    @property
    def may_have_peers(self) -> bool:
        """Whether there is anything that others do here, too."""
        return self._is_transformer and jax.device_count() == 1 and bool({*_WITH_PEERS} & {*self.parts})

    @property
    def n_prompt(self) -> int:
        """Tokens of a text before it is continued."""
        return min(_PROMPT, max(1, self.model.n_ctx // 4))

    @property
    def model(self) -> GPT1Config:
        """The network of the parts that know no task."""
        return GPT1Config(**self.pretrain.model.given())

    def batches(self, part: str) -> tuple[int, ...]:
        """Batch sizes to measure a part with."""
        if self.batch_sizes:
            return self.batch_sizes
        config = self.finetune if part == "finetune" else self.pretrain
        if jax.default_backend() == "cpu":
            return (min(config.batch_size, _CPU_BATCH[part] * jax.device_count()),)
        return (config.batch_size,)

    def tokens(self, *shape: int) -> np.ndarray:
        """Random tokens: int32. No time depends on which they are."""
        return np.random.default_rng(self.pretrain.seed).integers(self.model.vocab_size, size=shape, dtype=np.int32)


def configs(config: Any) -> tuple[PretrainConfig, FinetuneConfig]:
    """A config of configs/pretrain.py or configs/finetune.py, and what goes with it of the other workflow.

    Raises:
      InputError: it is refused.
    """
    given = config.to_dict() if hasattr(config, "to_dict") else dict(config)
    if "task" in given:
        finetune = from_config(FinetuneConfig, config)
        return PretrainConfig(**_shared(finetune)), finetune
    pretrain = from_config(PretrainConfig, config)
    return pretrain, FinetuneConfig(**_shared(pretrain))


def _shared(config: PretrainConfig | FinetuneConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ("model", "mesh", "loss", "seed")}
