"""Which values a sparse codec speaks of, and how their places are written."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .back_ends import active
from .codec import Bytes, Float32Array, InvalidEncoding
from .formats import GROUP

Places = NDArray[np.int64]


class Choice(Protocol):
    """Places are ascending: of values (`TopK`) or of rows (`Rows`). `InvalidEncoding` for bytes of no encoder."""

    @property
    def head_bytes(self) -> int:
        """How many of the first bytes tell how long an encoding is; 0: nothing needs to."""
        ...

    def most_values(self, num_elements: int) -> int: ...

    def most_bytes(self, num_elements: int) -> int: ...

    def sizes(self, data: Bytes, num_elements: int) -> tuple[int, int]:
        """Bytes of a choice, and how many values it chooses; both bounded by the two above."""
        ...

    def num_values(self, places: Places, num_elements: int) -> int: ...

    def choose(self, values: Float32Array) -> tuple[Places, int]:
        """The places, and the index of the first value that is not finite (then there are none), or −1."""
        ...

    def choose_on_device(self, values: Any) -> tuple[Places, int]:
        """As `choose`, of a flat float32 tensor."""
        ...

    def write(self, places: Places, num_elements: int) -> Bytes: ...

    def read(self, data: Bytes, num_elements: int) -> Places: ...

    def take(self, values: Any, places: Any) -> Any:
        """The chosen values of an array or a tensor, flat."""
        ...

    def put(self, values: Float32Array, places: Places, chosen: Float32Array) -> None:
        """Write values to their places."""
        ...

    def place(self, places: Places, index: int) -> int:
        """Where the chosen value at `index` lies."""
        ...


class TopK:
    """The `kept` largest magnitudes of each `GROUP` of values, of two equal ones the first; all, if a group has fewer.

    Written as 12 bits a place within its group, ascending, from the low bits up, and padded with zero bits.
    """

    head_bytes = 0

    def __init__(self, kept: int) -> None:
        if not 1 <= kept <= GROUP:
            raise ValueError(f"of each {GROUP} values, 1 to {GROUP} can be kept, not {kept}")
        self.kept = kept

    def most_values(self, num_elements: int) -> int:
        return num_elements // GROUP * self.kept + min(num_elements % GROUP, self.kept)

    def most_bytes(self, num_elements: int) -> int:
        return -(-12 * self.most_values(num_elements) // 8)

    def sizes(self, data: Bytes, num_elements: int) -> tuple[int, int]:
        return self.most_bytes(num_elements), self.most_values(num_elements)

    def num_values(self, places: Places, num_elements: int) -> int:
        return len(places)

    def choose(self, values: Float32Array) -> tuple[Places, int]:
        indices = np.empty(self.most_values(values.size), np.uint16)
        first_bad = active().largest(values, self.kept, indices)
        return self.with_groups(indices.astype(np.int64)), first_bad

    def choose_on_device(self, values: Any) -> tuple[Places, int]:
        from .device import largest

        indices, first_bad = largest(values, self.kept, self.most_values(len(values)))
        return self.with_groups(indices.cpu().numpy().astype(np.int64)), first_bad

    def with_groups(self, indices: Places) -> Places:
        """Places in the vector of places in their groups."""
        return indices + np.arange(len(indices)) // self.kept * GROUP

    def write(self, places: Places, num_elements: int) -> Bytes:
        indices = places.astype(np.uint16) % GROUP
        pairs = np.append(indices, np.zeros(len(indices) % 2, np.uint16)).reshape(-1, 2)
        first, second = pairs[:, 0], pairs[:, 1]
        packed = np.stack([first & 0xFF, first >> 8 | (second & 15) << 4, second >> 4], -1)
        return packed.astype(np.uint8).reshape(-1)[: self.most_bytes(num_elements)]

    def read(self, data: Bytes, num_elements: int) -> Places:
        triples = np.append(data, np.zeros(-len(data) % 3, np.uint8)).reshape(-1, 3).astype(np.int64)
        first, second = triples[:, 0] | (triples[:, 1] & 15) << 8, triples[:, 1] >> 4 | triples[:, 2] << 4
        indices = np.stack([first, second], -1).reshape(-1)
        num = self.most_values(num_elements)
        places = self.with_groups(indices[:num])
        if indices[num:].any() or (num and places[-1] >= num_elements) or (np.diff(places) <= 0).any():
            raise InvalidEncoding(f"places of the {self.kept} largest that no encoder writes")
        return places

    def take(self, values: Any, places: Any) -> Any:
        return values[places]

    def put(self, values: Float32Array, places: Places, chosen: Float32Array) -> None:
        values[places] = chosen

    def place(self, places: Places, index: int) -> int:
        return int(places[index])


class Rows:
    """The rows of `width` values that are not all 0; the last row may be shorter. For tables few rows of which change.

    Written as the number of chosen values and the number of bytes that follow (uint32 both, little endian), then per
    row the number of rows left out before it, in LEB128: seven bits a byte from the low ones up, the eighth if more
    follow, and no more bytes than needed.
    """

    head_bytes = 8

    def __init__(self, width: int) -> None:
        if GROUP % width:
            raise ValueError(f"a row of {width} values does not divide {GROUP}, hence not a chunk")
        self.width = width

    def num_rows(self, num_elements: int) -> int:
        return -(-num_elements // self.width)

    def most_values(self, num_elements: int) -> int:
        return num_elements

    def most_bytes(self, num_elements: int) -> int:
        # A number of n bytes, n > 1, stands for more than n rows that were left out.
        return self.head_bytes + self.num_rows(num_elements) if num_elements else 0

    def sizes(self, data: Bytes, num_elements: int) -> tuple[int, int]:
        num_values, num_bytes = (int(each) for each in data[:8].view("<u4"))
        if num_values > num_elements or num_bytes > self.num_rows(num_elements):
            raise InvalidEncoding(f"{num_values} values in {num_bytes} bytes of rows, of {num_elements} values")
        return self.head_bytes + num_bytes, num_values

    def num_values(self, places: Places, num_elements: int) -> int:
        is_short = len(places) and places[-1] == num_elements // self.width
        return len(places) * self.width - (-num_elements % self.width if is_short else 0)

    def choose(self, values: Float32Array) -> tuple[Places, int]:
        present = np.empty(self.num_rows(values.size), np.uint8)
        active().nonzero_rows(values, self.width, present)
        return np.flatnonzero(present), -1  # what is not finite is not 0 either, and found among the chosen

    def choose_on_device(self, values: Any) -> tuple[Places, int]:
        from .device import require_float32

        num_table = len(values) // self.width * self.width
        present = (require_float32(values)[:num_table].reshape(-1, self.width) != 0).any(1).cpu().numpy()
        rest = bool((values[num_table:] != 0).any())
        return np.flatnonzero(np.append(present, [True] * rest)), -1

    def write(self, places: Places, num_elements: int) -> Bytes:
        if not num_elements:
            return np.empty(0, np.uint8)
        gaps = leb128(np.diff(places, prepend=-1) - 1)
        head = np.array([self.num_values(places, num_elements), len(gaps)], "<u4").view(np.uint8)
        return np.concatenate([head, gaps])

    def read(self, data: Bytes, num_elements: int) -> Places:
        _, num_values = self.sizes(data, num_elements)
        places = np.cumsum(from_leb128(data[self.head_bytes :]) + 1) - 1
        if len(places) and places[-1] >= self.num_rows(num_elements):
            raise InvalidEncoding(f"row {places[-1]} of {self.num_rows(num_elements)}")
        if self.num_values(places, num_elements) != num_values:
            raise InvalidEncoding(f"{len(places)} rows instead of {num_values} values")
        return places

    def take(self, values: Any, places: Any) -> Any:
        num_whole = len(values) // self.width
        table = values[: num_whole * self.width].reshape(num_whole, self.width)
        if len(places) == 0 or places[-1] < num_whole:
            return table[places].reshape(-1)
        both = np.concatenate if isinstance(values, np.ndarray) else _concatenate
        return both([table[places[:-1]].reshape(-1), values[num_whole * self.width :]])

    def put(self, values: Float32Array, places: Places, chosen: Float32Array) -> None:
        num_whole = len(values) // self.width
        num_table = len(places) - int(len(places) > 0 and places[-1] == num_whole)
        table = values[: num_whole * self.width].reshape(num_whole, self.width)
        table[places[:num_table]] = chosen[: num_table * self.width].reshape(num_table, self.width)
        if num_table < len(places):
            values[num_whole * self.width :] = chosen[num_table * self.width :]

    def place(self, places: Places, index: int) -> int:
        return int(places[index // self.width]) * self.width + index % self.width


def _concatenate(tensors: list[Any]) -> Any:
    import torch

    return torch.cat(tensors)


def leb128(numbers: Places) -> Bytes:
    """Numbers below 2³⁵, each in as few bytes as it needs."""
    lengths = np.ones(len(numbers), np.int64)
    for shift in (7, 14, 21, 28):
        lengths += numbers >> shift > 0
    starts = np.cumsum(lengths) - lengths
    out = np.empty(int(lengths.sum()), np.uint8)
    for i in range(int(lengths.max(initial=0))):
        longer = lengths > i
        more = (lengths[longer] > i + 1) << 7
        out[starts[longer] + i] = numbers[longer] >> (7 * i) & 0x7F | more
    return out


def from_leb128(data: Bytes) -> Places:
    """Inverse of `leb128`; `InvalidEncoding` for other bytes."""
    ends = np.flatnonzero(data < 0x80)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        raise InvalidEncoding("the last number of rows does not end")
    lengths = np.diff(ends, prepend=-1)
    if (lengths > 5).any() or (data[ends[lengths > 1]] == 0).any():
        raise InvalidEncoding("a number of rows has more bytes than it needs")
    numbers = np.zeros(len(ends), np.int64)
    for i in range(int(lengths.max(initial=0))):
        longer = lengths > i
        numbers[longer] |= (data[(ends - lengths + 1)[longer] + i].astype(np.int64) & 0x7F) << (7 * i)
    return numbers
