"""What `ettsweep data text` is asked for, what came of it, and what is said of that."""

import math
import shlex
from pathlib import Path
from typing import NamedTuple

from ettsweep.errors import InputError
from ettsweep.output import count
from ettsweep.tasks.text.manifest import LONG, Documents, Manifest
from ettsweep.tasks.text.preparation.inputs import HUB, DocumentRule
from ettsweep.tasks.text.tokenizer import read_tokenizer
from ettsweep.vocabulary import LEAST_BPE, vocabulary_size

HASHES = 2**64
"""How many hashes a document may have."""


class CorpusRequest(NamedTuple):
    """What is asked for: `tokenizer` is a folder of its files, None trains one of `bpe_tokens`."""

    inputs: tuple[str, ...]
    out: Path
    tokenizer: Path | None = None
    bpe_tokens: int | None = None
    val_fraction: float = 0.005
    text_field: str = "text"
    documents: Documents = "blank-line"
    shard_mib: float = 32.0
    workers: int | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The inputs, so that they hold in any folder."""
        return tuple(text if text.startswith(HUB) else str(Path(text).expanduser().absolute()) for text in self.inputs)

    @property
    def shard_bytes(self) -> int:
        return round(self.shard_mib * 2**20)

    @property
    def rule(self) -> DocumentRule:
        return DocumentRule(self.text_field, self.documents)

    @property
    def val_below(self) -> int:
        """Below which hash a document validates, if there are enough of them."""
        return max(1, round(self.val_fraction * HASHES))


class Tokenised(NamedTuple):
    """A corpus, and what it took.

    Attributes:
        made, kept: units that were tokenised, and that were there already.
        tokens: of the former.
        text_files: whether the input has any, beside tables and JSON lines.
        replaced: digest of another corpus that was there before.
    """

    manifest: Manifest
    made: int
    kept: int
    tokens: int
    workers: int
    wall_s: float
    text_files: bool
    replaced: str | None


def check_request(request: CorpusRequest) -> None:
    """Check the options, and that they go together.

    Raises:
        InputError: they do not go together.
    """
    wrong = []
    if (request.tokenizer is None) == (request.bpe_tokens is None):
        wrong.append(
            "say which tokenizer, with one of --tokenizer DIR (GPT-2's files, for GPT-2's vocabulary of 50265) and "
            "--bpe-tokens N (trains one on this text)"
        )
    if request.bpe_tokens is not None and request.bpe_tokens < LEAST_BPE:
        wrong.append(f"--bpe-tokens: {LEAST_BPE} at least are needed, one for each byte, got {request.bpe_tokens}")
    if not 0 < request.val_fraction < 1:
        wrong.append(f"--val-fraction: a number between 0 and 1 is expected, got {request.val_fraction}")
    if not 0 < request.shard_mib <= 1024:
        wrong.append(f"--shard-mib: a number above 0 and up to 1024 is expected, got {request.shard_mib}")
    if not request.inputs:
        wrong.append("say what text, with --input FILES")
    if wrong:
        raise InputError.of(wrong)


def made_otherwise(request: CorpusRequest, there: Manifest) -> str:
    """Return the options that a corpus was made with where they differ from those of a request; nothing where none do.

    Raises:
        DataMissingError, InputError: the tokenizer cannot be read.
    """
    told = []
    if request.sources != there.inputs:
        told += [f"--input {text}" for text in there.inputs]
    if request.tokenizer is None and request.bpe_tokens != there.bpe_tokens:
        told.append(f"a tokenizer of {there.bpe_tokens} tokens")
    elif request.tokenizer and read_tokenizer(request.tokenizer).sha256 != there.tokenizer_sha256:
        told.append(f"another tokenizer, of {there.bpe_tokens} tokens")
    for name in ("val_fraction", "text_field", "documents", "shard_mib"):
        if getattr(request, name) != (value := getattr(there.settings, name)):
            told.append(f"--{name.replace('_', '-')} {value}")
    return " ".join(told)


def corpus_rows(manifest: Manifest) -> list[dict[str, str | int]]:
    """Return a row on each part of a corpus."""
    rows = []
    for what, counts in (("training", manifest.train), ("validation", manifest.val)):
        row: dict[str, str | int] = {"part": what, "documents": counts.documents, "sentences": counts.sentences}
        row |= {"tokens": counts.tokens, f"blocks_{LONG}": counts.blocks, "text_bytes": counts.text_bytes}
        rows.append(row)
    return rows


FEW_BLOCKS = 32
"""Blocks of validation below which that is said."""

GPT2 = 50257
"""Byte-pair tokens of GPT-2, whose vocabulary bart-large and r2c2 have."""


def corpus_summary(request: CorpusRequest, outcome: Tokenised) -> str:
    """Return what was done, what is worth knowing of the corpus, and what comes next."""
    manifest = outcome.manifest
    if outcome.made:
        rate = f"{outcome.tokens:,} tokens in {outcome.wall_s:.1f} s: {outcome.tokens / outcome.wall_s:,.0f} tokens/s"
        lines = [f"{rate} on {outcome.workers} {'process' if outcome.workers == 1 else 'processes'}"]
        if outcome.kept:
            lines.append(f"{outcome.kept} of {outcome.made + outcome.kept} parts were there already")
    else:
        lines = ["all of it was there already"]
    if manifest.settings.val_below != request.val_below:
        lines.append(
            f"few documents: with --val-fraction {request.val_fraction} one side would be empty, so the document "
            "nearest to it was taken"
        )
    if manifest.skipped:
        were = "was" if manifest.skipped == 1 else "were"
        lines.append(f"{count(manifest.skipped, 'document')} without text {were} left out")
    if long := manifest.train.long_sentences + manifest.val.long_sentences:
        lines.append(
            f"{long} sentences have more than {LONG} tokens; blocks of that size cut them"
            if long > 1
            else f"1 sentence has more than {LONG} tokens; blocks of that size cut it"
        )
    if (mean := manifest.train.tokens / manifest.train.blocks) < LONG / 2:
        told = f"documents are short: blocks of up to {LONG} tokens have {mean:.0f} on average, the rest is [pad]"
        if (tokens := _roomy(mean)) < LONG:
            told += f"; --set model.tokens={tokens} has less of it"
        if outcome.text_files and request.documents != "file":
            told += "; where a text file is one document: --documents file"
        lines.append(told)
    if (blocks := manifest.val.blocks) < FEW_BLOCKS:
        lines.append(
            f"validation has {count(blocks, 'block')} of up to {LONG} tokens, few to judge by: "
            "a larger --val-fraction has more"
        )
    if outcome.replaced:
        lines.append(
            f"replaces corpus {outcome.replaced}: runs made for it cannot go on without it; another --out keeps both"
        )
    lines.append(f"{request.out}: corpus {manifest.digest}, vocabulary {manifest.n_vocab}")
    other = "" if manifest.n_vocab == vocabulary_size(GPT2) else f" --set model.vocabulary={manifest.n_vocab}"
    lines.append(f"next: `ettsweep grid --model bart-large --data {shlex.quote(str(request.out))}{other}`")
    return "\n".join(lines)


def _roomy(mean: float) -> int:
    """Return a length of the model in which documents of so many tokens on average mostly fit: a power of two."""
    return 1 << max(4, math.ceil(math.log2(2 * mean)))
