"""Predicts with the model of this folder; needs JAX and NumPy, and for text what model_card.json says under tokenizer.

    python predict.py 'a moving story' 'two dull hours'             # a task: one JSON line for each
    python predict.py < examples.tsv                                # its fields in their order, or a JSON object a line
    python predict.py 'It was a' --max_new_tokens=40                # a language model: the continued texts

    import predict                                                  # with this folder in sys.path
    model = predict.load()
    labels, probabilities = model(["a moving story", "two dull hours"])       # of a task
    texts = model.generate(["It was a"], max_new_tokens=40)                   # of a language model

A pair or a multiple choice is a mapping of the card's `fields`. Whoever has ids already calls `model.predict_ids`,
`model.generate_ids` or `model.logits`, which need no tokenizer.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import io
import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

Ids = Sequence[int]


def load(folder: str | Path = Path(__file__).parent) -> Task | LanguageModel:
    """The model of an exported folder, its parameters on the default device."""
    folder = Path(folder)
    if not (folder / "model_card.json").is_file():
        raise ValueError(
            f"{folder} is no exported model: it has no model_card.json, which is written last; export again"
        )
    card = json.loads((folder / "model_card.json").read_text(encoding="utf-8"))
    return (Task if "task" in card["programs"] else LanguageModel)(folder, card)


class _Model:
    """What both kinds have: `card`, `params`, the compiled programs, and the tokenizer's `encode` and `decode`."""

    def __init__(self, folder: Path, card: Mapping[str, Any]) -> None:
        self.card, self._folder = card, folder
        sys.path.append(str(folder / "packages"))  # an installed flatbuffers comes first
        with np.load(folder / "params.npz") as file:
            self.params = {name: jnp.asarray(file[name]) for name in file.files}

    def _program(self, name: str, **options: Any) -> Callable[..., Any]:
        # Compiled at its first use with each shape; JAX_COMPILATION_CACHE_DIR keeps that for the next process.
        data = (self._folder / self.card["programs"][name]["file"]).read_bytes()
        return jax.jit(export.deserialize(bytearray(data)).call, **options)

    def _check(self, ids: Ids, most: int | None = None) -> int:
        """The number of ids, if the model can read them."""
        n_ids = self.card["vocab_size"] + len(self.card["special_tokens"])
        most = self.card["n_ctx"] if most is None else most
        whole = all(isinstance(i, int | np.integer) for i in ids)
        if not whole or not 0 < len(ids) <= most or not 0 <= min(ids) <= max(ids) < n_ids:
            many = "at least one" if most == sys.maxsize else f"1 to {most}"
            raise ValueError(
                f"ids: {list(ids)!r:.80}: {many} of them, each an integer from 0 to {n_ids - 1}, are allowed"
            )
        return len(ids)

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return self._tokenizer[0](text) if text else []

    def decode(self, ids: Ids) -> str:
        """The text of ids."""
        return self._tokenizer[1](list(ids))

    @functools.cached_property
    def _tokenizer(self) -> tuple[Callable[[str], list[int]], Callable[[list[int]], str]]:
        return self._text.load()

    @functools.cached_property
    def _text(self) -> Any:
        """The module that knows text; whoever gives ids does without."""
        spec = importlib.util.spec_from_file_location("exported_text", self._folder / "tokenizer" / "text.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


class Task(_Model):
    """Labels examples or scores them: `model(examples)`."""

    def __init__(self, folder: Path, card: Mapping[str, Any]) -> None:
        super().__init__(folder, card)
        self._predict = self._program("task")

    def __call__(
        self, examples: Sequence[str | Mapping[str, Any]], *, batch_size: int = 32
    ) -> tuple[list[str] | list[float], np.ndarray]:
        """The labels and their probabilities [N, labels]; of a task of scores the scores, and an array [N, 0]."""
        if isinstance(examples, str | Mapping):
            raise ValueError("a single example is given; give a list of them, such as [example]")
        streams, cut = [], []
        for i, example in enumerate(examples):
            of_one, n_cut = self._streams(example, f"examples[{i}]")
            streams.append(of_one)
            cut += [n_cut] if n_cut else []
        if cut:
            warnings.warn(
                f"{len(cut)} of {len(streams)} examples are longer than the {self.card['n_ctx']} tokens that the model "
                f"reads: {sum(cut)} tokens were left out",
                stacklevel=2,
            )
        predicted = self.predict_ids(streams, batch_size=batch_size)
        if self.card["score_range"]:
            return predicted.tolist(), np.zeros((len(predicted), 0))
        labels = self.card["labels"]
        return [labels[i] if labels else str(i) for i in predicted.argmax(axis=1)], predicted

    def predict_ids(self, examples: Sequence[Sequence[Ids]], *, batch_size: int = 32) -> np.ndarray:
        """Probabilities [N, labels], or scores [N], of examples given as the streams that `streams` makes."""
        _check_whole("batch_size", batch_size, least=1)
        if not len(examples):
            raise ValueError("there are no examples; give at least one")
        longest = [max(self._check(stream) for stream in streams) for streams in examples]
        order = np.argsort(longest, kind="stable")
        n_streams = max(map(len, examples))
        results: list[Any] = [None] * len(examples)
        for first in range(0, len(order), batch_size):
            rows = order[first : first + batch_size]
            # Powers of two: few shapes, so few compilations. What is added has no stream and is dropped.
            n_tokens = _padded(max(longest[i] for i in rows), self.card["n_ctx"])
            tokens = np.zeros((_padded(len(rows), batch_size, 1), n_streams, n_tokens), np.int32)
            lengths = np.zeros(tokens.shape[:2], np.int32)
            for b, i in enumerate(rows):
                for c, stream in enumerate(examples[i]):
                    tokens[b, c, : len(stream)], lengths[b, c] = stream, len(stream)
            for i, row in zip(rows, np.asarray(self._predict(self.params, tokens, lengths)), strict=False):
                results[i] = row
        return np.asarray(results, np.float64)

    def streams(self, example: str | Mapping[str, Any], where: str = "example") -> list[list[int]]:
        """The token ids of an example, as the card's `input` says: one stream, or one per order or answer."""
        return self._streams(example, where)[0]

    def _streams(self, example: str | Mapping[str, Any], where: str) -> tuple[list[list[int]], int]:
        """`streams`, and how many tokens of the example did not fit into them."""
        fields, kind = self.card["fields"], self.card["predicts"]
        if isinstance(example, str) and len(fields) == 1:
            example = {fields[0]: example}
        if not isinstance(example, Mapping):
            raise ValueError(f"{where}: {kind} takes a mapping with {fields}, got {example!r:.80}")
        optional = ("context", "question")
        ids: dict[str, Any] = {}
        for name in fields:
            value = example.get(name, "" if name in optional else None)
            texts = list(value) if name == "answers" and isinstance(value, list | tuple) else [value]
            if not all(isinstance(text, str) for text in texts) or (name == "answers") != isinstance(
                value, list | tuple
            ):
                kind_of = "a list of texts" if name == "answers" else "a text"
                raise ValueError(f"{where}: {name} is {value!r:.80}, not {kind_of}; the fields are {fields}")
            encoded = [self.encode(text) if text.strip() else [] for text in texts]
            if name not in optional and not all(encoded):
                raise ValueError(f"{where}: {name} {value!r:.80} has no tokens; fill it in")
            ids[name] = encoded if name == "answers" else encoded[0]
        if kind == "multiple_choice":
            n, labels = len(ids["answers"]), self.card["labels"]
            if n < 2 or (labels and n > len(labels)):
                raise ValueError(f"{where}: {n} answers; 2 to {len(labels) if labels else 'any number'} are needed")
            if not ids["context"] and not ids["question"]:
                raise ValueError(f"{where}: context and question are both empty; fill one in")
        # A model that was fine-tuned without special tokens has no ids for them.
        special = self.card["special_tokens"] or dict.fromkeys(("start", "delimiter", "extract"), -1)
        streams = self._text.to_streams(kind, ids, special, self.card["n_ctx"], where)
        whole = self._text.to_streams(kind, ids, special, sys.maxsize, where)
        return [[i for i in stream if i >= 0] for stream in streams], len(whole[0]) - len(streams[0])


class LanguageModel(_Model):
    """Continues texts, and gives the logits of every token."""

    def __init__(self, folder: Path, card: Mapping[str, Any]) -> None:
        super().__init__(folder, card)
        self._logits = self._program("logits")
        self._decode = self._program("decode", donate_argnums=(4, 5))  # the cache is written in place

    def generate(self, prompts: Sequence[str], *, max_new_tokens: int = 40, **options: Any) -> list[str]:
        """Continues texts, up to the end of the document; an empty one begins a new document."""
        if isinstance(prompts, str):
            raise ValueError("a single prompt is given; give a list of them, such as [prompt]")
        separator = self.card["tokenizer"]["separator"]
        for i, prompt in enumerate(prompts):
            if not isinstance(prompt, str):
                raise ValueError(f"prompts[{i}] is {prompt!r:.80}, not a text")
        heads = [self.encode(prompt) for prompt in prompts]
        tails = self.generate_ids(
            [head or separator for head in heads], max_new_tokens=max_new_tokens, stop=separator, **options
        )
        return [self.decode([*head, *tail]) for head, tail in zip(heads, tails, strict=True)]

    def generate_ids(
        self,
        prompts: Sequence[Ids],
        *,
        max_new_tokens: int = 40,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
        stop: Ids = (),
    ) -> list[list[int]]:
        """The new ids of each row, without the `stop` that ended it; temperature 0 takes the likeliest token.

        Beyond `n_ctx` tokens the window moves as in `gpt1_jax.generate`, by half of them, so that the likeliest tokens
        are the same. The random numbers are NumPy's.
        """
        if not 0 <= temperature < math.inf:
            raise ValueError(f"temperature={temperature} must be a number from 0 up")
        if top_k is not None:
            _check_whole("top_k", top_k, least=1)
        _check_whole("max_new_tokens", max_new_tokens, least=0)
        _check_whole("seed", seed, least=0)
        for prompt in prompts:
            self._check(prompt, sys.maxsize)
        n_ctx, rng = self.card["n_ctx"], np.random.default_rng(seed)
        rows = [list(map(int, prompt)) for prompt in prompts]
        if unread := [start for start in (_window_start(len(row), n_ctx) for row in rows) if start]:
            warnings.warn(
                f"{len(unread)} of {len(rows)} prompts are longer than the {n_ctx} tokens that the model reads: their "
                f"first {sum(unread)} tokens were left out",
                stacklevel=2,
            )
        news: list[list[int]] = [[] for _ in prompts]
        active = [max_new_tokens > 0] * len(rows)
        cache: Any = None
        starts: list[int] = []
        while any(active):
            before, starts = starts, [_window_start(len(row), n_ctx) for row in rows]
            if starts != before:  # the first time, or a window has moved
                windows = [row[start:] for row, start in zip(rows, starts, strict=True)]
                room = max(map(len, windows)) + max_new_tokens
                logits, cache = self._read(windows, [0] * len(rows), self._empty_cache(len(rows), room))
            else:
                at = [len(row) - start - 1 for row, start in zip(rows, starts, strict=True)]
                logits, cache = self._read([row[-1:] for row in rows], at, cache)
            for i, token in enumerate(_draw(logits, temperature, top_k, rng)):
                if active[i]:
                    rows[i].append(token)
                    news[i].append(token)
                    ended = bool(stop) and news[i][-len(stop) :] == list(stop)
                    active[i] = not ended and len(news[i]) < max_new_tokens
                    news[i] = news[i][: len(news[i]) - len(stop)] if ended else news[i]
        return news

    def logits(self, ids: Ids) -> np.ndarray:
        """Logits float32 [L, vocab_size] of the token after each of at most n_ctx ids."""
        tokens = np.zeros((1, _padded(self._check(ids), self.card["n_ctx"])), np.int32)
        tokens[0, : len(ids)] = ids
        return np.asarray(self._logits(self.params, tokens))[0, : len(ids)]

    def next_logits(self, prompts: Sequence[Ids]) -> np.ndarray:
        """Logits float32 [rows, vocab_size] of the token after each of some rows of at most n_ctx ids."""
        longest = max(map(self._check, prompts))
        return self._read(prompts, [0] * len(prompts), self._empty_cache(len(prompts), longest))[0]

    def _read(self, news: Sequence[Ids], start: Sequence[int], cache: Any) -> tuple[np.ndarray, Any]:
        """Logits [rows, V] after the new tokens of every row, the first of them at slot `start` of the cache."""
        n_rows, *slots = cache[0][0].shape  # [rows, heads, slots, head_dim]; of an LSTM [rows, units]
        n_slots = slots[1] if len(slots) == 3 else self.card["n_ctx"]
        longest = max(map(len, news))
        tokens = np.zeros((n_rows, 1 if longest == 1 else _padded(longest, n_slots)), np.int32)
        lengths, at = np.ones(n_rows, np.int32), np.zeros(n_rows, np.int32)
        for i, (new, place) in enumerate(zip(news, start, strict=True)):
            tokens[i, : len(new)], lengths[i], at[i] = new, len(new), place
        logits, *cache = self._decode(self.params, tokens, lengths, at, *cache)
        return np.asarray(logits)[: len(news)], cache

    def _empty_cache(self, n_rows: int, room: int) -> Any:
        card, rows = self.card, _padded(n_rows, n_rows * 2, 1)
        if card["trunk"] == "lstm":
            return [(jnp.zeros((rows, card["lstm_units"]), "float32"),) for _ in range(2)]
        shape = (rows, card["n_head"], _padded(room, card["n_ctx"]), card["head_dim"])
        return [tuple(jnp.zeros(shape, card["dtype"]) for _ in range(card["n_layer"])) for _ in range(2)]


def _check_whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number from {least} up")


def _draw(logits: np.ndarray, temperature: float, top_k: int | None, rng: np.random.Generator) -> list[int]:
    if temperature > 0:
        logits = (logits - logits.max(axis=1, keepdims=True)) / temperature
        if top_k is not None and top_k < logits.shape[1]:
            logits = np.where(logits >= np.partition(logits, -top_k, axis=1)[:, -top_k, None], logits, -np.inf)
        logits = logits + rng.gumbel(size=logits.shape)
    return logits.argmax(axis=1).tolist()


def _window_start(n: int, n_ctx: int) -> int:
    stride = max(1, n_ctx // 2)
    return stride * math.ceil(max(0, n - n_ctx) / stride)


def _padded(n: int, most: int, least: int = 16) -> int:
    """The next power of two, from `least` to `most`."""
    return min(max(least, 1 << (n - 1).bit_length()), most)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", help="examples or prompts; without any, lines of standard input")
    parser.add_argument("--max_new_tokens", type=int, default=40, help="of a language model")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 takes the likeliest token")
    parser.add_argument("--top_k", type=int, help="draws from the k likeliest tokens only")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    given = options.pop("texts")
    try:
        texts = given or _lines(sys.stdin.buffer.read())
        model = load()
        if isinstance(model, LanguageModel):
            print("\n---\n".join(model.generate(texts, **options)))
            return
        labels, probabilities = model([_parse(text, model.card["fields"]) for text in texts])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    names = model.card["labels"] or [str(i) for i in range(probabilities.shape[1])]
    for label, row in zip(labels, probabilities.tolist(), strict=True):
        classes = {"label": label, "probabilities": dict(zip(names, row, strict=False))}
        print(json.dumps({"score": label} if model.card["score_range"] else classes, ensure_ascii=False))


def _lines(data: bytes) -> list[str]:
    """The lines of a file in UTF-8, with or without the mark that some programs begin it with."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"the standard input is not UTF-8 ({error}); convert it first") from None
    return [line.rstrip("\r\n") for line in io.StringIO(text)]


def _parse(line: str, fields: Sequence[str]) -> str | dict[str, Any]:
    """An example of the command line: a JSON object, or the fields with tabs between them; answers come last."""
    if line.lstrip().startswith("{"):
        try:
            return json.loads(line)
        except json.JSONDecodeError:
            pass  # a text that begins like that
    if len(fields) == 1:
        return line
    values: list[Any] = line.split("\t")
    if fields[-1] == "answers":
        n = len(fields) - 1
        values[n:] = [values[n:]]
    if len(values) != len(fields):
        raise ValueError(f"{line!r:.80}: {len(values)} columns; give {fields} with tabs between them, or a JSON object")
    return dict(zip(fields, values, strict=True))


if __name__ == "__main__":
    main()
