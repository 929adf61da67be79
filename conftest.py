"""Switches the harness on; nothing else."""

from claims.plugins import ALL

pytest_plugins = ALL
