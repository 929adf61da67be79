"""Synthetic languages, and what a model does with their sentences."""
