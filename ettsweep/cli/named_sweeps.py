"""The command group sweeps: list and delete."""

from typing import Annotated

import typer

from ettsweep.cli.options import DEFAULT_RESULTS, ExistingResults, Form, Results, Yes, require_folder
from ettsweep.cli.prompts import confirm, repeat_option, shell_command
from ettsweep.console import Format, format_count, print_note, print_table
from ettsweep.errors import CorruptError, InputError

app = typer.Typer(
    name="sweeps",
    help="List sweeps, or delete some.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

Names = Annotated[
    list[str],
    typer.Argument(help="Names of sweeps.", metavar="NAME...", show_default=False),
]


@app.callback()
def list_sweeps(
    context: typer.Context,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """List the sweeps with the states of their runs, device hours and verdicts."""
    # Typer runs this callback before a subcommand too; there, `sweeps --results a delete` would drop it silently.
    if context.invoked_subcommand:
        for option in ("form", "results"):
            if (source := context.get_parameter_source(option)) and source.name == "COMMANDLINE":
                raise InputError(f"put options after `sweeps {context.invoked_subcommand}`")
        return
    from ettsweep.cli.verdict_tables import sweep_row
    from ettsweep.launch.follow import read_run_index
    from ettsweep.study.judgement import judge
    from ettsweep.study.sweep_store import load_sweep_store

    sweep_store, run_index = load_sweep_store(require_folder(results)), read_run_index(results)
    sweeps = sweep_store.sweeps.values()
    rows = [sweep_row(sweep, sweep_store, run_index, judge(sweep.studies, run_index)) for sweep in sweeps]
    print_table(rows, form)
    for name, problem in sweep_store.broken.items():
        print_note(f"sweep {name} is left out: {problem}")
    # With nothing readable the command fails; with something, problems are only noted.
    if sweep_store.broken and not sweep_store.sweeps:
        raise CorruptError(
            f"{results}: cannot read {format_count(len(sweep_store.broken), 'sweep')}, and there are no others"
        )
    print_note("" if sweep_store.sweeps else f"{results}: no sweeps yet; `ettsweep grid --model vit-digits` starts one")


@app.command("delete")
def delete(names: Names, yes: Yes = False, results: ExistingResults = DEFAULT_RESULTS) -> None:
    """Delete sweeps, and keep their runs. `clean --unused-runs` removes runs of no sweep."""
    from ettsweep.launch.follow import read_run_index
    from ettsweep.runs.state import State
    from ettsweep.study.sweep_store import check_exists, delete_sweep, load_sweep_store, runs_of_sweeps

    sweep_store = load_sweep_store(results)
    for name in names:
        check_exists(sweep_store, name)
    # The runs of a broken sweep are unknown.
    readable = [name for name in names if name in sweep_store.sweeps]
    runs = runs_of_sweeps(read_run_index(results).runs.values(), sweep_store, readable) if readable else []
    states = State.QUEUED, State.HELD, State.RUNNING
    if active := sum(run.state in states for run in runs):
        cancel_command = shell_command("cancel", *repeat_option("--sweep", readable))
        print_note(f"{format_count(active, 'run')} will still train: {cancel_command} stops that")
    confirm(f"delete {', '.join(names)} and keep the runs?", yes)
    for name in dict.fromkeys(names):
        delete_sweep(results, name)
        print_note(f"deleted sweep {name}")
    if runs:
        subject = f"kept {format_count(len(runs), 'run')}"
        print_note(f"{subject}: `ettsweep clean --unused-runs` removes those of no other sweep")
