"""Prepare a corpus for tasks on text: a question before replacing another one, a table, and a summary."""

import math
import shlex
from collections.abc import Callable
from typing import Any

from ettsweep.console import format_count
from ettsweep.files import Json
from ettsweep.trainer.tasks.text.corpus_manifest import BLOCK_TOKENS, Manifest, Settings
from ettsweep.trainer.tasks.text.inputs import CorpusRequest
from ettsweep.trainer.tasks.text.preparation import CorpusOutcome, tokenise

__all__ = ["CorpusRequest", "prepare_corpus"]


def prepare_corpus(
    request: CorpusRequest, confirm_replacement: Callable[[str], None]
) -> tuple[list[dict[str, Any]], Json, str]:
    """Tokenise text; return the rows of a table, the same as data, and a summary line.

    Before it replaces another corpus, it calls `confirm_replacement` with a warning, which may raise.
    """
    replaced: list[str] = []

    def confirm(existing: Manifest, settings: Settings) -> None:
        reason = differing_options(request, existing, settings) or "made from files that have changed since"
        confirm_replacement(
            f"{request.out} has corpus {existing.digest}, {reason}; runs that use it cannot resume without it"
        )
        replaced.append(existing.digest)

    outcome = tokenise(request, confirm)
    rows = corpus_rows(outcome.manifest)
    data = {"digest": outcome.manifest.digest, "n_vocab": outcome.manifest.n_vocab, "parts": rows}
    summary = corpus_summary(request, outcome, next((old for old in replaced if old != outcome.manifest.digest), None))
    return rows, data, summary


def differing_options(request: CorpusRequest, existing: Manifest, settings: Settings) -> str:
    """Return the options of an existing corpus that differ; empty without any."""
    differences = [] if request.inputs == existing.inputs else [f"--input {text}" for text in existing.inputs]
    for name in ("val_fraction", "text_field", "documents"):
        if getattr(settings, name) != (value := getattr(existing.settings, name)):
            differences.append(f"--{name.replace('_', '-')} {value}")
    if settings.tokenizer != existing.settings.tokenizer:
        differences.append(f"another tokenizer, of {existing.bpe_tokens} tokens")
    return f"made with {' '.join(differences)}" if differences else ""


def corpus_rows(manifest: Manifest) -> list[dict[str, str | int]]:
    """Return a row of counts for the training and for the validation side of a corpus."""
    rows = []
    for side_name, counts in (("training", manifest.train), ("validation", manifest.val)):
        row: dict[str, str | int] = {"part": side_name, "documents": counts.documents, "sentences": counts.sentences}
        row |= {"tokens": counts.tokens, f"blocks_{BLOCK_TOKENS}": counts.blocks, "text_bytes": counts.text_bytes}
        rows.append(row)
    return rows


MIN_VAL_BLOCKS = 32
"""With fewer validation blocks, the summary recommends a larger share."""


def corpus_summary(request: CorpusRequest, outcome: CorpusOutcome, replaced: str | None) -> str:
    """Return lines on the work, on properties of the corpus that matter for training, and the next command."""
    manifest = outcome.manifest
    lines = [_work_line(outcome)]
    if outcome.moved:
        lines.append(
            f"few documents: --val-fraction {request.val_fraction} would leave one side empty, so it got one document"
        )
    if manifest.skipped:
        verb = "was" if manifest.skipped == 1 else "were"
        lines.append(f"{format_count(manifest.skipped, 'document')} without text {verb} left out")
    if long := manifest.train.long_sentences + manifest.val.long_sentences:
        verb, cut = ("has", "cuts it") if long == 1 else ("have", "cuts them")
        lines.append(f"{format_count(long, 'sentence')} {verb} more than {BLOCK_TOKENS} tokens; a block {cut}")
    if (mean := manifest.train.tokens / manifest.train.blocks) < BLOCK_TOKENS / 2:
        line = f"documents are short: blocks of up to {BLOCK_TOKENS} tokens have {mean:.0f} on average, "
        line += "the rest is padding"
        if (tokens := 1 << max(4, math.ceil(math.log2(2 * mean)))) < BLOCK_TOKENS:  # most documents fit into these
            line += f"; --set model.tokens={tokens} has less padding"
        if outcome.has_text_files and request.documents != "file":
            line += "; if each text file is one document: --documents file"
        lines.append(line)
    if (blocks := manifest.val.blocks) < MIN_VAL_BLOCKS:
        lines.append(
            f"validation has {format_count(blocks, 'block')} of up to {BLOCK_TOKENS} tokens, "
            "too few for a precise val_loss: use a larger --val-fraction"
        )
    if replaced:
        lines.append(f"replaced corpus {replaced}: runs on it cannot resume")
    lines.append(f"{request.out}: corpus {manifest.digest}, vocabulary {manifest.n_vocab}")
    options = f"--data {shlex.quote(str(request.out))} --set model.vocabulary={manifest.n_vocab}"
    lines.append(f"next: `ettsweep grid --model gpt2 {options}`, or another model of text")
    return "\n".join(lines)


def _work_line(outcome: CorpusOutcome) -> str:
    units = outcome.new_units + outcome.kept_units
    if not units:
        return "the corpus was complete already"
    tokens = outcome.manifest.train.tokens + outcome.manifest.val.tokens
    line = f"{tokens:,} tokens in {outcome.wall_s:.1f} s: {tokens / outcome.wall_s:,.0f} tokens/s "
    line += f"on {outcome.workers} {'process' if outcome.workers == 1 else 'processes'}"
    return line + (f"; {outcome.kept_units} of {units} parts were finished before" if outcome.kept_units else "")
