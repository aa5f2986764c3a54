"""Byte counts for people."""

__all__ = ["human_bytes"]


def human_bytes(count: int) -> str:
    """`512 B`, `1.5 KiB`, `2.0 TiB`."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        # 1,023.96 would be shown as 1024.0.
        if size < 1023.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} PiB"
