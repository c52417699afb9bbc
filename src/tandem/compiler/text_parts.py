"""What of a model's text side goes into an engine file, so that the same code opens the tokenizer from there.

A folder's files go in as they are. Of a GGUF everything but its tensors does: a GGUF file that has none.
"""

from __future__ import annotations

from collections.abc import Iterator

from tandem.compiler.gguf_metadata import metadata_only
from tandem.core.errors import ModelDamaged
from tandem.engine.loading.base import TextFiles
from tandem.engine.loading.engine_file import GGUF_PART, TEXT_PREFIX
from tandem.engine.loading.gguf import read_gguf

FOLDER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
)


def text_parts(text: TextFiles) -> Iterator[tuple[str, bytes]]:
    """Name of the part, its bytes. Raises `ModelDamaged` for a file that can't be read."""
    if text.kind == "gguf":
        yield GGUF_PART, metadata_only(read_gguf(text.path))
        return
    for name in FOLDER_FILES:
        path = text.path / name
        if not path.is_file():
            continue
        try:
            yield TEXT_PREFIX + name, path.read_bytes()
        except OSError as error:
            raise ModelDamaged(f"{path} can't be read: {error.strerror or error}.") from error
