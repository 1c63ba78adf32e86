"""Tests the texts of the page: each exists in every language, and none is unused."""

import re

import pytest

from tests.tunnel_pool.torrent.test_network_words import CASES
from tunnel_pool.daemon.rules.standstill import Standstill, Step
from tunnel_pool.daemon.server.page_server import FILES
from tunnel_pool.daemon.storage.presence import not_found

ENTRY = re.compile(r'^  "([^"]+)": "(.*)",$', re.MULTILINE)
# Whose keys are made of a name: a state, a kind of what has happened, a sentence of the daemon.
MADE = (".one", "state.", "priority.", "happened.", "heard.")


def texts_of(name):
    return dict(ENTRY.findall((FILES / f"texts-{name}.js").read_text()))


@pytest.mark.parametrize("name", ["de", "fr"])
def test_each_text_is_there_in_every_language_with_the_same_values(name):
    english, other = texts_of("en"), texts_of(name)
    assert english.keys() == other.keys()
    assert len(english) > 100
    for key, text in english.items():
        assert set(re.findall(r"{\w+}", text)) == set(re.findall(r"{\w+}", other[key])), key


def test_no_text_is_there_for_nothing_and_none_is_missing():
    sources = [
        path for path in FILES.iterdir() if not path.name.startswith("texts") and path.suffix in (".js", ".html")
    ]
    source = "".join(path.read_text() for path in sources)
    english = texts_of("en")
    made = {key for key in english if key.endswith(MADE) or key.startswith(MADE)}
    assert {key for key in english if f'"{key}"' not in source} <= made
    used = set(re.findall(r'data-t(?:-label)?="([^"]+)"', source)) | set(re.findall(r'\bt\("([^"]+)"', source))
    assert used <= english.keys()


def heard(sentence):
    """Return the keys of the page's texts that match a sentence of the daemon's (texts.js)."""
    patterns = {
        key: re.sub(r"\\{\w+\\}", ".+?", re.escape(text).replace(r"\(s\)", "s?"))
        for key, text in texts_of("en").items()
        if key.startswith("heard.")
    }
    return [key for key, pattern in patterns.items() if re.fullmatch(pattern, sentence)]


def stands_still(peers, is_reachable):
    still = Standstill(0.0)
    still.look(0, (7, 0))
    assert still.look(31, (7, 0)) is Step.ASK_AGAIN
    return still.sentence(31, peers, is_reachable)


@pytest.mark.parametrize(
    "sentence",
    [
        *(said for _, said in CASES if said),
        not_found("/mnt/a: b"),
        stands_still(0, False),
        stands_still(0, True),
        stands_still(2, True),
        "No such file or directory: /a/b; it is tried again every minute",
        "it is here twice: remove this one or the other",
    ],
)
def test_what_the_daemon_says_of_a_download_or_the_network_is_known_in_all_languages(sentence):
    assert len(heard(sentence)) == 1, heard(sentence)
