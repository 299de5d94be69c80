"""Moments as whole numbers and back, without a loss."""

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(at: datetime) -> int:
    """Microseconds since 1970."""
    return (at - EPOCH) // _MICROSECOND


def to_time(micros: int) -> datetime:
    """Raises OverflowError for what no calendar holds."""
    return EPOCH + timedelta(microseconds=micros)
