"""Training runs: plain specifications in, plain results out, each computed once.

`spec` says what a run is, `loop` trains it, `evaluation` scores what came out, `store` keeps it,
`gather` does what is missing of many, on all cores.
"""
