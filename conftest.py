"""Switches the harness on; nothing else."""

pytest_plugins = (
    "claims.harness.plugin",
    "claims.plugins.corpus",
    "claims.plugins.documents",
    "claims.plugins.shards",
    "claims.plugins.training",
    "claims.plugins.report",
)
