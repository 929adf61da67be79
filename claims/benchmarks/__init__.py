"""Times and ratios, measured and never judged (`--benchmark-enable`)."""
