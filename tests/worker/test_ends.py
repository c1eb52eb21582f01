"""What the output of a command tells of its end, on recorded ends of torchrun 2.14 with two processes."""

import pytest

from ettsweep.worker.ends import last_words, signal_below

CLOSES = """W1128 02:09:05 7728 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process {} closing signal SIGTERM
"""

FAILED = """E1128 02:09:05 7728 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) local_rank: 0 (pid: 7734)
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 7735)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 7735
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : {code} (pid: 7734)
  error_file: <N/A>
  traceback : {traceback}
============================================================
"""

OWN = CLOSES.format(7735) + FAILED.format(code=1, traceback="To enable traceback see: https://pytorch.org/")

TOLD = (
    CLOSES.format(7734)
    + CLOSES.format(7735)
    + """Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.api.SignalException: Process 7728 got signal: 15
"""
)

KILLED = [
    CLOSES.format(7735) + FAILED.format(code=-number, traceback=f"Signal {number} ({name}) received by PID 7734")
    for number, name in ((9, "SIGKILL"), (15, "SIGTERM"), (10, "SIGUSR1"))
]


def test_torchrun_or_a_process_of_it_was_killed_by_others() -> None:
    assert [signal_below(each.splitlines()) for each in KILLED] == ["SIGKILL", "SIGTERM", "SIGUSR1"]
    assert signal_below(TOLD.splitlines()) == "SIGTERM"


def test_a_process_that_torchrun_ends_since_another_has_failed_was_not_killed_by_others() -> None:
    assert not signal_below(OWN.splitlines())


def test_a_report_of_torchrun_that_is_cut_tells_closed_processes_from_killed_ones() -> None:
    cut = OWN.partition("Root Cause")[0]
    assert "(SIGTERM) received by PID 7735" in cut
    assert not signal_below(cut.splitlines()), "torchrun itself has closed it"
    assert signal_below((cut + "traceback : Signal 9 (SIGKILL) received by PID 7734").splitlines())


def test_where_one_node_has_failed_and_another_was_told_to_end_it_has_failed() -> None:
    assert not signal_below((OWN + TOLD).splitlines())
    assert signal_below((OWN + KILLED[0]).splitlines()) == "SIGKILL", "one was killed, the other failed for lack of it"


def test_the_first_error_of_a_rank_is_the_reason() -> None:
    raised = """[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 4, in <module>
[rank1]: ValueError: the learning rate is odd
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 5, in <module>
[rank0]: RuntimeError: Connection closed by peer
"""
    assert last_words((raised + OWN).splitlines()) == "ValueError: the learning rate is odd"
    logged = "[rank0]: step 10, loss 3.2\n" + raised.replace("[rank0]: Traceback", "[rank1]: Traceback")
    assert last_words(logged.splitlines()) == "ValueError: the learning rate is odd", "no line that a rank has logged"
    chained = """[rank1]: KeyError: 'lr'
[rank1]: During handling of the above exception, another exception occurred:
[rank1]: Traceback (most recent call last):
[rank1]: ValueError: no lr
"""
    assert last_words(("[rank1]: Traceback (most recent call last):\n" + chained).splitlines()) == "ValueError: no lr"
    assert last_words(["a step", "no luck", ""]) == "no luck"
    crashed = CLOSES.format(7735) + FAILED.format(code=-11, traceback="Signal 11 (SIGSEGV) received by PID 7734")
    assert last_words(("loss 3.2\n" + crashed).splitlines()) == "Signal 11 (SIGSEGV)"
    assert last_words([]) == "it printed nothing"


RAISED = """loss 3.2
Traceback (most recent call last):
  File "train.py", line 9, in main
    load(path)
ValueError: no such checkpoint
"""

HYDRA = "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"

ACCELERATE = """Traceback (most recent call last):
  File "/usr/bin/accelerate", line 8, in <module>
    sys.exit(main())
subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.
"""

BOX = "╭─ {} ─────────────────╮\n│ {}          │\n╰──────────────────────╯\n"


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("Error executing job with overrides: ['lr=1']\n" + RAISED + HYDRA, "ValueError: no such checkpoint"),
        (
            "Could not override 'lr'.\nKey 'lr' is not in struct\n    object_type=dict\n" + HYDRA,
            "Could not override 'lr'. Key 'lr' is not in struct object_type=dict",
        ),
        (RAISED + ACCELERATE, "ValueError: no such checkpoint"),
        (RAISED + OWN, "ValueError: no such checkpoint"),
        ("train.py: error: no lr\n" + ACCELERATE, "train.py: error: no lr"),
        (RAISED + "wandb: \nwandb: 🚀 View run at: https://wandb.ai/x\n", "ValueError: no such checkpoint"),
        ("wandb: ERROR api_key not configured\nwandb: 1 file\n", "wandb: ERROR api_key not configured"),
        (RAISED + "  path: /data/x\nwarnings.py:3: UserWarning: leaked 3 objects\n", "ValueError: no such checkpoint"),
        (RAISED.replace("no such checkpoint", "wrong keys:\n\thead"), "ValueError: wrong keys: head"),
        (RAISED + "\nDuring handling of the above exception, another exception occurred:\n\n" + RAISED, None),
        (RAISED + "Exception ignored in: <function x>\n" + RAISED[9:].replace("Value", "Type"), None),
        (BOX.format("Traceback (most recent call last)", "train.py:3") + "KeyError: 'lr'\nbye\n", "KeyError: 'lr'"),
        ("Error in file(x) :\n  cannot open '../x.csv'\nExecution halted\n", "cannot open '../x.csv'"),
        (RAISED + "falling back\nt.py: error: no option --lrr\n", "t.py: error: no option --lrr"),
        (BOX.format("Error", "No such option: --lrr"), "No such option: --lrr"),
    ],
)
def test_the_reason_is_the_exception_and_no_footer_of_a_framework(output: str, reason: str | None) -> None:
    assert last_words(output.splitlines()) == (reason or "ValueError: no such checkpoint")
