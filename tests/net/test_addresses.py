"""Addresses as people write them, as URLs hold them, and as the swarm announces them."""

from __future__ import annotations

import ipaddress
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psync.errors import UsageError
from p2psync.net.addresses import (
    advertised_hosts,
    check_url,
    further_hosts,
    host_and_port,
    is_announceable,
    is_loopback,
    listen_host,
    plain_host,
    shell_words,
    url_of,
)

HOSTS = st.one_of(
    st.ip_addresses().map(str),
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z]{2,5})?", fullmatch=True),
    st.just("fe80::1%eth0"),
)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("2001:DB8:0:0::7", "2001:db8::7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("[::ffff:c000:207]", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("[fe80::1%25eth0]", "fe80::1%eth0"),
        ("node-7.example", "node-7.example"),
    ],
)
def test_a_host_is_used_in_its_plain_form(text: str, host: str) -> None:
    assert plain_host(text, "--host") == host


@pytest.mark.parametrize(
    "text", ["", "192.0.2.7:7070", "[::1]:7070", "::g", "[::1", "[node]", "http://node", "two words", "-node", "a/b"]
)
def test_an_invalid_host_is_refused_by_option_and_value(text: str) -> None:
    with pytest.raises(UsageError, match="--host") as refused:
        plain_host(text, "--host")
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("text", ["", "*", "::", "[::]"])
def test_every_address_is_listened_to_under_each_of_its_names(text: str) -> None:
    assert listen_host(text) == ""


def test_every_ipv4_address_is_not_every_address() -> None:
    assert listen_host("0.0.0.0") == "0.0.0.0"


@given(host=HOSTS, port=st.integers(1, 65535), scheme=st.sampled_from(["http", "https"]))
def test_a_url_is_read_as_it_is_written(host: str, port: int, scheme: str) -> None:
    read = check_url(url_of(host, port, scheme))
    assert (read.scheme, read.port) == (scheme, port)
    assert read.host == plain_host(host, "host")


@given(host=HOSTS, port=st.integers(1, 65535))
def test_a_printed_command_is_the_same_command_after_a_shell(host: str, port: int) -> None:
    words = ["p2psync", "actor", "--join", url_of(host, port), "--into", "DIR"]
    assert shlex.split(shell_words(words)) == words


def test_brackets_are_quoted_for_shells_that_expand_them() -> None:
    assert shell_words(["--join", "http://[::1]:7070"]) == "--join 'http://[::1]:7070'"


@pytest.mark.parametrize("url", ["http://::1:7070", "http://fe80::1%eth0:7070", "::1:7070"])
def test_a_url_that_lacks_brackets_is_told_of_them(url: str) -> None:
    with pytest.raises(UsageError, match=r"in brackets: http://\[::1\]:7070"):
        check_url(url)


@pytest.mark.parametrize("url", ["http://[::g]:7070", "http://[::1]", "http://[node]:7070", "http://:7070"])
def test_a_url_without_a_host_or_port_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not a hub's address"):
        check_url(url)


def test_a_zone_reaches_the_resolver_as_it_wants_it() -> None:
    assert check_url("http://[fe80::1%25eth0]:7070").raw_host == "fe80::1%eth0"


def test_several_addresses_are_advertised_in_their_order() -> None:
    assert advertised_hosts("[2001:db8::7], 192.0.2.7") == ("2001:db8::7", "192.0.2.7")


@pytest.mark.parametrize("text", ["0.0.0.0", "::", "fe80::1%eth0", "ff02::1", "192.0.2.7:7071", ",", "a,b,c,d,e,f"])
def test_an_address_that_cannot_be_advertised_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^advertise "):
        advertised_hosts(text)


@pytest.mark.parametrize(
    ("seen", "own", "told"),
    [
        ("8.8.4.4", ["10.0.0.5", "2606:4700::5"], ("2606:4700::5",)),
        ("2606:4700::5", ["10.0.0.5", "2606:4700::5"], ()),  # elsewhere 10.0.0.5 is another machine
        ("fd00::5", ["10.0.0.5", "fd00::5"], ("10.0.0.5",)),
        ("8.8.4.4", ["fd00::5"], ()),
        ("@hub", ["10.0.0.5", "2606:4700::5"], ()),
        ("", ["2606:4700::5"], ()),
    ],
)
def test_peers_are_told_the_other_family_where_it_means_the_same_machine(
    seen: str, own: list[str], told: tuple[str, ...]
) -> None:
    assert further_hosts(seen, own) == told


@given(seen=st.ip_addresses().map(str), own=st.lists(st.ip_addresses().map(str), max_size=8))
def test_no_further_host_is_of_the_family_seen_or_local(seen: str, own: list[str]) -> None:
    for host in further_hosts(seen, own):
        assert is_announceable(host) and not is_loopback(host)
        assert ipaddress.ip_address(host).version != ipaddress.ip_address(plain_host(seen, "seen")).version


@given(host=st.ip_addresses().map(str), port=st.integers(0, 65535))
def test_brackets_stand_beside_a_port_for_ipv6_alone(host: str, port: int) -> None:
    assert host_and_port(host, port) == (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
