"""The report in a real browser, from a folder on disk: what a person, a keyboard and a hostile name can do to it."""

from __future__ import annotations

import itertools
import json
import shutil

import pytest

from gnomon.study import report
from gnomon.study.view import view
from tests.study.exhibits import HOSTILE, boundary_evidence, exhibits

CHROMIUM = shutil.which("chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip
PAGES = ("index.html", "surgery/boundary.html", "interpretability/hostile.html", "sampling/sketches.html")

POOR_CONTRAST = """() => {
    const read = c => c.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
        .reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
    const back = e => {
        const c = read(getComputedStyle(e).backgroundColor);
        return c.length < 4 || c[3] > 0 ? c : back(e.parentElement);
    };
    const found = [];
    for (const e of document.body.querySelectorAll('*')) {
        if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
        if (!e.getClientRects().length) continue;
        const [a, b] = [light(read(getComputedStyle(e).color)), light(back(e))].sort((x, y) => y - x);
        if ((a + .05) / (b + .05) < 4.5) found.push(e.outerHTML.slice(0, 80));
    }
    return found;
}"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    room = tmp_path_factory.mktemp("report")
    return report.write_report([view(e) for e in exhibits(room / "evidence")], room / "out with space").parent


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser, folder):
    """Opens a page of the report; at the end nothing may have gone to a network, failed, spoken up or popped up."""
    contexts, requests, troubles = [], [], []

    def open_one(name="index.html", **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda r: requests.append(r.url))
        # a load that a reload or the end of the page cuts short has not failed
        page.on("requestfailed", lambda r: r.failure != "net::ERR_ABORTED" and troubles.append(f"failed: {r.url}"))
        page.on("console", lambda m: troubles.append(f"console: {m.text}"))
        page.on("pageerror", lambda e: troubles.append(f"error: {e}"))
        page.on("dialog", lambda d: (troubles.append(f"dialog: {d.message}"), d.dismiss()))
        page.goto((folder / name).as_uri())
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert troubles == []
    assert requests
    inside = folder.as_uri()
    assert [url for url in requests if not url.startswith(inside) and not url.startswith("data:")] == []


def shown(page) -> list[str]:
    return page.locator(".entry:visible .entry-name").all_inner_texts()


# --- filters ----------------------------------------------------------------------------------------------------------


def test_filters_by_area_verdict_and_words(open_page):
    page = open_page()
    assert shown(page) == ["hostile", "sketches", "boundary"]
    assert page.locator("#count").inner_text() == "All 3 systems"

    page.get_by_label("Area").select_option("surgery")
    assert shown(page) == ["boundary"]
    assert page.locator(".area:visible h2").all_inner_texts() == ["Surgery"]
    assert page.locator("#count").inner_text() == "1 of 3 systems"
    page.get_by_role("button", name="Clear").click()
    assert len(shown(page)) == 3

    page.get_by_role("checkbox", name="fails").check()
    assert shown(page) == ["hostile", "boundary"]
    page.get_by_role("checkbox", name="not checked").check()
    assert len(shown(page)) == 3
    page.get_by_role("checkbox", name="fails").uncheck()
    assert shown(page) == ["sketches"]
    page.get_by_role("button", name="Clear").click()

    words = page.get_by_label("Search")
    for typed, found in (("THOUSAND counters", ["sketches"]), ("prefill slower", ["boundary"]),
                         ("boundary", ["boundary"]), ("no such thing", []), ("<script>", ["hostile"])):  # fmt: skip
        words.fill(typed)
        assert shown(page) == found
    words.fill("no such thing")
    assert page.locator("#count").inner_text() == "No system fits these filters"
    page.keyboard.press("Enter")  # a search that is sent reloads nothing
    assert words.input_value() == "no such thing"


def test_filters_are_kept_when_one_comes_back(open_page):
    page = open_page()
    page.get_by_label("Search").fill("boundary")
    page.get_by_role("link", name="Boundary operators").click()
    page.get_by_role("heading", level=1, name="Boundary operators").wait_for()
    page.go_back()
    page.locator(".entry").first.wait_for(state="attached")
    assert page.get_by_label("Search").input_value() == "boundary"
    assert shown(page) == ["boundary"]


def test_without_scripts_it_is_a_plain_list(open_page):
    page = open_page(java_script_enabled=False)
    assert shown(page) == ["hostile", "sketches", "boundary"]
    assert not page.locator("#filters").is_visible()
    assert not page.locator("#theme").is_visible()


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_a_pages_verdicts_equal_the_evidence(open_page, folder):
    page = open_page("surgery/boundary.html")
    word = {"holds": "holds", "fails": "fails", "undecided": "undecided", "reported": "reported"}
    for name, evidence in boundary_evidence()["scales"].items():
        table = page.locator(f'[data-scale="{name}"] .g-claims')
        page.locator(f'[data-scale="{name}"]').get_by_text("Claims at this scale").click()
        rows = table.get_by_role("row").all()[1:]
        assert len(rows) == len(evidence["claims"])
        for row, claim in zip(rows, evidence["claims"], strict=True):
            assert row.get_attribute("data-claim") == claim["id"]
            assert claim["text"] in row.get_by_role("rowheader").inner_text()
            assert row.locator(".g-judged > .g-verdict").inner_text().strip() == word[claim["verdict"]]
            if claim["n"] is not None:
                assert f"n = {claim['n']}" in row.locator(".g-found").inner_text()

    settled = page.locator('section[aria-labelledby="claims"] tbody tr').all()
    data = next(s for s in json.loads((folder / "evidence.json").read_text()) if s["slug"] == "boundary")
    assert [(r.get_attribute("data-claim"), r.get_attribute("data-verdict")) for r in settled] == [
        (c["id"], c["verdict"]) for c in data["claims"]
    ]


def test_a_table_says_the_means_and_their_intervals(open_page):
    page = open_page("surgery/boundary.html")
    first = page.locator(".g-metrics tbody tr").first
    assert first.locator("th").inner_text() == "ghosted"
    assert first.locator(".g-value").first.inner_text().split() == ["3.100", "[3.059,", "3.143]"]


def test_the_parts_of_a_conjunction_open(open_page):
    page = open_page("surgery/boundary.html")
    page.locator('[data-scale="laptop"]').get_by_text("Claims at this scale").click()
    parts = page.locator('[data-scale="laptop"] .g-parts').first
    assert not parts.locator("li").first.is_visible()
    parts.locator("summary").click()
    assert parts.locator("li").count() == 9
    assert "than=replaceme, n=3" in parts.locator("li").first.inner_text()


# --- hostile words ----------------------------------------------------------------------------------------------------


def test_hostile_words_are_shown_and_never_run(open_page):
    page = open_page("interpretability/hostile.html")
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    text = page.locator("body").inner_text()
    places = (
        "Title, Summary, Paper, Question, Method, Departure, Claim, Says, reason, part, unit, Table, contender, "
        "metric, axis, value, model, processor, gnomon run"
    )
    for where in places.split(", "):
        assert f"{where} {HOSTILE}" in text, where
    assert page.locator("script").count() == 1
    assert page.locator("img[src=x]").count() == 0
    assert page.evaluate("[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames())"
                         ".filter(a => a.startsWith('on')).length") == 0  # fmt: skip
    hrefs = page.evaluate("[...document.links].map(a => a.protocol)")
    assert set(hrefs) <= {"file:", "https:"}
    assert page.title().startswith(f"Title {HOSTILE}")


def test_the_policy_stops_what_escaping_would_miss(folder, browser):
    """A script put into the page itself does not run, and nothing can be fetched or sent from it."""
    page = browser.new_page()
    asked = []
    page.route("http*://**", lambda route: (asked.append(route.request.url), route.abort()))
    page.goto((folder / "index.html").as_uri())
    page.evaluate("""() => {
        const inline = document.createElement('script');
        inline.textContent = 'window.ran = 1';
        const far = document.createElement('img');
        far.src = 'https://example.org/a.png';
        document.body.append(inline, far);
        document.body.insertAdjacentHTML('beforeend', '<img src="missing" onerror="window.ran = 2">');
    }""")
    page.evaluate("fetch('https://example.org/').catch(() => null)")
    page.wait_for_timeout(200)
    assert page.evaluate("window.ran") is None
    assert asked == []
    page.close()


def test_a_hostile_figure_is_an_image(open_page, folder):
    page = open_page("interpretability/hostile.html")
    figure = page.locator("figure img")
    assert figure.evaluate("i => i.complete && i.naturalWidth > 0")
    assert HOSTILE in figure.get_attribute("alt")
    page.goto((folder / "interpretability/hostile.laptop.svg").as_uri())  # opened by itself it is harmless too
    assert page.evaluate("document.querySelectorAll('script, foreignObject, a').length") == 0


def test_a_figure_is_described(open_page):
    page = open_page("surgery/boundary.html")
    assert page.get_by_role(
        "img", name="Loss over the number of removed layers, one line for each contender"
    ).is_visible()


# --- people -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_text_has_contrast_in_both_themes(open_page, name):
    """WCAG AA: 4.5 to 1 for all text that is shown, against what is painted behind it."""
    page = open_page(name)
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(POOR_CONTRAST) == [], scheme


def test_the_theme_can_be_chosen_and_is_kept(open_page):
    page = open_page("index.html", color_scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    button = page.get_by_role("button", name="Theme")
    button.click()
    button.click()
    assert button.inner_text() == "Theme: dark"
    dark = page.evaluate(background)
    assert dark != light
    page.get_by_role("link", name="Boundary operators").click()
    page.get_by_role("heading", level=1, name="Boundary operators").wait_for()
    assert page.evaluate(background) == dark
    page.get_by_role("button", name="Theme").click()
    assert page.evaluate(background) == light


def test_the_keyboard_is_enough(open_page):
    page = open_page()
    focus = "(document.activeElement.textContent || document.activeElement.id).trim()"
    page.keyboard.press("Tab")
    assert page.evaluate(focus) == "Skip to the content"
    assert page.locator(".skip").bounding_box()["y"] >= 0  # it comes into sight when it has the focus
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "words"
    page.keyboard.type("sketches")
    assert shown(page) == ["sketches"]
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "area"
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert page.get_by_role("checkbox", name="holds").is_checked()
    assert shown(page) == []
    for _ in range(6):
        if page.evaluate("document.activeElement.id") == "clear":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert len(shown(page)) == 3
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"  # the focus is seen
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("heading", level=1, name="Sketches of streams").wait_for()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_landmarks_headings_in_order_and_names_for_controls(open_page, name):
    page = open_page(name)
    for landmark in ("banner", "main", "contentinfo"):
        assert page.get_by_role(landmark).count() == 1
    levels = [int(h[1]) for h in page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(h => h.tagName)")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    assert (
        page.evaluate("""[...document.querySelectorAll('input, select, button')]
        .filter(e => !(e.labels?.length || e.textContent.trim())).length""")
        == 0
    )
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert page.locator("html").get_attribute("lang") == "en"


@pytest.mark.parametrize("name", PAGES)
def test_a_narrow_screen_scrolls_in_one_direction_only(open_page, name):
    page = open_page(name, device_scale_factor=2, has_touch=True)
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    for width in (320, 375, 768):
        page.set_viewport_size({"width": width, "height": 700})
        assert_no_sideways_scrolling(page, width)


def assert_no_sideways_scrolling(page, width):
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("scrollTo(500, 0)")
    assert page.evaluate("scrollX") == 0
    outside = page.evaluate(
        """w => [...document.querySelectorAll('main *')].filter(e => !e.closest('.g-scroll, pre, .g-hidden'))
        .filter(e => e.getClientRects().length && e.getBoundingClientRect().right > w + 1)
        .map(e => e.outerHTML.slice(0, 80))""",
        width,
    )
    assert outside == []


def test_a_wide_table_scrolls_inside_its_frame_by_keyboard(open_page):
    page = open_page("surgery/boundary.html", viewport={"width": 375, "height": 700})
    frame = page.get_by_role("region", name="Recovery: contenders and metrics")
    assert frame.evaluate("f => f.scrollWidth > f.clientWidth")
    frame.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("f => f.scrollLeft > 0", arg=frame.element_handle())
