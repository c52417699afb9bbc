"""Builds a tokenizer from a folder in Hugging Face's layout. Knows which file says what, and which one wins.

tokenizer.json            the tokenizer itself
tokenizer_config.json     names of special tokens, whether to add BOS and EOS, older chat templates
special_tokens_map.json   more names
chat_template.jinja, chat_template.json   the chat template, today and yesterday
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as NativeTokenizer

from tandem.core.errors import ModelDamaged
from tandem.engine.loading.base import TextFiles
from tandem.engine.text.folder_vocabulary import parse_vocabulary, read_tokenizer_json, token_text
from tandem.engine.text.parts import TokenizerParts
from tandem.engine.text.vocabulary import Vocabulary

_PROBE = "a"


def folder_parts(text: TextFiles) -> TokenizerParts:
    """Raises `ModelUnsupported` if there is no tokenizer.json, `ModelDamaged` if a file can't be read."""
    data = read_tokenizer_json(text.path)
    vocabulary = parse_vocabulary(data, text)
    native = _native(data, text.path)
    special_tokens = _special_tokens(text)
    prefix_ids, suffix_ids = _affixes(native, vocabulary, special_tokens, text.values)
    return TokenizerParts(
        native=native,
        vocabulary=vocabulary,
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        special_tokens=special_tokens,
        chat_template=_chat_template(text),
    )


def _native(data: bytes, folder: Path) -> NativeTokenizer:
    try:
        native = NativeTokenizer.from_buffer(data)
    except Exception as error:  # the library raises plain Exception for all that is wrong in a document
        raise ModelDamaged(f"{folder / 'tokenizer.json'} isn't a tokenizer that can be built: {error}.") from error
    native.no_truncation()  # some files were saved with the limits of a training run, which would cut prompts
    native.no_padding()
    return native


def _special_tokens(text: TextFiles) -> dict[str, str]:
    """`bos_token` and the like; tokenizer_config.json wins, as in transformers."""
    named = {**_read_object(text.path / "special_tokens_map.json"), **text.values}
    return {name: token for name, value in named.items() if name.endswith("_token") and (token := token_text(value))}


def _affixes(
    native: NativeTokenizer, vocabulary: Vocabulary, special_tokens: Mapping[str, str], config: Mapping[str, Any]
) -> tuple[list[int], list[int]]:
    """What goes before and behind a text: as the configuration says if it does, else as tokenizer.json would do it."""
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return _observed_affixes(native)
    bos, eos = (vocabulary.id_of(special_tokens.get(name)) for name in ("bos_token", "eos_token"))
    return (
        [bos] if config.get("add_bos_token") and bos is not None else [],
        [eos] if config.get("add_eos_token") and eos is not None else [],
    )


def _observed_affixes(native: NativeTokenizer) -> tuple[list[int], list[int]]:
    bare: list[int] = native.encode(_PROBE, add_special_tokens=False).ids
    whole: list[int] = native.encode(_PROBE).ids
    start = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), 0)
    return whole[:start], whole[start + len(bare) :]


def _chat_template(text: TextFiles) -> str | None:
    file = text.path / "chat_template.jinja"
    if file.is_file():
        return _read(file).decode("utf-8", "replace")
    older = _read_object(text.path / "chat_template.json").get("chat_template")
    return _default_template(older if older is not None else text.values.get("chat_template"))


def _default_template(value: Any) -> str | None:
    """A text, or a list of named ones, of which "default" is for chat."""
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, Mapping)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelDamaged(f"{path} can't be read: {error.strerror or error}.") from error


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one if there is no such file."""
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(_read(path), type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ModelDamaged(f"{path} isn't a JSON object: {error}.") from error
