"""The chapter's claims, one test module per section, in the chapter's order."""
