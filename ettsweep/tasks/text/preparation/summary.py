"""What is said of a corpus that was made."""

import math
import shlex

from ettsweep.tasks.text.manifest import LONG, Manifest
from ettsweep.tasks.text.preparation.documents import asked_below
from ettsweep.tasks.text.preparation.request import CorpusRequest, Outcome
from ettsweep.vocabulary import vocabulary_size


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


def corpus_summary(request: CorpusRequest, outcome: Outcome) -> str:
    """Return what was done, what is worth knowing of the corpus, and what comes next."""
    manifest = outcome.manifest
    if outcome.made:
        rate = f"{outcome.tokens:,} tokens in {outcome.wall_s:.1f} s: {outcome.tokens / outcome.wall_s:,.0f} tokens/s"
        lines = [f"{rate} on {outcome.workers} {'process' if outcome.workers == 1 else 'processes'}"]
        if outcome.kept:
            lines.append(f"{outcome.kept} of {outcome.made + outcome.kept} parts were there already")
    else:
        lines = ["all of it was there already"]
    if manifest.settings.val_below != asked_below(request.val_fraction):
        lines.append(
            f"few documents: with --val-fraction {request.val_fraction} one side would be empty, so the document "
            "nearest to it was taken"
        )
    if manifest.skipped:
        lines.append(
            f"{manifest.skipped} documents without text were left out"
            if manifest.skipped > 1
            else "1 document without text was left out"
        )
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
            f"validation has {blocks} {'block' if blocks == 1 else 'blocks'} of up to {LONG} tokens, few to judge by: "
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
