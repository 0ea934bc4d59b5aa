"""Sets of shard numbers, a byte each: however many samples there are, little is held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set


class Numbers(Set[int]):
    """A set of small whole numbers, in order.

    >>> found = Numbers([7, 2])
    >>> list(found), 2 in found, 3 in found, len(found), found == {2, 7}
    ([2, 7], True, False, 2, True)
    """

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._there = bytearray()
        for number in numbers:
            self.add(number)

    def add(self, number: int) -> None:
        if number >= len(self._there):
            self._there.extend(bytes(number + 1 - len(self._there)))
        self._there[number] = 1

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and 0 <= number < len(self._there) and bool(self._there[number])

    def __iter__(self) -> Iterator[int]:
        place = self._there.find(1)
        while place >= 0:
            yield place
            place = self._there.find(1, place + 1)

    def __len__(self) -> int:
        return self._there.count(1)
