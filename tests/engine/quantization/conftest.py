"""Tiny models and a calibration for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tandem.engine.quantization.calibration import Calibration
from tests.engine.models.tiny import VOCAB
from tests.engine.quantization.checkpoints import plain_folder


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_folder(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def calibration() -> Calibration:
    tokens = torch.randint(0, VOCAB, (8, 64), generator=torch.Generator().manual_seed(5))
    return Calibration(tokens, "random tokens", "0" * 64)
