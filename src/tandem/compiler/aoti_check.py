"""Whether compiled code copies a KV cache: read from the C++ that AOTInductor leaves in its package.

A compiler that doesn't trust a writing operator clones what it writes to, and the clone of a pool costs more than the
step. So a build looks for allocations and loops as large as a cache in the code that was generated for it.
"""

from __future__ import annotations

import re
import zipfile
from math import prod
from pathlib import Path

CLONES = re.compile(r"aoti_torch\w*_(?:clone|copy_?)\b")
ALLOCATION = re.compile(r"aoti_torch_empty_strided\(\s*\d+\s*,\s*(\w+)")
SHAPE = re.compile(r"(?:const|constexpr) int64_t (\w+)\[\] = \{([^}]*)\}")
LOOP_END = re.compile(r"<\s*static_cast<int64_t>\((\d+)L?\)")


def generated_code(package: Path) -> str:
    """All C++ sources in a .pt2 package, one after the other."""
    with zipfile.ZipFile(package) as archive:
        sources = [name for name in archive.namelist() if name.endswith(".cpp")]
        return "\n".join(archive.read(name).decode() for name in sources)


def pool_copies(code: str, pool_numel: int) -> list[str]:
    """Lines that copy, allocate or walk over at least `pool_numel` elements: none in code that leaves caches where they
    are. Clones are listed whatever their size, for it can't be read from the call.

    Sizes that depend on the step count as one element. So `pool_numel` (the elements of one cache) has to be larger
    than any weight, or than whatever else of fixed size is computed.
    """
    shapes = dict(SHAPE.findall(code))
    found = []
    for line in code.splitlines():
        sizes = [_num_elements(shapes.get(name, "")) for name in ALLOCATION.findall(line)]
        sizes += [int(end) for end in LOOP_END.findall(line)]
        if any(size >= pool_numel for size in sizes) or CLONES.search(line):
            found.append(line.strip())
    return found


def _num_elements(shape: str) -> int:
    """Of "2L, 1000L, s37": its fixed sizes only."""
    return prod(int(part.strip(" L")) for part in shape.split(",") if part.strip(" L").isdigit())
