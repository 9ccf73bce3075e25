"""What the TPU kernels of attention do with one group of heads of one row: see tpu.py for the equations.

Scores are transposed, [keys, queries]: what belongs to a query (maximum, sum, the words of its dropout mask) then lies
along the lanes, and reductions over keys are elementwise. A block of queries meets the keys up to its own end and no
later ones, all of them at once, so that there is no online softmax; in the backward pass a block of keys meets the
queries from its own start on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from gpt1_jax.dropout import element_bits, keep_threshold
from gpt1_jax.precision import matmul_precision

LANES = 128
SUBLANES = 16
"""Rows of a tile of 16-bit numbers; float32 has 8."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Sizes of a call, on one device.

    Attributes:
      n_heads: heads H.
      head_dim: of one.
      n_tokens: of a row.
      rate: of dropout; 0 without.
      masked: some keys may be padding.
      interpret: run as plain JAX, on a CPU.
    """

    n_heads: int
    head_dim: int
    n_tokens: int
    rate: float
    masked: bool
    interpret: bool

    @property
    def block(self) -> int:
        """Queries, or in the backward pass keys, that are worked on at a time."""
        return min(round_up(self.n_tokens, SUBLANES), LANES)

    @property
    def length(self) -> int:
        """Tokens of a row, in whole blocks."""
        return round_up(self.n_tokens, self.block)

    @property
    def group(self) -> int:
        """Heads that share the lanes of a grid step."""
        together = max(LANES // self.head_dim, 1)
        return together if LANES % self.head_dim == 0 and self.n_heads % together == 0 else 1

    @property
    def width(self) -> int:
        """Lanes of a group; a head that does not share them is padded to whole lanes."""
        return round_up(self.group * self.head_dim, LANES)

    @property
    def n_groups(self) -> int:
        """Groups of heads."""
        return self.n_heads // self.group

    def vmem_bytes(self, itemsize: int) -> int:
        """Memory that a step may take: two of each block that comes or goes, and what was seen to be enough for the
        intermediate results.
        """
        blocks = 2 * (3 * self.n_groups + 6) * self.width
        return self.length * itemsize * (blocks + 6144) + 2**21

    @property
    def scale(self) -> float:
        """1 / sqrt(head_dim)."""
        return self.head_dim**-0.5


def round_up(n: int, multiple: int) -> int:
    """The first multiple from n on."""
    return pl.cdiv(n, multiple) * multiple


def _product(a: Array, b: Array, contracted: tuple[int, int]) -> Array:
    """Contracts one axis each, in float32."""
    return jax.lax.dot_general(
        a,
        b,
        (((contracted[0],), (contracted[1],)), ((), ())),
        precision=matmul_precision(a.dtype),
        preferred_element_type=jnp.float32,
    )


def _of_head(x: Array, plan: Plan, head: int) -> Array:
    """[n, width] with zeros in the lanes of the group's other heads: a product over all lanes is then the head's."""
    if plan.group == 1:
        return x
    lane = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
    first = head * plan.head_dim
    return jnp.where((lane >= first) & (lane < first + plan.head_dim), x, jnp.zeros_like(x))


def _rows_of_head(plan: Plan, head: int) -> slice:
    """Of a transposed group [width, n]."""
    return slice(head * plan.head_dim, (head + 1) * plan.head_dim) if plan.group > 1 else slice(0, plan.width)


def _causal(scores: Array) -> Array:
    """A block on the diagonal: keys after the query get the lowest number."""
    key, query = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, axis) for axis in (0, 1))
    return jnp.where(key <= query, scores, jnp.finfo(jnp.float32).min)


def _keep(first: Array, second: Array, first_key: int, n_keys: int, rate: float) -> Array:
    """The mask [n_keys, queries] of the queries with these words [1, queries], from a key on."""
    key = jax.lax.broadcasted_iota(jnp.int32, (n_keys, 1), 0) + first_key
    return element_bits(first, second, key.astype(jnp.uint32)) < keep_threshold(rate)


def _penalty(hidden: Array) -> Array:
    """[1, L] along lanes -> [L, 1]."""
    return jnp.broadcast_to(hidden, (8, hidden.shape[1])).T[:, :1]


def _staggered(plan: Plan, *stages: Callable[..., tuple[Any, ...]]) -> None:
    """Takes every block and head of a group through the stages, each a stage behind the one before it.

    So the matrix units work on one while the vector units work on another: the compiler moves little past each other.
    A stage gets the block's start, the head and what the stage before it gave.
    """
    units = [(start, head) for start in range(0, plan.length, plan.block) for head in range(plan.group)]
    given: dict[tuple[int, int], tuple[Any, ...]] = dict.fromkeys(units, ())
    for turn in range(len(units) + len(stages) - 1):
        for late, stage in enumerate(stages):
            if 0 <= turn - late < len(units):
                unit = units[turn - late]
                given[unit] = stage(*unit, *given[unit])


def forward_pass(*refs: Any, plan: Plan) -> None:
    """From the references to q, k, v and what is optional to those of o and the logarithm of the softmax's sum."""
    q_ref, k_ref, v_ref, *rest, o_ref, lse_ref = refs
    hidden_ref, word_refs = _optional(rest, plan)
    block, dtype = plan.block, q_ref.dtype
    v_t = v_ref[0].T
    penalty = _penalty(hidden_ref[0]) if plan.masked else None
    outputs = []

    def scores(start: int, head: int) -> tuple[Array, ...]:
        stop = start + block
        q = q_ref[0, start:stop] * jnp.asarray(plan.scale, dtype)
        s = _product(k_ref[0, :stop], _of_head(q, plan, head), (1, 1))
        s = s if penalty is None else s + penalty[:stop]
        return (jnp.concatenate([s[:start], _causal(s[start:])]) if start else _causal(s),)

    def probabilities(start: int, head: int, s: Array) -> tuple[Array, ...]:
        highest = s.max(0, keepdims=True)
        p = jnp.exp(s - highest)
        total = p.sum(0, keepdims=True)
        lse_ref[0, 0, head : head + 1, start : start + block] = highest + jnp.log(total)
        if plan.rate:
            first, second = (ref[0, 0, head : head + 1, start : start + block] for ref in word_refs)
            p = jnp.where(_keep(first, second, 0, s.shape[0], plan.rate), p, 0.0)
        return p.astype(dtype), total

    def output(start: int, head: int, p: Array, total: Array) -> tuple[Array, ...]:
        o_t = _product(v_t[_rows_of_head(plan, head), : p.shape[0]], p, (1, 0))
        outputs.append(o_t * (1.0 / ((1.0 - plan.rate) * total)))
        if head == plan.group - 1:
            o_ref[0, start : start + block] = jnp.concatenate(outputs).T.astype(dtype)
            outputs.clear()
        return ()

    _staggered(plan, scores, probabilities, output)


def backward_pass(*refs: Any, plan: Plan) -> None:
    """Likewise, from q, k, v, dO, o and the logarithm to the gradient of all three and its sums over the tokens."""
    q_ref, k_ref, v_ref, do_ref, o_ref, lse_ref, *rest, dqkv_ref, sums_ref, dq_t_ref = refs
    hidden_ref, word_refs = _optional(rest, plan)
    block, dtype, kept = plan.block, q_ref.dtype, 1.0 - plan.rate
    q, do = q_ref[0] * jnp.asarray(plan.scale, dtype), do_ref[0]
    k_t = k_ref[0].T
    do_o = (do.astype(jnp.float32) * o_ref[0].astype(jnp.float32)).T
    penalty = _penalty(hidden_ref[0]) if plan.masked else None
    lanes = pl.ds(pl.multiple_of(pl.program_id(1) * plan.width, LANES), plan.width)
    q_of, do_of = ([_of_head(x, plan, head) for head in range(plan.group)] for x in (q, do))
    # Scaled by 1 - rate, as are dP, dS and the products below until they are written.
    delta = [do_o[_rows_of_head(plan, head)].sum(0, keepdims=True) * kept for head in range(plan.group)]
    parts = []

    def write(part: int, rows: slice, x: Array) -> None:
        dqkv_ref[0, part, rows, lanes] = x.astype(dtype)
        total = x.sum(0, keepdims=True)
        before = 0.0 if rows.start == 0 else sums_ref[0, part : part + 1, lanes]
        sums_ref[0, part : part + 1, lanes] = before + total

    def scores(start: int, head: int) -> tuple[Array, ...]:
        keys = slice(start, start + block)
        s = _product(k_ref[0, keys], q_of[head][start:], (1, 1))
        s = s if penalty is None else s + penalty[keys]
        s = jnp.concatenate([_causal(s[:, :block]), s[:, block:]], 1) if s.shape[1] > block else _causal(s)
        return s, _product(v_ref[0, keys], do_of[head][start:], (1, 1))

    def gradients(start: int, head: int, s: Array, dp: Array) -> tuple[Array, ...]:
        p = dropped = jnp.exp(s - lse_ref[0, 0, head : head + 1, start:])
        if plan.rate:
            first, second = (ref[0, 0, head : head + 1, start:] for ref in word_refs)
            keep = _keep(first, second, start, block, plan.rate)
            dropped, dp = jnp.where(keep, p, 0.0), jnp.where(keep, dp, 0.0)
        return dropped.astype(dtype), (p * (dp - delta[head][:, start:])).astype(dtype)

    def products(start: int, head: int, dropped: Array, ds: Array) -> tuple[Array, ...]:
        keys, rows = slice(start, start + block), _rows_of_head(plan, head)
        parts.append((_product(ds, q_of[head][start:], (1, 0)), _product(dropped, do_of[head][start:], (1, 0))))
        dq_t = _product(k_t[rows, keys], ds, (1, 0))
        dq_t_ref[rows, start:] = dq_t_ref[rows, start:] + dq_t if start else dq_t
        if head == plan.group - 1:
            for part, heads in enumerate(zip(*parts, strict=True), 1):
                write(part, keys, sum(heads) * (1.0 / kept))
            parts.clear()
        return ()

    _staggered(plan, scores, gradients, products)
    write(0, slice(0, plan.length), (dq_t_ref[...] * (plan.scale / kept)).T)


def _optional(refs: list[Any], plan: Plan) -> tuple[Any, list[Any]]:
    """The references to the padding and to the two words, where there are any."""
    hidden, words = (refs[:1], refs[1:]) if plan.masked else ([None], refs)
    return hidden[0], words or [None, None]
