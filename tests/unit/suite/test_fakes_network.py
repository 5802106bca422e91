"""Virtual time and the simulated network: order, flow control, silence, resets, determinism."""

import asyncio
import random
from typing import Any

import pytest

from tests.fakes.faults import ProcessDied
from tests.simulation.loop import NS, SimClock, SimLoop, StalledError, World, run_alone
from tests.simulation.network import Network
from tests.simulation.transport import NetworkConfig


class Recorder(asyncio.Protocol):
    """Keeps what happened to it."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.events: list[str] = []
        self.error: Exception | None = None
        self.keep_open = False
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self.events.append("lost")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Buffered(asyncio.BufferedProtocol):
    """Receives into one small buffer and echoes."""

    def __init__(self) -> None:
        self._buffer = bytearray(7)
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(self._buffer[:nbytes])


class Net:
    """Two hosts, one connection between them."""

    def __init__(self, seed: int = 1, server_protocol: Any = Recorder, **config: Any) -> None:
        self.world = World()
        self.network = Network(self.world, random.Random(seed), NetworkConfig(**config))
        self.server_loop = SimLoop(self.world, "server")
        self.client_loop = SimLoop(self.world, "client")
        self.network.attach(self.server_loop, "10.0.0.1")
        self.network.attach(self.client_loop, "10.0.0.2")
        self.served: list[Any] = []

        def factory() -> Any:
            self.served.append(server_protocol())
            return self.served[-1]

        self.server = self.network.listen(self.server_loop, factory, 9092)

    def connect(self) -> tuple[Any, Recorder]:
        """Return the client's transport and protocol."""
        connecting = self.client_loop.create_connection(Recorder, "10.0.0.1", 9092)
        result: tuple[Any, Recorder] = self.client_loop.run_until_complete(connecting)
        return result

    def rest(self, seconds: float = 1.0) -> None:
        """Let time pass."""
        end_ns = self.world.now_ns + int(seconds * NS)
        self.world.at(int(seconds * NS), lambda: None)
        self.world.run(lambda: self.world.now_ns >= end_ns)


def test_time_jumps_and_stalls_are_seen() -> None:
    loop = SimLoop()

    async def main() -> float:
        start = loop.time()
        await asyncio.sleep(3600)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(50)
        return loop.time() - start

    assert loop.run_until_complete(main()) == 3605
    with pytest.raises(StalledError, match="Dead-lock"):
        run_alone(asyncio.Event().wait())

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(StalledError, match="Time stands still"):
        SimLoop(World(callbacks_per_instant_max=1000)).run_until_complete(spin())


def test_clock_has_offset_and_drift_and_timers_agree_with_it() -> None:
    world = World()
    loop = SimLoop(world, offset_ns=5 * NS, drift_ppm=200)
    clock = SimClock(loop)
    for milliseconds in (1, 7, 333, 10_000):
        before = clock.now_ms()
        loop.run_until_complete(asyncio.sleep(milliseconds / 1000))
        assert before + milliseconds <= clock.now_ms() <= before + milliseconds + 1
    assert world.now_ns < loop.local_ns() - 5 * NS


@pytest.mark.parametrize("drift_ppm", [0, 100, -100])
def test_a_timer_never_fires_before_its_time(drift_ppm: int) -> None:
    rng = random.Random(1)
    loop = SimLoop(World(), offset_ns=617 * NS, drift_ppm=drift_ppm)
    late: list[float] = []

    def fire(when: float) -> None:
        late.append(loop.time() - when)

    for _ in range(300):
        when = loop.time() + rng.random() * 10
        loop.call_at(when, fire, when)
    loop.run_until_complete(asyncio.sleep(11))
    assert len(late) == 300
    assert min(late) >= 0
    assert max(late) < 3e-9


def test_a_timer_that_sets_itself_again_is_seen() -> None:
    loop = SimLoop(World(callbacks_per_instant_max=1000))

    def again() -> None:
        loop.call_at(loop.time(), again)

    again()
    with pytest.raises(StalledError, match="Time stands still"):
        loop.run_until_complete(asyncio.sleep(1))


def test_killed_and_paused_loops() -> None:
    world = World()
    first, second = SimLoop(world, "first"), SimLoop(world, "second")
    ticks = {"first": 0, "second": 0}

    async def tick(name: str) -> None:
        try:
            while True:
                await asyncio.sleep(1)
                ticks[name] += 1
        finally:
            ticks[name] += 1000

    tasks = [first.create_task(tick("first")), second.create_task(tick("second"))]
    world.at(int(3.5 * NS), first.kill)
    world.at(int(3.5 * NS), second.pause)
    world.at(int(8.5 * NS), second.resume)
    world.run(lambda: False, limit_ns=int(10.2 * NS))
    assert ticks == {"first": 3, "second": 5}
    second.kill()
    assert not any(task.done() for task in tasks)


def test_death_of_a_process_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    loop = SimLoop()

    async def main() -> None:
        loop.call_soon(lambda: (_ for _ in ()).throw(ProcessDied("x")))
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert not caplog.records


def test_bytes_arrive_in_order_through_small_windows() -> None:
    net = Net(fragment_probability=0.8, window_bytes=100)
    transport, protocol = net.connect()
    data = random.Random(5).randbytes(5000)
    for start in range(0, 5000, 500):
        transport.write(data[start : start + 500])
    net.rest()
    assert bytes(net.served[0].received) == data
    assert transport.get_extra_info("socket") is None
    assert transport.get_extra_info("peername") == ("10.0.0.1", 9092)
    assert protocol.events == ["made"]


def test_buffered_protocol_and_streams() -> None:
    net = Net(server_protocol=Buffered, fragment_probability=0.5)

    async def main() -> bytes:
        reader, writer = await asyncio.open_connection("10.0.0.1", 9092)
        writer.write(b"hello world, this is more than seven bytes")
        await writer.drain()
        data = await reader.readexactly(42)
        writer.close()
        return data

    assert net.client_loop.run_until_complete(main())[:5] == b"hello"


def test_flow_control() -> None:
    net = Net(window_bytes=1000)
    transport, protocol = net.connect()
    transport.set_write_buffer_limits(high=2000)
    net.rest()
    net.served[0].transport.pause_reading()
    transport.write(bytes(10_000))
    net.rest()
    assert protocol.events == ["made", "pause"]
    assert transport.get_write_buffer_size() == 9000
    assert not net.served[0].received
    net.served[0].transport.resume_reading()
    net.rest()
    assert protocol.events == ["made", "pause", "resume"]
    assert len(net.served[0].received) == 10_000


def test_close_flushes_and_half_close_answers() -> None:
    net = Net()
    transport, protocol = net.connect()
    net.rest()
    net.served[0].keep_open = True
    transport.write(b"question")
    transport.write_eof()
    net.rest()
    assert net.served[0].events == ["made", "eof"]
    net.served[0].transport.write(b"answer")
    net.served[0].transport.close()
    net.rest()
    assert (bytes(net.served[0].received), bytes(protocol.received)) == (b"question", b"answer")
    assert protocol.events == ["made", "eof", "lost"]
    assert protocol.error is None
    assert not net.network.transports


def test_abort_and_late_writes_reset_the_peer() -> None:
    net = Net()
    transport, protocol = net.connect()
    net.rest()
    net.served[0].transport.abort()
    net.rest()
    assert isinstance(protocol.error, ConnectionResetError)
    assert transport.is_closing()
    transport, protocol = net.connect()
    net.rest()
    protocol.keep_open = True
    net.served[1].transport.close()
    net.rest()
    transport.write(b"late")
    net.rest()
    assert protocol.events == ["made", "eof", "lost"]
    assert isinstance(protocol.error, ConnectionResetError)


def test_refused_and_timed_out_connections() -> None:
    net = Net()
    net.server.close()
    with pytest.raises(ConnectionRefusedError):
        net.connect()
    net.network.cut_power(net.server_loop)
    with pytest.raises(TimeoutError):
        net.connect()


def test_blocked_direction_holds_back_in_order() -> None:
    net = Net()
    transport, protocol = net.connect()
    net.rest()
    net.network.block("10.0.0.2", "10.0.0.1")
    transport.write(b"one")
    net.served[0].transport.write(b"reply")
    net.rest()
    transport.write(b"two")
    net.rest()
    assert (bytes(net.served[0].received), bytes(protocol.received)) == (b"", b"reply")
    net.network.unblock_all()
    transport.write(b"three")
    net.rest()
    assert bytes(net.served[0].received) == b"onetwothree"


def test_process_death_is_seen_and_power_loss_is_not() -> None:
    kinds = set()
    for seed in range(12):
        net = Net(seed)
        _, protocol = net.connect()
        net.server_loop.kill()
        net.network.kill_process(net.server_loop)
        net.rest()
        kinds.add((protocol.events[-1], type(protocol.error)))
    assert kinds == {("lost", type(None)), ("lost", ConnectionResetError)}
    net = Net()
    transport, protocol = net.connect()
    net.server_loop.kill()
    net.network.cut_power(net.server_loop)
    transport.write(b"into the void")
    net.rest(30)
    assert protocol.events == ["made"]
    net.network.attach(SimLoop(net.world, "again"), "10.0.0.1")
    transport.write(b"anybody?")
    net.rest()
    assert isinstance(protocol.error, ConnectionResetError)


def test_cut_connections_reset_both_ends() -> None:
    net = Net()
    _, protocol = net.connect()
    net.rest()
    assert net.network.cut_some(2.0) == 2
    net.rest()
    assert isinstance(protocol.error, ConnectionResetError)
    assert isinstance(net.served[0].error, ConnectionResetError)


def test_same_seed_same_run() -> None:
    def run(seed: int) -> tuple[list[object], int]:
        net = Net(seed, fragment_probability=0.5)
        trace: list[object] = []
        net.network.trace = lambda *what: trace.append((net.world.now_ns, *what))
        transport, _ = net.connect()
        for count in range(1, 20):
            transport.write(bytes(count * 10))
        net.rest()
        return trace, net.world.callback_count

    assert run(3) == run(3)
    assert run(3) != run(4)


class Switching(Buffered):
    """Takes 20 bytes, then hands the connection over to another protocol."""

    def __init__(self, *, pauses: bool) -> None:
        super().__init__()
        self.left = 20
        self.pauses = pauses

    def get_buffer(self, sizehint: int) -> bytearray:
        del self._buffer[self.left :]
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.left -= nbytes
        if not self.left:
            successor = Buffered()
            self.transport.set_protocol(successor)
            successor.connection_made(self.transport)
            if self.pauses:
                self.transport.pause_reading()


@pytest.mark.parametrize("pauses", [False, True])
def test_a_connection_is_handed_over_to_another_protocol(pauses: bool) -> None:
    net = Net(server_protocol=lambda: Switching(pauses=pauses), fragment_probability=0.5)
    transport, client = net.connect()
    data = bytes(range(100))
    transport.write(data)
    net.rest()
    if pauses:
        assert not client.received
        net.served[0].transport.resume_reading()
        net.rest()
    assert client.received == data[20:]
    transport.abort()
    net.rest()
