"""Who is let in at the gallery's server: its own address with its token, and nothing else."""

import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import viser
import websockets.asyncio.server
import websockets.sync.client
from gallery_runs import square  # noqa: F401
from viser import _messages
from websockets.datastructures import Headers
from websockets.http11 import Request

from becl.commands.cli import main
from becl.errors import UserError
from becl.views.gallery import gate
from becl.views.gallery import page as gallery_page
from becl.views.gallery import server as gallery
from becl.views.gallery.gate import Gate, guarded, open_gate
from becl.views.poses import Look, look_at

LONGEST = 300.0  # Seconds that anything may take, on a machine that has much else to do.
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": f"viser-v{viser.__version__}",
}
WRONG = "x" * 32


@pytest.fixture(scope="module")
def own() -> Iterator[Gate]:
    """The gate of a server in this process."""
    own = open_gate()
    with gallery.server_at(own, "becl") as server:
        server.scene.add_label("/label", "what only visitors see")
        yield own


def status(own: Gate, path: str, headers: list[tuple[str, str]]) -> int:
    """What is answered to a request of exactly these headers."""
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
    with socket.create_connection(("127.0.0.1", own.port), timeout=LONGEST) as connection:
        connection.sendall("\r\n".join(lines).encode("latin-1"))
        with connection.makefile("rb") as answer:
            return int(answer.readline().split()[1])


def visit(own: Gate, upgrade: bool, path: str | None = None, host: str | None = None, origin: str | None = None) -> int:
    """As the page's own requests are, but for what is given."""
    host = host or f"127.0.0.1:{own.port}"
    headers = [("Host", host), *(UPGRADE.items() if upgrade else ())]
    if upgrade or origin is not None:
        headers.append(("Origin", origin or f"http://{host}"))
    return status(own, path or f"/{own.token}/", headers)


@pytest.mark.parametrize("upgrade", [False, True], ids=["http", "websocket"])
class TestRequests:
    def fine(self, upgrade: bool) -> int:
        return 101 if upgrade else 200

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]", "127.0.0.1:9", "localhost:65535"])
    def test_of_this_machine_are_answered_whatever_the_port_of_the_tunnel(self, own, upgrade, host):
        assert visit(own, upgrade, host=host) == self.fine(upgrade)
        assert visit(own, upgrade, host=host, path=f"/{own.token}") == self.fine(upgrade)
        assert visit(own, upgrade, host=host, path=f"/{own.token}/?a=b") == self.fine(upgrade)

    @pytest.mark.parametrize("host", [
        "evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example@127.0.0.1",
        "127.0.0.1@evil.example", "192.168.0.1", "0.0.0.0", "127.0.0.1/", "127.0.0.1:x", "[::1", "2130706433", ":80",
    ])  # fmt: skip
    def test_to_another_host_are_refused(self, own, upgrade, host):
        assert visit(own, upgrade, host=host) == 403

    def test_to_no_host_or_two_are_refused(self, own, upgrade):
        rest = [*UPGRADE.items()] if upgrade else []
        name, place = ("Host", f"127.0.0.1:{own.port}"), ("Origin", f"http://127.0.0.1:{own.port}")
        assert status(own, f"/{own.token}/", [place, *rest]) == 403
        assert status(own, f"/{own.token}/", [name, name, place, *rest]) == 403
        assert status(own, f"/{own.token}/", [name, ("Host", "evil.example"), place, *rest]) == 403

    @pytest.mark.parametrize("origin", [
        "http://evil.example", "null", "http://127.0.0.1", "http://127.0.0.1:9", "http://localhost:{port}",
        "https://127.0.0.1:{port}", "file://", "http://127.0.0.1:{port}.evil.example", "http://127.0.0.1:{port}/",
    ])  # fmt: skip
    def test_from_another_page_are_refused(self, own, upgrade, origin):
        assert visit(own, upgrade, origin=origin.format(port=own.port)) == 403

    @pytest.mark.parametrize("path", [
        "/", "/index.html", f"/{WRONG}", f"/{WRONG}/", "/?token={token}", "/{token}x/", "/{start}", "//{token}/",
        "/{token}%2f", "/x/../{token}/", "http://127.0.0.1/{token}/", "/\xe9\xe9", "*",
    ])  # fmt: skip
    def test_without_the_token_are_refused(self, own, upgrade, path):
        assert visit(own, upgrade, path=path.format(token=own.token, start=own.token[:-1])) == 403

    def test_with_another_gates_token_are_refused(self, own, upgrade):
        assert visit(own, upgrade, path=f"/{closed().token}/") == 403


def test_a_websocket_must_say_where_it_comes_from(own):
    host = ("Host", f"127.0.0.1:{own.port}")
    assert status(own, f"/{own.token}/", [host, *UPGRADE.items()]) == 403
    assert status(own, f"/{own.token}/", [host, *(UPGRADE | {"Upgrade": "WebSocket"}).items()]) == 403


def test_nothing_but_the_page_is_behind_the_token(own):
    for path in ("/../../__init__.py", "/%2e%2e/%2e%2e/__init__.py", "/nothing", f"/{own.token}/"):
        assert visit(own, False, path=f"/{own.token}{path}") == 404


def test_visitors_see_the_scene(own):
    with urllib.request.urlopen(own.address, timeout=LONGEST) as answer:
        assert b"<title>Viser</title>" in answer.read()
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Set-Cookie"] is None
    place = own.address.replace("http:", "ws:").rstrip("/")  # As the page makes it of its own address.
    version = websockets.Subprotocol(f"viser-v{viser.__version__}")
    with websockets.sync.client.connect(
        place, origin=websockets.Origin(f"http://127.0.0.1:{own.port}"), subprotocols=[version], open_timeout=LONGEST
    ) as visitor:
        assert visitor.recv(timeout=LONGEST)


def closed(host: str = "127.0.0.1") -> Gate:
    """A gate that nobody can come to."""
    own = open_gate(host)
    own.listener.close()
    return own


def test_tokens_cannot_be_guessed_one_letter_at_a_time(monkeypatch):
    own, compared = closed(), []
    monkeypatch.setattr(gate.secrets, "compare_digest", lambda one, other: bool(compared.append((one, other))))
    for given in ("", "x", WRONG, own.token):
        assert "its token" in str(own.refusal(Request(f"/{given}/", Headers(Host="localhost"))))
        assert compared == [(given.encode(), own.token.encode())]
        compared.clear()


def test_every_token_is_another():
    gates = [closed() for _ in range(20)]
    assert len({one.token for one in gates}) == 20
    assert all(re.fullmatch(r"[\w-]{32}", one.token) for one in gates)
    assert not any(one.token in repr(one) for one in gates)


class TestViser:
    """What has to be so in viser for the gate to hold."""

    def test_listens_at_the_gate_and_nowhere_else(self, monkeypatch):
        monkeypatch.setenv("_VISER_PORT_OVERRIDE", "0")
        own, before = open_gate(), listeners(os.getpid())
        serve = websockets.asyncio.server.serve
        with gallery.server_at(own, "becl") as server:
            assert server.get_port() == own.port
            assert listeners(os.getpid()) == before
        assert websockets.asyncio.server.serve is serve
        assert (ipaddress.ip_address("127.0.0.1"), own.port) in before
        assert (ipaddress.ip_address("127.0.0.1"), own.port) not in listeners(os.getpid())

    def test_that_serves_by_other_means_is_not_used(self):
        with pytest.raises(RuntimeError, match="this version of viser"), guarded(closed()):
            pass

    def test_is_not_published_by_a_visitor(self, monkeypatch):
        begun = []
        monkeypatch.setattr("viser._viser.ViserTunnel", lambda *args: begun.append(args))
        with gallery.server_at(open_gate(), "becl") as server:
            (handler,) = server._websock_server._incoming_handlers[_messages.ShareUrlRequest]
            handler(0, _messages.ShareUrlRequest())
            server._thread_executor.shutdown()
        assert begun == []


def listeners(pid: int) -> set[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]]:
    """Addresses and ports at which a process accepts TCP connections."""
    if not Path("/proc/net/tcp").exists():
        pytest.skip("reads /proc, which only Linux has")
    own = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found = set()
    for table in filter(Path.exists, map(Path, ("/proc/net/tcp", "/proc/net/tcp6"))):
        for row in map(str.split, table.read_text().splitlines()[1:]):
            if row[3] == "0A" and f"socket:[{row[9]}]" in own:
                words, port = row[1].split(":")
                parts = [bytes.fromhex(words[i : i + 8])[::-1] for i in range(0, len(words), 8)]
                found.add((ipaddress.ip_address(b"".join(parts)), int(port, 16)))
    return found


class TestCommand:
    def test_serves_this_machine_alone_until_it_is_interrupted(self, square):  # noqa: F811
        command = [sys.executable, "-m", "becl", "gallery", str(square), "--no-open", "--frames", "4", "--steps", "4"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                lines = [process.stdout.readline(), process.stdout.readline()]
                found = re.fullmatch(r"(http://127\.0\.0\.1:(\d+)/[\w-]{32}/) \(Ctrl-C ends it\)\n", lines[1])
                assert found is not None, lines
                with urllib.request.urlopen(found[1], timeout=LONGEST) as answer:
                    assert answer.status == 200
                with pytest.raises(urllib.error.HTTPError, match="403"):
                    urllib.request.urlopen(f"http://127.0.0.1:{found[2]}/", timeout=LONGEST)
                with socket.create_connection(("127.0.0.1", int(found[2])), timeout=LONGEST) as stranger:
                    stranger.sendall(b"no HTTP\r\n\r\n")
                    stranger.recv(100)
                if sys.platform == "linux":
                    assert listeners(process.pid) == {(ipaddress.ip_address("127.0.0.1"), int(found[2]))}
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=LONGEST)
            finally:
                process.kill()
        assert (process.returncode, out, err) == (0, "", "")

    def test_ends_while_skills_are_measured(self, square, monkeypatch):  # noqa: F811
        def endless(look: Look, advance: Any) -> None:
            while True:
                advance(1)

        monkeypatch.setattr(gallery_page, "numbers_of", endless)
        with gallery.server_at(open_gate(), "becl") as server:
            page = gallery_page.Page(server, look_at(square), frames=4, steps=4)
            assert page._measuring.is_alive()
            page.stop()
            assert not page._measuring.is_alive()

    @pytest.fixture
    def served(self, monkeypatch) -> None:
        """The page is interrupted at once."""

        def interrupt(page: gallery_page.Page) -> None:
            page._measuring.join()
            raise KeyboardInterrupt

        monkeypatch.setattr(gallery_page.Page, "play_forever", interrupt)

    def test_beyond_this_machine_says_what_that_means(self, square, served, capsys):  # noqa: F811
        words = ["gallery", str(square), "--no-open", "--frames", "4", "--steps", "4"]
        assert main([*words, "--host", "0.0.0.0"]) == 0
        _, said, address = capsys.readouterr().out.splitlines()
        assert said.startswith("--host 0.0.0.0: whoever reaches this machine over the network and has the address can ")
        assert "the token in it is all that protects it, and nothing is encrypted" in said
        port, token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{32})/ \(Ctrl-C ends it\)", address).groups()  # type: ignore[union-attr]
        assert said.endswith(f"; from elsewhere: http://{socket.gethostname()}:{port}/{token}/")
        assert main([*words, "--host", "localhost"]) == 0
        _, address = capsys.readouterr().out.splitlines()
        assert address.startswith("http://localhost:")

    def test_beyond_this_machine_answers_to_its_numbers_and_its_name(self):
        own = closed("0.0.0.0")
        for host in ("192.168.0.1:80", "[fe80::1]:80", "localhost", socket.gethostname(), f"{socket.gethostname()}:80"):
            assert own.refusal(Request(f"/{own.token}/", Headers(Host=host))) is None
        for host in ("evil.example", "192.168.0.1.evil.example", f"x{socket.gethostname()}"):
            assert "that host" in str(own.refusal(Request(f"/{own.token}/", Headers(Host=host))))

    @pytest.mark.parametrize(("host", "said"), [
        ("203.0.113.1", "--host 203.0.113.1: Cannot assign requested address; expected an address of this machine"),
        ("", "--host '': expected a name or an address"),
        ("a b\n", "--host 'a b\\n': expected a name or an address"),
        ("http://127.0.0.1", "--host 'http://127.0.0.1': expected a name or an address"),
        ("x" * 300, "no such name; 127.0.0.1 is this machine alone"),
    ], ids=["elsewhere", "empty", "lines", "address", "long"])  # fmt: skip
    def test_bad_hosts_are_one_line(self, square, host, said, capsys):  # noqa: F811
        assert main(["gallery", str(square), "--no-open", "--host", host]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert said in error

    def test_a_port_in_use_is_one_line(self):
        own = open_gate()
        with pytest.raises(UserError, match=f"--port {own.port}: Address already in use; leave it out for a free one"):
            open_gate(port=own.port)
        own.listener.close()
        open_gate(port=own.port).listener.close()
