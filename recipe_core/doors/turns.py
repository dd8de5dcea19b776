"""Turns at the workers: short questions and long ones, fair by caller.

Long ones hold all places but one, so that a short question never waits for a long one. Within a
class the next is whoever holds the fewest places, then whoever was served longest ago. State alone:
module ``pool`` has the lock, the threads and the processes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Turn:
    """A caller's question on its way: it waits, then holds a place.

    ``long``: of the class of jobs. ``since_s``: when it began to wait, then to hold its place.
    """

    client: str
    long: bool = False
    since_s: float = 0.0


class Turns:
    """The callers that wait, and those that hold a place.

    Args:
        places: worker processes; two at least.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self.next: Turn | None = None
        """The next to get a place that is free."""
        self._waiting: list[Turn] = []
        self._held: list[Turn] = []
        self._served: dict[str, int] = {}
        self._count = 0

    @property
    def free(self) -> int:
        """Places that nobody holds."""
        return self.places - len(self._held)

    def count_waiting(self, *classes: bool) -> int:
        """How many wait; of one class where it is given."""
        return sum(turn.long in (classes or (True, False)) for turn in self._waiting)

    def count_room(self, *, long: bool) -> int:
        """How many of a class could begin now."""
        return min(self.free, self._long_left()) if long else self.free

    def count_of(self, client: str, *, long: bool) -> int:
        """How many questions of a class a caller has, waiting or at a worker."""
        return self._of_class(long).count(client)

    def has_most(self, client: str, *, long: bool) -> bool:
        """True where no caller has more in a class, and this one more than one."""
        clients = self._of_class(long)
        count = clients.count(client)
        return count > 1 and all(clients.count(rival) <= count for rival in set(clients))

    def wait(self, turn: Turn) -> None:
        """Let a caller wait."""
        self._waiting.append(turn)
        self._choose()

    def leave(self, turn: Turn) -> None:
        """Let a caller go that waits no longer."""
        self._waiting.remove(turn)
        self._choose()

    def hold(self, turn: Turn) -> None:
        """Give a caller a place, whether it waited or not."""
        if turn in self._waiting:
            self._waiting.remove(turn)
        self._held.append(turn)
        self._count += 1
        self._served[turn.client] = self._count
        self._choose()

    def release(self, turn: Turn) -> None:
        """Take a caller's place back."""
        self._held.remove(turn)
        self._choose()

    def outstays(self, turn: Turn) -> bool:
        """True where a question that has turned out to be long must make place for who waits.

        It counts as long from now on if one more may; else it holds the place of short ones, and
        ends where one waits for that.
        """
        if turn.long:
            return False
        if self._long_left() > 0:
            turn.long = True
            self._choose()
            return False
        return self.free <= 0 and self.count_waiting(False) > 0

    def _long_left(self) -> int:
        return self.places - 1 - sum(turn.long for turn in self._held)

    def _of_class(self, long: bool) -> list[str]:
        return [turn.client for turn in (*self._waiting, *self._held) if turn.long == long]

    def _choose(self) -> None:
        holding = [turn.client for turn in self._held]
        present = {*holding, *(turn.client for turn in self._waiting)}
        self._served = {name: at for name, at in self._served.items() if name in present}
        classes = (True, False) if self._long_left() > 0 else (False,)

        def order(turn: Turn) -> tuple[int, int]:
            return holding.count(turn.client), self._served.get(turn.client, 0)

        lines = ([turn for turn in self._waiting if turn.long == long] for long in classes)
        self.next = next((min(line, key=order) for line in lines if line), None)
