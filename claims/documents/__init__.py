"""The figures of the chapter's translations, compared with each other and the ledger."""
