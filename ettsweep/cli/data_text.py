"""The command data text: tokenise text into a corpus."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ettsweep.cli.options import Form, Yes
from ettsweep.cli.parsers import parse_location, parse_path
from ettsweep.cli.prompts import confirm
from ettsweep.console import Format, print_note, print_table

app = typer.Typer(name="data", help="Prepare data for training.", no_args_is_help=True, rich_markup_mode=None)


@app.command("text")
def data_text(
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            parser=parse_location,
            metavar="FILES",
            help="Text: .txt, .jsonl, .csv (also compressed) or .parquet, as a file, folder or pattern; a folder of "
            "datasets.save_to_disk; or hfds/OWNER/NAME[:SPLIT]; repeatable.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", parser=parse_path, metavar="DIR", help="Folder to write to; pass it as --data to a grid."
        ),
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            parser=parse_path,
            metavar="DIR",
            help="Folder with the files of GPT-2's or another byte-level BPE tokenizer.",
        ),
    ] = None,
    bpe_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Train a byte-level BPE tokenizer with N tokens instead.")
    ] = None,
    val_fraction: Annotated[float, typer.Option(help="Fraction of the documents for validation.")] = 0.005,
    text_field: Annotated[str, typer.Option(help="Field with the text in JSON lines and tables.")] = "text",
    documents: Annotated[
        Literal["blank-line", "line", "file"],
        typer.Option(help="Documents of text files: blocks between blank lines, lines, or whole files."),
    ] = "blank-line",
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes; by default one per core.")] = None,
    yes: Yes = False,
    form: Form = Format.TABLE,
) -> None:
    """Tokenise text for the task `text`, on all cores.

    Run it again to resume. It asks before it replaces a different corpus.
    """
    from ettsweep.doctor.text_corpus import CorpusRequest, prepare_corpus

    def confirm_replacement(warning: str) -> None:
        print_note(f"{warning}; use another --out to keep both")
        confirm("replace it?", yes)

    rows, data, summary = prepare_corpus(
        CorpusRequest(tuple(inputs), out, tokenizer, bpe_tokens, val_fraction, text_field, documents, workers),
        confirm_replacement,
    )
    print_table(rows, form, data=data)
    print_note(summary)
