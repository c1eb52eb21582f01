"""Disks that fill up."""

import os
from pathlib import Path


def fill(disk: Path, free_kib: int) -> Path:
    """Leave so much space on a disk."""
    filler = disk / "filler"
    statvfs_result = os.statvfs(disk)
    filler.write_bytes(bytes(statvfs_result.f_bavail * statvfs_result.f_frsize - free_kib * 1024))
    return filler
