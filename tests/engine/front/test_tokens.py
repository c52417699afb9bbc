"""Tokenise and detokenise in vLLM's shapes."""

from __future__ import annotations

from tests.engine.front.fakes import BOS, EOS, VOCAB_SIZE, FakeEngine, FakeText, say
from tests.engine.front.served import running

USER = [{"role": "user", "content": "hi"}]


async def test_a_text() -> None:
    async with running(FakeEngine(say(b"")), text=FakeText(adds_bos=True)) as server:
        _, answer = await server.post("/tokenize", {"model": "m", "prompt": "é<eos>", "return_token_strs": True})
        _, bare = await server.post(
            "/tokenize", {"prompt": "é<eos>", "add_special_tokens": False, "parse_special": False}
        )
        _, empty = await server.post("/tokenize", {"prompt": "", "add_special_tokens": False})
    assert answer == {
        "count": 4,
        "max_model_len": 1000,
        "tokens": [BOS, 0xC3, 0xA9, EOS],
        "token_strs": ["<bos>", "\\xc3", "\\xa9", "<eos>"],
    }
    assert bare["tokens"] == list("é<eos>".encode())
    assert bare["token_strs"] is None
    assert (empty["count"], empty["tokens"]) == (0, [])


async def test_a_conversation() -> None:
    async with running(FakeEngine(say(b""))) as server:
        _, answer = await server.post("/tokenize", {"model": "m", "messages": USER})
        status, wrong = await server.post("/tokenize", {"messages": USER, "parse_special": True})
    assert bytes(answer["tokens"]) == b"user:hi\n"
    assert (status, wrong["error"]["param"]) == (400, "parse_special")


async def test_back_to_text() -> None:
    async with running(FakeEngine(say(b""))) as server:
        _, answer = await server.post("/detokenize", {"model": "m", "tokens": [0xC3, 0xA9, EOS]})
        _, empty = await server.post("/detokenize", {"tokens": []})
        for bad in ([VOCAB_SIZE], [-1]):
            status, wrong = await server.post("/detokenize", {"tokens": bad})
            assert (status, wrong["error"]["param"]) == (400, "tokens")
    assert answer == {"prompt": "é<eos>"}
    assert empty == {"prompt": ""}
