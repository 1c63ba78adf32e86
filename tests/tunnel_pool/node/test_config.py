"""Tests a node's configuration file: the accepted values, and the one-line error for a wrong one."""

import contextlib
import datetime
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmdb_writer import MMDBWriter
from netaddr import IPSet

from tunnel_pool.node.config import exit_rules, parse_bytes, protocols, read_config
from tunnel_pool.node.keeper import LimitsKeeper
from tunnel_pool.node.rates import NOTHING, Usage, is_open, limits_at, period_start
from tunnel_pool.overlay.ground.exit_rules import ExitRules, Protocol, Ranges, network_ranges
from tunnel_pool.overlay.serving.limits import UNLIMITED, LimitsMemory
from tunnel_pool.overlay.serving.rate_limits import Limits, Rates
from tunnel_pool.system.errors import UserError
from tunnel_pool.system.toml_file import arguments_of

MONDAY_NOON = datetime.datetime(2026, 11, 23, 12, 0)


def written(tmp_path, text):
    path = tmp_path / "node.toml"
    path.write_text(text)
    return path


def config_of(tmp_path, text):
    return read_config(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[limits", "Expected ']'"),
        ("[limit]", "unknown field `limit`"),
        ("[limits]\nrelayed.up = '10'", "'10' is not like '10 MB/s' - at `limits.relayed.up`"),
        ("[limits]\nrelayed.up = '10 MB'", "is not like '10 MB/s'"),
        ("[limits]\nrelayed.up = '10 Mb/s'", "is not like '10 MB/s'"),
        ("[limits]\ncircuits = 99999999999", "limits.circuits must be from 1 to 4294967295"),
        ("[limits]\nrelayed.up = -1", "is not like '10 MB/s'"),
        ("[limits]\nrelayed = 5", "Expected `object`, got `int` - at `limits.relayed`"),
        ("[limits]\ncircuits = 0", "limits.circuits must be from 1 to"),
        ("[limits.quota]\nbytes = '2 TB/s'", "'2 TB/s' is not like '2 TB' - at `limits.quota.bytes`"),
        ("[limits.quota]\nbytes = '2 TB'\nday = 29", "limits.quota.day must be from 1 to 28"),
        ("[limits.quota]\nbytes = '2 TB'\ncounts = 'all'", "'all' is none of up, down, both"),
        ("[limits.quota]\nday = 2", "missing required field `bytes`"),
        ("[[limits.schedule]]\nfrom = '24:00'", "'24:00' is not like '23:30'"),
        ("[[limits.schedule]]\ndays = ['monday']", "'monday' is none of mon, tue"),
        ("[exit]\ndeny_ports = ['7-3']", "'7-3' is no port"),
        ("[exit]\nallow_ports = [65536]", "65536 is no port"),
        ("[exit]\nmax_destinations = -1", "exit.max_destinations must be from 0"),
        ("\xff", "at line 1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, text, said):
    with pytest.raises(UserError) as caught:
        config_of(tmp_path, text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "node.toml") in str(caught.value)


def test_an_empty_file_limits_nothing(tmp_path):
    config = config_of(tmp_path, "")
    assert not limits_at(config.limits, MONDAY_NOON, quota_spent=False).are_any()


@pytest.mark.parametrize(
    ("text", "number"), [("1 B/s", 1), ("1.5 kB/s", 1500), ("10MB/s", 10**7), ("2 KiB/s", 2048), (7, 7), (0, 0)]
)
def test_rates(text, number):
    assert parse_bytes(text, per_second=True) == number


@given(st.text(max_size=20))
def test_no_text_is_more_than_a_value_error(text):
    with contextlib.suppress(ValueError):
        assert parse_bytes(text, per_second=False) >= 0


def test_options_of_the_file_are_those_of_the_command_line(tmp_path):
    path = written(tmp_path, "[node]\nexit = ['dht', 'http']\nworkers = 2\nallow-private = true\njson = false")
    assert arguments_of(read_config(path).node, "node", path) == ["--exit=dht,http", "--workers=2", "--allow-private"]


def test_the_schedules_window_holds_while_it_is_open(tmp_path):
    limits = config_of(
        tmp_path,
        """
        [limits]
        total.up = "1 MB/s"
        total.down = "2 MB/s"
        [[limits.schedule]]
        from = "23:00"
        to = "07:00"
        days = ["mon"]
        total.up = "5 MB/s"
        """,
    ).limits
    for hours, up in ((0, 1), (11.5, 5), (18.9, 5), (19, 1), (-12, 1), (-7, 1)):
        now = MONDAY_NOON + datetime.timedelta(hours=hours)
        assert limits_at(limits, now, quota_spent=False).total == Rates(up * 10**6, 2 * 10**6)


def test_a_window_of_all_day_is_open_all_day(tmp_path):
    (window,) = config_of(tmp_path, "[[limits.schedule]]\ndays = ['mon']\nown.up = 5").limits.schedule
    assert is_open(window, MONDAY_NOON)
    assert is_open(window, MONDAY_NOON.replace(hour=0))
    assert is_open(window, MONDAY_NOON.replace(hour=23, minute=59))
    assert not is_open(window, MONDAY_NOON - datetime.timedelta(days=1))
    assert not is_open(window, MONDAY_NOON + datetime.timedelta(days=1))


def test_without_quota_left_nothing_is_carried_for_others(tmp_path):
    limits = config_of(tmp_path, "[limits]\nown.up = 5\nrelayed.up = 7").limits
    held = limits_at(limits, MONDAY_NOON, quota_spent=True)
    assert (held.relayed, held.exited, held.own) == (NOTHING, NOTHING, Rates(5, None))


@given(st.dates(datetime.date(2020, 1, 1), datetime.date(2040, 1, 1)), st.integers(1, 28))
def test_a_quotas_month_began_within_31_days(today, day):
    start = period_start(day, today)
    assert start.day == day
    assert datetime.timedelta(0) <= today - start < datetime.timedelta(days=31)


def test_the_quota_is_counted_kept_over_restarts_and_begins_anew(tmp_path):
    limits = config_of(tmp_path, "[limits.quota]\nbytes = 100\nday = 20\ncounts = 'up'").limits
    memory = LimitsMemory()
    keeper = LimitsKeeper(limits, memory, tmp_path, MONDAY_NOON)

    def carry(up):
        counted = memory.counted().up["relayed"]
        memory._words[288 + 3 * 8] = counted + up

    carry(60)
    keeper.step(MONDAY_NOON)
    assert keeper.quota_left() == 40
    keeper.save()
    again = LimitsKeeper(limits, memory, tmp_path, MONDAY_NOON)
    carry(50)
    again.step(MONDAY_NOON)
    assert again.quota_left() == 0
    assert again.held.relayed == NOTHING
    again.step(MONDAY_NOON + datetime.timedelta(days=30))
    assert again.quota_left() == 100
    assert again.held.relayed == Rates()
    memory.close()


def test_a_usage_file_that_is_none_is_said_and_forgotten(tmp_path, caplog):
    (tmp_path / "usage.json").write_text("{")
    limits = config_of(tmp_path, "[limits.quota]\nbytes = 100").limits
    memory = LimitsMemory()
    assert LimitsKeeper(limits, memory, tmp_path, MONDAY_NOON).quota_left() == 100
    assert "is forgotten" in caplog.text
    memory.close()


def test_a_usage_knows_both_ways(tmp_path):
    quota = config_of(tmp_path, "[limits.quota]\nbytes = 100").limits.quota
    usage = Usage(MONDAY_NOON.date(), 1, 2)
    usage.add(quota, 10, 20, MONDAY_NOON.date())
    assert usage.of(quota) == 33


def test_the_memory_has_what_was_set():
    memory = LimitsMemory()
    memory.set(Limits(exited=Rates(5, None), circuit=Rates(None, 9)))
    assert memory._words[1] == 1
    assert list(memory._words[5:7]) == [UNLIMITED, 9]
    assert [memory._words[8 + 2 * bucket] for bucket in range(8)] == [
        UNLIMITED, UNLIMITED, 5, UNLIMITED, UNLIMITED, UNLIMITED, UNLIMITED, UNLIMITED,
    ]  # fmt: skip
    memory.set(Limits())
    assert memory._words[1] == 0
    memory.close()


# The exit's rules


def test_networks_come_from_the_file_and_from_files_beside_it(tmp_path):
    (tmp_path / "block.txt").write_text("# a list\n192.0.2.0/24\n\n2001:db8::/32 # and more\n192.0.2.128/25\n")
    path = written(tmp_path, "[exit]\ndeny_networks = ['198.51.100.7', 'block.txt']\ndeny_ports = [25, '26-30']")
    rules = exit_rules(read_config(path).exit, Protocol.DHT, tmp_path)
    assert len(rules.denied.firsts) == 3
    assert rules.denied_ports == Ranges((25,), (30,))
    for host in ("192.0.2.200", "198.51.100.7", "2001:db8:1::", "::ffff:192.0.2.1"):
        assert rules.destination_refusal(host, 80) == "exit_network_denied"
    assert rules.destination_refusal("198.51.100.8", 80) is None
    assert rules.destination_refusal("198.51.100.8", 28) == "exit_port_denied"


@pytest.mark.parametrize(
    ("content", "said"), [(None, "no file that can be read"), (b"10.0.0.0/8\nfoo", "line 2: 'foo' is no network")]
)
def test_a_list_that_can_not_be_read_is_said(tmp_path, content, said):
    if content is not None:
        (tmp_path / "list").write_bytes(content)
    with pytest.raises(UserError, match=said):
        exit_rules(config_of(tmp_path, "[exit]\nallow_networks = ['list']").exit, Protocol.DHT, tmp_path)


def database(path, records):
    writer = MMDBWriter(ip_version=6, ipv4_compatible=True, database_type="test")
    for network, record in records.items():
        writer.insert_network(IPSet([network]), record)
    writer.to_db_file(str(path))


def test_systems_and_countries_stand_for_their_networks(tmp_path):
    """Each maker of such databases has names of its own for them."""
    systems = {"44.1.0.0/16": 7, "44.2.0.0/24": 64500, "2a00:1::/32": 7}
    database(tmp_path / "as.mmdb", {net: {"autonomous_system_number": number} for net, number in systems.items()})
    countries = {
        "44.5.0.0/16": {"country": {"iso_code": "NL"}}, "44.6.0.0/16": {"country_code": "NL", "country": "Netherlands"},
        "44.7.0.0/16": {"country": "NL", "asn": "AS9"}, "44.8.0.0/16": {"country": {"iso_code": "BE"}},
    }  # fmt: skip
    database(tmp_path / "country.mmdb", countries)
    path = written(
        tmp_path,
        "[exit]\ndatabases = ['as.mmdb', 'country.mmdb']\ndeny_networks = ['AS7', 'country:NL', '44.9.0.0/16']\n"
        "allow_networks = ['0.0.0.0/0', 'AS7']",
    )
    rules = exit_rules(read_config(path).exit, Protocol.DHT, tmp_path)
    for host in ("44.1.2.3", "2a00:1::5", "44.5.0.1", "44.6.0.1", "44.7.0.1", "44.9.0.1"):
        assert rules.destination_refusal(host, 80) == "exit_network_denied", host
    for host in ("44.2.0.1", "44.8.0.1"):
        assert rules.destination_refusal(host, 80) is None, host
    assert rules.destination_refusal("2a00:2::1", 80) is not None


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("deny_networks = ['AS7']", "no database knows 'AS7'"),
        ("databases = ['as.mmdb']\ndeny_networks = ['AS7', 'country:NL']", "no database knows 'country:NL'"),
        ("databases = ['none']\ndeny_networks = ['AS7']", "none can't be read: No such file"),
        ("databases = ['garbage']\ndeny_networks = ['AS7']", "it is none in the MaxMind DB format"),
        ("deny_networks = ['country:nl']", "is no network, and no file"),
    ],
)
def test_a_system_that_no_database_knows_is_not_passed_over(lines, said, tmp_path):
    database(tmp_path / "as.mmdb", {"44.1.0.0/16": {"asn": "AS7"}})
    (tmp_path / "garbage").write_bytes(b"x" * 5000)
    with pytest.raises(UserError, match=said):
        exit_rules(config_of(tmp_path, f"[exit]\n{lines}").exit, Protocol.DHT, tmp_path)


networks = st.one_of(st.ip_addresses(), st.ip_addresses(v=4)).flatmap(
    lambda ip: st.integers(0, ip.max_prefixlen).map(lambda bits: ipaddress.ip_network((ip, bits), strict=False))
)


@given(st.lists(networks, max_size=20), st.ip_addresses())
def test_ranges_are_the_networks(some, address):
    expected = any(address in network for network in some)
    if address.version == 6 and address.ipv4_mapped is not None:
        expected = expected or any(address.ipv4_mapped in network for network in some)
    mapped = address.version == 4 and any(
        ipaddress.IPv6Address(f"::ffff:{address}") in network for network in some if network.version == 6
    )
    rules = ExitRules(denied=network_ranges(some))
    assert (rules.destination_refusal(str(address), 1) is not None) is (expected or mapped)
    assert Ranges.unpack(rules.denied.pack(16), 16) == rules.denied


def test_protocols_by_name():
    assert protocols("all") == Protocol(127)
    assert protocols("dht,http") == Protocol.DHT | Protocol.HTTP
