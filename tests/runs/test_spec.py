"""Identity of runs and families, messages for values that cannot be, and kinds by their contract alone."""

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ettsweep.errors import InputError
from ettsweep.runs.spec import RunSpec, validated_spec
from ettsweep.strategies.strategy import map_point

MakeSpec = Callable[..., RunSpec]

PINNED = (
    '{"batch_size":64,"log2_lr":-7.0,"log2_wd":-1.0,"model":{"channels":1,"classes":10,"depth":2,"heads":4,'
    '"image_size":8,"kind":"vit","ln_eps":1e-06,"mlp_ratio":4,"patch_size":4,"width":32},'
    '"optimizer":{"beta1":0.9,"beta2":0.999,"clip_norm":null,"decay_pe":true,"eps":1e-08,"kind":"adamw"},'
    '"precision":"fp32","schedule":{"decay":"cosine","eval_every":12,"lr_min":0.0,"stop_step":null,'
    '"total_steps":240,"warmup_steps":24},"seed":3,"spikes":{"accuracy_drop":0.01,"accuracy_recovered":0.005,'
    '"eval_sigmas":5.0,"loss_recovered":0.025,"loss_rise":0.05,"merge_steps":10,"sigmas":6.0,"window_evals":5,'
    '"window_steps":128},"strategy":{"mlp_factor":"ignore","s":0.5},'
    '"task":{"kind":"digits","label_smoothing":0.0,"split_seed":0,"train_size":797}}'
)
"""What is hashed for one run, written by hand."""

PINNED_FIELDS: dict[str, Any] = {
    "model": {"width": 32, "depth": 2, "heads": 4, "patch_size": 4, "image_size": 8, "channels": 1, "classes": 10},
    "task": "digits",
    "schedule": {"total_steps": 240, "warmup_steps": 24, "eval_every": 12},
    "batch_size": 64,
    "strategy": {"s": 0.5},
    "lr": 0.0078125,
    "wd": 0.5,
    "seed": 3,
}


def test_id_of_a_known_run_never_changes() -> None:
    """A change here orphans every run that anybody has trained: give a new field an OmitAt instead."""
    spec = validated_spec(PINNED_FIELDS, "spec")
    assert spec.run_id == hashlib.sha256(PINNED.encode()).hexdigest()[:12] == "1f8ef909b077"
    family = {k: v for k, v in json.loads(PINNED).items() if k not in ("log2_lr", "log2_wd", "seed")}
    text = json.dumps(family, sort_keys=True, separators=(",", ":"))
    assert spec.family_id == hashlib.sha256(text.encode()).hexdigest()[:12] == "5d93276058a2"


def test_1_and_1_0_are_one_number(make_spec: MakeSpec) -> None:
    with_ints = make_spec(lr=1, strategy={"s": 1}, schedule={"lr_min": 0})
    assert with_ints.run_id == make_spec(lr=1.0, strategy={"s": 1.0}, schedule={"lr_min": 0.0}).run_id
    assert make_spec(wd=0.0, strategy={"s": 0.0}).run_id == make_spec(wd=-0.0, strategy={"s": -0.0}).run_id
    assert make_spec(wd=0.0).run_id != make_spec(wd=1e-30).run_id


def test_stating_a_default_keeps_the_id(make_spec: MakeSpec) -> None:
    spec = make_spec()
    assert validated_spec(spec.model_dump(), "spec").run_id == spec.run_id
    assert make_spec(optimizer="adamw").run_id == spec.run_id
    assert make_spec(optimizer={"beta1": 0.9}).run_id == spec.run_id


@pytest.mark.parametrize(("width", "a", "b"), [(100, None, 0.3), (1024, 0.5, 1.0)])
def test_point_mapped_there_and_back_is_the_same_run(
    make_spec: MakeSpec, width: int, a: float | None, b: float | None
) -> None:
    lr, wd = map_point(*map_point(1e-3, 0.8, a, b, width), b, a, width)
    assert make_spec(lr=lr, wd=wd).run_id == make_spec(lr=1e-3, wd=0.8).run_id


VARIANTS: list[dict[str, Any]] = [
    {"optimizer": "adamw", "task": "digits"},
    {
        "optimizer": {"kind": "sgd", "clip_norm": 0.5},
        "task": "imagenet",
        "schedule": {"total_steps": 24, "warmup_steps": 4, "eval_every": 8, "stop_step": 20},
        "strategy": {"s": 1.0},
    },
]


def leaves(data: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        elif key not in ("kind", "trainable"):  # others have other fields
            yield (*path, key), value


def replaced(data: dict[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    key, *rest = path
    return data | {key: replaced(data[key], tuple(rest), value) if rest else value}


def others(value: object) -> list[object]:
    """Return what a field of this value could hold instead."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value * 2, value - 1]
        case float():
            return [value / 2 + 0.3]
        case str():
            return ["linear", "include", "bf16", "padded", "torchvision", "rand-m5", f"{value}x"]
        case tuple() | list():
            return [[item / 2 for item in value]]
        case _:
            return [0.5, 5]


@pytest.mark.parametrize("variant", VARIANTS, ids=["adamw-digits", "sgd-imagenet"])
def test_every_field_changes_the_run_and_all_but_the_point_and_seed_the_family(
    make_spec: MakeSpec, variant: dict[str, Any]
) -> None:
    spec = make_spec(**variant)
    paths = dict(leaves(spec.model_dump()))
    assert len(paths) > 30
    runs, families = {spec.run_id}, {spec.family_id}
    for path, value in paths.items():
        for other in others(value):
            try:
                changed = validated_spec(replaced(spec.model_dump(), path, other), "spec")
                break
            except InputError:
                continue
        else:
            pytest.fail(f"no other legal value of {'.'.join(path)} is known to this test")
        assert changed.run_id not in runs, path
        runs.add(changed.run_id)
        if path in (("lr",), ("wd",), ("seed",)):
            assert changed.family_id == spec.family_id, path
        else:
            assert changed.family_id not in families, path
            families.add(changed.family_id)


def test_all_problems_are_told_at_once() -> None:
    data = PINNED_FIELDS | {
        "model": PINNED_FIELDS["model"] | {"width": 100, "heads": 12},
        "schedule": {"total_steps": 240, "warmup_steps": 240, "eval_every": 12},
        "optimizer": {"kind": "adamw", "beta1": 1.0, "beta3": 0.5},
        "batchsize": 64,
        "precision": "fp8",
        "lr": 0,
        "wd": float("nan"),
        "seed": True,
    }
    with pytest.raises(InputError) as error:
        validated_spec(data, "grids/a.yaml")
    assert sorted(str(error.value).splitlines()) == [
        "grids/a.yaml: batchsize: unknown key; did you mean batch_size?",
        "grids/a.yaml: lr: input should be greater than 0, got 0",
        "grids/a.yaml: model: width 100 is not divisible by heads 12; nearest width: 96, 108",
        "grids/a.yaml: optimizer.beta1: input should be less than 1, got 1.0",
        "grids/a.yaml: optimizer.beta3: unknown key; did you mean optimizer.beta2?",
        "grids/a.yaml: precision: input should be 'fp32', 'tf32', 'bf16' or 'fp16', got 'fp8'",
        "grids/a.yaml: schedule: warmup_steps 240 must be below total_steps 240",
        "grids/a.yaml: seed: input should be a valid integer, got True",
        "grids/a.yaml: wd: input should be a finite number, got nan",
    ]


def test_what_trains_alike_is_one_run(make_spec: MakeSpec) -> None:
    assert make_spec(schedule={"stop_step": 24}) == make_spec()
    assert make_spec(schedule={"stop_step": 23}).run_id != make_spec().run_id
    standard = [make_spec(strategy={"s": None, "mlp_factor": m}).run_id for m in ("ignore", "include")]
    assert standard[0] == standard[1], "M enters no factor of the standard strategy"
    family = [make_spec(strategy={"s": 0.0, "mlp_factor": m}).run_id for m in ("ignore", "include")]
    assert family[0] != family[1]
