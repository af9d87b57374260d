"""The report in a real browser: what it asks for, how it fits, what it looks like in the dark, who can use it.

Needs chromium with its driver (Debian: `apt-get install chromium chromium-driver`) and selenium; skipped without.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_factories import HOSTILE, Ask, asks, write_run

from evaluation import report

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None
)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium with chromedriver on this machine"),
]

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PHONE, DESK = 390, 1280
LOWEST_CONTRAST = 4.5
"""Of text. Source: WCAG 2.2, success criterion 1.4.3."""

TOO_WIDE = """
const hidden = '.hidden, .skip, title, style, script, head, head *';
return [...document.querySelectorAll('body *')].filter(element => {
  const box = element.getBoundingClientRect();
  return box.width && !element.closest(hidden) && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map(element => `${element.tagName}.${element.getAttribute('class')} ${element.textContent.slice(0, 40)}`);
"""
TEXT_COLOURS = """
const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number);
const behind = element => {
  for (let at = element; at; at = at.parentElement) {
    const colour = rgb(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour.slice(0, 3);
  }
  return [255, 255, 255];
};
const found = {};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || element.closest('title, .hidden, .skip')) continue;
  const style = getComputedStyle(element);
  const colour = rgb(element instanceof SVGElement ? style.fill : style.color).slice(0, 3);
  const key = JSON.stringify([colour, behind(element)]);
  found[key] = walker.currentNode.data.trim().slice(0, 40);
}
return Object.entries(found).map(([key, text]) => [...JSON.parse(key), text]);
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless browser with an empty profile of its own."""
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    started = webdriver.Chrome(options=options, service=service)
    yield started
    started.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every section, one question of which is hostile and another very wide."""
    hostile = Ask(id="hostile", before=4, after=1, query=HOSTILE, answer=HOSTILE, lang="fr")
    wide = Ask(id="wide", before=9, after=2, query="Donaudampfschifffahrt" * 12, answer="x" * 500, lang="de")
    return report.write(write_run(tmp_path_factory.mktemp("outputs"), [hostile, wide, *asks()[2:]]))


def show(browser: Any, page: Path, *, width: int = DESK, scheme: str = "light", opened: bool = False) -> None:
    """Load the page in a window of a width."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width == PHONE},
    )
    browser.get(page.as_uri())
    if opened:
        browser.execute_script("document.querySelectorAll('details').forEach(one => one.open = true)")


def contrast(first: list[float], second: list[float]) -> float:
    """Return the contrast of two colours, 1 to 21. Source: WCAG 2.2, definitions."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: list[float]) -> float:
    parts = [part / 255 for part in colour]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_nothing_is_asked_of_the_network_and_nothing_complains(browser, page):
    """Loading the page asks for the file itself and for nothing else, and the console stays empty."""
    browser.get("about:blank")
    browser.get_log("performance")
    browser.get_log("browser")
    show(browser, page, opened=True)
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"
    ]
    assert {url for url in asked if not url.startswith("data:")} == {page.as_uri()}
    assert browser.get_log("browser") == []


def test_texts_of_users_do_nothing(browser, page):
    """Markup in a document is read as text: it did not run, and it made no element."""
    show(browser, page, opened=True)
    assert browser.execute_script("return typeof window.hacked") == "undefined"
    assert browser.execute_script("return document.querySelectorAll('script, img, iframe').length") == 0
    assert "<script>window.hacked = 1</script>" in browser.execute_script("return document.body.innerText")


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_nothing_is_wider_than_the_window(browser, page, width):
    """On a phone and at a desk, with everything opened, no element sticks out and nothing scrolls sideways."""
    show(browser, page, width=width, opened=True)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(TOO_WIDE) == []


def test_text_of_charts_is_no_smaller_than_drawn_on_a_phone(browser, page):
    """On a phone charts are not shrunk: their labels are at least 11 pixels high."""
    show(browser, page, width=PHONE)
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('figure svg')].filter(svg => svg.getBoundingClientRect().width)"
        ".map(svg => 12 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)"
    )
    assert len(sizes) == 6
    assert min(sizes) >= 11


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(browser, page, scheme):
    """Every text, those of the charts included, has a contrast of at least 4.5 to what is behind it."""
    show(browser, page, scheme=scheme, opened=True)
    poor = [
        (text, round(contrast(colour, behind), 2))
        for colour, behind, text in browser.execute_script(TEXT_COLOURS)
        if contrast(colour, behind) < LOWEST_CONTRAST
    ]
    assert poor == []


def test_dark_mode_is_dark(browser, page):
    """The page follows the system: light paper by day, dark paper by night, and the charts' text with it."""
    seen = {}
    for scheme in ("light", "dark"):
        show(browser, page, scheme=scheme)
        seen[scheme] = [
            browser.execute_script(f"return getComputedStyle(document.querySelector('{where}')).{what}")
            for where, what in (("body", "backgroundColor"), ("figure svg text", "fill"))
        ]
    papers = {scheme: _luminance(_rgb(colours[0])) for scheme, colours in seen.items()}
    texts = {scheme: _luminance(_rgb(colours[1])) for scheme, colours in seen.items()}
    assert papers["light"] > 0.8
    assert papers["dark"] < 0.05
    assert texts["light"] < 0.2 < texts["dark"]


def test_the_keyboard_reaches_everything(browser, page):
    """Tab goes from the skip link through the contents to every part that opens, and Enter opens it."""
    show(browser, page)
    wanted = browser.execute_script("return document.querySelectorAll('a, summary').length")
    reached = []
    for _ in range(wanted):
        _press(browser, "Tab", 9)
        reached.append(browser.execute_script("return document.activeElement.outerHTML.slice(0, 60)"))
    assert 'class="skip"' in reached[0]
    assert sum(element.startswith("<summary") for element in reached) == browser.execute_script(
        "return document.querySelectorAll('summary').length"
    )
    before = browser.execute_script("return document.activeElement.parentElement.open")
    _press(browser, "Enter", 13)
    assert browser.execute_script("return document.activeElement.parentElement.open") is not before


def test_focus_is_seen(browser, page):
    """What has the keyboard's focus has an outline."""
    show(browser, page)
    for _ in range(3):
        _press(browser, "Tab", 9)
    outline = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_the_accessibility_tree_has_names(browser, page):
    """To a screen reader every picture, table and section has a name, and there is one first heading."""
    show(browser, page, opened=True)
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in {"image", "img", "region", "heading", "navigation"}
    ]
    assert [role for role, name in named if not name] == []
    assert sum(role in {"image", "img"} for role, _ in named) == 6
    assert browser.execute_script("return document.querySelectorAll('h1').length") == 1


def _press(browser: Any, key: str, code: int) -> None:
    for kind in ("keyDown", "keyUp"):
        event = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
        if key == "Enter" and kind == "keyDown":
            event["text"] = "\r"
        browser.execute_cdp_cmd("Input.dispatchKeyEvent", event)


def _rgb(colour: str) -> list[float]:
    return [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
