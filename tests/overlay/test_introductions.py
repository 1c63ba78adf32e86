"""Whom a node takes in, and for how long."""

from overlay.introductions import MAX_PER_HOST
from tests.network import address_of, make_config, network, opened, until, unused_host


async def test_who_was_restarted_often_is_taken_in_again_and_who_is_there_stays():
    """Each start has another key: those of before hold the places of its address until they are missed."""
    host = unused_host()
    async with network(exits=1) as (exit_,):
        known = [address_of(exit_)]
        async with opened(make_config(frozenset(), known, host=host)) as (living,):
            await until(lambda: living.candidates)
            for _ in range(MAX_PER_HOST + 1):
                async with opened(make_config(frozenset(), known, host=host)) as (client,):
                    await until(lambda client=client: client.candidates, what="an answer of the exit")
            assert living.my_peer in exit_.get_peers()
            assert exit_.dropped()["introduction_replaced"] >= 1
