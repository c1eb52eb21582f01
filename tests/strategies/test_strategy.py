import math

import pytest

from ettsweep.errors import InputError
from ettsweep.strategies.strategy import STRATEGIES, parse_strategy, strategy_name


@pytest.mark.parametrize(
    ("name", "s"), [("standard", None), ("ntk", 0.0), ("hybrid", 0.5), ("mup", 1.0), ("s=0.3333333333333333", 1 / 3)]
)
def test_names_and_s_are_inverse(name: str, s: float | None) -> None:
    assert parse_strategy(name) == s
    assert strategy_name(s) == name


@pytest.mark.parametrize(("text", "name"), [("s=-0.0", "ntk"), ("s=.5", "hybrid"), ("s=1e0", "mup")])
def test_a_number_that_has_a_name_gets_it(text: str, name: str) -> None:
    s = parse_strategy(text)
    assert strategy_name(s) == name
    assert s is not None
    assert math.copysign(1, s) == 1


def test_unknown_name_lists_what_works() -> None:
    with pytest.raises(InputError, match=r"'nkt'.*did you mean 'ntk'") as error:
        parse_strategy("nkt")
    assert all(name in str(error.value) for name in [*STRATEGIES, "s=<number from 0 to 1>"])


@pytest.mark.parametrize("text", ["s=", "s=1.5", "s=nan"])
def test_s_must_be_a_number_from_0_to_1(text: str) -> None:
    with pytest.raises(InputError, match=rf"'{text}'.*from 0 to 1, such as s=0\.25"):
        parse_strategy(text)
