"""The corpus, its stand-in, its tokens, and what their frequencies alone predict."""
