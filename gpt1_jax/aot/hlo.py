"""Reads the text of a compiled module: which instructions run how often, the compiler's cycles, matrix products.

The text is what `compiled.as_text()` gives: computations of one instruction a line,

    %name = shape opcode(operands), attributes

of which the entry runs once, the body of a loop once a trip, and the inside of a fusion as part of the fusion.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "s32": 4, "u32": 4, "s64": 8, "u64": 8}
BYTES |= {"bf16": 2, "f16": 2, "f32": 4, "f64": 8, "c64": 8, "c128": 16, "f8e4m3fn": 1, "f8e5m2": 1}

_CONTINUED = re.compile(r'\n(?="|\}\})')  # what a kernel says of itself goes over several lines
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_ARRAY_TEXT = re.compile(r"\w+\[[\d,]*\]")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NOTHING_DONE = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "opt-barrier", "domain")
_DONE_ELSEWHERE = ("while", "call", "conditional", "async-update")  # and every "...-done"
_FREE = frozenset((*_NOTHING_DONE, *_DONE_ELSEWHERE, "partition-id", "replica-id", "add-dependency", "iota"))
_NO_MODULES = frozenset(("shard_map", "while", "body", "cond", "closed_call", "checkpoint", "rematted_computation"))
_FREE_CALLS = frozenset(("AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast", "Sharding"))


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
      name: without the %.
      shape: of its result, as written.
      opcode: such as "fusion".
      operands: names; of a parameter or a constant what stands in the brackets.
      attributes: the rest of the line.
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str

    def called(self, *attributes: str) -> str:
        """The computation that one of these attributes names, such as "body" or "calls".

        Raises:
          ValueError: there is none of them.
        """
        match = re.search(rf"\b(?:{'|'.join(attributes)})=%?([\w.\-]+)", self.attributes)
        if match is None:
            raise ValueError(f"{self.opcode} {self.name} calls no computation by {' or '.join(attributes)}")
        return match[1]

    @property
    def target(self) -> str:
        """What a custom call calls; "" for all others."""
        match = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return match[1] if match else ""

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate, where there is one."""
        match = _CYCLES.search(self.attributes)
        return int(match[1]) if match else None


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
      computations: name -> {name of an instruction: instruction}.
      entry: the computation that is run.
    """

    computations: Mapping[str, Mapping[str, Instruction]]
    entry: str


def parse_module(text: str) -> Module:
    """The computations of a compiled module's text."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    for line in _CONTINUED.sub("", text).splitlines():
        if match := _COMPUTATION.match(line):
            current = computations[match[2]] = {}
            entry = match[2] if match[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and " = " in line:
            instruction = _parse_line(line)
            current[instruction.name] = instruction
    if not entry:
        raise ValueError("this is not the text of a compiled module: it has no ENTRY")
    return Module(computations, entry)


def _parse_line(line: str) -> Instruction:
    name, rest = line.strip().removeprefix("ROOT ").split(" = ", 1)
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    start = rest.index("(")
    stop = _closing(rest, start)
    inside = rest[start + 1 : stop]
    operands = tuple(re.findall(r"%([\w.\-]+)", inside)) or ((inside,) if inside else ())
    return Instruction(name.lstrip("%"), shape, rest[:start], operands, rest[stop + 1 :])


def _closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    raise ValueError(f"brackets do not match: {text[:200]!r}")


def shape_bytes(shape: str) -> float:
    """Bytes of an array, or of all arrays of a tuple, without the padding of their layout."""
    return sum(BYTES.get(kind, 0) * _product(dims) for kind, dims in _ARRAY.findall(shape))


def _dims(shape: str) -> list[int]:
    match = _ARRAY.search(shape)
    return [int(n) for n in match[2].split(",") if n] if match else []


def _product(dims: str) -> int:
    return math.prod(int(n) for n in dims.split(",") if n)


@dataclasses.dataclass(frozen=True)
class Executed:
    """An instruction and how often it runs.

    Attributes:
      instruction: it.
      computation: the one it is in.
      times: runs in one run of the module.
      fused: it is inside a fusion, whose estimate includes it.
    """

    instruction: Instruction
    computation: str
    times: int
    fused: bool


def executed(module: Module) -> Iterator[Executed]:
    """All instructions that a run executes. A loop whose length cannot be told counts as one trip."""

    def walk(name: str, times: int, fused: bool) -> Iterator[Executed]:
        for instruction in module.computations[name].values():
            yield Executed(instruction, name, times, fused)
            if instruction.opcode == "while":
                trips = (trip_count(module, name, instruction) or 1) * times
                yield from walk(instruction.called("body"), trips, fused)
                yield from walk(instruction.called("condition"), trips, fused)
            elif instruction.opcode in ("call", "async-start"):
                yield from walk(instruction.called("to_apply", "calls"), times, fused)
            elif instruction.opcode == "fusion":
                yield from walk(instruction.called("calls"), times, True)
            elif instruction.opcode == "conditional":  # every branch: more than what runs, never less
                branches = re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes)
                names = re.findall(r"%?([\w.\-]+)", branches[1]) if branches else []
                names += re.findall(r"\b(?:true|false)_computation=%?([\w.\-]+)", instruction.attributes)
                for branch in names:
                    yield from walk(branch, times, fused)

    yield from walk(module.entry, 1, False)


def trip_count(module: Module, computation: str, loop: Instruction) -> int | None:
    """How often the body of a loop runs; None where the text does not say.

    The text says it outright, or the loop counts in steps of one from a constant up to a constant.
    """
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
    if known:
        return int(known[1])
    condition = module.computations[loop.called("condition")]
    compare = next((i for i in condition.values() if i.opcode == "compare"), None)
    if compare is None or "direction=LT" not in compare.attributes:
        return None
    counter, bound = (condition.get(name) for name in compare.operands)
    if counter is None or bound is None or counter.opcode != "get-tuple-element" or bound.opcode != "constant":
        return None
    index = re.search(r"index=(\d+)", counter.attributes)
    if index is None:
        return None
    start = _constant(module.computations[computation], loop.operands[0], int(index[1]))
    return None if start is None else max(0, int(bound.operands[0]) - start)


def _constant(instructions: Mapping[str, Instruction], name: str, index: int) -> int | None:
    """The integer at `index` of a tuple, where it is a constant."""
    made = instructions.get(name)
    while made is not None and made.opcode in ("copy", "bitcast", "opt-barrier", "copy-done", "copy-start"):
        made = instructions.get(made.operands[0])
    if made is None or made.opcode != "tuple":
        return None
    element = instructions.get(made.operands[index])
    while element is not None and element.opcode in ("copy", "bitcast", "copy-done", "copy-start"):
        element = instructions.get(element.operands[0])
    if element is None or element.opcode != "constant" or not re.fullmatch(r"-?\d+", element.operands[0]):
        return None
    return int(element.operands[0])


def unknown_loops(module: Module) -> int:
    """Loops that are counted as one trip because their length cannot be told."""
    return sum(
        run.instruction.opcode == "while" and trip_count(module, run.computation, run.instruction) is None
        for run in executed(module)
    )


def estimated_cycles(module: Module) -> tuple[int, dict[str, int]]:
    """The compiler's cycles of a run, and how many instructions have no estimate, by what they are.

    Custom calls are named with their target; all work on single numbers is "scalar". Instructions that move and compute
    nothing are not counted.
    """
    total, without = 0, collections.Counter[str]()
    for run in _timed(module):
        if run.instruction.cycles is None:
            without[_described(run.instruction)] += 1
        else:
            total += run.instruction.cycles * run.times
    return total, dict(without.most_common())


def cycles_by_part(module: Module) -> dict[str, int]:
    """The same cycles by where in the step they are spent, the most first: a module of the network in all layers,
    the rest of the loss, or what is done with the gradients; what the backward pass does apart.

    A fusion counts where its last operation stands.
    """
    parts = collections.Counter[str]()
    for run in _timed(module):
        if run.instruction.cycles is not None:
            parts[_part(run.instruction)] += run.instruction.cycles * run.times
    return dict(parts.most_common())


def _timed(module: Module) -> Iterator[Executed]:
    """What the compiler estimates or should: all that does something and is not part of something else."""
    for run in executed(module):
        opcode = run.instruction.opcode
        if not (run.fused or opcode in _FREE or opcode.endswith("-done") or run.instruction.target in _FREE_CALLS):
            yield run


def _part(instruction: Instruction) -> str:
    match = re.search(r'op_name="([^"]*)"', instruction.attributes)
    *scopes, _ = match[1].split("/") if match else ("",)
    names = (scope.removeprefix("GPT1._") for scope in scopes if re.fullmatch(r"[\w.]+", scope))
    modules = [re.sub(r"^h_\d+$", "h", name) for name in names]
    modules = [module for module in modules if module not in _NO_MODULES]
    if not any("jvp(" in scope for scope in scopes):
        return "update"
    return ("/".join(modules) or "loss") + (" backward" if any("transpose(" in scope for scope in scopes) else "")


def _described(instruction: Instruction) -> str:
    if not any(math.prod(_dims(array)) > 1 for array in re.findall(_ARRAY_TEXT, instruction.shape)):
        return "scalar"
    if instruction.opcode == "fusion" and "async-collective" in instruction.name:
        return instruction.name.rstrip(".0123456789")
    return f"{instruction.opcode} {instruction.target}".strip()


def matmul_flops(module: Module) -> float:
    """FLOPs of the matrix products of a run on one device, kernels apart: multiply and add are two."""
    flops = 0.0
    for run in executed(module):
        instruction = run.instruction
        if instruction.opcode == "dot":
            flops += run.times * _dot_flops(instruction, module.computations[run.computation])
        elif instruction.opcode == "convolution":
            flops += run.times * _convolution_flops(instruction, module.computations[run.computation])
    return flops


def _dot_flops(dot: Instruction, beside: Mapping[str, Instruction]) -> float:
    lhs = _dims(beside[dot.operands[0]].shape)
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", dot.attributes)
    depth = math.prod(lhs[int(i)] for i in contracted[1].split(",") if i) if contracted else 1
    return 2.0 * math.prod(_dims(dot.shape)) * depth


def _convolution_flops(convolution: Instruction, beside: Mapping[str, Instruction]) -> float:
    """The TPU's matrix products are convolutions; batches of them have windows that mostly meet holes and padding."""
    lhs, rhs = (_dims(beside[name].shape) for name in convolution.operands[:2])
    out = _dims(convolution.shape)
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", convolution.attributes)
    if labels is None:
        raise ValueError(f"convolution {convolution.name} does not say which of its axes are which: no dim_labels")
    batch, features = out[labels[3].index("b")], out[labels[3].index("f")]
    depth = rhs[labels[2].index("i")]
    spatial = sorted(c for c in labels[1] if c.isdigit())
    window = _window(convolution.attributes, len(spatial))
    met = 1
    for axis, c in enumerate(spatial):
        n_in, n_out = lhs[labels[1].index(c)], out[labels[3].index(c)]
        met *= _met(n_in, n_out, *window[axis])
    return 2.0 * batch * features * depth * met


def _window(attributes: str, n: int) -> list[tuple[int, int, int, int, int]]:
    """(size, stride, pad, lhs_dilate, rhs_dilate) of each spatial axis."""
    match = re.search(r"window=\{([^}]*)\}", attributes)
    fields = dict(part.split("=") for part in match[1].split()) if match else {}

    def values(name: str, default: str) -> list[str]:
        return fields[name].split("x") if name in fields else [default] * n

    names = (("size", "1"), ("stride", "1"), ("pad", "0_0"), ("lhs_dilate", "1"), ("rhs_dilate", "1"))
    return list(zip(*([int(v.split("_")[0]) for v in values(*name)] for name in names), strict=True))


def _met(n_in: int, n_out: int, size: int, stride: int, pad: int, lhs_dilate: int, rhs_dilate: int) -> int:
    """Pairs of a place of the output and one of the window under which there is an element of the input."""
    last = (n_in - 1) * lhs_dilate
    places = (o * stride + w * rhs_dilate - pad for o in range(n_out) for w in range(size))
    return sum(0 <= place <= last and place % lhs_dilate == 0 for place in places)
