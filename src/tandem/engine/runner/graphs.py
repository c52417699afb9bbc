"""Loads what AOTInductor compiled: one graph of a package, with its constants given from outside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tandem.core.errors import ModelDamaged


class Graph(Protocol):
    def __call__(self, arguments: list[Tensor]) -> list[Tensor]:
        """Runs the graph on its flattened arguments, which it takes over: the list is empty afterwards."""
        ...


def load_graph(package: Path, name: str, constants: Mapping[str, Tensor], *, recordable: bool = False) -> Graph:
    """The graph called `name`. It reads `constants` where they lie, copying none; the caller keeps them alive.
    recordable: as part of a CUDA graph, which its locks and events would break; then one thread calls it.

    torch's loader is used without its Python wrapper, whose import alone takes a second and which parses the call's
    structure anew at every step. An engine file names the torch it was made with, so the class is what we know.
    Raises `ModelDamaged`.
    """
    loader_class: Any = torch._C._aoti.AOTIModelPackageLoader
    try:
        loader = loader_class(str(package), name, recordable, 1, -1)
        loader.load_constants(dict(constants), False, True, True)
    except RuntimeError as error:
        raise ModelDamaged(f"The compiled graph {name} in {package} can't be loaded: {error}.") from error
    graph: Graph = loader.boxed_run
    return graph
