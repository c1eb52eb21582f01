"""Documents of all forms of input beside what was written there; and what is said of damaged ones."""

import bz2
import csv
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.texts import TOPICS

from ettsweep.errors import DataMissingError, EttsweepError, FailedError, InputError
from ettsweep.trainer.tasks.text.corpus_manifest import DocumentUnit
from ettsweep.trainer.tasks.text.inputs import CorpusRequest, documents_of, fault, find_portions, load

TEXTS = [text.strip() for text in TOPICS[:30]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for inputs; the cache lies beside it."""
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def read(*inputs: object, out: Path, **options: Any) -> list[str]:
    """Return the documents of inputs."""
    request = CorpusRequest(tuple(map(str, inputs)), out, **options)
    texts = list[str]()
    for portion in find_portions(request):
        try:
            (column,) = load(portion, request).to_dict().values()
            texts += documents_of(column, portion.kind, request.text_field)
        except Exception as error:
            raise fault(portion, request, error) from None
    return texts


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("blank-line", ["first", "é\n中文 text", "last\n  line"]),
        ("line", ["first", "", "é", "中文 text", "", "", "last", "line"]),
        ("file", ["first\n\né\n中文 text\n\n\nlast\n  line"]),
    ],
)
def test_documents_of_a_text_file_are_paragraphs_lines_or_all(
    folder: Path, mode: DocumentUnit, expected: list[str]
) -> None:
    data = "\ufefffirst\n\né\r\n中文 text\n\n\nlast\n  line\n".encode()
    (folder / "a.txt").write_bytes(data)
    (folder / "b.txt.gz").write_bytes(gzip.compress(data))
    (folder / "c.txt.bz2").write_bytes(bz2.compress(data))
    assert read(folder, out=folder.parent, documents=mode) == 3 * expected


def test_each_row_of_lines_and_tables_is_a_document(folder: Path) -> None:
    lines = [json.dumps({"id": k, "body": text, f"only {k}": k}) for k, text in enumerate(TEXTS)]
    (folder / "a.jsonl").write_text("\n".join([*lines, "", '{"body": null}', '{"body": "a \\ud800 b"}']))
    with (folder / "b.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "body"], *enumerate(TEXTS), [7, "NA"], [8, "12"]])
    pq.write_table(pa.table({"id": range(31), "body": [*TEXTS, None]}), folder / "c.parquet", row_group_size=7)
    pq.write_table(pa.table({"body": pa.array(TEXTS, pa.large_string())}), folder / "d.parquet")
    expected = [*TEXTS, "", "a ? b", *TEXTS, "NA", "12", *TEXTS, "", *TEXTS]
    assert read(folder, out=folder.parent, text_field="body") == expected


def test_data_sets_on_disk_are_read_in_place(folder: Path) -> None:
    from datasets import Dataset, DatasetDict

    data = Dataset.from_dict({"text": [*TEXTS, None], "n": list(range(31))})
    data.save_to_disk(str(folder / "one"), num_shards=4)
    data.select([2]).save_to_disk(str(folder / "part[1]"))
    DatasetDict(train=data.select(range(3)), other=data.select(range(3, 5))).save_to_disk(str(folder / "two"))
    out, before = folder.parent / "out", sorted(folder.rglob("*"))
    assert read(folder / "one", out=out) == [*TEXTS, ""]
    assert read(folder / "part[1]", out=out) == [TEXTS[2]], "its name is no pattern"
    assert read(folder / "two", f"{folder}/two:other", out=out) == TEXTS[:5]
    assert sorted(folder.rglob("*")) == before
    with pytest.raises(EttsweepError, match="has no splits; use "):
        read(f"{folder}/one:test", out=out)
    with pytest.raises(InputError, match=r"one/data-.*: field 'n' is not text but int64"):
        read(folder / "one", out=out, text_field="n")


def test_a_data_set_of_the_hub_is_asked_for_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(folder)  # `datasets` takes a folder of this name for the data set
    (folder / "owner" / "books").mkdir(parents=True)
    for split in ("train", "validation"):
        (folder / "owner" / "books" / f"{split}.jsonl").write_text(line(f"{split} 0") + line(f"{split} 1"))
    out = folder.parent
    assert read("hfds/owner/books", out=out) == ["train 0", "train 1"]
    assert read("hfds/owner/books:validation", out=out) == ["validation 0", "validation 1"]
    for name, message in (
        ("gone/set", "cannot be opened as a data set ("),
        ("../owner/books", "expected hfds/OWNER/NAME"),
    ):
        with pytest.raises(EttsweepError, match=re.escape(f"--input hfds/{name}: {message}")):
            read(f"hfds/{name}", out=out)


def test_inputs_are_files_folders_and_patterns_each_file_once(folder: Path) -> None:
    for name in ("b.txt", "a.txt", "c.jsonl", "README.md", ".hidden.txt", "sub/d.txt", "sub/e[1]*.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps({"text": name}) if name.endswith("jsonl") else name)
    assert read(folder, out=folder) == ["a.txt", "b.txt", "c.jsonl"]
    assert read(folder / "b.txt", folder, out=folder) == ["b.txt", "a.txt", "c.jsonl"]
    pattern = f"{folder}/**/*.txt"
    assert read(f"{folder}/*.txt", pattern, out=folder) == ["a.txt", "b.txt", "sub/d.txt", "sub/e[1]*.txt"]


def line(text: object) -> str:
    return json.dumps({"text": text}) + "\n"


PARQUET = pa.BufferOutputStream()
pq.write_table(pa.table({"text": [1, 2]}), PARQUET)


@pytest.mark.parametrize(
    ("name", "content", "kind", "message"),
    [
        ("a.md", b"x", InputError, "--input {path}: unsupported format; supported are .txt, .jsonl"),
        ("a.txt", b"fine\n\nno \xff good", FailedError, "{path}: not UTF-8;"),
        ("a.jsonl", (line("x") * 4 + "{broken\n").encode(), FailedError, "{path}: not valid JSON (Expecting property"),
        ("a.jsonl", b'{"id": "1", "body": "y"}\n', InputError, "{path}: no field 'text', it has id, body; --text-field id?"),
        ("a.txt.gz", gzip.compress(b"words " * 1000, mtime=0)[:-10], FailedError, "{path}: cannot be read as text (EOF"),
        ("a.parquet", b"PAR1 no", FailedError, "{path}: cannot be read as parquet (ArrowInvalid: "),
        ("a.parquet", PARQUET.getvalue().to_pybytes(), InputError, "{path}: field 'text' is not text but int64"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named(
    folder: Path, name: str, content: bytes, kind: type[EttsweepError], message: str
) -> None:
    """Among others that are sound."""
    path = folder / f"b{name}"
    path.write_bytes(content)
    for other in ("a", "c"):
        (folder / f"{other}.jsonl").write_text(line(other))
        (folder / f"{other}.txt").write_text(other)
        pq.write_table(pa.table({"text": [other]}), folder / f"{other}.parquet")
    end = ".jsonl" if "json" in name else ".parquet" if "parquet" in name else ".txt"
    inputs = [folder / f"a{end}", path, folder / f"c{end}"]
    with pytest.raises(kind, match=f"^{re.escape(message.format(path=path))}"):
        read(*inputs, out=folder.parent)


def test_what_is_not_there_is_named(folder: Path) -> None:
    (folder / "pictures").mkdir()
    (folder / "pictures" / "a.png").write_bytes(b"")
    for name, message in (("*.jsonl", "no such file; supported are .txt"), ("pictures", "no text in this folder")):
        with pytest.raises(DataMissingError, match=re.escape(f"--input {folder}/{name}: {message}")):
            read(folder / name, out=folder)
