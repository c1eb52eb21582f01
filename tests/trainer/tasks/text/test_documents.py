"""Documents of all forms of input beside a plain reading of the whole, the parts they are cut into; and what is said of bad ones."""

import gzip
import json
import os
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.texts import TOPICS

from ettsweep.errors import DataMissingError, EttsweepError, FailedError, InputError, PackageMissingError
from ettsweep.trainer.tasks.text import documents as reading
from ettsweep.trainer.tasks.text.corpus_manifest import DocumentUnit
from ettsweep.trainer.tasks.text.documents import find_sources, read_documents
from ettsweep.trainer.tasks.text.preparation import find_unique_sources, group_into_shards


def read(*inputs: object, text_field: str = "text", documents: DocumentUnit = "blank-line") -> list[str]:
    """Return the documents of inputs."""
    sources = [
        source
        for find_unique_source in find_unique_sources([str(text) for text in inputs])
        for source in find_unique_source
    ]
    return [text for source in sources for text in read_documents(source, text_field, documents)]


ODD = [
    "a\n\nb",
    "\n\n\na\nb\n \t \n\n\nc",
    "é\n\n中文 text\n\r\n😀\r\n\r\nlast\r\n",
    "one line",
    "one line\n",
    "\n",
    "a\n" * 5 + "\n" + "b\n" * 5,
    "   \n\n   x\n   \n",
    "x" * 50 + "\n\n" + "y" * 3 + "\n" + " " * 40 + "\n" + "z",
    "a\n\nb\n\nc\n\nd\n\n",
]


def made_texts() -> list[str]:
    rng = random.Random(1)
    pieces = ["a", "word ", "é", "中", "\n", "\n", "\n\n", " \n", "\r\n", "\t", "end."]
    return ODD + ["".join(rng.choices(pieces, k=rng.randrange(1, 80))) for _ in range(60)]


@pytest.mark.parametrize("mode", ["blank-line", "line", "file"])
def test_each_document_of_a_text_file_comes_once(tmp_path: Path, mode: DocumentUnit) -> None:
    path = tmp_path / "a.txt"
    for text in made_texts():
        path.write_bytes(text.encode())
        message = text.replace("\r\n", "\n")
        mapping = {
            "blank-line": re.split(r"\n(?:[ \t]*\n)+", "\n" + message + "\n"),
            "line": message.split("\n"),
            "file": [message],
        }
        expected = [section.strip() for section in mapping[mode] if section.strip()]
        assert [result for result in read(path, documents=mode) if result] == expected, text


def test_each_json_line_comes_once(tmp_path: Path) -> None:
    texts = [text.strip() for text in [*made_texts(), *TOPICS[:3]]]
    path = tmp_path / "a.jsonl"
    for blank in ("", "\n"):
        path.write_text("".join(json.dumps({"id": k, "text": item}) + "\n" + blank for k, item in enumerate(texts)))
        assert read(path) == texts
    packed = tmp_path / "b.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(packed) == texts


def test_each_row_of_a_parquet_file_comes_once(tmp_path: Path) -> None:
    texts = [text.strip() for text in [*made_texts(), *TOPICS]]
    path = tmp_path / "a.parquet"
    for rows, kind in ((7, pa.string()), (100, pa.large_string()), (10_000, pa.string())):
        table = pa.table({"id": range(len(texts)), "body": pa.array(texts, kind)})
        pq.write_table(table, path, row_group_size=rows)
        assert read(path, text_field="body") == texts, rows
    for name, message in (
        ("text", r"no field 'text', it has body; --text-field body\?"),
        ("id", "'id' is not text but int64"),
    ):
        with pytest.raises(InputError, match=message):
            read(path, text_field=name)


def test_a_data_set_on_disk_gives_its_rows_in_order(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    texts = [text.strip() for text in TOPICS[:30]]
    data = Dataset.from_dict({"text": [*texts, None], "n": list(range(31))})
    data.save_to_disk(str(tmp_path / "one"), num_shards=4)
    assert read(tmp_path / "one") == [*texts, ""]
    data.select([5, 3, 1]).save_to_disk(str(tmp_path / "some"))
    assert read(tmp_path / "some") == [texts[5], texts[3], texts[1]]
    data.select([2]).save_to_disk(str(tmp_path / "part[1]"))
    assert read(tmp_path / "part[1]") == [texts[2]], "its name is no pattern"
    DatasetDict(train=data.select(range(3)), other=data.select(range(3, 5))).save_to_disk(str(tmp_path / "two"))
    assert read(tmp_path / "two") == texts[:3]
    assert read(f"{tmp_path}/two:other") == texts[3:5]
    with pytest.raises(
        InputError, match=f"has no split 'test'; choose one: {tmp_path}/two:train, {tmp_path}/two:other"
    ):
        read(f"{tmp_path}/two:test")
    with pytest.raises(InputError, match=r"no field 'body', it has text; --text-field text\?"):
        read(tmp_path / "one", text_field="body")
    with pytest.raises(InputError, match="field 'n' is not text but int64"):
        read(tmp_path / "one", text_field="n")


def test_a_data_set_of_the_hub_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    for split in ("train", "validation"):
        rows = [json.dumps({"text": f"{split} {k}"}) for k in range(3)]
        (tmp_path / "books" / f"{split}.jsonl").write_text("\n".join(rows))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)  # `datasets` takes a folder of this name for the data set
    assert read("hfds/books") == ["train 0", "train 1", "train 2"]
    assert read("hfds/books:validation") == [f"validation {k}" for k in range(3)]
    with pytest.raises(
        InputError, match=r"hfds/books: has no split 'test'; choose one: hfds/books:train, hfds/books:val"
    ):
        read("hfds/books:test")
    with pytest.raises(InputError, match=r"no field 'body', it has text; --text-field text\?"):
        read("hfds/books", text_field="body")
    with pytest.raises(DataMissingError, match=r"--input hfds/gone/set: cannot be opened as a data set \("):
        read("hfds/gone/set")
    (tmp_path / "tables" / "data").mkdir(parents=True)
    for k in range(2):
        pq.write_table(pa.table({"text": [f"row {k}", None]}), tmp_path / f"tables/data/train-{k:05}-of-00002.parquet")
    assert read("hfds/tables") == ["row 0", "", "row 1", ""]
    assert not (tmp_path / "cache").exists() or not [
        path for path in (tmp_path / "cache").rglob("*") if path.suffix == ".arrow"
    ]


def test_a_data_set_says_what_reading_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset

    Dataset.from_dict({"text": ["a"]}).save_to_disk(str(tmp_path / "saved"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    for text in (f"{tmp_path}/saved", "hfds/owner/name"):
        message = f"--input {text}: reading it needs datasets, which is not installed: pip install 'ettsweep[train]'"
        with pytest.raises(PackageMissingError, match=re.escape(message)):
            read(text)


def test_inputs_are_files_folders_and_patterns_each_file_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.jsonl", "README.md", ".hidden.txt", "sub/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"text": name}) if name.endswith("jsonl") else name)
    assert read(tmp_path) == ["a.txt", "b.txt", "c.jsonl"]
    assert read(tmp_path / "b.txt", tmp_path) == ["b.txt", "a.txt", "c.jsonl"]
    assert read(f"{tmp_path}/*.txt", f"{tmp_path}/**/*.txt") == ["a.txt", "b.txt", "sub/d.txt"]


@pytest.mark.parametrize("size", [1, 100, 1000, 10_000, 10**9])
def test_parts_have_each_document_once_and_no_more_than_their_size(size: int) -> None:
    texts = [text[:length] for text in TOPICS for length in (5, 50, 900)]
    group_into_shards_result = list(group_into_shards(texts, 2**60, size))
    assert [data.decode() for section in group_into_shards_result for data, _ in section.documents] == texts
    assert {side for section in group_into_shards_result for _, side in section.documents} == {"train", "val"}
    for section in group_into_shards_result:
        sizes = [len(data) for data, _ in section.documents]
        assert section.size == sum(sizes)
        assert section.size <= size or len(sizes) == 1
    assert len({section.name for section in group_into_shards_result}) == len(
        {tuple(section.documents) for section in group_into_shards_result}
    )


def test_a_new_document_changes_the_parts_around_it_not_those_that_follow() -> None:
    texts = [f"{k} " + "x" * (50 + k % 7) for k in range(3000)]
    before = [group_into_shard.name for group_into_shard in group_into_shards(texts, 2**60, 2000)]
    assert 60 <= len(before) <= 250
    for at in (0, 100, 1500):
        after = [
            group_into_shard.name
            for group_into_shard in group_into_shards([*texts[:at], "new" * 20, *texts[at:]], 2**60, 2000)
        ]
        assert len(set(after) - set(before)) <= 8
    assert [group_into_shard.name for group_into_shard in group_into_shards([*texts, "new"], 2**60, 2000)][
        :-2
    ] == before[:-2]


def test_the_name_of_a_part_is_that_of_its_documents_in_their_order() -> None:
    names = {
        next(group_into_shards(texts, 2**60, 10**9)).name for texts in (["a", "b"], ["b", "a"], ["ab"], ["a", "b", "b"])
    }
    assert len(names) == 4


def test_a_byte_order_mark_is_no_text_and_half_a_surrogate_pair_becomes_a_question_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufefffirst\n\nsecond".encode())
    (tmp_path / "b.jsonl").write_text('{"text": "a \\ud800 b \\ud83d\\ude00"}\n')
    assert read(tmp_path) == ["first", "second", "a ? b 😀"]


def test_memory_holds_a_document_not_the_file(tmp_path: Path) -> None:
    import tracemalloc

    def peak(size: int) -> int:
        path = tmp_path / f"{size}.txt"
        path.write_text("Some words of a line.\n\n" * (size // 23))
        (source,) = find_sources(str(path))
        tracemalloc.start()
        count = sum(1 for _ in read_documents(source, "text", "blank-line"))
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == size // 23
        return peak_bytes

    peak(1000)
    assert peak(1_000_000) < 1.2 * peak(100_000) + 50_000


# --- what is wrong ----------------------------------------------------------------------------------------------------

Write = Callable[[Path], object]


def line(text: object) -> str:
    return json.dumps({"text": text}) + "\n"


@pytest.mark.parametrize(
    ("name", "content", "kind", "message"),
    [
        (
            "a.md",
            b"x",
            InputError,
            "--input {path}: unsupported format; supported are .txt, .jsonl (or .ndjson, .json)",
        ),
        ("a.parquet.gz", b"x", InputError, "unsupported format; supported are"),
        ("a.txt", b"fine\n\nno \xff good", FailedError, "{path}: not UTF-8 at byte 9;"),
        ("a.txt", b"a\n" * 9 + b"\n" + b"caf\xe9\n", FailedError, "{path}: not UTF-8 at byte 22;"),
        ("a.jsonl", (line("x") * 4 + "{broken\n").encode(), FailedError, "{path}:5: no valid JSON ("),
        ("a.jsonl", line("x").encode() + b'{"text": "\xff"}', FailedError, "{path}: not UTF-8 at byte 24;"),
        ("a.jsonl", b'[{"text": "x"}]', FailedError, "{path}:1: one JSON object a line is expected, got list"),
        ("a.json", b'{\n "text": "x"\n}', FailedError, "{path}:1: no valid JSON (Expecting property name"),
        (
            "a.jsonl",
            (line("x") + '{"id": "1", "body": "y"}\n').encode(),
            InputError,
            "{path}:2: no field 'text', it has id, body; --text-field id?",
        ),
        ("a.jsonl", (line("x") * 2 + line(3)).encode(), InputError, "{path}:3: field 'text' is not text but int"),
        ("a.jsonl", b"[" * 100_000, FailedError, "{path}:1: no valid JSON (RecursionError)"),
        ("a.txt.gz", b"no gzip", FailedError, "{path}: cannot be unpacked (Not a gzipped file"),
        ("a.txt.gz", gzip.compress(b"words " * 1000, mtime=0)[:-10], FailedError, "{path}: cannot be unpacked ("),
        ("a.parquet", b"PAR1 no", DataMissingError, "{path}: cannot be read as parquet ("),
        ("a.parquet", b"", DataMissingError, "{path}: cannot be read as parquet ("),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_place(
    tmp_path: Path, name: str, content: bytes, kind: type[EttsweepError], message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(kind, match=re.escape(message.format(path=path))):
        read(path)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(b"")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    for text, message in [
        (f"{tmp_path}/nothing.txt", "nothing.txt: does not exist"),
        (f"{tmp_path}/*.jsonl", "*.jsonl: no file matches"),
        (f"{tmp_path}/pictures", "pictures: no text in this folder, which holds a.png; supported are .txt"),
        (f"{tmp_path}/gone.txt", "gone.txt: does not exist"),
    ]:
        with pytest.raises(DataMissingError, match=re.escape(message)):
            read(text)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.txt").chmod(0)
    with pytest.raises(DataMissingError, match=r"a\.txt: cannot be read \(Permission denied\)"):
        read(tmp_path / "a.txt")


@pytest.mark.parametrize("mode", ["blank-line", "line", "file"])
def test_a_document_too_large_for_memory_is_an_error(
    tmp_path: Path, mode: DocumentUnit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_DOCUMENT_BYTES", 2**20)
    path = tmp_path / "a.txt"
    text = "short\n\n" + "words " * 200_000 + "\n\nshort\n"
    path.write_text(text)
    start = 0 if mode == "file" else 7
    message = f"{path}: the document at byte {start} has more than 1 MiB"
    with pytest.raises(InputError, match=re.escape(message)):
        read(path, documents=mode)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    with pytest.raises(InputError, match="more than 1 MiB"):
        read(tmp_path / "b.txt.gz", documents=mode)
