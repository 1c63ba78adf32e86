"""The texts of the page: each is there in every language, and none is there for nothing."""

import re

import pytest

from tunnel_pool.daemon.server.page_server import FILES

TEXTS = (FILES / "texts.js").read_text()
ENTRY = re.compile(r'^  "([^"]+)": "(.*)",$', re.MULTILINE)


def texts_of(name):
    part = TEXTS[TEXTS.index(f"const {name} = ") :]
    return dict(ENTRY.findall(part[: part.index("\n};")]))


@pytest.mark.parametrize("name", ["de", "fr"])
def test_each_text_is_there_in_every_language_with_the_same_values(name):
    english, other = texts_of("en"), texts_of(name)
    assert english.keys() == other.keys()
    for key, text in english.items():
        assert set(re.findall(r"{\w+}", text)) == set(re.findall(r"{\w+}", other[key])), key


def test_no_text_is_there_for_nothing_and_none_is_missing():
    sources = [path for path in FILES.iterdir() if path.name != "texts.js" and path.suffix in (".js", ".html")]
    source = "".join(path.read_text() for path in sources)
    english = texts_of("en")
    made = {key for key in english if key.endswith(".one") or key.startswith(("state.", "priority."))}
    assert {key for key in english if f'"{key}"' not in source} <= made
    used = set(re.findall(r'data-t(?:-label)?="([^"]+)"', source)) | set(re.findall(r'\bt\("([^"]+)"', source))
    assert used <= english.keys()
