"""Adds the torrents that rules want of a feed."""

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

import libtorrent as lt

from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.feeds import matching
from tunnel_pool.daemon.feeds.client import FeedClient, FeedSession
from tunnel_pool.daemon.feeds.model import Article, Rule
from tunnel_pool.daemon.feeds.reading import is_magnet
from tunnel_pool.daemon.feeds.urls import FeedError, Place
from tunnel_pool.daemon.sources import of_source
from tunnel_pool.daemon.torrents.changes import AddRequest, Changes
from tunnel_pool.torrent.metainfo import read_metainfo

MAX_TORRENT_BYTES = 16 << 20
MOST_TRIES = 3

logger = logging.getLogger(__name__)


class Adding:
    def __init__(self, client: FeedClient, changes: Changes) -> None:
        self._client = client
        self._changes = changes

    async def add(self, article: Article, rule: Rule, source: Place, session: FeedSession) -> None:
        """Add an article's torrent as a rule says, and note what became of it. Raises StoreError.

        What could not be fetched is tried again with the next reading, MOST_TRIES times in all.
        """
        if not matching.may_take(rule, article, time.time()):
            return  # it has just taken another one of the same episode
        try:
            parameters = await self._parameters(article, source, session)
            folder = rule.folder or None
            wish = AddRequest(folder=folder, hops=rule.hops, labels=rule.labels, stopped=rule.stopped)
            await _finished(self._changes.add(parameters, wish))
        except RequestError as error:
            article.problem, article.is_read = str(error), True
        except FeedError as error:
            article.tries += 1
            article.problem, article.is_read = str(error), article.tries >= MOST_TRIES
        else:
            article.problem, article.is_read = "", True
            matching.note_taken(rule, article, time.time())
            logger.info("A torrent of a feed was added by the rule %s", rule.name)
        if article.problem:
            logger.warning("A torrent that the rule %s wants was not added: %s", rule.name, article.problem)

    async def _parameters(self, article: Article, source: Place, session: FeedSession) -> lt.add_torrent_params:
        """Raises RequestError and FeedError."""
        if is_magnet(article.torrent_url):
            return of_source(article.torrent_url, files=False)
        place = self._client.place_of(article.torrent_url, source)
        fetched, _ = await session.fetch(place, MAX_TORRENT_BYTES)
        if fetched.magnet:
            return of_source(fetched.magnet, files=False)
        try:
            return await asyncio.to_thread(read_metainfo, fetched.body)
        except (RuntimeError, ValueError):
            raise FeedError("what its URL leads to is no torrent file") from None


async def _finished(change: Coroutine[Any, Any, object]) -> None:
    """Wait for a change, which is finished once it has begun, even if this is cancelled."""
    changing = asyncio.ensure_future(change)
    try:
        await asyncio.shield(changing)
    except asyncio.CancelledError:
        await asyncio.wait([changing])
        raise
