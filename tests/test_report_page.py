"""The report as HTML and as Markdown: complete, safe to open, and small."""

from __future__ import annotations

import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from claims.harness import paths
from claims.harness.ledger import Ledger, load_ledger
from claims.report.__main__ import links_from, main
from claims.report.merging import merge
from claims.report.page import LONGEST_MARKDOWN, Links, html, markdown
from claims.report.pictures.picture import Picture
from claims.report.stored import of_data
from claims.report.values import shown
from conftest import Project, output
from small_results import entry, ledger, record, results, run

LINKS = Links("https://example.org/blob/abc", web=True)
PICTURE = Picture(
    "one", "A <title>", alt='An "alt" & more', header=["<h>"], rows=[["<cell>"]],
    source="<source>", svg="<svg><path/></svg>",
)  # fmt: skip
SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>"
RIGHT_TO_LEFT = "מילה \u202e reversed עִבְרִית हिन्दी"


class Tags(HTMLParser):
    """The elements of a page, their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def ids(self) -> list[str | None]:
        return [attributes["id"] for _, attributes in self.found if "id" in attributes]


def page(data: dict[str, Any], known: Ledger, *pictures: Picture) -> str:
    return html(merge([of_data(data, "file.json")], known), pictures, LINKS)


MIXED = results(
    run("exactly", records=[record({"mean": 18.7, "sd": 0.25, "n": 5}, 18.77, seeds=[0, 1, 2],
                                   kind="trained", source="the record of a day", unit="points")]),
    run("false", "refuted", reason="It is <b>not</b> so.", records=[
        record(1, 1, reading="the first"), record(3, 4, ok=False, reading="the second")]),
    run("unsettled", "open", reason="the weight decay", records=[
        record(reading="none"), record(0.9, 1.0, ok=False, reading="some")]),
    run("elsewhere", "not run", reason="needs a CUDA GPU", records=[]),
    run("red", "failed", expected_verdict="holds", message=f"{SCRIPT} {RIGHT_TO_LEFT}"),
    looks_like=[{"mistake": {"name": "no-mask", "says": "there is no mask"},
                 "broken": 3, "of": 4, "others": 1, "instead": True}],
)  # fmt: skip
KNOWN = ledger(
    entry("exactly", "holds", expected={"value": 18.77}),
    entry("false", "refuted", readings={"the first": "so", "the second": "or so"}),
    entry("unsettled", "open", turns_on="x", settings={"none": "0", "some": "0.01"}),
    entry("elsewhere", needs=("gpu",)),
    entry("red", "holds", reading="As it stands.", beyond="what it leaves out"),
    entry("never asked"),
)


def test_the_page_says_everything_about_a_claim() -> None:
    text = " ".join(Tags(page(MIXED, KNOWN, PICTURE)).text.split())
    for part in (
        "5 claims; 1 more of the ledger were not selected.",
        "measured 18.70 ± 0.25 (n = 5) points", "value: 18.77", "seeds 0, 1, 2",
        "the record of a day", "equality", "pytest claims", "Tiny Shakespeare", "commit abc123",
        "measured 3, expected 4", "the second: or so (fails)", "none: 0 (holds)",
        "It turns on the weight decay: none (holds), some (fails)",
        "(the ledger expects holds)", "needs a CUDA GPU", "As it stands.", "what it leaves out",
        "transformer: or there is no mask (no-mask: of the 4 claims that it breaks and that ran, "
        "3 failed)",
        "Wrong: 1 sentence", "Open: 1 sentence whose",
    ):  # fmt: skip
        assert part in text, part


def test_a_claim_that_is_named_is_a_link_to_it() -> None:
    says = "As <i>other-claim-1.8</i> says (other-claim-1.8), not as x-y or other-claim does."
    runs = [run("a", "refuted", reason=says), run("other-claim-1.8")]
    text = page(results(*runs), ledger(entry("a", "refuted"), entry("other-claim-1.8")))
    link = '<a href="#other-claim-1.8">other-claim-1.8</a>'
    escaped = f"As &lt;i&gt;{link}&lt;/i&gt; says ({link}), not as x-y or other-claim does."
    assert text.count(escaped) == 2  # for the author, and in its place


def test_links_lead_to_the_line_of_the_test_and_to_the_stored_table() -> None:
    name = "table-l095-variance"
    known = ledger(entry(name, subject="chapter-tables", beyond="a table", line=None))
    source = "claims/beyond/test_chapter_tables.py:7"
    found = Tags(page(results(run(name, source=source)), known)).found
    links = [attributes["href"] for tag, attributes in found if tag == "a"]
    assert f"{LINKS.base}/{source.replace(':', '#L')}" in links
    stored = f"fixtures/expected/test_chapter_tables/{name}.csv"
    assert (paths.ROOT / stored).is_file()
    assert f"{LINKS.base}/{stored}" in links


def test_relative_links_lead_to_files_of_the_project() -> None:
    for report in (paths.ROOT / "report.html", paths.ROOT / "docs" / "report.html"):
        link = links_from(report).to("claims/test_02_average.py:7")
        assert (report.parent / link).resolve() == paths.ROOT / "claims" / "test_02_average.py"


def test_text_of_a_run_is_never_markup() -> None:
    nasty = run(
        "red", "failed", message=SCRIPT, reason=SCRIPT, test=SCRIPT, statement=SCRIPT,
        records=[record(SCRIPT, [SCRIPT], allowed=SCRIPT, unit=SCRIPT, detail=SCRIPT,
                        facts={SCRIPT: SCRIPT}, source=SCRIPT, device=SCRIPT)],
    )  # fmt: skip
    data = results(
        nasty, command=SCRIPT, corpus=SCRIPT, machine={SCRIPT: SCRIPT}, commit=SCRIPT,
        implementation=SCRIPT, base_seed=SCRIPT,
        looks_like=[{"mistake": {"name": SCRIPT, "says": SCRIPT}} | dict(broken=1, of=1, others=0)],
    )  # fmt: skip
    known = ledger(entry("red", statement=SCRIPT, reading=SCRIPT, kind=SCRIPT, beyond=SCRIPT))
    text = page(data, known, PICTURE)
    tags = Tags(text)
    assert [tag for tag, _ in tags.found].count("script") == 1  # its own
    assert not [tag for tag, _ in tags.found if tag == "img"]
    assert not [name for _, attributes in tags.found for name in attributes if name[:2] == "on"]
    for part in (SCRIPT, "A <title>", 'An "alt" & more', "<cell>", "<source>"):
        assert part in tags.text or part in str(tags.found), part
    said = markdown(merge([of_data(data, SCRIPT)], known), LINKS)
    assert "<script" not in said
    assert "<img" not in said


def test_only_its_own_script_may_run_and_nothing_is_loaded() -> None:
    text = page(MIXED, KNOWN, PICTURE)
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    for tag, attributes in Tags(text).found:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert "src" not in attributes
    assert "@import" not in text
    assert "url(" not in text


def test_every_id_stands_once_and_every_text_has_a_direction_of_its_own() -> None:
    text = page(MIXED, KNOWN, PICTURE)
    ids = Tags(text).ids()
    assert len(ids) == len(set(ids))
    assert '<pre dir="auto">' in text
    assert RIGHT_TO_LEFT in text


def test_each_picture_has_its_numbers_and_a_text_or_the_reason_why_there_is_none() -> None:
    tags = Tags(page(MIXED, KNOWN, PICTURE, Picture("none", "Another", missing="No such run.")))
    assert ("svg", {}) in tags.found
    assert any(attributes.get("aria-label") == PICTURE.alt for _, attributes in tags.found)
    assert "<cell>" in tags.text
    assert "Not drawn. No such run." in tags.text


def test_a_thousand_claims_and_a_huge_message_stay_small_and_fast() -> None:
    names = [f"claim-{i}" for i in range(1000)]
    runs = [run(name, statement="A long sentence. " * 30, records=[record()] * 2) for name in names]
    runs[500] |= {"verdict": "failed", "message": "m" * 20_000}
    known = ledger(*(entry(name, statement="A long sentence. " * 30) for name in names))
    started = time.process_time()
    text = page(results(*runs), known)
    assert time.process_time() - started < 10
    assert len(text.encode()) < 5_000_000
    assert text.count('<details class="claim"') == 1000
    assert len(markdown(merge([of_data(results(*runs), "f")], known), LINKS)) <= LONGEST_MARKDOWN


def test_markdown_has_the_counts_the_failures_and_the_command() -> None:
    merged = merge([of_data(MIXED, "file.json")], KNOWN)
    text = markdown(merged, LINKS)
    for part in (
        "transformer: 1 exact, 0 holds, 1 open, 1 refuted, 1 not run, 1 failed, 0 background.",
        "| 2-average | 1 |  | 1 | 1 | 1 | 1 |  |",
        "### Failed\n\n- **red** (l.11): The sentence of red.\n",
        f"[claims/test\\_02\\_average.py:7]({LINKS.base}/claims/test_02_average.py#L7)",
        "- l.11, refuted: The sentence of false. It is &lt;b\\>not&lt;/b\\> so.",
        "- 1 x needs a CUDA GPU", "pytest claims",
        "there is no mask (of the 4 claims that it breaks and that ran, 3 failed)",
    ):  # fmt: skip
        assert part in text, part
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({line.count("|") for line in rows}) == 1


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("    check(3, exact(4))\nE     3 is not 4\nE       by 1\nfile.py:7", "3 is not 4 by 1"),
        ("x" * 1000 + "the end", "x" * 593 + "the end"),
        ("E   " + "y" * 1000, "y" * 600 + " ..."),
        ("", ""),
    ],
)
def test_markdown_shows_what_a_failure_says_and_not_its_source(message: str, says: str) -> None:
    data = results(run("red", "failed", message=message))
    text = markdown(merge([of_data(data, "f")], KNOWN), LINKS)
    link = f"{LINKS.base}/claims/test_02_average.py#L7"
    assert (f"({link}): {says}\n" in text) if message else link not in text


def test_markdown_that_is_too_long_ends_in_words() -> None:
    runs = [run(f"c{i}", "failed", message="m" * 600) for i in range(200)]
    text = markdown(merge([of_data(results(*runs), "f")], ledger()), LINKS)
    assert LONGEST_MARKDOWN - 1000 < len(text) < LONGEST_MARKDOWN + 100
    assert text.endswith("the HTML report has all of it.\n")


def test_another_package_stands_beside_the_reference() -> None:
    mine = results(
        run("exactly", "departs", expected_verdict="exact", records=[record(7.0)]),
        run("false", "exact", expected_verdict="refuted"), implementation="mine",
        made="2026-05-31T23:59:00+00:00",
    )  # fmt: skip
    both = merge([of_data(MIXED, "file.json"), of_data(mine, "mine.json")], KNOWN)
    alone = merge([of_data(mine, "mine.json")], KNOWN)
    text = Tags(html(both, [], LINKS)).text
    assert "Implementations side by side" in text
    assert "Verdicts of the 2 claims that every one of them was asked about." in text
    said = markdown(both, LINKS)
    assert "| implementation | exact | refuted | departs |" in said
    assert "| mine | 1 | 0 | 1 |" in said
    assert "Other verdicts than the reference's: 2" in text
    # What stands first is of the reference, whichever run is newer.
    assert "the reference: exact; mine: departs; measured 18.70 ± 0.25 (n = 5)" in text
    assert "> departs (" in html(both, [], LINKS)
    assert "> departs (" not in page(MIXED, KNOWN)  # of other packages alone
    assert "### Other verdicts than the reference's" in markdown(alone, LINKS)
    assert "Implementations side by side" not in Tags(html(alone, [], LINKS)).text


def test_what_stands_first_speaks_for_the_verdict() -> None:
    small = run("a", "holds", budget="ci", records=[
        record(11, 1, ok=False, reading="one"), record(1, 1, reading="another")])
    large = run("a", "not run", budget="document", reason="the record has no such run", records=[])
    text = Tags(page(results(large, small), ledger(entry("a", "holds")))).text
    assert "l.11; measured 1, expected 1" in text
    assert text.count("the record has no such run") == 1  # beside the run, and not as the reason


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (459760, "459760"), (0.1234567, "0.123457"), (None, "-"), (True, "true"), ("inf", "inf"),
        ([1, 2.5], "1, 2.5"), ([[1, 2], [3]], "1, 2; 3"), ([], "nothing"),
        ({"mean": 0.0123, "sd": 0.00045, "n": 3}, "0.01230 ± 0.00045 (n = 3)"),
        ({"mean": 248.6, "sd": 11.2, "n": 3}, "249 ± 11 (n = 3)"),
        ({"mean": 1.0, "sd": 0.0, "n": 4}, "1 ± 0 (n = 4)"),
        ({"mean": "inf", "sd": "nan", "n": 4}, "mean: inf; sd: nan; n: 4"),
        (list(range(130)), ", ".join(map(str, range(120))) + ", and 10 more"),
    ],
)  # fmt: skip
def test_values_are_shown_for_people(value: object, text: str) -> None:
    assert shown(value) == text


# ---- the two commands ----------------------------------------------------------------------------


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to draw: the command line is tested here."""
    monkeypatch.setattr("claims.report.__main__.all_pictures", lambda ledger: [])


@pytest.mark.usefixtures("no_pictures")
def test_the_command_writes_what_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = next(iter(load_ledger(paths.LEDGER).entries))
    for file, made in (("a", "2026-01-01T00:00:00+00:00"), ("b", "2026-02-01T00:00:00+00:00")):
        (tmp_path / f"{file}.json").write_text(json.dumps(results(run(name), made=made)))
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    target = tmp_path / "report.html"
    assert main([*files, "-o", str(target), "--source-url", "https://example.org/x/"]) == 0
    text = target.read_text()
    assert text.index("b.json") < text.index("a.json")  # the newest first
    assert 'href="https://example.org/x/claims/test_02_average.py#L7"' in text
    assert main([*files, "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("## The claims of the chapter\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.json"], "none.json cannot be read"),
        (["none.json", "-o", "missing/x.html"], "--output missing/x.html: the folder"),
        (["none.json", "--format", "pdf"], "invalid choice: 'pdf'"),
        ([], "the following arguments are required: files"),
    ],
)
def test_a_bad_command_is_refused_in_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert sentence in capsys.readouterr().err


PLUGIN = ("-p", "claims.plugins.report")


def test_a_run_of_the_claims_writes_its_report(project: Project) -> None:
    project.entry("good").entry("bad").test(
        '@claim("good")\ndef test_good(check):\n    check(1, exact(1))\n\n'
        '@claim("bad")\ndef test_bad(check):\n    check("<script>", exact("שלום"))\n'
    )
    result = project.run(*PLUGIN, "--claims-report", "report.html")
    text = (project.folder / "report.html").read_text()
    assert "The sentence of good." in text
    assert "&lt;script&gt;" in text
    assert "this run" in text
    assert "Not drawn. The ledger has no entry table-l125-ladder." in text
    assert "The report is" in output(result)


def test_an_old_report_survives_a_run_without_claims(project: Project) -> None:
    project.entry("a").test('@claim("a")\ndef test_a(check):\n    check(1, exact(1))\n')
    (project.folder / "report.html").write_text("old")
    project.run(*PLUGIN, "--claims-report", "report.html", "-k", "nothing_of_that_name")
    assert (project.folder / "report.html").read_text() == "old"


@pytest.mark.parametrize(
    ("target", "sentence"),
    [("report.pdf", "ends in .html"), ("missing/report.html", "the folder")],
)
def test_a_report_that_cannot_be_written_is_refused_before_the_run(
    project: Project, target: str, sentence: str
) -> None:
    result = project.run(*PLUGIN, "--claims-report", target)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert sentence in output(result)


def test_a_report_without_its_packages_is_refused_in_a_sentence(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("claims.plugins.report.NEEDED", ("jinja2", "no_such_package"))
    result = project.run(*PLUGIN, "--claims-report", "report.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--claims-report needs no_such_package" in output(result)
