"""What a session measures, step by step: what matters most comes first, since a step ends when its time is up."""

import itertools
from pathlib import Path

from bench.session.frame import Item, Json, Step

MODULE = "bench.session"
BUDGET_S = 450.0
NAMES = {
    1: "attention",
    2: "vit",
    3: "vit-runs",
    4: "encdec",
    5: "doctor",
    6: "workers",
    7: "packs",
}


def make_step(number: int, work: Path, *, small: bool, budget_s: float | None = None) -> Step:
    """Return a step; `work` is a folder for what its items share."""
    folder = work / NAMES[number]
    folder.mkdir(parents=True, exist_ok=True)
    made = {1: _attention, 2: _vit, 3: _vit_runs, 4: _encdec, 5: _doctor, 6: _workers, 7: _packs}
    return Step(number, NAMES[number], made[number](str(folder), small), budget_s or BUDGET_S)


def _item(name: str, function: str, limit_s: float = 150.0, **arguments: object) -> Item:
    alone = function.startswith(("runs:", "workers:", "doctor:doctor", "packs:command"))
    return Item(name, f"{MODULE}.{function}", arguments, limit_s, alone)


def _attention(folder: str, small: bool) -> list[Item]:
    shapes: dict[tuple[str, int], tuple[str, list[int], float]] = {}
    for channels in (64, 128, 32):
        b, t = (2, 16) if small else (256, 196)
        shapes["vit", channels] = ("full", [b, t, 12 * 64 // channels, channels], 0.0)
        b, t = (2, 24) if small else (32, 514)
        for what, kind in (("encoder, cross", "key mask"), ("decoder", "causal")):
            shapes[what, channels] = (kind, [b, t, 16 * 64 // channels, channels], 0.1)
    backends = ("default", "math") if small else ("default", "cudnn", "flash", "efficient", "math")
    seconds = 0.005 if small else 0.2
    items = [
        _item(
            f"attention {what}, {kind}, head size {channels}, {backend}",
            "attention:attention",
            shape=shape,
            kind=kind,
            backend=backend,
            dropout=dropout,
            seconds=seconds,
        )
        for (what, channels), (kind, shape, dropout) in shapes.items()
        for backend in backends
    ]
    width, chunks, tokens = (32, (16,), 64) if small else (1024, (1336, 10688), 16 * 514)
    words = (50, 64) if small else (50265, 50304)
    heads = [
        _item(f"head {way}", "attention:head", words=words[0], tokens=tokens, width=width, way=way, seconds=seconds)
        for way in ("ours", "ours, columns as they are", "all logits")
    ]
    products = [
        _item(f"head, {v} x {n}", "attention:products", words=v, tokens=n, width=width, seconds=seconds)
        for v, n in itertools.product(words, chunks)
    ]
    return [*items[: 3 * len(backends)], *heads, *products, *items[3 * len(backends) :]]


def _contest(name: str, function: str, model: str, settings: list[tuple[str, bool, int]], small: bool) -> list[Item]:
    return [
        _item(
            f"{model} beside {name}, {precision}, {'compiled' if compiled else 'eager'}, batch {size}",
            function,
            240.0,
            model=model,
            precision=precision,
            compiled=compiled,
            batch_size=size,
            count=2 if small else 5,
            quick=small,
        )
        for precision, compiled, size in settings
    ]


def _vit(folder: str, small: bool) -> list[Item]:
    if small:
        return _contest("timm", "models:beside_timm", "vit-digits", [("bf16", False, 4), ("fp32", False, 4)], small)
    settings = [(p, c, size) for size in (512, 256, 1024) for c in (True, False) for p in ("bf16", "fp16")]
    return _contest("timm", "models:beside_timm", "vit-b16", settings, small)


def _vit_runs(folder: str, small: bool) -> list[Item]:
    size = [12, 16, 160] if small else [80, 512, 5120]
    strategies = ("ntk",) if small else ("ntk", "standard", "hybrid", "mup")
    shared: Json = {"folder": folder, "small": small}
    items = [_item("images", "runs:images", count=size[2], **shared)]
    for precision in ("bf16",) if small else ("bf16", "fp16"):
        items += [
            _item(f"vit-b16, {s}, {precision}", "runs:vit", strategy=s, precision=precision, size=size, **shared)
            for s in strategies
        ]
        items += [_item(f"vit-b16 resumed, {precision}", "runs:vit_resumed", precision=precision, size=size, **shared)]
    return items


def _encdec(folder: str, small: bool) -> list[Item]:
    shared: Json = {"folder": folder, "small": small}

    def text(model: str, strategy: str, steps: int, size: int) -> Item:
        what = {"model": model, "strategy": strategy, "steps": steps, "batch_size": size}
        return _item(f"{model} on text, {strategy}", "runs:text", 200.0, **what, **shared)

    def alone(model: str, size: int) -> Item:
        what = {"model": model, "precision": "bf16", "compiled": False, "batch_size": size, "quick": small}
        return _item(f"{model} alone, bf16, batch {size}", "models:alone", 200.0, **what)

    if small:
        beside = _contest("MBart", "models:beside_mbart", "encdec-tiny", [("bf16", False, 2)], small)
        return [*beside, alone("encdec-tiny", 2), text("bart-large", "ntk", 20, 4)]
    settings = [("bf16", True, 32), ("bf16", False, 32), ("fp16", True, 32), ("fp16", False, 32)]
    beside = _contest("MBart", "models:beside_mbart", "bart-large", settings, small)
    more = _contest("MBart", "models:beside_mbart", "bart-large", [("bf16", True, 16), ("bf16", True, 64)], small)
    runs = [text("r2c2", "ntk", 20, 32), text("bart-large", "standard", 100, 64), text("bart-large", "ntk", 100, 64)]
    return [*beside[:2], runs[0], *beside[2:], *runs[1:], alone("r2c2", 16), *more]


def _doctor(folder: str, small: bool) -> list[Item]:
    if small:
        options = ["--peak", "--model", "vit-digits", "--fit", "--launch-set", "devices=cpu"]
        measured = [_item("peak and fit", "doctor:doctor", options=options, rows=["peak", "fit"])]
    else:
        models = ("vit-b16", "bart-large")
        measured = [_item("peak", "doctor:doctor", options=["--peak"], rows=["peak"])]
        measured += [
            _item(f"fit {model}", "doctor:doctor", options=["--model", model, "--fit"], rows=["fit"])
            for model in models
        ]
    settings: list[tuple[str, str, bool, int]] = [("vit-digits", "bf16", False, 8)]
    if not small:
        settings = [
            (model, precision, compiled, size)
            for model, size in (("vit-b16", 64), ("bart-large", 8))
            for compiled in (False, True)
            for precision in ("bf16", "fp16")
        ]
    waits = [
        _item(
            f"waits of {model}, {precision}, {'compiled' if compiled else 'eager'}",
            "doctor:waits",
            model=model,
            precision=precision,
            compiled=compiled,
            batch_size=size,
            steps=10,
        )
        for model, precision, compiled, size in settings
    ]
    stacks = [
        _item(f"waits of a stack of 8, {way}", "doctor:waits_of_stack", members=8, compiled=way == "fast", steps=10)
        for way in (("exact",) if small else ("exact", "fast"))
    ]
    return [*measured, *waits, *stacks]


def _workers(folder: str, small: bool) -> list[Item]:
    counts = ((1, False), (2, False), (2, True)) if small else tuple(itertools.product((1, 2, 4), (False, True)))
    counts = tuple(sorted(counts, key=lambda one: one[1]))  # those without MPS first
    return [
        _item(
            f"{slots} worker{'s' if slots > 1 else ''}{', MPS' if mps else ''}",
            "workers:runs",
            120.0,
            slots=slots,
            seeds=1 if small else 4,
            mps=mps,
            small=small,
        )
        for slots, mps in counts
    ]


def _packs(folder: str, small: bool) -> list[Item]:
    sizes = (1, 2) if small else (1, 8, 32, 128)
    items = [
        _item(
            f"{model}, {members} at once",
            "packs:steps",
            200.0,
            model=model,
            members=members,
            turns=1 if small else 5 if members <= 8 else 3,
            steps_a_turn=2 if small else 10 if members <= 8 else 4,
            compiled=not small,
        )
        for model in (("vit-digits",) if small else ("vit-digits", "vit-cifar10"))
        for members in sizes
    ]
    ways = ["pack=1", "pack=32"]
    return items if small else [*items, _item("a grid, alone and packed", "packs:command", seeds=4, ways=ways)]
