"""Takes away what nobody needs: deleted and expired files, and what crashes left on disk."""

from __future__ import annotations

import logging
from functools import partial

from tandem.gateway.batches.files import Folder, forget_files, known_files, unread_files
from tandem.gateway.store.database import Database

_log = logging.getLogger(__name__)


def sweep(database: Database, folder: Folder, now_s: float) -> int:
    """How many files went. Blocks. Raises `DatabaseAway`."""
    num_gone = 0
    # The bytes first: a row without bytes is only forgotten later, bytes without a row would look like a stray.
    while ids := database.read_now(partial(unread_files, now_s=now_s)):
        for file_id in ids:
            folder.remove(file_id)
        database.write_now(partial(forget_files, ids=ids))
        num_gone += len(ids)
    strays = folder.strays()
    known = database.read_now(partial(known_files, ids=[path.name for path in strays])) if strays else set()
    for path in strays:
        if path.name not in known:
            path.unlink(missing_ok=True)
            num_gone += 1
    if num_gone:
        _log.info("%d files that nobody needs were removed", num_gone)
    return num_gone
