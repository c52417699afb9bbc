"""Quality figures against a direct computation, and what is said of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tandem.core.errors import ConfigError
from tandem.engine.quantization.quality import Limits, Quality, measure, passes, verdict

VOCAB = 50
GOOD = Quality(10.0, 10.1, 0.01, 0.97, 16_000, 0.5)


def table(seed: int) -> Tensor:
    return torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def test_figures_are_the_direct_ones() -> None:
    """A language whose next token depends on the last alone, so that any cutting gives the same logits."""
    p, q = table(1), table(1) + 0.3 * table(2)
    tokens = torch.randint(0, VOCAB, (301,), generator=torch.Generator().manual_seed(3))
    found = measure(lambda t: p[t], lambda t: q[t], tokens, sequence_length=100)
    kept = torch.cat([torch.arange(start, start + 99) for start in (0, 100, 200)])
    log_p, log_q = p[tokens[kept]].log_softmax(-1).double(), q[tokens[kept]].log_softmax(-1).double()
    nexts = tokens[kept + 1, None]
    assert found.num_tokens == 297
    assert found.mean_kl == pytest.approx(float((log_p.exp() * (log_p - log_q)).sum(-1).mean()), rel=1e-4)
    assert found.perplexity_reference == pytest.approx(math.exp(-float(log_p.gather(1, nexts).mean())), rel=1e-4)
    assert found.perplexity == pytest.approx(math.exp(-float(log_q.gather(1, nexts).mean())), rel=1e-4)
    assert found.top1_agreement == pytest.approx(float((log_p.argmax(-1) == log_q.argmax(-1)).double().mean()))
    assert found.max_kl == pytest.approx(float((log_p.exp() * (log_p - log_q)).sum(-1).max()), rel=1e-4)


def test_the_same_network_loses_nothing() -> None:
    p = table(1)
    found = measure(lambda t: p[t], lambda t: p[t], torch.arange(40).view(4, 10))
    assert (found.mean_kl, found.top1_agreement, found.num_tokens) == (0.0, 1.0, 36)


def test_one_token_is_nothing_to_measure_on() -> None:
    with pytest.raises(ConfigError, match="no tokens"):
        measure(lambda t: t, lambda t: t, torch.tensor([1]))


def test_verdicts() -> None:
    assert passes(GOOD)
    assert "within the limits (KL 0.02 and 95.0%)" in verdict(GOOD)
    far = replace(GOOD, mean_kl=0.2)
    assert not passes(far)
    assert "misses the limits (KL 0.02 and 95.0%) in KL: mean KL 0.2000" in verdict(far)
    assert "in KL and top-1 agreement" in verdict(replace(far, top1_agreement=0.5))
    assert passes(far, Limits(mean_kl=0.3))
    assert not passes(replace(GOOD, mean_kl=math.nan))


@pytest.mark.parametrize("limits", [{"mean_kl": -1.0}, {"mean_kl": math.nan}, {"top1_agreement": 95.0}])
def test_limits_that_make_no_sense_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="limit on"):
        Limits(**limits)
