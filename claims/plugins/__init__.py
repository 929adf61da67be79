"""The pytest glue of the corpus and of training; the harness has its own plugin."""
