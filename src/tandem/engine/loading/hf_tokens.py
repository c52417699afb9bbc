"""Which tokens end a generation, gathered from all files of a Hugging Face folder that say so. Knows no weights.

A model's own end token and the one that ends a turn of chat are often named in different files, so their union counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tandem.core.errors import ModelDamaged
from tandem.engine.loading.hf_config import text_config
from tandem.engine.loading.values import Values


def read_json(path: Path) -> Values:
    """A JSON object, or an empty one if there is no such file. Raises `ModelDamaged`."""
    try:
        loaded = json.loads(path.read_bytes())
    except FileNotFoundError:
        loaded = {}
    except OSError as error:
        raise ModelDamaged(f"{path} can't be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise ModelDamaged(f"{path} isn't valid JSON: {error}.") from error
    if not isinstance(loaded, dict):
        raise ModelDamaged(f"{path} must hold a JSON object.")
    return Values(loaded, str(path))


def end_token_ids(folder: Path, config: Values, tokenizer_config: Values, vocab_size: int) -> tuple[int, ...]:
    """From generation_config.json, config.json and the tokenizer's `eos_token`, in this order, each once.

    Ids without a row in the embedding are left out: the model can't produce them.
    """
    ids = [
        *_ids(read_json(folder / "generation_config.json")),
        *_ids(text_config(config)),
        *_ids(config),
        *_tokenizer_ids(folder, tokenizer_config),
    ]
    return tuple(dict.fromkeys(token for token in ids if token < vocab_size))


def _ids(values: Values) -> Iterator[int]:
    """`eos_token_id` is a number or a list of them."""
    found: Any = values.get("eos_token_id")
    listed = found if isinstance(found, list) else [found]
    for token in listed:
        if token is None:
            continue
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise ModelDamaged(f"{values.source}: eos_token_id is {found!r}; it must be a token id or a list of them.")
        yield token


def _tokenizer_ids(folder: Path, tokenizer_config: Values) -> Iterator[int]:
    text: Any = tokenizer_config.get("eos_token")
    if isinstance(text, dict):
        text = text.get("content")
    if not isinstance(text, str):
        return
    token = _listed_id(tokenizer_config.get("added_tokens_decoder"), text)
    if token is None:
        token = _vocabulary_id(read_json(folder / "tokenizer.json"), text)
    if token is not None:
        yield token


def _listed_id(added: Any, text: str) -> int | None:
    """tokenizer_config.json may list special tokens, id → token; that spares reading all of tokenizer.json."""
    if not isinstance(added, dict):
        return None
    for number, token in added.items():
        if isinstance(token, dict) and token.get("content") == text and number.isdecimal():
            return int(number)
    return None


def _vocabulary_id(tokenizer: Values, text: str) -> int | None:
    added: Any = tokenizer.get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and token.get("content") == text:
            return Values(token, f"{tokenizer.source}, added_tokens").integer("id", minimum=0)
    vocabulary: Any = tokenizer.section("model").get("vocab")
    if isinstance(vocabulary, dict):
        return Values(vocabulary, f"{tokenizer.source}, vocab").optional_integer(text, minimum=0)
    return _unigram_id(vocabulary, text) if isinstance(vocabulary, list) else None


def _unigram_id(pieces: list[Any], text: str) -> int | None:
    """Unigram vocabularies list [token, score]; the place is the id."""
    for number, piece in enumerate(pieces):
        if isinstance(piece, list) and piece and piece[0] == text:
            return number
    return None
