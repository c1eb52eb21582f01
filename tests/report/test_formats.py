"""How a report looks: colours, and numbers in hexagons."""

import pytest

from ettsweep.report.formats import error_text, mean_text, strategy_colour
from ettsweep.trainer.tasks.registry import BEST_ACCURACY, LOWEST_LOSS


def test_strategies_keep_their_colours() -> None:
    assert len({strategy_colour(s) for s in ("standard", "ntk", "hybrid", "mup")}) == 4
    assert strategy_colour("s=0.25") == strategy_colour("s=0.25")


def test_a_mean_over_seeds_has_its_standard_error() -> None:
    # Deviations of -1, 0 and 1 hundredths: a standard deviation of .01, and an error of .01 / sqrt(3).
    assert mean_text([0.09, 0.10, 0.11], LOWEST_LOSS) == "0.1000 ± 0.0058"
    assert mean_text([0.97, 0.98, 0.99], BEST_ACCURACY) == "98.00 ± 0.58%"
    assert mean_text([0.1], LOWEST_LOSS) == "0.1000"
    assert mean_text([0.1, None], LOWEST_LOSS) is None


@pytest.mark.parametrize(
    ("error", "score", "metric", "message"),
    [
        (0.0081, 0.1191, LOWEST_LOSS, ".008"),
        (0.0, 0.1191, LOWEST_LOSS, ".000"),
        (5.77e7, 4.1e9, LOWEST_LOSS, "5.77e7"),
        (0.5, 12.3, LOWEST_LOSS, ".5"),
        (0.0012, 0.9712, BEST_ACCURACY, "0.12"),
    ],
)
def test_an_error_in_a_hexagon_has_the_decimals_of_its_score(
    error: float, score: float, metric: str, message: str
) -> None:
    assert error_text(error, score, metric) == message
