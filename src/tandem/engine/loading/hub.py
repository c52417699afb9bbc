"""Models from the Hugging Face hub, kept in the hub library's own cache ($HF_HOME), which other tools share.

Only weights, configuration and tokenizer are fetched; code in a repository never is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from tandem.core.errors import ModelError, ModelNotFound
from tandem.engine.loading.cache import CachedModel
from tandem.engine.loading.progress import Progress

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
ALLOW = ("*.safetensors", "*.json", "tokenizer.model", "*.jinja")
IGNORE = ("*/*",)
"""Sub-folders hold other formats of the same weights."""


def is_hub_id(model: str) -> bool:
    return HUB_ID.fullmatch(model) is not None and ".." not in model


def snapshot(model: str, progress: Progress, *, offline: bool) -> Path:
    """The folder of `org/name`, fetched if need be. `offline` takes only what is cached."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    if not offline:
        progress.start(f"Fetching {model} from the Hugging Face hub", None)
        progress.finish()  # the library draws its own bars
    try:
        path = snapshot_download(
            model, allow_patterns=list(ALLOW), ignore_patterns=list(IGNORE), local_files_only=offline
        )
    except Exception as error:
        raise _explain(model, error, offline) from error
    return Path(path)


def _explain(model: str, error: Exception, offline: bool) -> ModelError:
    """The library's exceptions, which come from several layers below it, in one sentence each."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return ModelError(f"{model} needs its owner's permission: accept its terms on the hub and set HF_TOKEN.")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelNotFound(f"The hub has no model {model}, or it is private; for a private one set HF_TOKEN.")
    if offline:
        return ModelNotFound(f"{model} isn't in the hub's cache, and nothing is fetched when offline.")
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        return ModelError(f"{model} isn't in the hub's cache, and the hub can't be reached.")
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return ModelError(f"{model} can't be fetched from the hub: {reason.rstrip('.')}.")


def cached() -> list[CachedModel]:
    """Models with safetensors in the hub's cache, by name."""
    found = (_newest(repo) for repo in _repositories())
    return sorted((model for model in found if model), key=lambda model: model.name)


def remove(model: str) -> None:
    """Delete all revisions of a model from the hub's cache. Raises `ModelNotFound`."""
    from huggingface_hub import scan_cache_dir

    hashes = [revision.commit_hash for repo in _repositories() if repo.repo_id == model for revision in repo.revisions]
    if not hashes:
        raise ModelNotFound(f"{model} isn't in the hub's cache.")
    scan_cache_dir().delete_revisions(*hashes).execute()


def _repositories() -> list[Any]:
    try:
        from huggingface_hub import scan_cache_dir
        from huggingface_hub.errors import CacheNotFound
    except ImportError:
        return []
    try:
        return [repo for repo in scan_cache_dir().repos if repo.repo_type == "model"]
    except CacheNotFound:
        return []


def _newest(repo: Any) -> CachedModel | None:
    revisions = sorted(repo.revisions, key=lambda revision: revision.last_modified)
    if not revisions or not any(file.file_name.endswith(".safetensors") for file in revisions[-1].files):
        return None
    return CachedModel(repo.repo_id, Path(revisions[-1].snapshot_path), repo.size_on_disk, "hub")
