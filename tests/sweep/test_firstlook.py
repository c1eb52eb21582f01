"""First looks: what one asks for, where the whole search starts from it, how far it goes, and what becomes of both."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.commandline import GRID, finish, keep, write_grid

from ettsweep.errors import InputError
from ettsweep.launch.cost import cost_so_far
from ettsweep.runs.folder import RunDir
from ettsweep.sweep.changes import add, check_name, extend, propose
from ettsweep.sweep.criterion import Stated
from ettsweep.sweep.firstlook import first_look, looked_at, looks_of, name_for, starts_from
from ettsweep.sweep.gridfile import load_request
from ettsweep.sweep.ledger import load_ledger
from ettsweep.sweep.search import Axis, Centre, Point, Request, Search, with_corpus
from ettsweep.sweep.searching import Start
from ettsweep.sweep.sweeps import Entry, Proposal, Sweep, load_sweeps

Ask = Callable[..., Request]

NARROW = {"model": {"width": 8, "heads": 2}}
WIDE: dict[str, Any] = {
    "model": GRID["model"] | {"width": 16, "heads": 4},
    "lr": {"range": [-3, 3]},
    "criterion": {},
    "first_look": NARROW,
}
"""A model of width 16 whose first look is the small one, of width 8."""


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Return a function that makes what `search` asks for of the wide grid."""

    def make(*, changes: Mapping[str, object] | None = None, **options: Any) -> Request:
        path = write_grid(tmp_path / "w16.yaml", **(WIDE | dict(changes or {})))
        return load_request(path, **options).model_copy(update={"searched": True})

    return make


def only(results: Path) -> Sweep:
    (sweep,) = load_sweeps(results).named.values()
    return sweep


# --- what is asked for ------------------------------------------------------------------------------------------------


def test_a_first_look_asks_for_as_many_steps_around_the_centres_carried_to_its_width(ask: Ask) -> None:
    """Under standard lr is 16 / 8 times as large there, under ntk (8 / 16)^0.5 times; wd is the other way round."""
    centres = {"standard": {"lr": 0.25, "wd": 0.25}, "ntk": {"lr": 8.0, "wd": 0.125}}
    request = ask(changes={"centre": centres}, strategies=["standard", "ntk", "mup"], seeds=[3, 4])
    look = first_look(request, ["standard", "ntk"])
    assert look.recipe == request.first_look
    assert list(look.centres) == ["standard", "ntk"]
    assert look.centres["standard"] == Centre(lr=0.5, wd=0.125)
    assert (look.centres["ntk"].lr, look.centres["ntk"].wd) == pytest.approx((8 * 0.5**0.5, 0.125 * 2**0.5))
    assert (look.lr, look.wd, look.seeds, look.searched) == (request.lr, request.wd, (3, 4), True)
    assert look.first_look is None
    assert not {s.family for s in look.searches()} & {s.family for s in request.searches()}, "no verdict mixes them"


def test_at_the_same_width_the_centres_stay(ask: Ask) -> None:
    request = ask(changes={"first_look": {"schedule": {"total_steps": 12}}}, strategies=["standard", "mup"])
    assert first_look(request, ["standard", "mup"]).centres == request.centres


def test_a_centre_that_leaves_the_range_on_its_way_is_refused(ask: Ask) -> None:
    request = ask(changes={"centre": {"standard": {"lr": 1e30, "wd": 0.25}}})
    with pytest.raises(InputError, match=r"^the centre of standard at width 8: lr: a number between 1e-30 and 1e30"):
        first_look(request, ["standard"])


def test_a_first_look_at_text_is_of_the_text_at_hand(tmp_path: Path) -> None:
    changes = {"model": "encdec-tiny", "task": "pydoc", "first_look": {"task": {"samples": 64}}}
    request = with_corpus(load_request(write_grid(tmp_path / "text.yaml", **changes)))
    assert request.first_look
    assert (request.first_look.task.samples, request.recipe.task.samples) == (64, None)  # type: ignore[attr-defined]
    assert request.first_look.task.corpus == request.recipe.task.corpus  # type: ignore[attr-defined]
    assert request.recipe.task.corpus  # type: ignore[attr-defined]


# --- what is kept of it -----------------------------------------------------------------------------------------------


def test_a_first_look_is_read_as_it_was_kept(ask: Ask, results: Path) -> None:
    changes = {"first_look": NARROW | {"task": {"samples": 64}, "schedule": {"epochs": 3}}}
    extend(results, "w16", request := ask(changes=changes))
    assert only(results).requests == (request,)
    assert only(results).asked_again().first_look == request.first_look
    assert request.first_look
    assert (request.first_look.model.width, request.first_look.schedule.total_steps) == (8, 6)


def test_another_first_look_is_kept_and_the_same_or_none_is_not_asked_again(ask: Ask, results: Path) -> None:
    extend(results, "w16", ask())
    for same in (ask(), ask(overrides=["first_look=null"])):
        assert extend(results, "w16", same) == ""
    other = ask(overrides=["first_look.schedule.total_steps=12"])
    assert extend(results, "w16", other) == "sweep w16 is extended"
    assert only(results).requests[-1].first_look == other.first_look


def test_the_sweep_of_a_first_look_is_archived_and_stays_so(ask: Ask, results: Path) -> None:
    look = first_look(ask(), ["standard"])
    assert extend(results, "w16-look", look, "why", archived=True) == "sweep w16-look is made, archived"
    assert extend(results, "w16-look", look, "why", archived=True) == ""
    more = look.model_copy(update={"seeds": (0, 1)})
    assert extend(results, "w16-look", more, "why", archived=True) == "sweep w16-look is extended"
    assert only(results).archived
    assert load_sweeps(results).chosen() == []


# --- its name ---------------------------------------------------------------------------------------------------------


def test_a_first_look_has_the_name_of_what_is_there_and_another_one_a_further_name(ask: Ask, results: Path) -> None:
    def name(look: Request, sweep: str = "w16") -> str:
        return name_for(look, sweep, load_sweeps(results))

    narrow, shorter = (
        first_look(ask(changes={"first_look": changes}), ["standard"])
        for changes in (NARROW, {"schedule": {"total_steps": 12}})
    )
    assert name(narrow) == "w16-look"
    extend(results, "w16-look", narrow, archived=True)
    assert (name(narrow), name(shorter)) == ("w16-look", "w16-look-2")
    extend(results, "w16-look-2", shorter, archived=True)
    (results / "sweeps" / "w16-look" / "0001.yaml").write_text("[")
    assert (name(narrow), name(shorter)) == ("w16-look-3", "w16-look-2"), "what is damaged is left alone"


@pytest.mark.parametrize("name", ["w" * 64, "w" * 60 + "-x.y", "a.b-" * 16 + "", "w"])
def test_any_sweep_has_a_first_look_with_a_name(ask: Ask, results: Path, name: str) -> None:
    for total_steps in (12, 10, 8):
        changes = {"first_look": {"schedule": {"total_steps": total_steps}}}
        look = first_look(ask(changes=changes), ["standard"])
        found = check_name(name_for(look, name, load_sweeps(results)))
        assert found not in {name, *load_sweeps(results).named}
        extend(results, found, look, archived=True)


# --- where the whole one starts ---------------------------------------------------------------------------------------


def looked(results: Path, request: Request, losses: Mapping[float, float | None], strategy: str = "standard") -> Search:
    """Have the first look of a request know the loss at some lr, None where that diverged; return the whole search."""
    look = first_look(request, [strategy])
    extend(results, "w16-look", look, archived=True)
    points = tuple(Centre(lr=lr, wd=look.centres[strategy].wd) for lr in losses)
    propose(results, "w16-look", [Proposal(strategy=strategy, sampler="surface", points=points)])
    for search in load_sweeps(results).named["w16-look"].searches:
        for lr, loss in losses.items():
            spec = search.run(lr=lr)
            if loss is not None:
                finish(results, spec, loss)
                continue
            run = RunDir.create(results, spec)
            assert run.claim({}, after=0)
            assert run.finish({"status": "diverged", "diverged_step": 3, "score": None, "device_s": 36.0}, [])
    extend(results, "w16", request)
    return next(s for s in load_sweeps(results).named["w16"].searches if s.strategy == strategy)


def start(results: Path, search: Search) -> Start | None:
    looks = load_sweeps(results).named["w16-look"].searches
    return starts_from(looks, [search], load_ledger(results)).get(search.key)


def test_the_whole_search_starts_at_the_map_of_the_best_point_and_says_what_that_cost(ask: Ask, results: Path) -> None:
    search = looked(results, ask(), {0.5: 2.0, 1.0: 1.5, 2.0: None})
    begun = start(results, search)
    assert begun
    assert begun.point == Point(0.5, 0.25)
    assert begun.reason == (
        "from the best of 3 points (0.03 device hours) at first look, (2^0, 2^-3) of standard at width 8 of sweep "
        "w16-look, mapped to (2^-1, 2^-2), nearest (2^-1, 2^-2)"
    )


@pytest.mark.parametrize(
    ("best", "low", "high"), [(0.5, -2, 2), (1.0, -1, 3), (2.0, 0, 3), (4.0, 1, 3), (2.0**-4, -3, -1)]
)
def test_it_keeps_to_two_steps_around_its_start_and_to_the_ranges(
    ask: Ask, results: Path, best: float, low: int, high: int
) -> None:
    """The centre there is 0.5, here 0.25, and the ranges are three steps each way; wd is fixed."""
    begun = start(results, looked(results, ask(), {best: 1.0}))
    assert begun
    assert begun.region == (Point(0.25 * 2.0**low, 0.25), Point(0.25 * 2.0**high, 0.25))


def test_steps_are_those_of_each_axis(ask: Ask, results: Path) -> None:
    axes = {"lr": {"range": [-2, 2], "step": 0.5}, "wd": {"range": [-6, 6], "step": 2}}
    begun = start(results, looked(results, ask(changes=axes), {0.5: 1.0}))
    assert begun
    assert begun.region == (Point(0.25 / 2, 0.25 / 16), Point(0.25 * 2, 0.25 * 16))


def test_what_another_sweep_has_run_of_the_cheaper_recipe_counts_too(ask: Ask, results: Path) -> None:
    """A whole grid of it is there: nothing is left to propose. A better run between its points is on another lattice."""
    search = looked(results, ask(), {})
    finish(results, first_look(ask(), ["standard"]).searches()[0].run(lr=0.5 * 2**0.5), 0.5)
    for number, spec in enumerate(first_look(ask(), ["standard"]).model_copy(update={"searched": False}).specs()):
        finish(results, spec, 1 + abs(number - 4))
    begun = start(results, search)
    assert begun
    assert begun.point == Point(0.5, 0.25)
    assert begun.reason.startswith("from the best of 7 points (0.07 device hours) at first look, (2^0, 2^-3) of ")


def test_where_all_diverged_nothing_is_known(ask: Ask, results: Path) -> None:
    assert start(results, looked(results, ask(), {0.5: None, 1.0: None})) is None


# --- the region afterwards --------------------------------------------------------------------------------------------

REGION = (Centre(lr=0.125, wd=0.25), Centre(lr=2.0, wd=0.25))


@pytest.fixture
def begun(ask: Ask, results: Path) -> Request:
    """Have the search of the wide grid under standard, of two strategies, begin in a region; return what was asked."""
    request = ask(strategies=["standard", "mup"])
    extend(results, "w16", request)
    for first, lr in ((True, 0.5), (False, 0.25)):
        points, region = (Centre(lr=lr, wd=0.25),), REGION if first else ()
        proposal = Proposal(strategy="standard", sampler="surface", points=points, region=region)
        propose(results, "w16", [proposal])
    return request


def region(results: Path, strategy: str = "standard") -> tuple[Point, ...]:
    return next(search.region for search in only(results).searches if search.strategy == strategy)


def test_a_search_keeps_to_its_region_whoever_goes_on_with_it(begun: Request, results: Path) -> None:
    assert region(results) == tuple(Point(centre.lr, centre.wd) for centre in REGION)
    assert region(results, "mup") == ()


@pytest.mark.parametrize(
    "changes", [{"launch_set": ("slots=2",)}, {"seeds": (0, 1)}, {"criterion": Stated(confidence=0.9)}]
)
def test_what_asks_for_no_other_ranges_leaves_the_region(
    begun: Request, results: Path, changes: dict[str, Any]
) -> None:
    """Another place to train, further seeds, another verdict: the same search goes on."""
    extend(results, "w16", begun.model_copy(update=changes))
    assert len(only(results).requests) == 2
    add(results, "w16", Entry(note="mine"))
    assert region(results) == tuple(Point(centre.lr, centre.wd) for centre in REGION)


def test_other_ranges_end_the_region(begun: Request, results: Path) -> None:
    extend(results, "w16", begun.model_copy(update={"lr": Axis(low=-3, high=5)}))
    assert len(only(results).requests) == 2
    assert region(results) == ()
    proposal = Proposal(strategy="standard", sampler="surface", points=(Centre(lr=4.0, wd=0.25),))
    propose(results, "w16", [proposal])
    assert region(results) == (), "also once there are proposals of the wider ranges"


def test_other_ranges_of_another_strategy_leave_the_region(begun: Request, results: Path) -> None:
    ranges = begun.model_copy(update={"lr": Axis(low=-3, high=5), "centres": {"mup": begun.centres["mup"]}})
    extend(results, "w16", ranges)
    assert region(results) == tuple(Point(centre.lr, centre.wd) for centre in REGION)


# --- what it cost -----------------------------------------------------------------------------------------------------


def cost(results: Path, *names: str) -> str:
    """Return the line of a report on some sweeps, or on all that are shown."""
    ledger, sweeps = load_ledger(results), load_sweeps(results)
    chosen = sweeps.chosen(names)
    families = {search.family for sweep in chosen for search in sweep.searches}
    runs = [run for family in families for run in ledger.family(family)]
    return cost_so_far(runs, sweeps.searches, looked_at(chosen, sweeps, ledger))


def test_the_runs_of_a_first_look_are_told_apart_from_those_of_the_whole(ask: Ask, results: Path) -> None:
    search = looked(results, ask(), {0.5: 2.0, 1.0: 1.5, 2.0: None})
    finish(results, search.run(lr=0.5), 1.0)
    assert cost(results) == "1 finished run: 0.01 device hours, and 3 runs at first look: 0.03 device hours"
    assert cost(results, "w16-look") == "3 finished runs: 0.03 device hours", "they are its own"
    other = write_grid(results.parent / "w32.yaml", model=GRID["model"] | {"width": 32, "heads": 4})
    keep(results, request := load_request(other))
    finish(results, request.specs()[0], 1.0)
    assert cost(results, "w32") == "1 finished run: 0.01 device hours"


def test_runs_that_another_sweep_asks_for_too_are_counted_once(ask: Ask, results: Path) -> None:
    """What was first looked at is a sweep in its own right as well."""
    search = looked(results, ask(), {0.5: 2.0})
    extend(results, "w8", first_look(ask(), ["standard"]))
    finish(results, search.run(lr=0.5), 1.0)
    assert cost(results, "w16") == "1 finished run: 0.01 device hours, and 1 run at first look: 0.01 device hours"
    assert cost(results).startswith("2 finished runs: 0.02 device hours")
    assert "first look" not in cost(results)


def test_the_first_looks_of_a_sweep_are_all_that_it_had(ask: Ask, results: Path) -> None:
    requests = [ask(), ask(overrides=["first_look.schedule.total_steps=12"])]
    for number, request in enumerate(requests):
        extend(results, f"look-{number}", first_look(request, ["standard"]), archived=True)
        extend(results, "w16", request)
    sweeps = load_sweeps(results)
    assert {one.name for one in looks_of(sweeps.named["w16"], sweeps)} == {"look-0", "look-1"}
    assert looks_of(sweeps.named["look-0"], sweeps) == []
