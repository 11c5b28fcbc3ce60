"""Links that transfers share: every worker's port out and port in, per direction, and the fabric between them if it is narrower.

Transfers between the same two workers form a route and share it equally; routes share ports max-min fairly (progressive filling).
Progress is kept per route as bytes·10¹² served to each of its transfers since the start ("virtual time"), so a change costs one
heap operation and not one per transfer. All integers: what was taken is given back exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any

from diptych.simulator.clock import FLOW, MESSAGE, PS, Clock


class Port:
    """One direction of a NIC, or the fabric: `capacity` bytes/s for the transfers that pass it."""

    __slots__ = ("active", "capacity", "factor", "name", "nominal")

    def __init__(self, name: str, capacity: int) -> None:
        self.name, self.nominal, self.capacity = name, capacity, capacity
        self.factor = 1.0
        self.active: dict[int, Route] = {}

    def slow(self, factor: float) -> None:
        """Let only `factor` of the nominal capacity through; 0 cuts it."""
        self.factor = factor
        self.capacity = int(self.nominal * factor)


class Route:
    """Transfers from one worker to another over a port out, a port in and maybe a fabric, none faster than `limit` bytes/s.

    `rate` is bytes/s of each; `served` bytes·10¹² that each got since the start; `moved` all bytes put on the route.
    """

    __slots__ = (
        "limit",
        "moved",
        "network",
        "number",
        "ports",
        "rank",
        "rate",
        "served",
        "since",
        "transfers",
    )

    def __init__(self, network: Network, rank: int, ports: tuple[Port, ...], limit: int) -> None:
        self.network, self.rank, self.ports, self.limit = network, rank, ports, limit
        self.rate = self.served = self.since = self.number = self.moved = 0
        self.transfers: list[tuple[int, int, Any]] = []  # heap of (served at its end, count, about)

    def fire(self, now: int, number: int) -> None:
        """A transfer's last byte is there."""
        if number != self.number:
            return
        transfers, network = self.transfers, self.network
        self.served += self.rate * (now - self.since)
        self.since = now
        ended = heappop(transfers)[2]
        more = []
        while transfers and transfers[0][0] <= self.served:
            more.append(heappop(transfers)[2])
        network.left(self, now)
        network.arrived(ended, now)
        for transfer in more:
            network.arrived(transfer, now)

    def awaits(self, number: int) -> bool:
        """Whether the end scheduled with `number` is still to come."""
        return number == self.number


class Entry:
    """A transfer that waits to enter a route."""

    __slots__ = ("about", "network", "off", "route", "size")

    def __init__(self, network: Network, route: Route, size: int, about: Any) -> None:
        self.network, self.route, self.size, self.about = network, route, size, about
        self.off = False  # called off

    def fire(self, now: int, number: int) -> None:
        """It enters, unless it was called off."""
        if not self.off:
            self.network.enter(self, now)

    def awaits(self, number: int) -> bool:
        """Whether it is still to happen."""
        return True


class Network:
    """All ports and routes. `arrived(about, now)` is called when a transfer's last byte is there.

    `fabric` is what every route passes beside its ports: one host's bridge, a switch that is oversubscribed.
    """

    __slots__ = ("arrived", "clock", "count", "fabric", "pending", "routes")

    def __init__(self, clock: Clock, arrived: Callable[[Any, int], None], fabric: Port | None = None) -> None:
        self.clock, self.arrived, self.count = clock, arrived, 0
        self.fabric = (fabric,) if fabric else ()
        self.routes: list[Route] = []
        self.pending: dict[int, list[Entry]] = {}  # by whom they are about

    def route(self, out: Port, into: Port, limit: int, *shared: Port) -> Route:
        """A new route between two ports, through those that they share with others."""
        route = Route(self, FLOW + len(self.routes), (out, into, *shared, *self.fabric), limit)
        self.routes.append(route)
        return route

    def send(self, route: Route, size: int, fixed: int, about: Any, now: int) -> None:
        """Put `size` bytes on the route `fixed` ps from now.

        When nothing else is on its ports the wait needs no event of its own: the route is promised from then on.
        """
        ports = route.ports
        for port in ports:
            if port.active:
                if fixed:
                    self._later(now + fixed, route, size, about)
                else:
                    self._put(route, size, about, now)
                return
        self.count += 1
        route.transfers.append((route.served + size * PS, self.count, about))
        route.moved += size
        rate = route.limit
        for port in ports:
            port.active[route.rank] = route
            if port.capacity < rate:
                rate = port.capacity
        route.since = start = now + fixed
        route.rate = rate
        route.number = number = route.number + 1
        if rate:
            heappush(self.clock.heap, (start - (-size * PS // rate), route.rank, number, route))

    def _later(self, start: int, route: Route, size: int, about: Any) -> None:
        entry = Entry(self, route, size, about)
        self.clock.put(start, MESSAGE, entry)
        self.pending.setdefault(id(about), []).append(entry)

    def enter(self, entry: Entry, now: int) -> None:
        """A transfer's wait is over."""
        waiting = self.pending[id(entry.about)]
        waiting.remove(entry)
        if not waiting:
            del self.pending[id(entry.about)]
        self._put(entry.route, entry.size, entry.about, now)

    def _put(self, route: Route, size: int, about: Any, now: int) -> None:
        """Bytes enter a route whose ports may be shared."""
        for port in route.ports:
            for other in tuple(port.active.values()):
                if other.since > now:
                    self._unpromise(other)
        self._advance(route, now)
        self.count += 1
        heappush(route.transfers, (route.served + size * PS, self.count, about))
        route.moved += size
        for port in route.ports:
            port.active[route.rank] = route
        self._share(route, now)

    def _unpromise(self, route: Route) -> None:
        """Another transfer starts before a promised one: that one enters by an event like any other."""
        ((target, _, about),) = route.transfers
        size = (target - route.served) // PS
        self._later(route.since, route, size, about)
        self._clear(route)
        route.moved -= size
        route.since = 0

    def _clear(self, route: Route) -> None:
        route.transfers.clear()
        route.number += 1
        route.rate = 0
        for port in route.ports:
            del port.active[route.rank]

    def stop(self, route: Route, about: Any, now: int) -> None:
        """Take everything that is about somebody off the route, and what waits to enter it."""
        for entry in self.pending.pop(id(about), []):
            entry.off = True
        if route.since > now:
            self._unpromise(route)
            self.stop(route, about, now)
            return
        self._advance(route, now)
        kept = [transfer for transfer in route.transfers if transfer[2] is not about]
        if len(kept) == len(route.transfers):
            return
        for target, _, owner in route.transfers:
            if owner is about:
                route.moved -= (target - route.served) // PS
        heapify(kept)
        route.transfers[:] = kept
        self.left(route, now)

    def changed(self, ports: Iterable[Port], now: int) -> None:
        """Capacities changed: share anew what passes these ports."""
        for route in [route for port in ports for route in port.active.values()]:
            if route.transfers and route.since > now:
                self._unpromise(route)
        routes = {rank: route for port in ports for rank, route in port.active.items()}
        if routes:
            self._fill(self._component(routes), now)

    def left(self, route: Route, now: int) -> None:
        """Fewer transfers on the route, maybe none."""
        if route.transfers:
            self._share(route, now)
            return
        self._clear(route)
        for port in route.ports:
            if port.active:
                neighbours = {rank: other for port in route.ports for rank, other in port.active.items()}
                self._fill(self._component(neighbours), now)
                return

    def _share(self, route: Route, now: int) -> None:
        """Rates after a change on one route; when no other one meets it, the narrowest port decides."""
        for port in route.ports:
            if len(port.active) > 1:
                self._fill(self._component({route.rank: route}), now)
                return
        rate = min([port.capacity for port in route.ports]) // len(route.transfers)
        self._set(route, min(rate, route.limit), now)

    def _component(self, routes: dict[int, Route]) -> dict[int, Route]:
        """`routes` and all that meet them at some port, directly or not."""
        found, edge = dict(routes), list(routes.values())
        while edge:
            for port in edge.pop().ports:
                for rank, route in port.active.items():
                    if rank not in found:
                        found[rank] = route
                        edge.append(route)
        return found

    def _fill(self, routes: dict[int, Route], now: int) -> None:
        """Max-min fair rates: the tightest port fixes its transfers' share, then the next, until all have one.

        Routes whose own limit is below that share are fixed before it, since what they leave is for the others.
        """
        left = {port.name: port.capacity for route in routes.values() for port in route.ports}
        unset = dict(sorted(routes.items()))
        while unset:
            waiting: dict[str, int] = {}
            for route in unset.values():
                for port in route.ports:
                    waiting[port.name] = waiting.get(port.name, 0) + len(route.transfers)
            share, tightest = min((left[name] // count, name) for name, count in waiting.items())
            fixed = [route for route in unset.values() if route.limit < share]
            if not fixed:
                fixed = [route for route in unset.values() if any(port.name == tightest for port in route.ports)]
            for route in fixed:
                del unset[route.rank]
                rate = min(share, route.limit)
                for port in route.ports:
                    left[port.name] -= rate * len(route.transfers)
                self._set(route, rate, now)

    def _advance(self, route: Route, now: int) -> None:
        route.served += route.rate * (now - route.since)
        route.since = now

    def _set(self, route: Route, rate: int, now: int) -> None:
        """A new rate, and the next end that follows from it; none while the route is cut."""
        self._advance(route, now)
        route.rate = rate
        route.number = number = route.number + 1
        if rate:
            wait = -(-(route.transfers[0][0] - route.served) // rate)
            heappush(self.clock.heap, (now + max(wait, 0), route.rank, number, route))
