"""Commands on data and the machine: data text, doctor."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ettsweep.cli.options import (
    DEFAULT_RESULTS,
    Data,
    Form,
    Grid,
    Launch,
    LaunchSets,
    Model,
    Results,
    Sets,
    Yes,
)
from ettsweep.cli.prompts import confirm
from ettsweep.console import Format, print_note, print_table
from ettsweep.errors import InputError


def doctor(
    launch: Launch = None,
    launch_set: LaunchSets = None,
    data: Data = None,
    model: Model = None,
    grid: Grid = None,
    set_: Sets = None,
    task: Annotated[str | None, typer.Option(help="Task that --data is for, where no grid says so.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="Decode no more images of --data than this.")] = None,
    fit: Annotated[bool, typer.Option("--fit", help="Find the largest micro-batch of --model that fits here.")] = False,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Say what works here: torch, slots, the results folder; with a SLURM profile, what it would get.

    With --data, read all of a data set too: form and counts, each image, each shard of tokenised text. With --model and
    --fit, try how many images go through the model at once; with --model and a SLURM profile, say whether a job has the
    time to save it.
    """
    from ettsweep.doctor.data_check import examine_data, subject
    from ettsweep.doctor.image_check import shorten
    from ettsweep.doctor.machine import examine, examine_fit, examine_saving
    from ettsweep.launch.resolve import data_of, located
    from ettsweep.study.grid_file import find_grid, load_request
    from ettsweep.study.study import ANYWHERE

    if fit and (grid is None) == (model is None):
        raise InputError("--fit needs a grid: say which, with one of --model NAME and --grid FILE")
    sweep_spec, meant, where = None, None, {}
    if grid or model:
        sweep_spec = load_request(grid or find_grid(str(model)), overrides=set_ or [], start=ANYWHERE)
        data = data_of(sweep_spec) if data is None and not fit else data
    if data is not None:
        meant = subject(data, sweep_spec, set_ or [], task)
        where[meant.task.kind] = data = located(data, meant.task.kind)
    profile = launch or "local", launch_set or []
    checks = examine(results, *profile, where)
    if meant is not None and data is not None:
        checks += examine_data(meant, data, images)
    if sweep_spec is not None:
        checks += examine_saving(results, sweep_spec, *profile)
    if fit and sweep_spec is not None:
        checks += examine_fit(sweep_spec, *profile)
    checks = shorten(checks) if form in (Format.TABLE, Format.MARKDOWN) else checks
    print_table([{"check": c.what, "state": c.state, "detail": c.detail} for c in checks], form)
    raise typer.Exit(1 if any(c.state == "failed" for c in checks) else 0)


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
    agreed: list[str] = []

    def agree(there: Manifest, why: str = "made of text that has changed since, or by another version") -> None:
        """Ask whether a corpus may be replaced, unless that was asked before its text was tokenised."""
        if there.digest not in agreed:
            told = f"{out} holds corpus {there.digest}, {why}; runs made for it cannot go on without it"
            print_note(f"{told}; another --out keeps both")
            confirm("replace it?", yes)
            agreed.append(there.digest)

    if (there := corpus_there(out)) and (how := made_otherwise(request, there)):
        agree(there, f"made with {how}")
    outcome = tokenise(request, agree)
    rows = corpus_rows(outcome.manifest)
    print_table(
        rows, form, data={"digest": outcome.manifest.digest, "n_vocab": outcome.manifest.n_vocab, "parts": rows}
    )
    print_note(corpus_summary(request, outcome))
