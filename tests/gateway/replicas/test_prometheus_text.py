"""The metrics reader: names, labels with braces and escapes, and figures that mean nothing."""

from __future__ import annotations

import time

import pytest

from tandem.gateway.replicas.prometheus_text import Metrics


def test_only_wanted_names_and_whole_ones() -> None:
    metrics = Metrics(b"a 1\na_b 2\nab 3\n", ["a"])
    assert metrics.total("a") == 1
    assert metrics.total("a_b") is None


def test_labels_with_braces_quotes_and_line_breaks() -> None:
    body = b'm{x="a}b",y="say \\"hi\\"",z="one\\ntwo\\\\"} 4 1700000000\n'
    [series] = Metrics(body, ["m"]).series("m")
    assert series.value == 4
    assert (series.label("x"), series.label("y"), series.label("z")) == ("a}b", 'say "hi"', "one\ntwo\\")
    assert series.label("w") is None


def test_counters_with_and_without_total() -> None:
    assert Metrics(b"c_total 5\n", ["c", "c_total"]).counter("c") == 5
    assert Metrics(b"c 6\n", ["c", "c_total"]).counter("c_total") == 6


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "-Inf", "rubbish", ""])
def test_what_is_no_count_is_none_and_never_zero(value: str) -> None:
    body = f"a {value}\nb 1\n".encode()
    metrics = Metrics(body, ["a", "b"])
    assert metrics.total("a") is None
    assert metrics.whole("a") is None
    assert metrics.share("a") is None
    assert metrics.total("b") == 1


def test_several_engines_behind_one_address() -> None:
    """Counts add up, of shares the fullest matters, and one broken figure spoils the sum rather than lowering it."""
    body = (
        b'r{engine="0"} 2\nr{engine="1"} 3\nu{engine="0"} 0.2\nu{engine="1"} 0.9\nw{engine="0"} 1\nw{engine="1"} NaN\n'
    )
    metrics = Metrics(body, ["r", "u", "w"])
    assert metrics.total("r") == 5
    assert metrics.share("u") == 0.9
    assert metrics.total("w") is None


def test_a_share_above_one_is_not_believed() -> None:
    assert Metrics(b"u 1.5\n", ["u"]).share("u") is None


@pytest.mark.parametrize("body", [b"<html>", b'{"detail":"Not Found"}', b"no metrics are here!\n"])
def test_other_documents_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="Prometheus"):
        Metrics(body, ["a"])


def test_empty_is_empty() -> None:
    assert Metrics(b"", ["a"]).total("a") is None


def test_it_is_fast_enough_to_be_run_every_second_for_many_replicas() -> None:
    body = b"".join(b'noise_bucket{le="%d",model_name="a"} %d\n' % (n, n) for n in range(2000)) + b"a 1\n"
    best_s = min(_timed(body) for _ in range(5))
    assert best_s < 0.02


def _timed(body: bytes) -> float:
    began_s = time.perf_counter()
    assert Metrics(body, ["a"]).total("a") == 1
    return time.perf_counter() - began_s
