"""Shards, units and rows: what is read, what is kept out and why; damaged, odd and empty Parquet."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from extractors.inputs import build_tokenizer
from pipeline.errors import UsageError
from pipeline.rows import TokenizedUnit, tokenize_unit
from pipeline.source import Layout, choose_layout, cut_units, find_shards
from tests.conftest import byte_level, write_shard

TOKENIZER = build_tokenizer(byte_level(), ("{text}",), vocabulary=512, max_length=64)


def read_all(
    inputs: list[str], keep: tuple[str, ...] = (), id_column: str = "id"
) -> tuple[Layout, list[TokenizedUnit]]:
    shards = find_shards(inputs)
    layout = choose_layout(shards, "text", id_column, keep)
    return layout, [tokenize_unit(unit, layout, TOKENIZER) for unit in cut_units(shards, 4096)]


def ids_of(units: list[TokenizedUnit]) -> list[Any]:
    return [identifier for unit in units for identifier in unit.carried.column("id").to_pylist()]


def reasons(units: list[TokenizedUnit]) -> list[tuple[int | None, str | None, str]]:
    return [(row["row"], row["id"], row["reason"]) for unit in units for row in unit.quarantine.rows]


@pytest.mark.parametrize(
    ("row_groups", "expected"),
    [
        ([10], [(0, 10)]),
        ([], [(0, 0)]),
        ([4, 4, 4], [(0, 8), (8, 4)]),
        ([10, 1], [(0, 10), (10, 1)]),
        ([25], [(0, 8), (8, 8), (16, 9)]),
        ([3, 25, 3], [(0, 3), (3, 8), (11, 8), (19, 9), (28, 3)]),
        ([0, 0], [(0, 0)]),
    ],
)
def test_units_follow_row_groups_and_cover_every_row(
    tmp_path: Path, row_groups: list[int], expected: list[Any]
) -> None:
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, pa.schema([("id", pa.int64()), ("text", pa.string())])) as writer:
        for count in row_groups:
            writer.write_table(
                pa.table({"id": pa.array(range(count), pa.int64()), "text": pa.array(["x"] * count, pa.string())})
            )
    units = list(cut_units(find_shards([str(path)]), unit_rows=10))
    assert [(unit.row_start, unit.rows) for unit in units] == expected
    assert len({unit.name for unit in units}) == len(units)


def test_a_unit_in_the_middle_holds_its_own_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(25), "text": [f"row {i}" for i in range(25)]}), path, row_group_size=7)
    shards = find_shards([str(path)])
    layout = choose_layout(shards, "text", "id", [])
    units = [tokenize_unit(unit, layout, TOKENIZER) for unit in cut_units(shards, 5)]
    assert ids_of(units) == list(range(25))
    assert [position for unit in units for position in unit.positions] == list(range(25))


def test_inputs_are_found_once_each(tmp_path: Path) -> None:
    for name in ("b/2.parquet", "a.parquet", "_old/3.parquet", ".hidden.parquet", "notes.txt"):
        write_shard(tmp_path / name, [1], ["x"])
    shards = find_shards([str(tmp_path), str(tmp_path / "*.parquet"), str(tmp_path / "a.parquet")])
    assert [Path(shard.source).name for shard in shards if ".hidden" not in shard.source] == ["a.parquet", "2.parquet"]
    for nothing in (tmp_path / "nothing", tmp_path / "x*.parquet", tmp_path / "_old" / "*.csv"):
        with pytest.raises(UsageError, match="names no Parquet file"):
            find_shards([str(nothing)])


def test_every_odd_row_is_kept_out_with_its_reason(tmp_path: Path) -> None:
    texts = ["", " ", "\t\n", "\u200b", "\ufeff", None, "None", "nan", "ok", "ok", "x", "</s>", "b"]
    ids = [0, 1, 2, 3, 4, 5, 6, 7, 8, None, 8, 11, 5]
    _, units = read_all([write_shard(tmp_path / "a.parquet", ids, texts)])
    # Row 12 repeats the id of row 5, which has no text: the id is still free.
    assert ids_of(units) == [6, 7, 8, 11, 5]
    assert reasons(units) == [
        *[(i, str(i), "blank-text") for i in range(5)],
        (5, "5", "null-text"),
        (9, None, "null-id"),
        (10, "8", "duplicate-id"),
    ]
    assert "row 8 " in units[0].quarantine.rows[-1]["detail"]
    assert units[0].rows_in == 13


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_bytes_that_are_not_utf8(tmp_path: Path, kind: pa.DataType) -> None:
    raw = pa.array([b"ok", b"he\xfflo", b"\xed\xa0\x80", b"fine"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 4, raw.buffers())
    path = tmp_path / "a.parquet"
    if pa.types.is_dictionary(kind):
        texts = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), texts)
    pq.write_table(pa.table({"id": ["a", "b", "c", "d"], "text": texts.cast(kind), "lang": texts.cast(kind)}), path)
    _, units = read_all([str(path)], keep=("lang",))
    assert ids_of(units) == ["a", "d"]
    assert reasons(units) == [(1, "b", "invalid-unicode"), (2, "c", "invalid-unicode")]


def test_ids_stay_what_they_are(tmp_path: Path) -> None:
    for name, ids in {
        "strings": ["007", "7", "é", "", "1e3"],
        "integers": pa.array([2**63 - 1, -(2**63), 0, -1, 2**53 + 1], pa.int64()),
        "small": pa.array([1, 2, 3, 4, 5], pa.uint8()),
    }.items():
        layout, units = read_all([write_shard(tmp_path / name / "a.parquet", ids, ["x"] * 5)])
        assert ids_of(units) == list(ids.to_pylist() if isinstance(ids, pa.Array) else ids)
        assert layout.id_type == (pa.string() if name == "strings" else pa.int64())


@pytest.mark.parametrize("ids", [[1.0, 2.0], [True, False], [b"a", b"b"], [[1], [2]]])
def test_ids_that_cannot_be_carried_exactly_are_refused(tmp_path: Path, ids: list[Any]) -> None:
    with pytest.raises(UsageError, match="ids are carried exactly"):
        read_all([write_shard(tmp_path / "a.parquet", ids, ["x", "y"])])


def test_ids_beyond_int64_keep_only_their_rows_out(tmp_path: Path) -> None:
    _, units = read_all([write_shard(tmp_path / "a.parquet", pa.array([1, 2**63], pa.uint64()), ["x", "y"])])
    assert ids_of(units) == [1] and reasons(units) == [(1, None, "id-out-of-range")]


def test_ids_of_file_and_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x", "y"]}), path)
    with pytest.raises(UsageError, match=r"--id-column 'id' is in no input.*columns of .* are text.*--id-column row"):
        read_all([str(path)])
    _, units = read_all([str(path)], id_column="row")
    assert ids_of(units) == [f"{path}#0", f"{path}#1"]


def test_shards_whose_schemas_differ(tmp_path: Path) -> None:
    def shard(name: str, table: dict[str, Any]) -> None:
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(pa.table(table), tmp_path / "in" / f"{name}.parquet")

    shard("a", {"id": pa.array([0, 1], pa.int32()), "text": pa.array([None, None], pa.null()), "lang": ["x", "y"]})
    shard("b", {"text": ["b", "c"], "id": pa.array([2, 3], pa.int64()), "lang": pa.array(["x", None])})
    shard("c", {"id": [4], "text": pa.array(["d"], pa.large_string()), "more": [1.0], "lang": ["z"]})
    shard("d", {"id": [5, 6], "txt": ["e", "f"], "lang": ["z", "z"]})
    shard("e", {"id": [7], "text": pa.array(["g"]).dictionary_encode(), "lang": pa.array(["q"]).dictionary_encode()})
    shard("f", {"id": [8], "text": [9], "lang": ["z"]})
    shard("g", {"id": [10], "text": ["h"]})
    layout, units = read_all([str(tmp_path / "in")], keep=("lang",))
    assert ids_of(units) == [2, 3, 4, 7]
    assert [value for unit in units for value in unit.carried.column("lang").to_pylist()] == ["x", None, "z", "q"]
    assert {unit.carried.schema.field("lang").type for unit in units} == {pa.string()}
    assert [reason for _, _, reason in reasons(units)] == [
        "null-text",
        "null-text",
        "column-missing",
        "column-missing",
        "column-type",
        "column-missing",
    ]
    assert "no column text, or more than one; the columns are id, txt, lang" in units[3].quarantine.rows[0]["detail"]
    assert layout.id_type == pa.int64()


def test_integer_and_string_ids_together_are_refused(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.parquet", [2], ["x"])
    write_shard(tmp_path / "b.parquet", ["02"], ["y"])
    with pytest.raises(UsageError, match=r"int64 in .*a\.parquet and string in .*b\.parquet"):
        read_all([str(tmp_path)])


def test_columns_are_checked_before_anything_starts(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.parquet", [2], ["x"], lang=["x"], vector=[1])
    shards = find_shards([str(tmp_path)])
    for arguments, message in (
        (("txt", "id", []), "did you mean 'text'"),
        (("text", "id", ["lnag"]), "did you mean 'lang'"),
        (("text", "id", ["vector"]), "rename it"),
    ):
        with pytest.raises(UsageError, match=message):
            choose_layout(shards, *arguments)
    write_shard(tmp_path / "b.parquet", [3], ["x"], lang=[7])
    with pytest.raises(UsageError, match="do not go together"):
        choose_layout(find_shards([str(tmp_path)]), "text", "id", ["lang"])


def damaged(folder: Path) -> list[Path]:
    """A file of no bytes, one cut in half, one of noise, and one whose footer is whole and a data page is not."""
    whole = write_shard(folder / "z.parquet", range(10, 20), [f"some text {i}" * 9 for i in range(10)])
    content = Path(whole).read_bytes()
    page = bytearray(content)
    start = content.index(b"some text")
    page[start : start + 64] = bytes(64 * [0xA5])
    files = {"empty": b"", "half": content[: len(content) // 2], "noise": bytes(range(256)) * 40, "page": bytes(page)}
    paths = []
    for name, damage in files.items():
        paths.append(folder / f"{name}.parquet")
        paths[-1].write_bytes(damage)
    Path(whole).unlink()
    return paths


def test_damaged_files_are_kept_out_and_their_neighbours_are_not(tmp_path: Path) -> None:
    paths = damaged(tmp_path)
    write_shard(tmp_path / "good.parquet", range(5), ["x"] * 5)
    _, units = read_all([str(tmp_path)])
    assert ids_of(units) == [0, 1, 2, 3, 4]
    by_file: dict[str, set[Any]] = {}
    for unit in units:
        for row in unit.quarantine.rows:
            by_file.setdefault(Path(row["source"]).stem, set()).add((row["row"], row["reason"]))
    unreadable = {(None, "unreadable-file")}
    assert by_file == {
        "empty": unreadable,
        "half": unreadable,
        "noise": unreadable,
        "page": {(i, "unreadable-file") for i in range(10)},
    }
    assert len(paths) == 4 and sum(not unit.intact for unit in units) == 4


def test_uncompressed_pages_are_checked_where_they_carry_checksums(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"id": range(3), "text": ["abcdefgh" * 20, "b", "c"]})
    pq.write_table(
        table, path, compression="none", use_dictionary=False, write_page_checksum=True, write_statistics=False
    )
    path.write_bytes(path.read_bytes().replace(b"abcdefghabcd", b"abcdefghabcX", 1))
    _, units = read_all([str(path)])
    assert {reason for _, _, reason in reasons(units)} == {"unreadable-file"}


def test_files_without_rows(tmp_path: Path) -> None:
    empty = pa.table({"id": pa.array([], pa.int64()), "text": pa.array([], pa.string())})
    pq.write_table(empty, tmp_path / "none.parquet")
    _, units = read_all([str(tmp_path)])
    assert [(unit.rows_in, unit.intact, unit.carried.num_rows) for unit in units] == [(0, True, 0)]


def test_a_change_that_keeps_size_and_footer_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"{i} cat" * 9 for i in range(6000)]
    pq.write_table(pa.table({"id": range(6000), "text": texts}), path, compression="none", use_dictionary=False)
    (before,) = find_shards([str(path)])
    content = path.read_bytes()
    path.write_bytes(content.replace(b"100 cat", b"100 dog", 1))
    (after,) = find_shards([str(path)])
    assert before.tag != after.tag and path.stat().st_size == len(content)


def test_the_outputs_own_files_are_no_inputs(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.parquet", [1], ["x"])
    write_shard(tmp_path / "out" / "vectors" / "a.parquet", [1], ["x"])
    (shard,) = find_shards([str(tmp_path)], str(tmp_path / "out"))
    assert shard.source == str(tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="no files but the output's own"):
        find_shards([str(tmp_path / "out")], str(tmp_path / "out"))


def test_links_and_brackets_in_names(tmp_path: Path) -> None:
    write_shard(tmp_path / "real" / "data[1].parquet", [1], ["x"])
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "loop").symlink_to(tmp_path / "in")
    assert [Path(shard.source).name for shard in find_shards([str(tmp_path / "in")])] == ["data[1].parquet"]
    assert len(find_shards([str(tmp_path / "real" / "data[1].parquet")])) == 1


def test_a_column_that_stands_twice_keeps_its_file_out(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array(["x"]), pa.array(["y"])], names=["id", "text", "text"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(UsageError, match="--text-column 'text'"):
        read_all([str(tmp_path)])
    write_shard(tmp_path / "good.parquet", [2], ["x"])
    _, units = read_all([str(tmp_path)])
    assert ids_of(units) == [2] and reasons(units) == [(0, None, "column-missing")]


def test_kept_values_of_any_type_are_carried_as_they_are(tmp_path: Path) -> None:
    raw = pa.array([b"he\xfflo", b"fine"], pa.binary())
    columns = {
        "far": pa.array([2**55, None], pa.timestamp("us")),
        "big": pa.array([2**64 - 1, 0], pa.uint64()),
        "half": pa.array([0.5, 1.5], pa.float16()),
        "small": pa.array([1, 2], pa.int8()),
        "lists": pa.ListArray.from_arrays([0, 1, 2], pa.Array.from_buffers(pa.string(), 2, raw.buffers())),
        "nested": pa.array([{"a": [1]}, None]),
        "nothing": pa.array([None, None], pa.null()),
    }
    _, (unit,) = read_all([write_shard(tmp_path / "a.parquet", [1, 2], ["x", "y"], **columns)], keep=tuple(columns))
    assert not unit.quarantine.rows
    for name, values in columns.items():
        assert unit.carried.column(name).combine_chunks().equals(values), name


@pytest.mark.parametrize("name", ["row", "score", "rank", "query_id", "id"])
def test_names_of_the_outputs_own_columns_cannot_be_kept(tmp_path: Path, name: str) -> None:
    write_shard(tmp_path / "a.parquet", [1], ["x"], row=[1], score=[1], rank=[1], query_id=[1])
    with pytest.raises(UsageError, match="rename it"):
        choose_layout(find_shards([str(tmp_path)]), "text", "id", [name])
