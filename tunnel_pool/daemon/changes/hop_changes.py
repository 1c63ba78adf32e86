"""A torrent goes from one hop count to another while it is there: out of one libtorrent session, into the next."""

import asyncio
from collections.abc import Mapping, Sequence

import libtorrent as lt

from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.rules.life import Event
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.sessions import PLAIN_LANE
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.torrent.isolation import PLAIN
from tunnel_pool.torrent.metainfo import read_resume

REMOVE_TIMEOUT_S = 10.0
NO_PLAIN = "without hops nothing is sent, as all leaves by the device {}: give it hops"
KNOWN_TO_THE_WORLD = (
    "while it was plain, its trackers, DHT nodes and peers saw this machine's address with its infohash; "
    "they may remember it"
)


class HopChanges:
    def __init__(self, library: Library) -> None:
        self._library = library

    def check(self, torrent: Torrent, hops: int, labels: Sequence[str]) -> bool:
        """Return whether the torrent has to go to another session to have this hop count and these labels.

        Raises RequestError where it can't go now.
        """
        library = self._library
        is_in_place = library.isolator.is_in_place(torrent.lane, torrent.record.infohash, labels)
        if hops != torrent.record.hops:
            self.check_device(hops)
        if hops != torrent.record.hops or (not is_in_place and library.records.is_here(torrent)):
            self._check_movable(torrent, torrent.record.hops)
            return True
        return False

    def check_device(self, hops: int) -> None:
        """Raises RequestError where a torrent can't have so few hops, since all has to leave by one device."""
        device = self._library.sessions.device
        if device and hops == PLAIN:
            raise RequestError(NO_PLAIN.format(device))

    def warn(self, torrent: Torrent) -> None:
        """Say of a torrent without hops that nothing is sent for it, where all has to leave by one device."""
        if device := self._library.sessions.device:
            torrent.notify(NO_PLAIN.format(device) if torrent.record.hops == PLAIN else "")

    async def carry_out(self, torrent: Torrent, hops: int, fields: Mapping[str, object]) -> str:
        """Bring a torrent into the session of this hop count and its labels, with these fields of its record.

        On return, nothing more is sent for the torrent over the old number of hops. Return a sentence on what others
        know already, empty when they know nothing. Raises RequestError and StoreError.
        """
        was_announced = torrent.record.hops == PLAIN != hops and torrent.has_run
        await self._move(torrent, hops, was_announced, fields)
        self.warn(torrent)
        return KNOWN_TO_THE_WORLD if was_announced else ""

    async def open_anew(self, torrent: Torrent) -> None:
        """Take the torrent out of its session and put it back, with all that is known of it.

        Raises RequestError and StoreError.
        """
        await asyncio.shield(self._open_anew(torrent))

    async def _open_anew(self, torrent: Torrent) -> None:
        library = self._library
        async with library.records.changing:
            if library.records.is_here(torrent):
                self._check_movable(torrent, torrent.record.hops)
                await self._move(torrent, torrent.record.hops, False, {})
        library.scheduler.tick()

    def _check_movable(self, torrent: Torrent, before: int) -> None:
        """Raises RequestError while libtorrent moves files that a change of sessions would interrupt."""
        if torrent.is_moving:
            raise RequestError("its files are being moved: ask again when that is done")
        if before == PLAIN and any(other.is_moving for other in self._library.torrents_of(PLAIN)):
            raise RequestError("files of another plain torrent are being moved: change its hops when that is done")

    async def _move(self, torrent: Torrent, hops: int, was_announced: bool, fields: Mapping[str, object]) -> None:
        library = self._library
        lane = torrent.lane
        before = library.sessions.ensure_open(lane)
        # A peer that knows our own address must not meet us over the tunnels, too, or the other way round.
        with_peers = (torrent.record.hops == PLAIN) == (hops == PLAIN)
        kept = torrent.record.peers if with_peers else []
        if not torrent.is_between_sessions:
            torrent.handle.pause()  # what is moved from here on would be in no account
        # The plain session ends before the answer if others heard of the torrent, or if it would go on for nobody.
        is_last_plain = hops != PLAIN and library.torrents_of(PLAIN) == [torrent]
        ends_plain = was_announced or is_last_plain
        # The steps that can fail come first, so that a failure changes nothing.
        staying = await self._resume_of_others(torrent) if ends_plain else []
        resume = await library.records.put_with_resume(torrent, with_peers, **{**fields, "hops": hops, "peers": kept})
        parameters = read_resume(resume)
        library.scheduler.leave_swarms(torrent)
        torrent.update(torrent.handle.status())
        if not torrent.is_between_sessions:
            torrent.leave_session()
            # A tracker that hears of the end after the new beginning would take a private torrent's account for gone.
            await before.announced_last(torrent.handle)
        await asyncio.wait([before.remove(torrent)], timeout=REMOVE_TIMEOUT_S)
        before.forget(torrent)
        torrent.waiting.give_up("it went to another session")
        if ends_plain:
            await self._end_plain_session(staying)
        torrent.go_to(library.isolator.enter(torrent.record.infohash, hops, torrent.record.labels))
        if torrent.lane != lane:
            library.leave_lane(lane, torrent.record)
        try:
            self._hand_over(torrent, parameters)
        except RuntimeError as error:
            _refuse(torrent, error)
            raise RequestError(torrent.error) from None

    async def _resume_of_others(self, leaving: Torrent) -> list[tuple[Torrent, lt.add_torrent_params]]:
        """Return the other plain torrents, and where they stand. Raises StoreError."""
        others = [
            torrent
            for torrent in self._library.torrents_of(PLAIN)
            if torrent is not leaving and not torrent.is_between_sessions
        ]
        resumes = await asyncio.gather(*(self._library.records.resume_data(torrent) for torrent in others))
        return [(torrent, read_resume(resume)) for torrent, resume in zip(others, resumes, strict=True)]

    async def _end_plain_session(self, staying: Sequence[tuple[Torrent, lt.add_torrent_params]]) -> None:
        """Close the plain session, and open another for the plain torrents that stay.

        A torrent that was removed from a libtorrent session is still announced by it: by look-ups in the DHT
        that end in an announcement, and by trackers' requests that are tried again. Nothing but the end of the
        session stops these for certain.
        """
        library = self._library
        for torrent, _ in staying:
            torrent.leave_session()
            torrent.waiting.give_up("its session was opened anew")
        await library.sessions.close(PLAIN_LANE)
        for torrent, parameters in staying:
            try:
                self._hand_over(torrent, parameters)
                if torrent.is_verifying:
                    torrent.handle.force_recheck()
            except RuntimeError as error:
                _refuse(torrent, error)

    def _hand_over(self, torrent: Torrent, parameters: lt.add_torrent_params) -> None:
        """Raises RuntimeError."""
        library = self._library
        torrent.enter_session(library.hand_over(torrent.record, torrent.lane, parameters, torrent.is_missing))
        library.sessions.ensure_open(torrent.lane).register(torrent)


def _refuse(torrent: Torrent, error: RuntimeError) -> None:
    torrent.happened(Event.FAILED, f"libtorrent refuses it: {error}")
