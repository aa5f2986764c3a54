"""Ages, as people write and read them."""

import re
from datetime import timedelta

from penstock.errors import ConfigError

__all__ = ["age_in_words", "parse_age"]

_AGE = re.compile(r"(?P<count>[0-9]{1,6})(?P<unit>[smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_age(text: str) -> timedelta:
    """Reads `90s`, `30m`, `24h` and `7d`, the values of `--older-than`."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"--older-than must look like 90s, 30m, 24h or 7d, got {text!r}")
    return timedelta(**{_UNITS[match["unit"]]: int(match["count"])})


def age_in_words(age: timedelta) -> str:
    """`3d 4h`, `2h 10m`, `5m 3s`: the two largest units."""
    seconds = max(0, int(age.total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days}d {hours % 24}h"
    if hours:
        return f"{hours}h {minutes % 60}m"
    return f"{minutes}m {seconds % 60}s"
