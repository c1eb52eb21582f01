"""How a report looks: colours, and numbers as people read them."""

import pytest

from ettsweep.report.formats import error_text, plus_minus, score_text, strategy_colour, three_digits


def test_strategies_keep_their_colours() -> None:
    assert len({strategy_colour(s) for s in ("standard", "ntk", "hybrid", "mup")}) == 4
    assert strategy_colour("s=0.25") == strategy_colour("s=0.25")


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.0**-6, "0.0156"), (20.0, "20"), (3.0517578e-7, "3.05e-7"), (2048.0, "2048"), (1234567.0, "1.23e6"), (0.0, "0")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert three_digits(value) == text


def test_scores_read_well() -> None:
    assert score_text(0.97703, "best_accuracy") == "97.70%"
    assert score_text(0.0783412, "best_loss") == "0.07834"
    assert plus_minus(0.0783412, 0.00612, "best_loss") == "0.0783 ± 0.0061"
    assert plus_minus(0.97703, 0.0021, "best_accuracy") == "97.70 ± 0.21%"
    assert plus_minus(0.5, 0.0, "best_loss") == "0.5000 ± 0.0000"


@pytest.mark.parametrize(
    ("error", "score", "metric", "message"),
    [
        (0.0081, 0.1191, "best_loss", ".008"),
        (0.0, 0.1191, "best_loss", ".000"),
        (5.77e7, 4.1e9, "best_loss", "5.77e7"),
        (0.5, 12.3, "best_loss", ".5"),
        (0.0012, 0.9712, "best_accuracy", "0.12"),
    ],
)
def test_an_error_in_a_hexagon_has_the_decimals_of_its_score(
    error: float, score: float, metric: str, message: str
) -> None:
    assert error_text(error, score, metric) == message
