"""The pytest glue of the corpus and of training; the harness has its own plugin."""

# What makes pytest run claims: in a checkout by its conftest.py, elsewhere by `claims.installed`.
ALL = (
    "claims.harness.plugin",
    "claims.plugins.corpus",
    "claims.plugins.documents",
    "claims.plugins.executor",
    "claims.plugins.shards",
    "claims.plugins.training",
    "claims.plugins.report",
)
