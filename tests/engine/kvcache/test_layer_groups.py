from __future__ import annotations

from tandem.engine.kvcache.layer_groups import LayerGroup, first_needed_block, group_layers
from tandem.engine.kvcache.manager import blocks_for_length


def test_layers_alike_are_one_group() -> None:
    assert group_layers([None] * 3) == (LayerGroup((0, 1, 2), None),)
    assert group_layers([8] * 3) == (LayerGroup((0, 1, 2), 8),)


def test_gemma_like_pattern_becomes_groups_of_equal_size() -> None:
    windows: list[int | None] = [None if i % 6 == 5 else 512 for i in range(18)]
    groups = group_layers(windows)
    assert [len(g.layers) for g in groups] == [3] * 6
    assert groups[0] == LayerGroup((5, 11, 17), None)
    assert sorted(layer for g in groups for layer in g.layers) == list(range(18))


def test_an_uneven_last_group_is_smaller() -> None:
    groups = group_layers([None, 4, 4, 4, None])
    assert [g.layers for g in groups] == [(0, 4), (1, 2), (3,)]


def test_first_needed_block_is_where_the_window_begins() -> None:
    # The token at position 10 with a window of 4 attends to positions 7 to 10: block 1 of size 4 holds 4 to 7.
    assert first_needed_block(4, 10, 4) == 1
    assert first_needed_block(4, 11, 4) == 2
    assert first_needed_block(None, 1000, 4) == 0
    assert first_needed_block(100, 10, 4) == 0


def test_a_window_bounds_the_blocks_of_a_long_sequence() -> None:
    groups = (LayerGroup((0,), None), LayerGroup((1,), 8))
    assert blocks_for_length(groups, 4, 4) == 2
    assert blocks_for_length(groups, 4, 400) == 100 + 3
