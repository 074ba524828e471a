"""One node's network: p2pd under supervision, transport and directory on top, seeds dialled and explained."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from .. import transport as contract
from ..identity import Identity, PeerId
from . import addresses, reachability, run_folder, seeds
from ._hivemind import P2PDaemonError, log
from .direct.wiring import direct_path
from .directory import DhtDirectory
from .libp2p_transport import Libp2pTransport, protocol_prefix, usable_address
from .limits import raise_open_file_limit
from .p2pd import STOP_TIMEOUT_S, P2pd, P2pdError, P2pdOptions
from .settings import Health, SeedResult, SwarmError, SwarmEvent, SwarmSettings

FIRST_RESTART_PAUSE_S, MAX_RESTART_PAUSE_S = 0.1, 10.0


class Swarm:
    """Built by `Swarm.start`. All coroutines run in the loop that started it."""

    def __init__(self, identity: Identity, settings: SwarmSettings) -> None:
        self.settings = settings
        self.peer_id = identity.peer_id
        self._listeners: list[Callable[[SwarmEvent], None]] = []
        self._transport = Libp2pTransport(identity.peer_id, settings, self._emit)
        self._directory = DhtDirectory(identity.peer_id, settings.run_id, self._transport.learn, self._on_conflict)
        self._answerer = seeds.Answerer(self._transport, settings)
        self._direct = self._transport.direct = direct_path(
            identity, settings, self._transport, self._directory.admits, lambda: self.reachable, self._emit
        )
        self._folder: Path | None = None
        self._daemon: P2pd | None = None
        self._relays: tuple[str, ...] = ()
        self._silent: set[PeerId | None] = set()
        """Who did not answer at the start; the redial loop takes care of them."""
        self._listen = settings.listen
        self._addresses: tuple[str, ...] = ()
        self._seed_results: tuple[SeedResult, ...] = ()
        self._num_restarts = 0
        self._last_failure = ""
        self._position = reachability.Position(settings.behind_router, bool(settings.announce))
        self._moved = asyncio.Event()
        """A healthy p2pd has to be replaced by one with other arguments."""
        self._connected: dict[PeerId, tuple[str, ...]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    # --- life

    @classmethod
    async def start(cls, settings: SwarmSettings, on_event: Callable[[SwarmEvent], None] | None = None) -> Swarm:
        """Start p2pd, dial seeds and known peers, and keep it all running until `stop`.

        Seeds that do not answer never prevent a start; each is reported with its cause (`seed_results`, events).

        Raises
            IdentityError: the key file cannot be used.
            PortInUse: names the port and the option.
            DuplicateIdentity: another node runs with this key; it was not disturbed.
            SwarmError: p2pd cannot be started; carries its last output lines.
        """
        identity = Identity.load(settings.identity_path)
        raise_open_file_limit(settings.min_open_files)
        swarm = cls(identity, settings)
        if on_event is not None:
            swarm.on_event(on_event)
        try:
            await swarm._start()
        except P2pdError as error:
            await swarm.stop()
            raise SwarmError(str(error)) from None
        except BaseException:
            await swarm.stop()
            raise
        return swarm

    async def _start(self) -> None:
        for address in self.settings.listen:
            addresses.check_free(address)
        await self._probe()
        if self._direct is not None:
            self._direct.start()
        self._folder = run_folder.create(self.settings.runtime_folder)
        await self._start_daemon()
        await self._meet_everybody()
        if text := "" if self.reachable else reachability.unroutable(self.addresses, self._connected):
            self._emit(SwarmEvent("addresses", text))
        self._tasks = [asyncio.create_task(self._supervise()), asyncio.create_task(self._redial())]
        self._emit(SwarmEvent("started", f"listening on {', '.join(self.addresses) or 'no address'}"))

    async def _probe(self) -> None:
        """Dial everybody under a throw-away key: is our own taken, who answers, whom can we use as a relay."""
        targets = seeds.dial_targets(self.settings, self.peer_id, with_own=True)
        if not targets:
            return
        async with seeds.Probe(self.settings) as probe:
            results = await probe.dial(targets)
            await seeds.ask_whether_taken(probe, self.peer_id, results, self.settings)
            await self._find_position(probe, results)
        num_asked = sum(result.answered for result in results)
        if num_asked:
            who = "1 peer knows" if num_asked == 1 else f"{num_asked} peers know"
            self._emit(SwarmEvent("identity", f"identity free, OK: {who} of no other node with it"))
        # One address of a peer may be dead while another answers.
        self._silent = {r.peer for r in results} - {r.peer for r in results if r.answered}
        # Our own address answers only if a node with our key runs there; dead is what it should be.
        by_address = {result.address: result for result in results if result.peer != self.peer_id}
        self._seed_results = tuple(by_address[seed] for seed in self.settings.seeds if seed in by_address)
        for result in self._seed_results:
            self._emit(SwarmEvent("seed", f"seed {result.address}: {result.detail}", result.peer))

    async def _find_position(self, probe: seeds.Probe, results: Sequence[SeedResult]) -> None:
        """Whether we are a home, before p2pd starts: as another kind of node it would have to be restarted, and for a
        minute after that its TCP connections could not begin at its listen port, without which no hole is punched."""
        self._relays = seeds.usable_relays(results)
        answered = {result.peer: (result.address,) for result in results if result.answered and result.peer}
        async with reachability.open_ports(self._listen) as self._listen:
            await self._check_reachability(probe.transport, answered)
            if self._position.is_doubtful:
                await self._check_reachability(probe.transport, answered)
        if self._position.should_move:
            self._emit(SwarmEvent("relays", self._position.move(len(self._relays))))

    async def _start_daemon(self) -> None:
        assert self._folder is not None
        settings, relays = self.settings, self._relays if self._position.is_home else ()
        options = P2pdOptions(
            identity_path=settings.identity_path,
            peer_id=self.peer_id,
            folder=self._folder,
            protocol_prefix=protocol_prefix(settings.run_id),
            listen=self._listen,
            announce=settings.announce,
            trusted_relays=relays,
            use_auto_relay=bool(relays),
            is_relay=settings.is_seed,
            map_ports=settings.map_ports,
            dht_mode="client" if self._position.is_home else "server",
            start_timeout_s=settings.start_timeout_s,
            command=settings.p2pd_command,
        )
        daemon = await seeds.start_with_retries(options, settings, traffic=self._transport.traffic)
        try:
            await self._refresh_addresses(daemon)
            self._listen = addresses.keep_ports(self._listen, self._addresses)
            for text in () if settings.announce else addresses.not_listening(self._listen, self._addresses):
                self._emit(SwarmEvent("addresses", f"not listening on {text}: the port is taken or not supported here"))
            await self._transport.attach(daemon)
        except BaseException:
            await daemon.stop()
            raise
        self._daemon = daemon

    async def _meet_everybody(self) -> None:
        """Connect to all known addresses and join their DHT. Raises `P2pdError` only if our own p2pd fails."""
        assert self._daemon is not None
        # A peer that dialled us did so from its listen port (libp2p reuses it), so we can dial it after a restart.
        targets: dict[PeerId, tuple[str, ...]] = {**self._connected, **self._transport.known_addresses}
        for peer, texts in self.settings.known_peers.items():
            targets.setdefault(peer, texts)
        for text in self.settings.seeds:
            plain, peer = addresses.split_peer(text)
            if peer and usable_address(PeerId(peer), plain):
                targets[PeerId(peer)] = (*targets.get(PeerId(peer), ()), plain)
        silent, self._silent = self._silent, set()
        there = {peer: texts for peer, texts in targets.items() if peer not in {*silent, self.peer_id}}
        await self._transport.connect_all(there, self.settings.seed_timeout_s)
        await self._refresh_peers()
        try:
            await self._directory.attach(self._daemon, self._connected, client_only=self._position.is_home)
        except (P2PDaemonError, OSError, TimeoutError) as error:
            raise P2pdError(f"the directory could not be set up: {error!r}") from None
        if not self._position.is_home:  # the peers that are asked learn from it where to dial us
            await self._check_reachability(self._transport, self._connected)

    async def stop(self) -> None:
        """End everything that was started: streams, DHT, p2pd, sockets, folder. Idempotent."""
        self._stopping = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._transport.close(0.5 if self._daemon is not None else 0.0)
        await self._stop_daemon()
        if self._folder is not None:
            run_folder.remove(self._folder)
            self._folder = None
            self._emit(SwarmEvent("stopped", "the network is stopped"))

    async def _stop_daemon(self, grace_s: float = STOP_TIMEOUT_S) -> None:
        self._transport.detach()
        await self._directory.detach()
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            await daemon.stop(grace_s)

    # --- what the node uses

    @property
    def transport(self) -> contract.Transport:
        return self._transport

    @property
    def directory(self) -> contract.Directory:
        return self._directory

    @property
    def addresses(self) -> tuple[str, ...]:
        """Own addresses ending in ``/p2p/<own id>``; those that others can use come first."""
        texts = addresses.by_use(self.settings.announce or self._addresses)
        return tuple(f"{text}/p2p/{self.peer_id}" for text in texts)

    @property
    def seed_results(self) -> tuple[SeedResult, ...]:
        """How each seed of the settings answered at the start, in their order."""
        return self._seed_results

    @property
    def reachable(self) -> bool:
        """Whether others can dial this node, as far as it is known; true until a peer found otherwise."""
        return self._position.reachable

    def is_met_by(self, peers: Collection[PeerId]) -> bool:
        """Whether all of ``peers`` can open bulk streams to this node, so that it can own spans: it is reachable, or a
        home that can be met again through a relay and has punched through to every one of them."""
        paths = self._transport.paths
        is_punched = self._is_relayed and bool(peers) and all(map(paths.is_unrelayed, peers))
        return self.reachable or is_punched

    @property
    def _is_relayed(self) -> bool:
        return any(map(addresses.is_relayed, self._addresses))

    def health(self) -> Health:
        """State at this moment."""
        daemon, verdict, paths = self._daemon, self._position.verdict, self._transport.paths
        connected = self._connected if daemon is not None else {}
        return Health(
            alive=daemon is not None,
            p2pd_pid=daemon.pid if daemon is not None else None,
            num_restarts=self._num_restarts,
            last_failure=self._last_failure,
            connected_peers=tuple(connected),
            unrelayed_peers=tuple(peer for peer in paths.unrelayed() if peer in connected),
            direct_peers=tuple(peer for peer in paths.direct() if peer in connected),
            relay_only_peers=tuple(peer for peer in paths.relay_only(time.monotonic()) if peer in connected),
            addresses=self.addresses,
            reachable=self.reachable,
            reachability=verdict.text,
            reachability_fix=verdict.fix,
            measured_by=verdict.measured_by,
            is_relayed=self._is_relayed,
            direct_port=self._direct.port if self._direct is not None else 0,
        )

    def on_event(self, listener: Callable[[SwarmEvent], None]) -> None:
        """Call ``listener`` for every later event, in the loop's thread."""
        self._listeners.append(listener)

    async def connect(self, peer: PeerId, known: Sequence[str] = ()) -> None:
        """Remember a peer's addresses, dial it and enter it into the routing table. Raises `PeerUnreachable`."""
        await self._transport.connect(peer, tuple(known))
        await self._directory.meet([peer])
        with contextlib.suppress(P2pdError):  # the watchdog deals with it
            await self._refresh_peers()

    async def dial_seeds(self, targets: Sequence[str]) -> list[SeedResult]:
        """Dial with this node's own identity and report each cause."""
        daemon = await self._transport.daemon(self.settings.connect_timeout_s)
        return await seeds.dial_all(self._transport, daemon, targets, self.settings)

    # --- supervision

    async def _supervise(self) -> None:
        while True:
            why = await self._watch()
            if why is None:
                await self._restart()
                continue
            self._last_failure = why
            self._emit(SwarmEvent("p2pd_failed", f"the p2p daemon failed ({why}); restarting it"))
            await self._restart()
            self._num_restarts += 1
            self._emit(SwarmEvent("p2pd_restarted", "the p2p daemon runs again on the same ports"))

    async def _watch(self) -> str | None:
        """Return why p2pd has to be replaced, as soon as it has; None if it is well, but others must dial otherwise."""
        assert self._daemon is not None
        daemon, ended = self._daemon, asyncio.create_task(self._daemon.wait())
        moved = asyncio.create_task(self._moved.wait())
        try:
            while True:
                done, _ = await asyncio.wait({ended, moved}, timeout=self.settings.health_interval_s)
                if moved in done:
                    self._moved.clear()
                    return None
                if done:
                    return f"it ended with status {ended.result()}; its last lines: {daemon.last_lines}"
                try:
                    await self._refresh_addresses(daemon)
                    await self._refresh_peers()
                except P2pdError as error:
                    return str(error)
        finally:
            ended.cancel()
            moved.cancel()

    async def _restart(self) -> None:
        """Replace p2pd on the same ports, with pauses that grow while that fails. Never gives up, never raises."""
        pause_s = FIRST_RESTART_PAUSE_S
        while True:
            await self._stop_daemon(grace_s=0.1)  # it is dead, or hangs and would not listen
            try:
                await self._start_daemon()
                await self._meet_everybody()
                break
            except (P2pdError, OSError) as error:
                self._last_failure = str(error)
                log.warning("%s; next attempt in %.1f s", error, pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_RESTART_PAUSE_S)

    async def _refresh_addresses(self, daemon: P2pd) -> None:
        found = await daemon.identify(self.settings.health_timeout_s)
        if found != self._addresses:
            self._addresses = found
            self._emit(SwarmEvent("addresses", f"own addresses: {', '.join(self.addresses) or 'none'}"))

    async def _refresh_peers(self) -> None:
        if self._daemon is not None:
            self._connected = await self._daemon.peers(self.settings.health_timeout_s)
            self._transport.paths.see(self._connected, time.monotonic())

    async def _redial(self) -> None:
        """Dial seeds and known peers that are missing, so that a seed that starts late is met."""
        pause_s = self.settings.first_redial_s
        while True:
            await asyncio.sleep(min(pause_s, self.settings.redial_interval_s))
            pause_s *= 2
            for target in seeds.dial_targets(self.settings, self.peer_id):
                plain, peer = addresses.split_peer(target)
                if peer is None or peer in self._connected or self._daemon is None:
                    continue
                if not await seeds.may_listen(plain, self.settings.seed_timeout_s):
                    continue
                with contextlib.suppress(contract.PeerUnreachable, P2pdError, ValueError):
                    await self.connect(PeerId(peer), (plain,))
            await self._review_position()

    # --- reachability

    async def _review_position(self) -> None:
        """Measure again unless all is well, and have p2pd replaced if the node's position or its relays changed."""
        if self._position.is_home or not self._position.verdict.reachable:
            await self._check_reachability(self._transport, self._connected)
        if self._position.should_move:
            self._emit(SwarmEvent("relays", self._position.move(len(self._relays))))
            self._listen = self.settings.listen  # a free port is chosen anew
            self._moved.set()
        elif self._position.is_home and not self._relays and self._connected:
            self._relays = seeds.usable_relays(await self.dial_seeds(self.settings.seeds))
            if self._relays:
                self._emit(SwarmEvent("relays", f"others reach this node through relays on {len(self._relays)} seeds"))
                self._moved.set()

    async def _check_reachability(self, transport: Libp2pTransport, peers: Mapping[PeerId, Sequence[str]]) -> None:
        ports = reachability.dialled_ports(self._listen, self.settings.announce)
        verdict = await reachability.measure(transport, peers, ports, self.settings.seed_timeout_s)
        if self._position.hear(verdict):
            self._emit(SwarmEvent("reachability", verdict.text, fix=verdict.fix))

    # --- events

    def _on_conflict(self, text: str) -> None:
        advice = f"{text}; stop the other node that uses {self.settings.identity_path}, or give one of them a new key"
        self._emit(SwarmEvent("identity_conflict", advice, self.peer_id))

    def _emit(self, event: SwarmEvent) -> None:
        log.debug("%s: %s", event.kind, event.text)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception as error:
                log.warning("a listener of swarm events failed: %r", error)
