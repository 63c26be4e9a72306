"""The picture of a failure: tokens -> ranks -> block table -> slots, laid out; ``picture.svg`` draws what is said here.

Four bands under one another, so that it fits the width of a phone. A token that is right has one path through them. A
wrong one has two: how it should have gone, through every band, and where it went. Only the ends of that one are known,
and the cell of the block table that its slot belongs to, so it goes through that cell where there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reference.case import Case
from reference.oracle import PADDING, Trace, trace
from reference.verdict import UNWRITTEN, Difference, shown_element

MOST_TOKENS = 8
MOST_RANKS = 8
MOST_CELLS = 6
MOST_ROWS = 4
MOST_BLOCKS = 9
NARROWEST, WIDEST = 296, 640
_GAP = 36  # between the bands, for the curves
_ROW_LABEL = 58


@dataclass(frozen=True, slots=True)
class Box:
    """``kind`` is its class in the style sheet, ``lines`` its text, one under the other."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    lines: tuple[str, ...] = ()

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height


@dataclass(frozen=True, slots=True)
class Label:
    """Text that starts at ``x`` (or ends or is centred there: ``anchor``) on base line ``y``."""

    x: float
    y: float
    text: str
    kind: str = "label"
    anchor: str = "start"


@dataclass(frozen=True, slots=True)
class Curve:
    """``kind``: right, should, went."""

    d: str
    kind: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a token ends; ``kind`` as for curves."""

    x: float
    y: float
    kind: str


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    formula: str


@dataclass(frozen=True, slots=True)
class Token:
    """One element of the output, drawn and in words. ``expected`` and ``actual`` are None where nothing is known."""

    index: int
    chip: Box
    wrong: bool
    curves: tuple[Curve, ...]
    marks: tuple[Mark, ...]
    steps: tuple[Step, ...]
    reason: str
    where: str
    expected: str
    actual: str | None

    @property
    def words(self) -> str:
        """All of it, for who does not see the picture."""
        end = self.reason if self.actual is None else f"Expected {self.expected}, got {self.actual}. {self.reason}"
        steps = " ".join(f"{each.name}: {each.formula}." for each in self.steps)
        return f"{self.where}. {end}. {steps}".strip()


@dataclass(frozen=True, slots=True)
class Picture:
    group: int
    width: float
    height: float
    boxes: tuple[Box, ...]
    labels: tuple[Label, ...]
    tokens: tuple[Token, ...]
    left_out: int

    @property
    def words(self) -> str:
        wrong = sum(token.wrong for token in self.tokens)
        return f"{len(self.tokens)} tokens of group {self.group} on their way to their slots, {wrong} of them wrong"


def pictures(case: Case, differences: Sequence[Difference], most: int = 2) -> list[Picture]:
    """One picture a group that differs, or of the first group where nothing was compared; at most ``most``.

    Raises ContractError where the case has no defined answer.
    """
    groups = list(dict.fromkeys(each.group for each in differences)) or [0][: len(case.groups)]
    return [_Layout(case, group, [each for each in differences if each.group == group]).picture() for group in
            groups[:most]]  # fmt: skip


def steps_of(found: Trace) -> tuple[Step, ...]:
    """The steps of a trace, each with its name apart: ``owner: (o // I) % W = ...``."""
    parts = (step.partition(": ") for step in found.steps)
    return tuple(Step(name, formula) if formula else Step("slot", name) for name, _, formula in parts)


@dataclass(frozen=True, slots=True)
class _Element:
    """One element of the output: where it should land and, where it differs, what it holds."""

    index: int
    found: Trace | None
    expected: int
    actual: int | None
    wrong: bool


class _Layout:
    def __init__(self, case: Case, group: int, differences: Sequence[Difference]) -> None:
        self.case, self.number, self.group = case, group, case.groups[group]
        self.sharded = case.cp.size > 1 and self.group.sharded and self.group.kind != "circular"
        self.boxes: list[Box] = []
        self.labels: list[Label] = []
        self.elements = self._elements(differences)
        self.width = float(NARROWEST)

    def picture(self) -> Picture:
        chips = self._chips()
        ranks = self._ranks(self._start("ranks", 84 + _GAP))
        cells, bottom = self._cells(self._start("block table", 84 + 52 + 2 * _GAP))
        places, bottom = self._places(self._start("slots", bottom + _GAP))
        self.boxes += [*ranks.values(), *cells.values(), *(box for box in places.values())]
        tokens = tuple(
            self._token(element, chip, ranks, cells, places) for element, chip in zip(self.elements, chips, strict=True)
        )
        left_out = self.case.num_tokens - sum(element.index < self.case.num_tokens for element in self.elements)
        return Picture(self.number, self.width, bottom, tuple(self.boxes), tuple(self.labels), tokens, left_out)

    # Which tokens

    def _elements(self, differences: Sequence[Difference]) -> list[_Element]:
        known = {each.index: each for each in differences}
        wrong = list(known)[: MOST_TOKENS - 2]
        others = (token for token in range(self.case.num_tokens) if token not in known)
        near = sorted(others, key=lambda token: min((abs(token - each) for each in wrong), default=token))
        chosen = sorted([*wrong, *near[: MOST_TOKENS - len(wrong)]])
        return [self._element(index, known.get(index)) for index in chosen]

    def _element(self, index: int, difference: Difference | None) -> _Element:
        found = trace(self.case, self.number, index) if index < self.case.max_num_tokens else None
        if difference is not None:
            return _Element(index, found, difference.expected, difference.actual, True)
        assert found is not None
        return _Element(index, found, found.slot, None, False)

    # The bands

    def _start(self, name: str, y: float) -> float:
        self.labels.append(Label(0, y + 9, name, "band"))
        return y + 18

    def _chips(self) -> list[Box]:
        y = self._start("tokens", 0)
        texts = [self._chip_text(element) for element in self.elements]
        sizes = [max(46.0, 7.4 * max(map(len, text)) + 12) for text in texts]
        self.width = min(max(self.width, sum(sizes) + 8 * len(sizes)), WIDEST)
        chips = []
        for size, text, element, x in zip(sizes, texts, self.elements, _centred(sizes, self.width), strict=True):
            chips.append(Box(x, y + 20, size, 42, "chip wrong" if element.wrong else "chip", text))
        requests: dict[str, list[Box]] = {}
        for chip, element in zip(chips, self.elements, strict=True):
            requests.setdefault(self._owner_of(element), []).append(chip)
        for name, members in requests.items():
            self.labels.append(
                Label((members[0].x + members[-1].x + members[-1].width) / 2, y + 11, name, "of", "middle")
            )
        return chips

    def _owner_of(self, element: _Element) -> str:
        if element.found is None or element.found.request is None:
            return "padding" if element.found is not None else "past the end"
        return f"request {element.found.request}"

    @staticmethod
    def _chip_text(element: _Element) -> tuple[str, str]:
        position = element.found.position if element.found is not None else None
        return ("\N{EM DASH}" if position is None else f"p {position}", f"[{element.index}]")

    def _ranks(self, y: float) -> dict[int, Box]:
        """The box of each rank shown; -1 is all of them, where they do not share the sequence."""
        cp = self.case.cp
        if not self.sharded:
            text = "one rank" if cp.size == 1 else f"the same on all {cp.size} ranks"
            if not self.group.enabled:
                text = "the group is disabled"
            return {-1: Box(self.width / 2 - 90, y, 180, 28, "rank this", (text,))}
        owners = [element.found.owner for element in self.elements if element.found is not None]
        wanted = [cp.rank, *(owner for owner in owners if owner is not None)]
        shown = _window(wanted, cp.size, MOST_RANKS)
        size = min(64.0, self.width / len(shown) - 6)
        boxes = {}
        for rank, x in zip(shown, _centred([size] * len(shown), self.width, 6), strict=True):
            boxes[rank] = Box(x, y, size, 28, "rank this" if rank == cp.rank else "rank", (f"R{rank}",))
        own = boxes[cp.rank]
        self.labels.append(Label(own.middle, y + 40, "this rank", "of", "middle"))
        return boxes

    def _cells(self, y: float) -> tuple[dict[tuple[int, int], Box], float]:
        """The cells shown, by row and index, and where the band ends."""
        wanted: dict[int, list[int]] = {}
        misused: set[tuple[int, int]] = set()
        for element in self.elements:
            if element.found is None or element.found.row is None or element.found.row < 0:
                continue
            own = wanted.setdefault(element.found.row, [])
            if element.found.block_index is not None:
                own.append(element.found.block_index)
            taken = self._taken(element)
            if taken is not None and taken != (element.found.row, element.found.block_index):
                misused.add(taken)
                wanted.setdefault(taken[0], []).append(taken[1])
        boxes: dict[tuple[int, int], Box] = {}
        for row in sorted(wanted)[:MOST_ROWS]:
            values = self.group.block_table[row]
            shown = _window(wanted[row] or [0], len(values), MOST_CELLS)
            size = max([38.0, *(7.4 * len(str(values[index])) + 12 for index in shown)])
            shown = shown[: max(1, int((self.width - 2 * _ROW_LABEL) / (size + 4)))]
            edges = _centred([size] * len(shown), self.width, 4)
            self.labels.append(Label((edges or [_ROW_LABEL])[0] - 8, y + 30, f"row {row}", "of", "end"))
            for x, index in zip(edges, shown, strict=True):
                used = index in wanted[row]
                kind = "cell misused" if (row, index) in misused else "cell used" if used else "cell"
                box = Box(x, y + 14, size, 24, kind, (str(values[index]),))
                self.labels.append(Label(box.middle, y + 9, f"[{index}]", "of", "middle"))
                boxes[row, index] = box
            more = len(values) - len(shown)
            if more > 0:
                self.labels.append(Label((edges[-1] if edges else 0) + size + 8, y + 30, f"+{more}", "of"))
            y += 48
        if not boxes:
            self.labels.append(Label(0, y + 12, "not consulted", "of"))
            y += 24
        return boxes, y

    def _taken(self, element: _Element) -> tuple[int, int] | None:
        """Row and index of the cell that the wrong slot of ``element`` belongs to, its own row first."""
        if element.actual is None or element.actual < 0 or element.found is None or element.found.row is None:
            return None
        number, own = element.actual // self.group.block_size, element.found.row
        others = (row for row in range(len(self.group.block_table)) if row != own)
        for row in (own, *others):
            if row >= 0 and number in self.group.block_table[row]:
                return row, self.group.block_table[row].index(number)
        return None

    def _places(self, y: float) -> tuple[dict[str, Box], float]:
        """The boxes where tokens end: blocks of slots, and what is none."""
        names: dict[str, list[tuple[int, str]]] = {}
        for element in self.elements:
            ends = [(element.expected, "should" if element.wrong else "right")]
            if element.actual is not None:
                ends.append((element.actual, "went"))
            for value, kind in ends:
                names.setdefault(self._place(value), []).append((value, kind))
        across = max(1, int((self.width + 8) // 108))
        boxes: dict[str, Box] = {}
        shown = list(names)[:MOST_BLOCKS]
        size = min(150.0, (self.width + 8) / min(across, len(shown) or 1) - 8)
        for place, name in enumerate(shown):
            line, column = divmod(place, across)
            count = min(across, len(shown) - line * across)
            x = _centred([size] * count, self.width)[column]
            box = Box(x, y + line * 74, size, 62, "place" if name.startswith("block") else "place bin")
            boxes[name] = box
            self.labels.append(Label(box.middle, box.y + 34, name, "name", "middle"))
            self.labels.append(Label(box.middle, box.y + 51, self._about(name, names[name]), "of inside", "middle"))
        return boxes, y + (len(shown) + across - 1) // across * 74 if shown else y

    def _place(self, value: int) -> str:
        if value == UNWRITTEN:
            return "not written"
        if value == self.case.pad_id:
            return f"PAD {value}"
        return f"block {value // self.group.block_size}" if value >= 0 else f"no slot: {value}"

    def _about(self, name: str, values: list[tuple[int, str]]) -> str:
        if not name.startswith("block"):
            return ""
        numbers = list(dict.fromkeys(value for value, _ in values))
        shown = ", ".join(map(str, numbers[:2]))
        return f"slot{'s' if len(numbers) > 1 else ''} {shown}{', ...' if len(numbers) > 2 else ''}"

    def _mark(self, value: int, box: Box, kind: str) -> Mark:
        if value < 0:
            return Mark(box.middle + (12 if kind == "went" else -12 if kind == "should" else 0), box.y + 12, kind)
        share = (value % self.group.block_size + 0.5) / self.group.block_size
        return Mark(box.x + 10 + share * (box.width - 20), box.y + 12, kind)

    # A token on its way

    def _token(
        self,
        element: _Element,
        chip: Box,
        ranks: dict[int, Box],
        cells: dict[tuple[int, int], Box],
        places: dict[str, Box],
    ) -> Token:
        marks, curves = [], []
        kind = "should" if element.wrong else "right"
        end = places.get(self._place(element.expected))
        if end is not None:
            mark = self._mark(element.expected, end, kind)
            stations = self._stations(element.found, ranks, cells)
            curves.append(Curve(_through(chip, stations, mark, -6 if element.wrong else 0), kind))
            marks.append(mark)
        landed = None if element.actual is None else places.get(self._place(element.actual))
        if element.actual is not None and landed is not None:
            mark = self._mark(element.actual, landed, "went")
            taken = self._taken(element)
            through = [cells[taken]] if taken is not None and taken in cells else []
            curves.append(Curve(_through(chip, through, mark, 6), "went"))
            marks.append(mark)
        found = element.found
        return Token(
            index=element.index,
            chip=chip,
            wrong=element.wrong,
            curves=tuple(curves),
            marks=tuple(marks),
            steps=steps_of(found) if found is not None else (),
            reason=_reason(element),
            where=self._where(element),
            expected=shown_element(element.expected),
            actual=None if element.actual is None else shown_element(element.actual),
        )

    def _stations(self, found: Trace | None, ranks: dict[int, Box], cells: dict[tuple[int, int], Box]) -> list[Box]:
        if found is None or found.rule == PADDING:
            return []
        through = [ranks.get(-1 if found.owner is None else found.owner)]
        if found.block_index is not None and found.row is not None:
            through.append(cells.get((found.row, found.block_index)))
        return [box for box in through if box is not None]

    def _where(self, element: _Element) -> str:
        found = element.found
        if found is None:
            return f"Element {element.index}, past max_num_tokens"
        if found.request is None:
            return f"Element {element.index}, padding"
        return f"Element {element.index}: request {found.request}, position {found.position}"


def _reason(element: _Element) -> str:
    if element.expected == UNWRITTEN:
        return "not to be written"
    found = element.found
    if found is None:
        return ""
    return found.reason if found.block_number is None else f"block {found.block_number}, offset {found.offset}"


def _through(chip: Box, stations: Iterable[Box], mark: Mark, aside: float) -> str:
    """A smooth path from the bottom of ``chip`` through boxes, top to bottom, to ``mark``; ``aside`` of the middle."""
    x, y = chip.middle + aside, chip.bottom
    path = [f"M{x:.1f} {y:.1f}"]
    for box in stations:
        path.append(_bend(x, y, box.middle + aside, box.y))
        x, y = box.middle + aside, box.bottom
        path.append(f"M{x:.1f} {y:.1f}")
    return "".join([*path, _bend(x, y, mark.x, mark.y - 5)])


def _bend(x: float, y: float, to_x: float, to_y: float) -> str:
    half = (to_y - y) / 2
    return f"C{x:.1f} {y + half:.1f} {to_x:.1f} {to_y - half:.1f} {to_x:.1f} {to_y:.1f}"


def _centred(sizes: Sequence[float], width: float, gap: float = 8) -> list[float]:
    """The left edge of each of the boxes that stand side by side in the middle of ``width``."""
    x = max(0.0, (width - sum(sizes) - gap * (len(sizes) - 1)) / 2)
    edges = []
    for size in sizes:
        edges.append(x)
        x += size + gap
    return edges


def _window(wanted: Sequence[int], length: int, most: int) -> list[int]:
    """At most ``most`` of range(length), in order: the wanted ones first, then their neighbours."""
    kept = list(dict.fromkeys(each for each in wanted if 0 <= each < length))[:most]
    near = 1
    while len(kept) < min(most, length) and near < most:
        for each in kept[: len(set(wanted))]:
            for neighbour in (each - near, each + near):
                if 0 <= neighbour < length and neighbour not in kept and len(kept) < most:
                    kept.append(neighbour)
        near += 1
    return sorted(kept)
