"""Preparation of a corpus for the task `text`, with a question before another one is replaced."""

from collections.abc import Callable
from typing import Any

from ettsweep.files import Json
from ettsweep.trainer.tasks.text.corpus_folder import existing_manifest
from ettsweep.trainer.tasks.text.corpus_manifest import Manifest
from ettsweep.trainer.tasks.text.preparation import (
    CorpusRequest,
    check_request,
    corpus_rows,
    corpus_summary,
    differing_options,
    tokenise,
)

__all__ = ["CorpusRequest", "prepare_corpus"]


def prepare_corpus(
    request: CorpusRequest, confirm_replacement: Callable[[str], None]
) -> tuple[list[dict[str, Any]], Json, str]:
    """Tokenise text; return the rows of a table on the corpus, the same as data, and a summary in a line.

    `confirm_replacement` is called with a warning, at most once for each corpus, before another one is replaced; it
    raises to keep it.
    """
    check_request(request)
    confirmed_digests: list[str] = []

    def confirm(
        existing: Manifest, reason: str = "made from text that has changed since, or by another version"
    ) -> None:
        if existing.digest not in confirmed_digests:
            confirm_replacement(
                f"{request.out} holds corpus {existing.digest}, {reason}; runs that use it cannot resume without it"
            )
            # `tokenise` asks again before it replaces the corpus: answer once.
            confirmed_digests.append(existing.digest)

    # Ask now if the options already differ; changed text shows only after tokenising, which may take hours.
    if (existing := existing_manifest(request.out)) and (difference := differing_options(request, existing)):
        confirm(existing, f"made with {difference}")
    outcome = tokenise(request, confirm)
    rows = corpus_rows(outcome.manifest)
    data = {"digest": outcome.manifest.digest, "n_vocab": outcome.manifest.n_vocab, "parts": rows}
    return rows, data, corpus_summary(request, outcome)
