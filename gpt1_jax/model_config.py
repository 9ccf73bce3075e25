"""What there is to say about the network in numbers and names: `GPT1Config`, and `ReadOut` for its task head."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypedDict

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from gpt1_jax.attention import check_kernel, select_kernel
from gpt1_jax.config import check_fields
from gpt1_jax.errors import InputError, counted

ROW_MULTIPLE = 128  # the token table is padded to whole tiles of this many rows, see `padded_rows`
N_SPECIAL = 3  # start, delimiter, extract

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda x: nn.gelu(x, approximate=True),
    "relu": nn.relu,
    "swish": nn.swish,
}
TRUNKS = ("transformer", "lstm")
REMAT_POLICIES: dict[str, Any] = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class MeshSizes(TypedDict, total=False):
    """Sizes of a model that are shared out over devices."""

    n_embd: int
    n_head: int
    lstm_units: int


@dataclasses.dataclass(frozen=True)
class GPT1Config:
    """Hyper-parameters of the network; the defaults are the paper's (section 4.1).

    Attributes:
      vocab_size: rows of the tokenizer's vocabulary.
      n_special: 0 when pre-trained; 3 (start, delimiter, extract, appended after the vocabulary) once fine-tuned.
      n_ctx: longest sequence, in tokens.
      n_embd: width D.
      n_head: attention heads; divides n_embd.
      n_layer: blocks.
      embd_pdrop: dropout rate of the embeddings (likewise attn_, resid_, clf_: attention probabilities, residual
        branches, the task head's input).
      activation: "gelu" (tanh form), "relu" or "swish".
      attention: "auto", the best one for the devices, or one of `attention.KERNELS`.
      embedding_dropout: "output" masks the summed embedding; "table" puts one mask on the whole tied table, so that it
        reaches the logits too, as the official code does.
      softmax_over_positions: the LM softmax also spans the position rows, as in the official code.
      clf_bias: the task head has a bias.
      dtype: dtype of the computation, "float32" or "bfloat16"; parameters are always float32.
      remat: what the backward pass recomputes: "none", "full" (whole blocks) or "dots" (all but matrix products).
      scan_layers: training compiles one block for all layers, sooner, to a program that is slower and takes more memory
        (launch/README.md has both). Parameters and checkpoints are the same; the masks of dropout are other ones.
      trunk: what is between the embeddings and the heads: "transformer", or "lstm", the paper's ablation (table 5, see
        lstm.py). n_head, n_layer and attn_pdrop then say nothing, so that a config differs in the trunk alone;
        activation, attention, remat and scan_layers have to be left as they are by default.
      lstm_units: units U of the LSTM.

    Raises:
      InputError: a value is out of range or two do not fit each other.
    """

    vocab_size: int = 40478
    n_special: int = 0
    n_ctx: int = 512
    n_embd: int = 768
    n_head: int = 12
    n_layer: int = 12
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    resid_pdrop: float = 0.1
    clf_pdrop: float = 0.1
    activation: str = "gelu"
    attention: str = "auto"
    embedding_dropout: str = "output"
    softmax_over_positions: bool = False
    clf_bias: bool = True
    dtype: str = "float32"
    remat: str = "none"
    scan_layers: bool = False
    trunk: str = "transformer"
    lstm_units: int = 2048

    def __post_init__(self) -> None:
        """Normalises dtype and checks every field."""
        with contextlib.suppress(TypeError):  # no dtype at all: refused below
            object.__setattr__(self, "dtype", jnp.dtype(self.dtype).name)
        check_fields(self)
        for name in ("vocab_size", "n_ctx", "n_embd", "n_head", "lstm_units"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} must be at least 1")
        if self.n_layer < 0:
            raise InputError(f"n_layer={self.n_layer} must be at least 0")
        if self.trunk == "transformer" and self.n_embd % self.n_head:
            fits = [h for h in range(1, min(self.n_embd, 64) + 1) if self.n_embd % h == 0]
            raise InputError(
                f"n_embd={self.n_embd} is not divisible by n_head={self.n_head}; use a multiple of {self.n_head} "
                f"for n_embd, or one of {fits} for n_head"
            )
        for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop", "clf_pdrop"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise InputError(f"{name}={getattr(self, name)} must be at least 0 and below 1")
        choices = {
            "n_special": (0, N_SPECIAL),
            "activation": tuple(ACTIVATIONS),
            "embedding_dropout": ("output", "table"),
            "dtype": ("float32", "bfloat16"),
            "remat": tuple(REMAT_POLICIES),
            "trunk": TRUNKS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name}={getattr(self, name)!r} is unknown; use one of {list(allowed)}")
        check_kernel(self.attention)
        self._check_trunk()

    def _check_trunk(self) -> None:
        """Refuses what the trunk would not heed."""
        if self.trunk == "transformer" and self.lstm_units != GPT1Config.lstm_units:
            raise InputError(f"lstm_units={self.lstm_units} is of an LSTM; set trunk='lstm' as well, or leave it out")
        for name in ("activation", "attention", "remat", "scan_layers"):
            value, default = getattr(self, name), getattr(GPT1Config, name)
            if self.trunk == "lstm" and value != default:
                raise InputError(
                    f"{name}={value!r} is of the Transformer's blocks, and trunk='lstm' has none; leave {name} out "
                    f"({default!r})"
                )

    @property
    def trunk_names(self) -> tuple[str, ...]:
        """The parameters of the trunk by name, from the embeddings up."""
        return ("lstm",) if self.trunk == "lstm" else tuple(f"h_{i}" for i in range(self.n_layer))

    @property
    def trunk_summary(self) -> str:
        """The trunk in words."""
        if self.trunk == "lstm":
            return f"an LSTM of {self.lstm_units:,} units"
        return f"{counted(self.n_layer, 'layer')}, {counted(self.n_head, 'head')}"

    @property
    def mesh_sizes(self) -> MeshSizes:
        """What has to divide over a mesh, see `sharding.check_mesh`."""
        if self.trunk == "lstm":
            return {"n_embd": self.n_embd, "lstm_units": self.lstm_units}
        return {"n_embd": self.n_embd, "n_head": self.n_head}

    @property
    def shared_width(self) -> int:
        """A number that divides the axis "embed" of every matrix (see sharding.py)."""
        return math.gcd(self.n_embd, self.lstm_units) if self.trunk == "lstm" else self.n_embd

    def attention_kernel(self, length: int) -> str:
        """The kernel for rows of `length` tokens where the current mesh is; "none" if there is no attention."""
        return "none" if self.trunk == "lstm" else select_kernel(self.attention, length, self.head_dim)

    @property
    def head_dim(self) -> int:
        """Numbers of a head."""
        return self.n_embd // self.n_head

    @property
    def n_rows(self) -> int:
        """Rows of the token table that mean something: vocabulary and special tokens."""
        return self.vocab_size + self.n_special

    @property
    def padded_rows(self) -> int:
        """Rows of the token table as stored: `n_rows` rounded up to whole tiles that any divisor of `n_head` divides.

        So `tensor` can be each of them, and the table is the same on every mesh. An LSTM has no heads.
        """
        multiple = ROW_MULTIPLE if self.trunk == "lstm" else math.lcm(ROW_MULTIPLE, self.n_head)
        return math.ceil(self.n_rows / multiple) * multiple

    @property
    def n_logits(self) -> int:
        """Width of the LM logits."""
        return self.n_rows + (self.n_ctx if self.softmax_over_positions else 0)

    @property
    def extract_id(self) -> int:
        """Id of the token at which the task head reads; needs n_special=3."""
        return self.vocab_size + 2


READ_OUT_KINDS = ("classification", "entailment", "similarity", "multiple_choice")
READ_AT = ("extract", "last")


@dataclasses.dataclass(frozen=True)
class ReadOut:
    """How the streams of an example become its answer (paper, figure 1 right): a class, an answer or a score.

    Attributes:
      kind: "classification" and "entailment" read one stream; "similarity" adds both orders of a pair before W_y;
        "multiple_choice" compares one output over the answers.
      labels: names of the classes in the order of the outputs; for multiple choice names of the answers in their order
        ("A", "B", ...), or none.
      read_at: the token of a stream that W_y reads: "extract", which needs n_special=3, or "last", the last real one,
        as models of other programs do that were fine-tuned without special tokens.
      score_range: lowest and highest score, where the answer is a number (STS-B's 0 to 5); then there are no labels.
      score_points: outputs of W_y for a score, see `gpt1_jax.scores`: so many points of the range, which share the
        probability, or 0 for the score itself as one output.
    """

    kind: str
    labels: tuple[str, ...] = ()
    read_at: str = "extract"
    score_range: tuple[float, float] | None = None
    score_points: int = 0

    def __post_init__(self) -> None:
        """Checks every field, and all against each other."""
        check_fields(self)
        if self.kind not in READ_OUT_KINDS:
            raise InputError(f"kind={self.kind!r} is unknown; use one of {list(READ_OUT_KINDS)}")
        if self.read_at not in READ_AT:
            raise InputError(f"read_at={self.read_at!r} is unknown; use one of {list(READ_AT)}")
        if self.score_range is not None:
            self._check_scores(self.score_range)
        elif self.score_points:
            raise InputError(f"score_points={self.score_points}: there is no score_range; give both, or none")
        elif self.kind != "multiple_choice" and len(self.labels) < 2:
            raise InputError(f"labels={list(self.labels)}: kind={self.kind!r} needs at least two label names")

    @property
    def n_outputs(self) -> int:
        """Columns of W_y."""
        if self.score_range is not None:
            return self.score_points or 1
        return 1 if self.kind == "multiple_choice" else len(self.labels)

    @property
    def n_streams(self) -> int:
        """Streams of an example, the C of a batch; of answers without names, which may be any number, 0."""
        return {"similarity": 2, "multiple_choice": len(self.labels)}.get(self.kind, 1)

    def _check_scores(self, score_range: tuple[float, ...]) -> None:
        if len(score_range) != 2 or score_range[0] >= score_range[1]:
            raise InputError(f"score_range={score_range}: two numbers, the lowest score and the highest")
        if self.kind == "multiple_choice" or self.labels:
            raise InputError(
                f"score_range={score_range}: kind={self.kind!r} with labels={list(self.labels)} has classes; a score "
                "goes with another kind than multiple_choice, and without labels"
            )
        if self.score_points < 0 or self.score_points == 1:
            raise InputError(
                f"score_points={self.score_points} must be at least 2, or 0 for one output that is the score"
            )
