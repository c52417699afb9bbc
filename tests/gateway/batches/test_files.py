"""/v1/files with the official client: uploads on disk, tenants apart, limits, and a disk that is full."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from tandem.config.gateway_store import BatchesConfig, StoreConfig
from tandem.gateway.batches.sweep import sweep
from tandem.gateway.store.key_rows import KeyRules
from tests.engine.front.openapi import PATH, OpenApi
from tests.gateway.lines import chat_file
from tests.gateway.rows import until
from tests.gateway.served import Served, serving, token_of


@pytest.fixture
async def served(address: str, store_config: StoreConfig) -> AsyncIterator[Served]:
    async with serving(address, store_config) as running:
        yield running


def on_disk(config: StoreConfig) -> list[Path]:
    return [path for path in Path(config.data_dir).rglob("*") if path.is_file() and path.name.startswith("file-")]


async def test_a_file_comes_back_as_it_was(served: Served) -> None:
    content = os.urandom(3_000_000)
    made = await served.openai.files.create(file=('dir/na"me.jsonl', content), purpose="batch")
    assert (made.bytes, made.purpose, made.object, made.status) == (3_000_000, "batch", "file", "processed")
    assert made.expires_at == pytest.approx(made.created_at + 30 * 86_400, abs=2)
    assert await served.openai.files.retrieve(made.id) == made
    assert (await served.openai.files.content(made.id)).content == content


async def test_files_are_listed_in_pages(served: Served) -> None:
    ids = [await served.upload(b"x" * number) for number in range(1, 6)]
    newest_first = [file.id async for file in served.openai.files.list(limit=2)]
    assert newest_first == ids[::-1]
    assert [file.id async for file in served.openai.files.list(limit=2, order="asc")] == ids
    page = await served.openai.files.list(limit=2, after=ids[3], purpose="batch")
    assert ([file.id for file in page.data], page.has_more) == ([ids[2], ids[1]], True)
    assert [file async for file in served.openai.files.list(purpose="batch_output")] == []


async def test_a_deleted_file_is_gone(served: Served, store_config: StoreConfig) -> None:
    file_id = await served.upload(b"x")
    assert len(on_disk(store_config)) == 1
    deleted = await served.openai.files.delete(file_id)
    assert (deleted.id, deleted.deleted) == (file_id, True)
    assert on_disk(store_config) == []
    for call in (served.openai.files.retrieve, served.openai.files.content, served.openai.files.delete):
        with pytest.raises(openai.NotFoundError):
            await call(file_id)


async def test_another_tenant_sees_nothing(served: Served) -> None:
    file_id = await served.upload(b"secret")
    other = served.openai.with_options(api_key=await token_of(served, KeyRules(tenant="other")))
    assert [file async for file in other.files.list()] == []
    for call in (other.files.retrieve, other.files.content, other.files.delete):
        with pytest.raises(openai.NotFoundError):
            await call(file_id)
    with pytest.raises(openai.BadRequestError, match="input_file_id"):
        await other.batches.create(
            input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )  # fmt: skip
    same = served.openai.with_options(api_key=await token_of(served, KeyRules()))
    assert (await same.files.retrieve(file_id)).id == file_id


@pytest.mark.parametrize("path", ["/v1/files", "/v1/files/file-x", "/v1/files/file-x/content", "/v1/batches"])
async def test_without_a_key_nothing_is_open(served: Served, path: str) -> None:
    """Case sec-01, for these routes."""
    async with aiohttp.ClientSession(served.url) as anyone:
        assert (await anyone.get(path)).status == 401
        assert (await anyone.post("/v1/files", data=b"x")).status == 401


@pytest.mark.parametrize("file_id", ["file-..%2f..%2fkeys.json", "..%2fkeys.json", "file-x%00", "keys.json"])
async def test_no_id_leads_out_of_the_folder(served: Served, file_id: str) -> None:
    async with served.http.get(f"/v1/files/{file_id}/content") as response:
        assert response.status == 404


def form(**parts: Any) -> aiohttp.FormData:
    data = aiohttp.FormData()
    for name, value in parts.items():
        data.add_field(name, value, filename="f.jsonl" if isinstance(value, bytes) else None)
    return data


@pytest.mark.parametrize(
    ("data", "status", "param"),
    [
        (form(file=b"x"), 400, "purpose"),
        (form(purpose="batch", other="y"), 400, "file"),
        (form(file=b"x", purpose="fine-tune"), 400, "purpose"),
        (form(file=b"x", purpose="b" * 5000), 400, "purpose"),
        (form(file=b"x", purpose="batch", **{"expires_after[anchor]": "created_at"}), 400, "expires_after"),
        (b'{"purpose": "batch"}', 400, "file"),
    ],
)
async def test_bad_uploads_say_why(
    served: Served, store_config: StoreConfig, data: Any, status: int, param: str
) -> None:
    async with served.http.post("/v1/files", data=data) as response:
        assert response.status == status
        assert (await response.json())["error"]["param"] == param
    assert on_disk(store_config) == []


async def test_a_torn_multipart_body_is_a_bad_request(served: Served, store_config: StoreConfig) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    for body in (b"", b"--b\r\nbad", b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nabc'):
        async with served.http.post("/v1/files", data=body, headers=headers) as response:
            assert response.status == 400, body
    assert on_disk(store_config) == []


async def test_the_order_of_the_parts_does_not_matter_and_expiry_is_kept(served: Served) -> None:
    data = form(file=b"x" * 10, **{"expires_after[seconds]": "3600", "expires_after[anchor]": "created_at"})
    data.add_field("purpose", "batch")
    async with served.http.post("/v1/files", data=data) as response:
        made = await response.json()
    assert made["expires_at"] == pytest.approx(made["created_at"] + 3600, abs=1)
    assert made["filename"] == "f.jsonl"


async def test_a_file_that_is_too_large_is_refused_while_it_comes(address: str, store_config: StoreConfig) -> None:
    async with serving(address, store_config, batches=BatchesConfig(max_file_mib=1.0)) as served:
        await served.upload(b"x" * (1 << 20))
        with pytest.raises(openai.APIStatusError, match="larger than") as refusal:
            await served.upload(b"x" * ((1 << 20) + 1))
        assert refusal.value.status_code == 413
        assert len(on_disk(store_config)) == 1


async def test_a_tenant_has_its_share_of_the_disk(address: str, store_config: StoreConfig) -> None:
    async with serving(address, store_config, batches=BatchesConfig(max_tenant_gib=1000 / (1 << 30))) as served:
        first = await served.upload(b"x" * 600)
        with pytest.raises(openai.APIStatusError, match="delete some") as refusal:
            await served.upload(b"x" * 600)
        assert refusal.value.status_code == 507
        other = served.openai.with_options(api_key=await token_of(served, KeyRules(tenant="other")))
        await other.files.create(file=b"x" * 600, purpose="batch")
        await served.openai.files.delete(first)
        await served.upload(b"x" * 600)
        assert len(on_disk(store_config)) == 2


async def test_a_full_disk_is_said_in_words(
    served: Served, store_config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(openai.APIStatusError, match="has no room") as refusal:
        await served.upload(b"x")
    assert refusal.value.status_code == 507
    assert refusal.value.code == "insufficient_storage"
    monkeypatch.undo()
    assert on_disk(store_config) == []
    await served.upload(b"x")


async def test_an_upload_that_breaks_off_leaves_nothing(served: Served, store_config: StoreConfig) -> None:
    began = asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + b"x" * 3_000_000
        began.set()
        await asyncio.Event().wait()

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    upload = asyncio.create_task(served.http.post("/v1/files", data=half(), headers=headers))
    await began.wait()
    await until(lambda: len(on_disk(store_config)) == 1)
    upload.cancel()
    await asyncio.gather(upload, return_exceptions=True)
    await until(lambda: on_disk(store_config) == [])


async def test_the_sweep_takes_what_nobody_needs(served: Served, store_config: StoreConfig) -> None:
    kept, expired = await served.upload(b"1"), await served.upload(chat_file(1))
    batch = await served.openai.batches.create(
        input_file_id=kept, endpoint="/v1/chat/completions", completion_window="24h"
    )
    await served.openai.files.delete(kept)
    stray = Path(store_config.data_dir) / "files" / "file-stray"
    stray.write_bytes(b"x")
    os.utime(stray, (1, 1))
    store = served.store
    assert await asyncio.to_thread(sweep, store.database, store.folder, store.wall.now()) == 1
    assert {path.name for path in on_disk(store_config)} == {kept, expired}  # A batch still reads the deleted one.
    await served.openai.batches.cancel(batch.id)
    assert await asyncio.to_thread(sweep, store.database, store.folder, store.wall.now() + 31 * 86_400) == 1
    assert {path.name for path in on_disk(store_config)} == {kept}


@pytest.mark.skipif(not PATH.exists(), reason="OpenAI's description is not here")
async def test_the_shapes_are_openais(served: Served) -> None:
    schema = OpenApi()
    file_id = await served.upload(b"x")
    async with served.http.get(f"/v1/files/{file_id}") as response:
        schema.check(await response.json(), "OpenAIFile")
    async with served.http.get("/v1/files") as response:
        schema.check(await response.json(), "ListFilesResponse")
    async with served.http.delete(f"/v1/files/{file_id}") as response:
        schema.check(await response.json(), "DeleteFileResponse")
