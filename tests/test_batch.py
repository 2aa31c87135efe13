"""How rows share forward passes."""

import numpy as np
import pytest
import torch

from extractors.batch import batches, end_to_end, side_by_side
from extractors.inputs import TokenIds
from extractors.packed import _groups


@pytest.mark.parametrize("padded", [True, False])
def test_batches_are_sorted_cut_by_tokens_and_complete(padded: bool) -> None:
    generator = np.random.default_rng(0)
    lengths = [*generator.integers(1, 90, 200).tolist(), 500]
    found = list(batches(lengths, 256, padded))
    assert sorted(np.concatenate(found).tolist()) == list(range(201))
    assert found[0].tolist() == [200]
    for batch in found[1:]:
        tokens = len(batch) * lengths[batch[0]] if padded else sum(lengths[i] for i in batch)
        assert tokens <= 256
    assert [lengths[i] for i in np.concatenate(found)] == sorted(lengths, reverse=True)
    assert list(batches([], 256, padded)) == []


def test_a_batch_ends_before_a_sixteenth_of_its_budget_is_padding() -> None:
    # 64 tokens of padding are allowed: 8 rows of 4 beside rows of 12, and not a ninth.
    lengths = [12] * 4 + [4] * 20
    assert [batch.tolist() for batch in batches(lengths, 1024, padded=True)] == [list(range(12)), list(range(12, 24))]
    assert [batch.tolist() for batch in batches(lengths, 1024, padded=False)] == [list(range(24))]


def test_extents_say_where_tokens_are_in_both_layouts() -> None:
    rows = [TokenIds(np.array(ids, dtype=np.int32), 1, len(ids), False, 0) for ids in ([7, 8, 9], [5, 6])]
    device = torch.device("cpu")
    padded, packed = side_by_side(rows, device), end_to_end(rows, device, before=4)
    assert padded.ids.tolist() == [[7, 8, 9], [5, 6, 6]] and padded.positions is None and padded.padding == 1
    assert packed.ids.tolist() == [[7, 8, 9, 5, 6]] and packed.padding == 0
    assert packed.positions is not None and packed.positions.tolist() == [[4, 5, 6, 4, 5]]
    for batch in (padded, packed):
        ids = batch.ids.flatten()
        assert ids[batch.extents.last].tolist() == [9, 6]
        place, count = batch.extents.span(text_only=True)
        assert ids[place].tolist() == [8, 9, 6] and count.tolist() == [2, 1]
        place, count = batch.extents.span(text_only=False)
        assert ids[place].tolist() == [7, 8, 9, 5, 6] and count.tolist() == [3, 2]


def test_rows_of_like_length_share_an_attention_call_and_come_back_in_place() -> None:
    lengths = [90, 90, 40, 39, 31, 5, 2, 1]
    heads = torch.randn(1, 3, sum(lengths), 2)
    groups = list(_groups(lengths, torch.device("cpu")))
    assert [(group.end - group.begin, group.longest) for group in groups] == [(180, 90), (110, 40), (8, 5)]
    back = [group.end_to_end(group.side_by_side(heads).transpose(1, 2)) for group in groups]
    assert torch.equal(torch.cat(back), heads[0].transpose(0, 1))
    # A padded row goes on with its own last token.
    side_by_side = groups[1].side_by_side(heads)
    assert torch.equal(side_by_side[2, :, 31:], heads[0, :, 180 + 40 + 39 + 30][:, None].expand(-1, 9, -1))
