"""Which format a path has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.core.errors import ModelNotFound
from tandem.engine.loading.folder import FolderCheckpoint
from tandem.engine.loading.gguf_checkpoint import GGUFCheckpoint
from tandem.engine.loading.opening import open_checkpoint
from tests.engine.loading.tiny_models import save_folder, save_gguf, tiny_model


def test_file_folder_and_folder_with_a_file(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "x.GGUF", "llama", tiny_model("llama"))
    assert isinstance(open_checkpoint(path), GGUFCheckpoint)
    path = path.rename(tmp_path / "x.gguf")
    assert open_checkpoint(tmp_path).path == path
    save_folder(tmp_path, "llama")
    assert isinstance(open_checkpoint(tmp_path), FolderCheckpoint)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="holds neither config"):
        open_checkpoint(tmp_path)
    with pytest.raises(ModelNotFound, match="doesn't exist"):
        open_checkpoint(tmp_path / "none.gguf")
    for name in ("a.gguf", "b.gguf", "c.txt"):
        (tmp_path / name).touch()
    with pytest.raises(ModelNotFound, match=r"several GGUF files; name one of them: a.gguf, b.gguf"):
        open_checkpoint(tmp_path)
    with pytest.raises(ModelNotFound, match="nor a folder"):
        open_checkpoint(tmp_path / "c.txt")
