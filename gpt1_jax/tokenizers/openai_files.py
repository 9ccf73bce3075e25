"""The folders in which the original vocabulary comes: OpenAI's, and those of Hugging Face's transformers.

OpenAI's has encoder_bpe_40000.json and vocab_40000.bpe (form: `bpe`). transformers before version 5 writes the same two
under the names vocab.json and merges.txt; version 5 writes tokenizer.json alone, which holds both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from absl import logging

from gpt1_jax.errors import InputError, quoted
from gpt1_jax.files import make_directory, read_object, write_atomically, write_json
from gpt1_jax.tokenizers import bpe
from gpt1_jax.tokenizers.bpe import END_OF_WORD, UNKNOWN, UNKNOWN_ID, BytePairs

SPECIAL_TOKENS = ("_start_", "_delimiter_", "_classify_")  # the original's names of start, delimiter and extract

_ENCODERS, _MERGES = "*encoder_bpe*.json", "*vocab*.bpe"
_CLASSES = {"OpenAIGPTTokenizer", "OpenAIGPTTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend"}


@dataclass(frozen=True)
class VocabularyFiles:
    """The two files of a vocabulary.

    Attributes:
      encoder: content of the JSON file with the ids.
      merges: content of the list of merges.
      encoder_name, merges_name: the files' names.
      folder: where they were read, for error messages.
    """

    encoder: bytes = field(repr=False)
    merges: bytes = field(repr=False)
    encoder_name: str
    merges_name: str
    folder: str = field(default="", compare=False)

    def parse(self) -> BytePairs:
        """The vocabulary.

        Raises:
          InputError: a file is malformed, or they do not belong together.
        """
        folder = Path(self.folder)
        return bpe.parse(self.encoder, str(folder / self.encoder_name), self.merges, str(folder / self.merges_name))


def find_files(directory: Path) -> VocabularyFiles | None:
    """The vocabulary in a folder, or in its folder `model`; None if there is none.

    Raises:
      InputError: there is one that cannot be used.
    """
    for folder in (directory, directory / "model"):
        if files := _find_openai(folder) or _find_huggingface(folder):
            return files
    return None


def read_openai(encoder: Path, merges: Path) -> VocabularyFiles:
    """Reads two files in OpenAI's form.

    Raises:
      InputError: one cannot be read.
    """
    return VocabularyFiles(_read(encoder), _read(merges), encoder.name, merges.name, str(encoder.parent))


def write_openai(directory: Path, files: VocabularyFiles) -> None:
    """Writes the two files, byte for byte, under their names."""
    make_directory(directory, "directory")
    write_atomically(directory / files.encoder_name, files.encoder)
    write_atomically(directory / files.merges_name, files.merges)


def write_huggingface(
    directory: Path, files: VocabularyFiles, pairs: BytePairs, special_tokens: tuple[str, ...] = ()
) -> None:
    """Writes vocab.json and merges.txt, byte for byte, tokenizer.json and the settings that transformers reads.

    Raises:
      InputError: transformers cannot read this vocabulary.
    """
    _check_for_huggingface(pairs, special_tokens)
    size = len(pairs.subwords)
    added = [(UNKNOWN, UNKNOWN_ID), *((token, size + i) for i, token in enumerate(special_tokens))]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    make_directory(directory, "directory")
    write_atomically(directory / "vocab.json", files.encoder)
    write_atomically(directory / "merges.txt", files.merges)
    if special_tokens:
        write_json(directory / "added_tokens.json", dict(added[1:]))
    settings: dict[str, Any] = {"unk_token": UNKNOWN}
    if special_tokens:
        settings["additional_special_tokens"] = list(special_tokens)
    write_json(directory / "special_tokens_map.json", settings)
    write_json(
        directory / "tokenizer_config.json",
        {
            **settings,
            "tokenizer_class": "OpenAIGPTTokenizer",
            "clean_up_tokenization_spaces": False,
            "added_tokens_decoder": {str(index): {"content": token, **plain} for token, index in added},
        },
    )
    write_json(
        directory / "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": index, "content": token, **plain} for token, index in added],
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": True,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": None,
            "decoder": {"type": "BPEDecoder", "suffix": END_OF_WORD},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": UNKNOWN,
                "continuing_subword_prefix": "",
                "end_of_word_suffix": END_OF_WORD,
                "fuse_unk": False,
                "vocab": pairs.ids,
                "merges": [" ".join(pair) for pair in pairs.merges],
            },
        },
    )


def _check_for_huggingface(pairs: BytePairs, special_tokens: tuple[str, ...]) -> None:
    if pairs.ids.get(UNKNOWN) != UNKNOWN_ID or len(pairs.ids) != len(pairs.subwords):
        raise InputError(
            f"tokenizer: transformers needs {UNKNOWN!r} with id {UNKNOWN_ID}, and that id for nothing else; export the "
            "weights without this tokenizer"
        )
    missing = {part for pair in pairs.merges for part in pair} - pairs.ids.keys()
    if missing:
        raise InputError(
            f"tokenizer: transformers cannot read a vocabulary without its merges' single characters; missing are "
            f"{quoted(sorted(missing)[:5])}; export the weights without this tokenizer"
        )
    if len({*special_tokens}) < len(special_tokens) or not pairs.ids.keys().isdisjoint(special_tokens):
        raise InputError(
            f"special_tokens={list(special_tokens)}: names must differ from each other and from all subwords"
        )


def _find_openai(folder: Path) -> VocabularyFiles | None:
    found = [sorted(folder.glob(pattern)) for pattern in (_ENCODERS, _MERGES)]
    if not any(found):
        return None
    for paths, pattern in zip(found, (_ENCODERS, _MERGES), strict=True):
        if len(paths) != 1:
            names = quoted(path.name for path in paths) or "none"
            raise InputError(
                f"{folder}: a vocabulary is one file {_ENCODERS} and one {_MERGES}; of {pattern} there is {names}; "
                "keep one pair in the folder"
            )
    return read_openai(found[0][0], found[1][0])


def _find_huggingface(folder: Path) -> VocabularyFiles | None:
    vocabulary, merges, together = (folder / name for name in ("vocab.json", "merges.txt", "tokenizer.json"))
    if vocabulary.is_file() and merges.is_file():
        contents = _read(vocabulary), _read(merges)
        names = vocabulary.name, merges.name
    elif together.is_file():
        contents = _take_apart(together)
        names = f"{together.name} (vocab)", f"{together.name} (merges)"
    elif vocabulary.is_file() or merges.is_file():
        there, absent = (vocabulary, merges) if vocabulary.is_file() else (merges, vocabulary)
        raise InputError(f"{there}: without {absent.name} beside it this is no tokenizer; copy both files")
    else:
        return None
    _check_class(folder)
    pairs = VocabularyFiles(*contents, *names, str(folder)).parse()
    _check_added_tokens(folder, pairs)
    # The names that OpenAI's program gives the files count the merges.
    n = len(pairs.merges)
    return VocabularyFiles(*contents, f"encoder_bpe_{n}.json", f"vocab_{n}.bpe", str(folder))


def _take_apart(path: Path) -> tuple[bytes, bytes]:
    """The two files that a tokenizer.json stands for."""
    model = read_object(path).get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE" or model.get("end_of_word_suffix") != END_OF_WORD:
        said = {k: model.get(k) for k in ("type", "end_of_word_suffix")} if isinstance(model, dict) else model
        raise InputError(
            f"{path}: is not a GPT-1 tokenizer: its model is {said} instead of BPE with the suffix {END_OF_WORD!r}"
        )
    lines = ["#version: 0.2"]
    merges = model.get("merges")
    for number, merge in enumerate(merges if isinstance(merges, list) else [merges]):
        line = " ".join(merge) if isinstance(merge, list) and all(isinstance(p, str) for p in merge) else merge
        if not isinstance(line, str) or len(line.split()) != 2:
            raise InputError(f"{path}: merge {number} is {merge!r}; it should be two subwords")
        lines.append(line)
    return json.dumps(model.get("vocab")).encode("ascii"), ("\n".join(lines) + "\n").encode("utf-8")


def _check_class(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    named = read_object(path).get("tokenizer_class") if path.is_file() else None
    if named is not None and named not in _CLASSES:
        raise InputError(f"{path}: tokenizer_class={named!r} is not GPT-1's (OpenAIGPTTokenizer)")


def _check_added_tokens(folder: Path, pairs: BytePairs) -> None:
    """Tokens that were added after the vocabulary stand for rows of the model; no text is encoded to them."""
    added: dict[str, object] = {}
    if (path := folder / "tokenizer.json").is_file():
        for entry in read_object(path).get("added_tokens") or ():
            added |= _added_token(path, entry, entry.get("id") if isinstance(entry, dict) else None)
    if (path := folder / "added_tokens.json").is_file():
        added |= read_object(path)
    if (path := folder / "tokenizer_config.json").is_file():
        for index, entry in (read_object(path).get("added_tokens_decoder") or {}).items():
            added |= _added_token(path, entry, int(index) if index.isdecimal() else index)
    size = len(pairs.subwords)
    after = {token: index for token, index in added.items() if pairs.ids.get(token) != index}
    if sorted(after.values(), key=str) != list(range(size, size + len(after))):
        raise InputError(
            f"{folder}: has added tokens {after}; only ids that follow the vocabulary without a gap are supported "
            f"(from {size}); remove the others"
        )
    if after:
        logging.info(
            "%s: the added tokens %s are rows of the model after the vocabulary; texts are encoded without them",
            folder,
            after,
        )


def _added_token(path: Path, entry: Any, index: object) -> dict[str, object]:
    if not isinstance(entry, dict) or not isinstance(entry.get("content"), str) or type(index) is not int:
        raise InputError(
            f"{path}: the added token {entry!r} with id {index!r} is damaged; it should be an object with 'content', "
            "and its id an integer; get the original file again"
        )
    return {entry["content"]: index}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); it is a part of the tokenizer") from None
