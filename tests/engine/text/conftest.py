"""Tokenizers shared by the tests: tiny ones, and those of the real models where they can be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.engine.loading.base import TextFiles
from tandem.engine.loading.opening import open_checkpoint
from tandem.engine.text.tokenizer import Tokenizer, load_tokenizer
from tests.engine.text import tiny

LLAMA3_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n\n' + m['content'] | trim + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n\n' }}{% endif %}"
)
"""In the manner of Llama 3: BOS written by the template, contents trimmed."""

GEMMA_TEMPLATE = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first = messages[0]['content'] + '\n\n' -%}{%- set turns = messages[1:] -%}
{%- else -%}
    {%- set first = '' -%}{%- set turns = messages -%}
{%- endif -%}
{%- for m in turns -%}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Roles must alternate.') }}
    {%- endif -%}
    {{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' }}
    {{- first if loop.first else '' }}
    {{- m['content'] | trim }}{{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""
"""In the manner of Gemma 3: no system role, roles alternate."""


@pytest.fixture(scope="session")
def smollm2_text(smollm2: Path) -> TextFiles:
    return open_checkpoint(smollm2).text


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_text: TextFiles) -> Tokenizer:
    return load_tokenizer(smollm2_text)


@pytest.fixture(scope="session")
def gemma3_text(gemma3: Path) -> TextFiles:
    return open_checkpoint(gemma3).text


@pytest.fixture(scope="session")
def gemma3_tokenizer(gemma3_text: TextFiles) -> Tokenizer:
    return load_tokenizer(gemma3_text)


@pytest.fixture(scope="session")
def llama3_like(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    config = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "chat_template": LLAMA3_TEMPLATE}
    return tiny.load(tmp_path_factory.mktemp("llama3"), tiny.byte_level(), config)


@pytest.fixture(scope="session")
def llama2_like(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return tiny.load(tmp_path_factory.mktemp("llama2"), tiny.sentencepiece(), config)


@pytest.fixture(scope="session")
def gemma_like(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Byte-level, but with Gemma's control tokens; those of turns aren't marked as special, as some files have it."""
    document = tiny.byte_level("gpt-2", ["<bos>", "<eos>"], ["<start_of_turn>", "<end_of_turn>", "<think>"])
    return tiny.load(
        tmp_path_factory.mktemp("gemma"), document, {"bos_token": "<bos>", "chat_template": GEMMA_TEMPLATE}
    )
