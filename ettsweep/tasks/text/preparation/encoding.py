"""The tokenizer that processes read from a file: one that was given, or one trained on a sample of the text."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ettsweep.errors import InputError, TooFewPairsError
from ettsweep.files import write_atomic
from ettsweep.pool import Pool
from ettsweep.schema import digest
from ettsweep.tasks.text.manifest import VERSION
from ettsweep.tasks.text.preparation.documents import read_documents
from ettsweep.tasks.text.preparation.folder import TRAINED
from ettsweep.tasks.text.preparation.pieces import DocumentRule
from ettsweep.tasks.text.preparation.request import CorpusRequest
from ettsweep.tasks.text.preparation.units import Unit
from ettsweep.tasks.text.preparation.work import result
from ettsweep.tasks.text.tokenizer import Tokenizer, train_bpe

SAMPLE = 64 * 2**20
"""Characters that a byte-pair encoding is trained on."""

SAMPLED_UNITS = 1024
"""Units that they come from at most."""


def tokenizer_file(
    shards: Path, request: CorpusRequest, units: Sequence[Unit], tokenizer: Tokenizer | None, pool: Pool
) -> Path:
    """Return the file that processes read the tokenizer from, after training it where need be."""
    if tokenizer is not None:
        path = shards / f"{TRAINED}{tokenizer.sha256[:24]}.json"
        if not path.exists():
            write_atomic(path, tokenizer.to_json())
        return path
    assert request.bpe_tokens is not None
    what = [VERSION, request.bpe_tokens, SAMPLE, list(request.rule), [unit.identity for unit in units]]
    path = shards / f"{TRAINED}{digest(what, 24)}.json"
    if not path.exists():
        try:
            result(pool.submit(_train, path, request.bpe_tokens, request.rule, units))
        except TooFewPairsError as error:
            raise InputError(f"--bpe-tokens: {error}") from None
    return path


def _train(path: Path, bpe_tokens: int, rule: DocumentRule, units: Sequence[Unit]) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        write_atomic(path, train_bpe(_sample(rule, units), bpe_tokens).to_json())
    finally:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _sample(rule: DocumentRule, units: Sequence[Unit]) -> Iterator[str]:
    """Yield the beginning of units that are evenly spread, some 64 million characters of all."""
    count = min(len(units), SAMPLED_UNITS)
    for k in range(count):
        left = SAMPLE // count
        for text in read_documents(units[k * len(units) // count], rule):
            yield text[:left]
            left -= len(text)
            if left <= 0:
                break
