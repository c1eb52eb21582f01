"""The command data text: text becomes a corpus of tokens."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ettsweep.cli.options import (
    Form,
    Yes,
)
from ettsweep.cli.prompts import confirm
from ettsweep.console import Format, print_note, print_table

# --- data -----------------------------------------------------------------------------------------------------------

app = typer.Typer(name="data", help="Make data ready for training.", no_args_is_help=True, rich_markup_mode=None)


@app.command("text")
def data_text(
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="FILES",
            help="Text: a .txt, .jsonl (both also .gz) or .parquet file, a folder or pattern of them, a folder of "
            "datasets.save_to_disk, or hfds/OWNER/NAME[:SPLIT]; repeatable.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write to; the --data of a grid.")],
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="DIR", help="GPT-2's tokenizer files, or those of another byte-level BPE.")
    ] = None,
    bpe_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Train a byte-level BPE of so many tokens instead.")
    ] = None,
    val_fraction: Annotated[float, typer.Option(help="Share of the documents that validate.")] = 0.005,
    text_field: Annotated[str, typer.Option(help="Field of the text in JSON lines and tables.")] = "text",
    documents: Annotated[
        Literal["blank-line", "line", "file"],
        typer.Option(help="What a document is in text files: what stands between blank lines, a line, or a file."),
    ] = "blank-line",
    shard_mib: Annotated[float, typer.Option(help="Text that a process works on at a time, in MiB; up to 64.")] = 16.0,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one per core by default.")] = None,
    yes: Yes = False,
    form: Form = Format.TABLE,
) -> None:
    """Tokenise text for the task `text`, on all cores; what a killed command has finished is kept.

    It asks before it replaces a corpus by another, be that made otherwise or of text that has changed.
    """
    from ettsweep.trainer.tasks.text.corpus_folder import corpus_there
    from ettsweep.trainer.tasks.text.corpus_manifest import Manifest
    from ettsweep.trainer.tasks.text.preparation import (
        CorpusRequest,
        check_request,
        corpus_rows,
        corpus_summary,
        made_otherwise,
        tokenise,
    )

    request = CorpusRequest(
        tuple(inputs), out, tokenizer, bpe_tokens, val_fraction, text_field, documents, shard_mib, workers
    )
    check_request(request)
    confirmed_digests: list[str] = []

    def agree(existing: Manifest, why: str = "made of text that has changed since, or by another version") -> None:
        """Ask whether a corpus may be replaced, unless that was asked before its text was tokenised."""
        if existing.digest not in confirmed_digests:
            warning = f"{out} holds corpus {existing.digest}, {why}; runs made for it cannot go on without it"
            print_note(f"{warning}; another --out keeps both")
            confirm("replace it?", yes)
            confirmed_digests.append(existing.digest)

    if (existing := corpus_there(out)) and (difference := made_otherwise(request, existing)):
        agree(existing, f"made with {difference}")
    outcome = tokenise(request, agree)
    rows = corpus_rows(outcome.manifest)
    print_table(
        rows, form, data={"digest": outcome.manifest.digest, "n_vocab": outcome.manifest.n_vocab, "parts": rows}
    )
    print_note(corpus_summary(request, outcome))
