"""Claims that go beyond the document: one module per subject."""
