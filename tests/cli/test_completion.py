"""What a shell is offered by typer's own completion, which asks the command with variables of the environment."""

import os
import subprocess

import pytest
from support.commandline import ETTSWEEP

pytestmark = pytest.mark.usefixtures("process")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ver"], ["verify-optimum", "verdict"]),
        (["status", "--st"], ["--strategy", "--state"]),
        (["status", "--format", ""], ["table", "json", "csv", "markdown"]),
    ],
    ids=["commands", "options", "values"],
)
def test_bash_is_offered(words: list[str], offered: list[str]) -> None:
    line = ["ettsweep", *words]
    asking = {"_ETTSWEEP_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(line), "COMP_CWORD": str(len(words))}
    asked = subprocess.run([ETTSWEEP], capture_output=True, text=True, env=os.environ | asking)
    assert (asked.stdout.split(), asked.stderr) == (offered, "")
