"""Why a run in training stops before its end."""

from enum import StrEnum


class StopReason(StrEnum):
    """Why a run stops before its last step."""

    TERMINATED = "terminated"
    OUT_OF_TIME = "out of time or preempted"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
