"""One run on several processes, which really are some: the same curve as on one, and resumed bit for bit."""

import pytest
import torch
from support.made_runs import CPU, ODD, REL, MakeSpec, Train, Trained, curve, numbers, result_of

from ettsweep.errors import InputError, LostProcessError
from ettsweep.trainer.tasks.task import BatchShare
from ettsweep.trainer.training.distributed import ProcessGroup, detect_lost_process
from ettsweep.trainer.training.run import prepare
from ettsweep.trainer.training.runtime_settings import RuntimeSettings, resolve


def test_curves_agree_on_any_number_of_processes_and_with_accumulation(
    train: Train, trained: Trained, make_spec: MakeSpec
) -> None:
    """33 samples are 16 and 17 on two processes, 11 each on three."""
    spec = make_spec(batch_size=ODD, lr=0.25)
    (two, three), ends = trained((spec, {"world": 2}), (spec, {"world": 3, "micro_batch": 4}))
    assert {end for trial in ends for end in trial} == {"ended"}
    whole = train(spec)
    for run, processes, micro_batch in ((two, 2, 17), (three, 3, 4)):
        for key in ("loss", "grad_norm", "val_loss"):
            assert curve(run, key) == pytest.approx(curve(whole, key), rel=REL), key
        assert [line["step"] for line in run.history()] == [line["step"] for line in whole.history()]
        result, attempt = result_of(run), run.attempt(1)
        assert (result["execution"]["processes"], result["execution"]["micro_batch"]) == (processes, micro_batch)
        # Each process has a clock of its own, and on a busy machine they are not read at once.
        assert result["device_s"] == pytest.approx(processes * result["wall_s"], rel=0.1)
        assert len(run.history()) == 24 + 3, "one process writes"
        assert attempt.log_text().count("finished") == 1
    assert curve(two) != curve(whole), "two processes trained it"


def test_each_sample_of_a_batch_weighs_the_same_however_it_is_cut(make_spec: MakeSpec) -> None:
    """The parts' losses and gradients, averaged over the processes, are those of the whole; no process is needed."""
    spec = make_spec(batch_size=ODD, optimizer={"kind": "sgd"}, strategy={"s": None}, wd=0.0, lr=1.0)

    def step(world: int, micro_batch: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        losses, moves = [], []
        for rank in range(world):
            trainer = prepare(spec, CPU, RuntimeSettings(micro_batch=micro_batch))
            trainer.share = BatchShare(spec.batch_size, rank, world, micro_batch)
            trainer.task._share = trainer.share  # type: ignore[attr-defined]
            before = torch.cat([p.detach().flatten().clone() for p in trainer.model.parameters()])
            loss, _, _ = trainer.train_step(1.0, trainer.task.batches(1))
            losses.append(loss)
            moves.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]) - before)
        return torch.stack(losses).mean(), torch.stack(moves).mean(0)

    loss, move = step(1, None)
    for world, micro_batch in ((1, 16), (2, 3), (5, 4)):
        other, moved = step(world, micro_batch)
        torch.testing.assert_close(other, loss, rtol=1e-5, atol=0)
        torch.testing.assert_close(moved, move, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_fp16_and_divergence_are_those_of_one_process(train: Train, trained: Trained, make_spec: MakeSpec) -> None:
    half = make_spec(precision="fp16", lr=0.25)
    wild = make_spec(lr=1e3, schedule={"total_steps": 60})
    (two, gone), ends = trained((half, {"world": 2, "micro_batch": 7}), (wild, {"world": 2}))
    assert ends == [["ended", "ended"]] * 2
    one = train(half)
    assert curve(two) == pytest.approx(curve(one), rel=1e-2)
    assert curve(two, "loss_scale") == curve(one, "loss_scale")
    assert (result_of(gone)["status"], gone.attempt_numbers(), gone.attempt(1).failure()) == ("diverged", [1], None)
    assert abs(result_of(gone)["diverged_step"] - result_of(train(wild))["diverged_step"]) <= 1


@pytest.mark.slow
def test_where_one_process_is_out_of_memory_all_halve_their_micro_batches(
    trained: Trained, make_spec: MakeSpec
) -> None:
    spec, sharded = make_spec(batch_size=ODD, lr=0.25), {"world": 2, "sharded": True}
    full = {"rank": 1, "how": "full", "after": 6, "every_steps": 5}
    (calm, run), ends = trained((spec, sharded | {"micro_batch": 6}), (spec, sharded | full))
    assert ends == [["ended"] * 2] * 2
    assert run.attempt(1).execution()["micro_batch"] == 6, "17 do not fit; 8 would make 8, 8 and 1"
    assert numbers(run) == numbers(calm)


def test_a_batch_of_fewer_samples_than_processes_is_refused(make_spec: MakeSpec) -> None:
    with pytest.raises(InputError, match="3 devices cannot share a batch of 2"):
        resolve(make_spec(batch_size=2), CPU, RuntimeSettings(), ProcessGroup(0, 3), {}, print)


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("[../gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:12345", True),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_only_what_tells_of_a_lost_connection_counts_as_one(text: str, lost: bool) -> None:
    with pytest.raises(LostProcessError if lost else RuntimeError) as raised, detect_lost_process():
        raise RuntimeError(text)
    assert str(raised.value).startswith("another process of this run is gone: " if lost else text)
