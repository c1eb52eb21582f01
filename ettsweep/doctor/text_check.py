"""Check tokenised text for a task: format, counts, tokenizer, vocabulary, and the digest of all tokens."""

from pathlib import Path

from ettsweep.console import format_count, progress
from ettsweep.doctor.checks import DoctorCheck, run_check
from ettsweep.errors import EttsweepError
from ettsweep.trainer.specs import ModelSpec, TextModel
from ettsweep.trainer.tasks.text.corpus_manifest import BLOCK_TOKENS, Counts, Manifest, read_manifest
from ettsweep.trainer.tasks.text.text_task import TextTask


def examine_text(task: TextTask, model: ModelSpec | None, data: str, samples: int | None) -> list[DoctorCheck]:
    """Return checks of a tokenised corpus: format, text, training and validation parts, vocabulary, tokenizer, shards.

    Args:
        task: of the text.
        model: model whose vocabulary it must match; None for any.
        data: folder of the corpus.
        samples: not used: a digest covers all files.
    """
    folder = Path(data)
    try:
        manifest = read_manifest(folder)
    except EttsweepError as error:
        return [DoctorCheck("form", "failed", str(error))]
    return [
        DoctorCheck("form", "ok", f"tokenised text, {folder}"),
        _text_row(task, manifest),
        DoctorCheck("training text", "ok", _describe_counts(manifest.train)),
        DoctorCheck("validation text", "ok", _describe_counts(manifest.val)),
        _vocabulary_row(model.vocabulary if isinstance(model, TextModel) else None, manifest),
        run_check("tokenizer", lambda: _check_tokenizer(folder, manifest)),
        run_check("shards", lambda: _check_shards(folder, manifest)),
    ]


def _text_row(task: TextTask, manifest: Manifest) -> DoctorCheck:
    if task.corpus in (None, manifest.digest):
        return DoctorCheck("text", "ok", manifest.digest)
    return DoctorCheck("text", "failed", f"the grid needs the text {task.corpus}, this is {manifest.digest}")


def _describe_counts(counts: Counts) -> str:
    long_sentences = (
        f", {counts.long_sentences} of them longer than {BLOCK_TOKENS} tokens" if counts.long_sentences else ""
    )
    documents = (
        f"{format_count(counts.documents, 'document')}, {format_count(counts.sentences, 'sentence')}{long_sentences}"
    )
    blocks = f"{format_count(counts.blocks, 'block')} of up to {BLOCK_TOKENS}"
    return f"{documents}, {format_count(counts.tokens, 'token')}, {blocks}"


def _vocabulary_row(model_vocabulary: int | None, manifest: Manifest) -> DoctorCheck:
    if model_vocabulary in (None, manifest.n_vocab):
        return DoctorCheck("vocabulary", "ok", str(manifest.n_vocab))
    remedy = f"--set model.vocabulary={manifest.n_vocab}, or tokenise with another --tokenizer"
    return DoctorCheck(
        "vocabulary", "failed", f"the text has {manifest.n_vocab} tokens, the model {model_vocabulary}: {remedy}"
    )


def _check_tokenizer(folder: Path, manifest: Manifest) -> str:
    from ettsweep.trainer.tasks.text.corpus import read_corpus_tokenizer

    tokenizer = read_corpus_tokenizer(folder, manifest)
    return f"byte-level BPE with {tokenizer.bpe_tokens} tokens, that of the text"


def _check_shards(folder: Path, manifest: Manifest) -> str:
    from ettsweep.trainer.tasks.text.corpus import verify

    size = sum(shard.size for shard in manifest.shards)
    with progress("reading shards", size, "bytes") as advance:
        verify(folder, manifest, advance)
    files = format_count(len(manifest.shards), "file")
    return f"{files} of {size / 1e6:.1f} MB in all, with the digest of the manifest"
