"""The documents of the input, and which of them validate."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import chain

from ettsweep.errors import DataMissingError
from ettsweep.tasks.text.preparation.lines import read_json_lines, read_text
from ettsweep.tasks.text.preparation.pieces import DocumentRule, readable
from ettsweep.tasks.text.preparation.request import CorpusRequest
from ettsweep.tasks.text.preparation.tables import read_arrow, read_parquet
from ettsweep.tasks.text.preparation.units import Unit

_READERS = {"text": read_text, "JSON lines": read_json_lines, "parquet": read_parquet, "arrow": read_arrow}


def read_documents(unit: Unit, rule: DocumentRule) -> Iterator[str]:
    """Yield the documents that start in a unit, without white space at their ends; some may be empty.

    Raises:
        DataMissingError: a file cannot be read.
        FailedError: it is not UTF-8, no JSON, or broken; file and line or byte are said.
        InputError: a line has no such field.
    """
    for piece in unit.pieces:
        with readable(piece.file):
            for text in _READERS[piece.file.kind](piece, rule):
                yield text.strip()


HASHES = 2**64
"""How many hashes a document may have."""

SMALL = 64 * 2**20
"""Bytes of input that are read once more beforehand: all that is wrong is found before anything is written."""


def document_hash(text: str) -> int:
    """Return what decides on which side of the split a document is: the same for the same text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def split(request: CorpusRequest, units: Sequence[Unit]) -> int:
    """Return below which hash a document validates, so that at least one does and one does not.

    A large input is read until one of each kind is found, which is soon; a small one to its end, so that all that is
    wrong with it is found before anything is written.

    Raises:
        DataMissingError: there is no text, or a single document.
    """
    below = asked_below(request.val_fraction)
    lowest, highest = HASHES, -1
    small = sum(unit.size * (4 if unit.pieces[0].file.packed else 1) for unit in units) <= SMALL
    for text in chain.from_iterable(read_documents(unit, request.rule) for unit in units):
        if text:
            number = document_hash(text)
            lowest, highest = min(lowest, number), max(highest, number)
            if lowest < below <= highest and not small:
                break
    if lowest >= highest:
        raise _too_few(highest >= 0, request, units)
    return min(max(below, lowest + 1), highest)


def asked_below(val_fraction: float) -> int:
    """Return below which hash a document validates if there are enough of them."""
    return max(1, round(val_fraction * HASHES))


def _too_few(one: bool, request: CorpusRequest, units: Sequence[Unit]) -> DataMissingError:
    files = list(dict.fromkeys(piece.file.path for unit in units for piece in unit.pieces))
    where = files[0] if len(files) == 1 else f"the {len(files)} files of --input"
    if not one:
        return DataMissingError(f"{where}: no text in {'it' if len(files) == 1 else 'them'}")
    other = "line" if request.documents == "blank-line" else "blank-line or line"
    return DataMissingError(
        f"{where}: one document only, or the same again and again, cannot both train and validate; more text is "
        f"needed, or --documents {other}, which makes more documents of a text file"
    )
