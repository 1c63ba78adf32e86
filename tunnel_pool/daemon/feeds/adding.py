"""The torrent of an article, and how a rule wants it added."""

import libtorrent as lt
from yarl import URL

from tunnel_pool.daemon.changes.edits import AddRequest
from tunnel_pool.daemon.feeds.model import Article, Rule
from tunnel_pool.daemon.outside.client import WebClient, WebSession
from tunnel_pool.daemon.outside.urls import OutsideError, Place, Way
from tunnel_pool.daemon.sources import of_source
from tunnel_pool.torrent.links import is_link
from tunnel_pool.torrent.metainfo import MAX_TOKENS_OF_STRANGERS, read_metainfo

MAX_TORRENT_BYTES = 16 << 20


async def parameters_of(article: Article, client: WebClient, session: WebSession) -> lt.add_torrent_params:
    """Return the torrent that an article names, fetched as what came from the article's source may be.

    Raises RequestError and OutsideError.
    """
    if is_link(article.torrent_url):
        return of_source(article.torrent_url, files=False)
    source = Place(Way.DIRECT if article.is_direct else Way.TUNNELS, URL(article.source))
    fetched, _ = await session.fetch(client.place_of(article.torrent_url, source), MAX_TORRENT_BYTES)
    if fetched.magnet:
        return of_source(fetched.magnet, files=False)
    try:
        return read_metainfo(fetched.body, MAX_TOKENS_OF_STRANGERS)
    except (RuntimeError, ValueError):
        raise OutsideError("what its URL leads to is no torrent file") from None


def wish_of(rule: Rule) -> AddRequest:
    return AddRequest(folder=rule.folder or None, hops=rule.hops, labels=rule.labels, stopped=rule.stopped)
