"""Conversations are rendered as the model's template wants it; its refusals are the client's business."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tandem.core.errors import InvalidRequest, ModelDamaged
from tandem.engine.text.chat_template import ChatTemplate
from tandem.engine.text.tokenizer import Tokenizer
from tests.engine.text.conftest import GEMMA_TEMPLATE, LLAMA3_TEMPLATE

USER = {"role": "user", "content": "Tell a joke"}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<b> é", "parameters": {"type": "object"}}}]
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def render(template: str, *messages: dict[str, Any], **more: Any) -> str:
    return ChatTemplate(template, {"bos_token": "<bos>"}).render(messages or [USER], **more)


def test_smollm2(smollm2_tokenizer: Tokenizer) -> None:
    """The default system message comes from the template, and only if there is none."""
    assert smollm2_tokenizer.chat_template is not None
    template = ChatTemplate(smollm2_tokenizer.chat_template, smollm2_tokenizer.special_tokens)
    assert template.render([USER]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nTell a joke<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "SmolLM" not in template.render([{"role": "system", "content": "Be brief."}, USER])


def test_smollm2_as_transformers_renders_it(smollm2_tokenizer: Tokenizer) -> None:
    utils: Any = pytest.importorskip("transformers.utils.chat_template_utils")
    conversation = [{"role": "system", "content": "<x> 'é'"}, USER, {"role": "assistant", "content": " ok\n"}, USER]
    for template in (
        smollm2_tokenizer.chat_template,
        LLAMA3_TEMPLATE,
        "{{ messages | tojson }} {{ tools | tojson(indent=2) }}",
    ):
        assert template is not None
        prompts, _ = utils.render_jinja_template(
            [conversation], tools=TOOLS, chat_template=template, add_generation_prompt=True, bos_token="<bos>"
        )
        assert render(template, *conversation, tools=TOOLS) == prompts[0]


def test_tool_call_history() -> None:
    """tpl-02."""
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls is defined %}"
        "[{% for t in m.tool_calls %}{{ t.function.name }}:{% for k,v in t.function.arguments|items %}{{ k }}={{ v }};"
        "{% endfor %}{% endfor %}]{% endif %}\n{% endfor %}"
    )
    function = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    conversation: list[dict[str, Any]] = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "4 degrees"},
        {"role": "assistant", "content": "Cold.", "tool_calls": []},
        {"role": "user", "content": [{"type": "text", "text": "and "}, {"type": "text", "text": "Rome?"}]},
    ]
    assert render(template, *conversation) == (
        "<|user|>weather?<|assistant|>[get_weather:city=Oslo;]<|tool|>4 degrees<|assistant|>Cold.<|user|>and Rome?"
    )


def test_a_null_content_is_neither_none_nor_missing() -> None:
    template = "{{ messages[0].content is none }} {{ messages[0].content is defined }} [{{ messages[0].content }}]"
    assert render(template, {"role": "assistant", "content": None}) == "False True []"


@pytest.mark.parametrize("content", ["OK!\n", "OK! ", "OK!", ""])
@pytest.mark.parametrize("template", [CHATML, LLAMA3_TEMPLATE, GEMMA_TEMPLATE])
def test_a_continued_message_keeps_its_white_space(template: str, content: str) -> None:
    """tpl-03: nothing is behind the content, though the template would end the turn, or trim it."""
    prompt = render(template, USER, {"role": "assistant", "content": content}, continue_final_message=True)
    assert prompt.endswith("\n" + content)
    assert not prompt.endswith(("<|im_end|>\n", "<|im_end|>", "<end_of_turn>\n"))
    assert not any(character.isdigit() for character in prompt)


def test_continuing_and_opening_a_turn_exclude_each_other() -> None:
    """tpl-03."""
    answer = {"role": "assistant", "content": "b"}
    with pytest.raises(InvalidRequest, match="exclude") as raised:
        render(CHATML, USER, answer, continue_final_message=True, add_generation_prompt=True)
    assert raised.value.param == "continue_final_message"
    with pytest.raises(InvalidRequest, match="user"):
        render(CHATML, USER, continue_final_message=True)
    with pytest.raises(InvalidRequest, match="doesn't show"):
        render("{{ messages[0].content }}", USER, answer, continue_final_message=True)


def test_a_templates_refusal_is_a_400_with_its_own_words() -> None:
    """tpl-03."""
    with pytest.raises(InvalidRequest) as raised:
        render(GEMMA_TEMPLATE, USER, USER)
    assert (raised.value.message, raised.value.param) == ("Roles must alternate.", "messages")


@pytest.mark.parametrize(
    "template", ["{{ messages[0].a.b.c }}", "{{ 1 / 0 }}", "{{ messages[0]() }}", "{{ 'a' + 1 }}", "{{ x | int + [] }}"]
)
def test_a_templates_mistake_is_a_400(template: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template failed"):
        render(template)


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% endfor %}", "{{ " + "(" * 5000 + " }}", "{% unknown %}"])
def test_a_template_that_cannot_be_compiled_is_a_damaged_model(source: str) -> None:
    with pytest.raises(ModelDamaged, match="template"):
        ChatTemplate(source)


def test_variables_of_templates() -> None:
    template = (
        "{{ bos_token }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ enable_thinking }}"
    )
    assert render(template, chat_template_kwargs={"enable_thinking": False}) == "<bos>TrueTrueTrueFalse"
    assert render("{{ tools[0].function.name }}", tools=TOOLS) == "f"
    assert render("{{ add_generation_prompt }}", add_generation_prompt=False) == "False"
    with pytest.raises(InvalidRequest, match="messages") as raised:
        render(CHATML, chat_template_kwargs={"messages": []})
    assert raised.value.param == "chat_template_kwargs"


def test_text_can_be_changed_after_normalisation() -> None:
    function = {"name": "f", "arguments": '{"z": "\\u0079"}'}
    message = {"role": "assistant", "content": "x", "tool_calls": [{"function": function}]}
    template = "{{ messages[0].content }}{{ messages[0].tool_calls[0].function.arguments | tojson }}{{ x }}"

    def change(text: str) -> str:
        return text.translate({ord(letter): letter.upper() for letter in "vwxyz"})

    assert render(template, message, chat_template_kwargs={"x": "w"}, change_text=change) == 'X{"Z": "Y"}W'


def test_what_is_nested_too_deeply_is_a_400() -> None:
    nested: Any = "x"
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(InvalidRequest, match="deeply"):
        render(CHATML, tools=[{"x": nested}])
    with pytest.raises(InvalidRequest, match="deeply"):
        render(CHATML, {"role": "user", "content": "x", "extra": nested})


def test_a_refusal_while_continuing_shows_no_mark() -> None:
    with pytest.raises(InvalidRequest) as raised:
        render(
            "{{ raise_exception(messages[1].content) }}",
            USER,
            {"role": "assistant", "content": "ok"},
            continue_final_message=True,
        )
    assert raised.value.message == "ok"


def test_threads_share_a_template() -> None:
    template, wrong = ChatTemplate(CHATML), list[bool]()

    def work(name: str) -> None:
        message = {"role": "user", "content": name * 100}
        for _ in range(50):
            wrong.append(template.render([message]) != f"<|im_start|>user\n{name * 100}<|im_end|>\n")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [False] * 200


def test_a_long_conversation_is_not_too_much() -> None:
    """A megabyte of messages through a template that touches each several times."""
    template = "{% for m in messages %}{{ (m.role ~ ': ' + m.content | trim)[0:] | replace('zz', '') }}\n{% endfor %}"
    messages = [{"role": "user", "content": "word " * 400} for _ in range(500)]
    start = time.monotonic()
    assert len(render(template, *messages)) > 990_000
    assert time.monotonic() - start < 1
