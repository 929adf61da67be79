"""Where this project's claims and its fixtures lie."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = "transformer"  # the package on which the chapter is tested
CLAIMS = ROOT / "claims"
# In a checkout beside the claims, and where they are installed inside of them.
FIXTURES = next(
    (f for f in (ROOT / "fixtures", CLAIMS / "fixtures") if (f / "ledger.yaml").exists()),
    ROOT / "fixtures",
)
LEDGER = FIXTURES / "ledger.yaml"
EXPECTED = FIXTURES / "expected"
EVIDENCE = FIXTURES / "evidence"
IMPLEMENTATIONS = FIXTURES / "implementations"
