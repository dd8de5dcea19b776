"""The ledger of an estimate as rows to multiply out, and where their numbers are from.

Each row is an expression with four digits: operations over peak · efficiency, bytes over bandwidth
· efficiency, both joined on the rounded roofline with the start of its kernels, times how many
there are. The formulas are those of docs/method/physics.md ("Time of one operator", "Collectives").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from recipe_core.base.provenance import Quantity, Source
from recipe_core.base.units import prefixed, seconds, significant
from recipe_core.estimates.ledger import Entry, Kernel, Overhead, Sum, Transfer
from recipe_core.hardware.cluster import priors
from recipe_core.hardware.profile import Device, Fabric

# Digits of a row, so that products of a few of them agree to three.
DIGITS = 4


@dataclass(frozen=True, slots=True)
class Line:
    """One metric: its name, its formula, the same with numbers, and the result."""

    name: str
    formula: str
    numbers: str
    value: str


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator of a part: texts, of which ``compute``, ``moved`` and ``once`` are equations.

    ``once_s · number = time_s``; ``part`` is a name of the estimate's breakdown.
    """

    part: str
    operator: str
    compute: str
    moved: str
    once: str
    once_s: float
    number: float

    @property
    def time_s(self) -> float:
        return self.once_s * self.number

    @property
    def count(self) -> str:
        return plain_number(self.number)

    @property
    def time(self) -> str:
        return time_text(self.time_s)


@dataclass(frozen=True, slots=True)
class Working:
    """The operators of one step."""

    title: str
    rows: tuple[OperatorRow, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    """A number of the rows: its name, value, status and source."""

    name: str
    value: str
    status: str
    source: str


@dataclass(frozen=True, slots=True)
class Times:
    """Lines by title, the operators of every step, and the sources of their numbers."""

    lines: dict[str, list[Line]] = field(default_factory=dict)
    workings: tuple[Working, ...] = ()
    constants: tuple[Constant, ...] = ()


def exact(value: float) -> str:
    return significant(value, DIGITS)


def time_text(value_s: float) -> str:
    """Seconds with four digits: ``88.59 µs``."""
    return seconds(value_s, DIGITS)


def work_text(value: float, unit: str) -> str:
    """An amount of work with four digits and a decimal prefix: ``3.676 GFLOP``."""
    return prefixed(value, unit, DIGITS)


def efficiency_text(value: float) -> str:
    """An efficiency or exponent, as data files write it: at most four digits."""
    return f"{value:.4g}"


def plain_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-9 * abs(value) else exact(value)


def product(numbers: str, factor: float) -> str:
    """Numbers times a factor, without one of 1."""
    if abs(factor - 1) < 1e-9:
        return numbers
    is_sum = " + " in numbers or " - " in numbers
    return f"{f'({numbers})' if is_sum else numbers} × {efficiency_text(factor)}"


def tabulate_operators(title: str, parts: Mapping[str, Sum], hidden: str = "") -> Working:
    """Rows of recorded parts. The time that computing hides of a part is a row ``hidden``."""
    return Working(
        title, tuple(row for name, of in parts.items() for row in _operator_rows(name, of, hidden))
    )


def _operator_rows(part: str, of: Sum, hidden: str) -> Iterator[OperatorRow]:
    alike: dict[tuple[str, float], tuple[Entry, float]] = {}
    behind_s = 0.0
    for entry, count in of.terms:
        if count < 0:
            behind_s -= count * entry.seconds
            continue
        # layers of two kinds may hold the same product
        key = (_operator_name(entry), round(entry.seconds, 15))
        alike[key] = (entry, alike.get(key, (entry, 0.0))[1] + count)
    for entry, count in alike.values():
        yield OperatorRow(part, _operator_name(entry), *_equations(entry), entry.seconds, count)
    if behind_s > 0:
        yield OperatorRow(part, hidden, "", "", time_text(behind_s), behind_s, -1.0)


def _operator_name(entry: Entry) -> str:
    if isinstance(entry, Kernel) and entry.dims:
        rows, inputs, outputs = (plain_number(size) for size in entry.dims)
        return f"{entry.label}: {rows} × {inputs} × {outputs}"
    if isinstance(entry, Transfer):
        size = work_text(entry.data_bytes, "B")
        return f"{entry.label} of {size}, {plain_number(entry.ranks)} ranks, {entry.algorithm}"
    return entry.label


def _equations(entry: Entry) -> tuple[str, str, str]:
    if isinstance(entry, Kernel):
        return _kernel_equations(entry)
    if isinstance(entry, Transfer):
        return _transfer_equations(entry)
    if not isinstance(entry, Overhead):
        raise TypeError(f"no equations for {type(entry).__name__}")
    if entry.per == "byte":
        moved = f"{work_text(entry.count, 'B')} ÷ {work_text(1 / entry.each_s, 'B/s')}"
        return "", f"{moved} = {time_text(entry.seconds)}", time_text(entry.seconds)
    numbers = _multiple(entry.count, time_text(entry.each_s))
    if abs(entry.slower - 1) >= 1e-9:
        numbers = f"{efficiency_text(entry.slower)} × {numbers}"
    return "", "", _equation(numbers, entry.seconds)


def _equation(numbers: str, value_s: float) -> str:
    """``numbers = time``; without an equation to itself."""
    time = time_text(value_s)
    return time if numbers == time else f"{numbers} = {time}"


def _sum_equation(entry: Entry, terms: Iterable[str]) -> str:
    """``slower × (terms) = time``; without a factor of 1."""
    numbers = " + ".join(terms)
    if abs(entry.slower - 1) >= 1e-9:
        numbers = f"{efficiency_text(entry.slower)} × ({numbers})"
    return _equation(numbers, entry.seconds)


def _multiple(count: float, text: str) -> str:
    return text if count == 1 else f"{plain_number(count)} × {text}"


def _at_rate(amount: float, unit: str, per_s: float, efficiency: float) -> tuple[str, float]:
    """``work ÷ (rate × efficiency)``, and its seconds."""
    rate = f"({work_text(per_s, f'{unit}/s')} × {efficiency_text(efficiency)})"
    return f"{work_text(amount, unit)} ÷ {rate}", amount / (per_s * efficiency)


def _kernel_equations(entry: Kernel) -> tuple[str, str, str]:
    shape, device = entry.shape, entry.device
    if shape is None or device is None:
        raise TypeError("a kernel without its roofline")
    peak = device.peak_flops_per_s[entry.dtype].value  # type: ignore[index]  # of the profile
    bandwidth = device.memory_bandwidth_bytes_per_s.value
    row_time = "" if entry.row_time == 1 else f"{efficiency_text(entry.row_time)} × "
    compute, compute_s = _at_rate(entry.flops, "FLOP", peak, shape.compute_efficiency)
    moved, memory_s = _at_rate(entry.moved_bytes, "B", bandwidth, shape.memory_efficiency)
    compute_s *= entry.row_time
    busy = [time_text(value_s) for value_s in (compute_s, memory_s) if value_s > 0]
    if len(busy) == 2 and shape.smoothing != 1:
        r = efficiency_text(shape.smoothing)
        busy = [f"({busy[0]}^{r} + {busy[1]}^{r})^(1 ÷ {r})"]
    terms = [_multiple(entry.starts, time_text(shape.overhead_s))]
    if entry.sorted_share and shape.sort_s:
        terms.append(f"{exact(entry.sorted_share)} × {time_text(shape.sort_s)}")
    terms += busy
    if entry.row_bytes:
        share = shape.row_efficiency or shape.memory_efficiency
        terms.append(row_time + _at_rate(entry.row_bytes, "B", bandwidth, share)[0])
    return (
        f"{row_time}{compute} = {time_text(compute_s)}" if compute_s > 0 else "",
        f"{moved} = {time_text(memory_s)}" if memory_s > 0 else "",
        _sum_equation(entry, terms),
    )


def _transfer_equations(entry: Transfer) -> tuple[str, str, str]:
    moved, busy_s = _at_rate(entry.moved_bytes, "B", entry.bandwidth_bytes_per_s, entry.efficiency)
    starts = [_multiple(count, time_text(start_s)) for start_s, count in entry.starts]
    once = _sum_equation(entry, [*starts, time_text(busy_s)])
    return "", f"{moved} = {time_text(busy_s)}", once


# Where the numbers are from


def hardware_constants(parts: Iterable[Mapping[str, Sum]]) -> list[Constant]:
    """The numbers of the hardware that the recorded parts use, each once."""
    unique: dict[tuple[str, str], Constant] = {}
    for entry in _counted_entries(parts):
        for constant in _entry_constants(entry):
            unique[(constant.name, constant.value)] = constant
    return list(unique.values())


def _counted_entries(parts: Iterable[Mapping[str, Sum]]) -> Iterator[Entry]:
    for step in parts:
        for of in step.values():
            yield from (entry for entry, count in of.terms if count > 0)


def _entry_constants(entry: Entry) -> Iterator[Constant]:
    if isinstance(entry, Kernel) and entry.device is not None:
        yield from _kernel_constants(entry, entry.device)
    elif isinstance(entry, Transfer) and entry.fabric is not None:
        yield from _transfer_constants(entry, entry.fabric)


def _quantity_constant(
    name: str, quantity: Quantity, unit: str, sources: Mapping[str, Source]
) -> Constant:
    source = cited(sources, quantity.source, quantity.note)
    return Constant(name, work_text(quantity.value, unit), quantity.status, source)


def cited(sources: Mapping[str, Source], key: str, remark: str | None = None) -> str:
    """The title of a source with its date, and what is remarked on the number."""
    source = sources.get(key)
    if source is None:
        return key if remark is None else f"{key}; {remark}"
    title = source.title if source.date is None else f"{source.title} ({source.date})"
    return title if remark is None else f"{title}; {remark}"


def _kernel_constants(entry: Kernel, device: Device) -> Iterator[Constant]:
    shape = entry.shape
    if shape is None:
        return
    peak = device.peak_flops_per_s[entry.dtype]  # type: ignore[index]  # a dtype of the profile
    if entry.flops:
        yield _quantity_constant(f"Peak in {entry.dtype}", peak, "FLOP/s", device.sources)
    bandwidth = device.memory_bandwidth_bytes_per_s
    yield _quantity_constant("Memory bandwidth", bandwidth, "B/s", device.sources)
    is_own = any(shape is roofline for roofline in device.roofline.get(entry.family, {}).values())
    sources = device.sources if is_own else priors().sources
    figures = [
        f"compute {efficiency_text(shape.compute_efficiency)}",
        f"memory {efficiency_text(shape.memory_efficiency)}",
        f"start {time_text(shape.overhead_s)}",
        f"exponent {efficiency_text(shape.smoothing)}",
    ]
    if entry.row_bytes:
        figures.append(f"rows {efficiency_text(shape.row_efficiency or shape.memory_efficiency)}")
    if entry.row_bytes and shape.sort_s:
        figures.append(f"sorting {time_text(shape.sort_s)}")
    kind = FAMILIES[entry.family]
    source = cited(sources, shape.source, shape.note)
    yield Constant(
        f"{kind}, {entry.stored_dtype}" if is_own else kind,
        ", ".join(figures),
        shape.status if is_own else f"prior ({shape.status})",
        source if is_own else f"{source}: this device has none of its own",
    )


# Families of operators that share a roofline.
FAMILIES = {
    "gemm": "Matrix products",
    "moe": "Routed experts",
    "attention_prefill": "Attention over a prompt",
    "attention_decode": "Attention over the cache",
    "mla_prefill": "Latent attention over a prompt",
    "mla_decode": "Latent attention over the cache",
    "elementwise": "Elementwise kernels",
}


WAYS = {"library": "library", "direct": "direct kernels", "switch": "sums in the switch"}


def _transfer_constants(entry: Transfer, fabric: Fabric) -> Iterator[Constant]:
    bandwidth = fabric.bandwidth_bytes_per_s
    yield _quantity_constant(f"{fabric.title}, bandwidth", bandwidth, "B/s", fabric.sources)
    links = fabric.links(entry.way)
    figures = f"efficiency {efficiency_text(links.efficiency.value)}, "
    figures += f"start {time_text(links.latency_s.value)}"
    if links.latency_per_rank_s is not None:
        figures += f", per rank {time_text(links.latency_per_rank_s.value)}"
    name = f"{fabric.title}, {WAYS[entry.way]}"
    source = cited(fabric.sources, links.efficiency.source, links.efficiency.note)
    yield Constant(name, figures, links.efficiency.status, source)
