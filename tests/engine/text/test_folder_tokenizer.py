"""Which file of a folder says what, and which one wins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.core.errors import ModelDamaged
from tandem.engine.text.tokenizer import load_tokenizer
from tests.engine.text import tiny


def test_names_of_special_tokens(tmp_path: Path) -> None:
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": {"content": "<|bos|>"}, "eos_token": "<|tool|>", "additional_special_tokens": ["x"]})
    )
    text = tiny.save(tmp_path, tiny.byte_level(), {"eos_token": "<|im_end|>", "pad_token": None, "boi_token": "<img>"})
    assert load_tokenizer(text).special_tokens == {
        "bos_token": "<|bos|>",
        "eos_token": "<|im_end|>",
        "boi_token": "<img>",
    }


def test_the_newest_form_of_a_chat_template_wins(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "listed"}]
    text = tiny.save(tmp_path, tiny.byte_level(), {"chat_template": named})
    assert load_tokenizer(text).chat_template == "listed"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "json"}')
    assert load_tokenizer(text).chat_template == "json"
    (tmp_path / "chat_template.jinja").write_text("jinja é", encoding="utf-8")
    assert load_tokenizer(text).chat_template == "jinja é"


@pytest.mark.parametrize("template", [None, [], [{"name": "rag", "template": "x"}], {"x": 1}])
def test_no_chat_template(template: object, tmp_path: Path) -> None:
    assert load_tokenizer(tiny.save(tmp_path, tiny.byte_level(), {"chat_template": template})).chat_template is None


def test_damaged_side_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text("[1]")
    with pytest.raises(ModelDamaged, match=r"chat_template\.json"):
        load_tokenizer(tiny.save(tmp_path, tiny.byte_level()))
