"""What names of runs say of lr, wd and seed."""

import pytest

from ettsweep.errors import InputError
from ettsweep.study.score_rows import value_in


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("lr=0.2_min_lr=0.02", "lr", "0.2"),
        ("warmup_lr=1e-6,lr=1e-3", "lr", "1e-3"),
        ("base-lr0.5_lr0.1/lr=0.1", "lr", "0.1"),
        ("optim.lr=0.1,min.lr=0.1", "lr", "0.1"),
        ("lr=1e-3/lr0.001", "lr", "0.001"),
        ("vit_lr1e-3_seed0", "lr", "1e-3"),
        ("vit_lr1e-3_seed0", "seed", "0"),
        ("lr2^-6_wd0.1", "wd", "0.1"),
        ("min_wd=0_wd=0.1", "wd", "0.1"),
        ("data_seed=7 seed=1", "seed", "1"),
        ("color=3", "lr", None),
        ("min_lr=0.02_seed0", "lr", None),
        ("vit_min_lr=0.02,Warmup-lr=0.1", "lr", None),
        ("vitmin_lr=0.02", "lr", "0.02"),
        ("data_seed=7", "seed", None),
        ("min_lr=0.02_vit_lr=0.2", "lr", "0.2"),
        ("max_lr=0.2", "lr", "0.2"),
        ("min_lr=0.2", "min_lr", "0.2"),
        ("cosine_decay_lr0.01_seed0", "lr", "0.01"),
        ("no_warmup_lr1e-3_seed0", "lr", "1e-3"),
        ("linear-decay-lr1e-3-seed1", "lr", "1e-3"),
        ("imagenet_data_lr1e-3", "lr", "1e-3"),
        ("squad_eval_lr3e-5", "lr", "3e-5"),
        ("warmup_lr1e-6_vit_lr1e-3", "lr", "1e-3"),
        ("warmup_lr=1e-6", "lr", None),
        ("vit_min_lr1e-5", "lr", None),
    ],
)
def test_a_name_that_stands_by_itself_is_read_before_the_end_of_a_longer_one(
    text: str, name: str, value: str | None
) -> None:
    assert value_in(text, name) == value


@pytest.mark.parametrize("text", ["lr=0.2_lr=0.02", "lr0.2/lr0.02", "vit_lr=0.2,max_lr=0.02"])
def test_a_name_with_several_values_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"which one is lr, 0\.2 or 0\.02\?"):
        value_in(text, "lr")
