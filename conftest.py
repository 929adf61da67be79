"""Switches the harness on; nothing else."""

pytest_plugins = (
    "claims.harness.plugin",
    "claims.instruments.plugin",
    "claims.instruments.training.plugin",
)
