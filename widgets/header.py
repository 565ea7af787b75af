"""The first line of a screen: how the run stands, where it is, and what an operator asked of it.

On a narrow terminal fields go by their rank; what must be known (the state, that a run is simulated, how far it is,
toggles that are not as usual, that the picture is old or frozen) goes last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.cells import chop_cells

from interlock.engine.record.snapshot import Snapshot
from interlock.engine.record.words import duration, pass_of, percent, remaining, several
from interlock.engine.standing.health import ACT, PAUSED, Concern, Health, at_rest, batches_of, goes_on
from interlock.engine.standing.judgement import CALM, Attention, Judgement
from interlock.engine.standing.outlook import Outlook
from interlock.widgets import formats as words
from interlock.widgets.text import Row, Span, fit, fitted, kept, width_of, wrapped

STALE_SECONDS = 5.0
"""Without an event for longer than that, the header says so."""
GAP = 2
SIGNS = {"ok": "●", "idle": "○", "warn": "▲", "error": "✖"}
PAUSE, PAUSING = "■", "PAUSING"
MARKS = {"watch": "◇", "past": "▷", "replay": "▷"}
"""The sign of a run that is not of this process and calm: none of them looks live, and what is wrong has its own."""
SPELT = 120
"""Columns from which on the counts of what went wrong are named."""
WHOLE, ROOMY = 32, 60
"""Cells of the reason of a state up to which it stands beside the rest, where nothing that matters more goes for it; a
longer one has lines of its own, indented from so many columns on."""
COMMAND = 80
"""Columns from which on a command stands below the reason while the run goes on, and what it asks where the first line
has no room for that: devices matter more on a small one."""
MIDDLE = 20
"""Cells of what happened below which a long reason is cut at its end."""
ELAPSED = 40
END, PASS, ASKS = 4, 10, 13
"""The ranks of when it ends, of how far which pass is, and of what it asks of whoever looks."""
SPREAD, NAMES, ENDS = 16, 18, 19
IN_WORDS = {"exclusive": "one at a time", "shared": "side by side", "rotating": "in turns"}
"""How models stand on devices in each schedule."""


class Field(NamedTuple):
    """A piece of the header; of low `rank` is what stays longest. With a `least` it may be cut to so many cells."""

    rank: int
    text: str
    style: str = ""
    least: int = 0

    @property
    def size(self) -> int:
        """The cells without which it is left out."""
        full = width_of(self.text)
        return min(self.least, full) if self.least else full


def rows(
    snapshot: Snapshot, width: int, judged: Judgement,
    *, where: str = "", fresh: Attention = CALM, source_kind: str = "live", pending: Mapping[str, str] = {},
    stale: float | None = None, dropped: int = 0, frozen: bool = False, readonly: bool = False,
    find: str = "", warned: str = "", lines: int = 2,
) -> list[Row]:  # fmt: skip
    """Draw a row of `width` cells, and below it the reason of the state where that would be cut, on as many `lines` at
    most; a terminal that has none for that is too small for all else. `where` in the run it stands, if that is past,
    `fresh` is what was not looked at yet and keys `find`, `warned` the latest warning, `pending` are controls that were
    asked for and do not count yet, `stale` the seconds since anything was heard, `dropped` the events not shown."""
    kind = "past" if where and source_kind == "watch" else source_kind
    moment = _moment(where, kind)
    marks = _marks(snapshot, kind, readonly, width)
    reason = 0 if lines else min(WHOLE, max(10, width - 32 - sum(each.size + GAP for each in [*marks, *moment][:1])))
    chip = _chip(snapshot, judged, kind, pending, reason)
    health, counts = judged.health, _counts(fresh, judged.health, width, find, warned)
    told = health.asks and len(chip) > 1 and not where and not (health.level == "ok" and counts)  # or all is not well
    asks = [Field(ASKS, health.asks, "hit" if health.asks == ACT else chip[0].style)] * bool(told)
    left = [*chip, *asks, *marks, *moment, *_where(snapshot, judged, spelt=width >= SPELT)]
    times = [field for field in _times(snapshot, judged.left) if not where or field.rank != ELAPSED]
    left += [*_nodes(snapshot), *times]
    if width < ROOMY:  # where each cell counts, numbers have none to grow into
        left = [field._replace(text=field.text.strip()) for field in left]
    toggles = _toggles(snapshot, pending) if lines else [Field(90, "(enlarge to 40x10)", "dim")]
    below, rest = list[Row](), [*counts, *toggles, *_warnings(snapshot, stale, dropped, frozen)]
    whole = {1, 2} if asks and width >= COMMAND else {1}
    if lines and len(chip) > 1 and (width_of(chip[1].text) > WHOLE or not whole <= {*_standing(left, width)}):
        indent = 3 if width >= ROOMY else 1
        room = max(1, width - indent - 1)
        over = not goes_on(snapshot)
        del left[1]
        if len(whole) > 1 and 1 not in _standing([*left, *rest], width):
            first, *others = health.concerns or (Concern(health.detail),)
            health = replace(health, concerns=(first._replace(why=f"{health.asks}: {first.why}"), *others))
        reasons = _reasons(health, chip[1].style, room, lines, over=over, commands=over or width >= COMMAND)
        below = [fitted([Span(" " * indent), *each], width) for each in reasons]
    return [_laid(left, rest, width), *below]


def _reasons(health: Health, tone: str, room: int, most: int, *, over: bool, commands: bool) -> list[list[Span]]:
    """Lay out why a state is as it is on so many lines at `most`, each concern by itself with what to do about it, in
    the `tone` of the state unless it has its own. While a run goes on, commands give way to sentences: they are a key
    away, and not needed at once. Once it is `over`, sentences give way, what matters less first."""
    concerns = health.concerns or (Concern(health.detail),)
    goes_on_with = [each for each in concerns if each.remedy and each.remedy is health.remedy]
    shapes = [(standing, flows) for standing in (concerns, goes_on_with) for flows in (False, True)]
    for standing, flows in [*(shapes if commands else ()), ((), False)]:
        whys, does = zip(*(_phrased(each, room, each in standing, flows) for each in concerns), strict=True)
        if laid := _within(whys, room, most - sum(map(len, does)), cut=not standing or (over and not flows)):
            break
    else:
        return [[Span(line, tone)] for line in _cut("; ".join(each.why for each in concerns), room, most)]
    told = list[list[Span]]()
    for why, command, each in zip(laid, does, concerns, strict=True):
        style = tone if each.level is None else "" if each.level == "ok" else words.LEVEL_STYLES[each.level]
        within = " ".join(why).find(each.remedy.command) if each.remedy and not command else -1
        for line in why:  # a command looks the same in a sentence as on a line of its own
            end = len(line) if within < 0 else min(len(line), within)
            told.append([Span(line[:end], style), Span(line[end:], "bold")])
            within = within if within < 0 else max(0, within - len(line) - 1)
        told += [[Span(line, "bold")] for line in command]
    return told


def _phrased(concern: Concern, room: int, stands: bool, flows: bool) -> tuple[str, list[str]]:
    """The sentence of a concern, and the lines of its command where that `stands`; one that `flows`, or has room at the
    end of the sentence, is a part of it."""
    why, remedy = concern[:2]
    if not remedy or not stands:
        return why, []
    flows = flows or width_of(concern.told) <= room
    return (concern.told, []) if flows else (f"{why}; {remedy.when}", wrapped(remedy.command, room))


def _within(sentences: Sequence[str], room: int, most: int, *, cut: bool) -> list[list[str]]:
    """Lay sentences out on so many lines at `most`, none where they do not fit; where they may be `cut`, they lose what
    is in their middle, the last one first, and if that is not enough all but a line each."""
    ends = [width_of(each.rpartition("; ")[2]) for each in sentences]  # which say what to do, and stay
    for least in ([1 + (end + 1 + MIDDLE) // room for end in ends], [1] * len(ends)):
        laid = [_laid_out(each, room) for each in sentences]
        for place in reversed(range(len(laid) * cut)):
            spare = most - sum(map(len, laid)) + len(laid[place])
            if len(laid[place]) > spare:
                laid[place] = _cut(sentences[place], room, max(least[place], spare))
        if sum(map(len, laid)) <= most:
            return laid
    return []


def _laid_out(reason: str, room: int) -> list[str]:
    """Break a reason into lines so that no word stands alone on the last one, where that takes no line more."""
    laid = (wrapped(reason, cells) for cells in (room, room - 9))
    return min(laid, key=lambda each: (len(each), " " not in each[-1]))


def _cut(reason: str, room: int, most: int) -> list[str]:
    """Break a reason into so many lines at `most`; what is in the middle goes where they are too few."""
    rooms = range(most * room, most * room // 2, -4)
    laid = (wrapped(_abridged(reason, cells), room) for cells in rooms)
    told = next((each for each in laid if len(each) <= most), chop_cells(reason, room))
    return [*told[: most - 1], "".join(told[most - 1 :])]


def _abridged(reason: str, room: int) -> str:
    """Leave out the middle of a reason that has no room: it begins with what happened and ends with what to do."""
    why, _, then = reason.rpartition("; ")
    first, kept = why.partition("; ")[0], room - width_of(then) - 2
    why = first if first != why and width_of(first) <= kept else why
    return reason if width_of(reason) <= room or kept < MIDDLE else f"{fit(why, kept).rstrip()}; {then}"


def sign_of(health: Health) -> str:
    """Name the sign of how a run stands: what somebody asked for has another than what went wrong."""
    return PAUSE if health.word in (PAUSED, PAUSING) else SIGNS[health.level]


def _chip(
    snapshot: Snapshot, judged: Judgement, source_kind: str, pending: Mapping[str, str], reason: int
) -> list[Field]:
    """Sign and word for how the run stands, and what it is about; what was asked for is under way until it counts."""
    health = judged.health
    if goes_on(snapshot) and "stop" in pending:
        health = Health("STOPPING", "warn")
    elif goes_on(snapshot) and pending.get("pause", words.yes_no(snapshot.paused)) != words.yes_no(snapshot.paused):
        health = Health("RESUMING" if snapshot.paused else PAUSING, "warn")
    sign, style = sign_of(health), words.LEVEL_STYLES[health.level]
    if source_kind in MARKS and health.level in ("ok", "idle"):
        sign, style = MARKS[source_kind], "accent"
    fields = [Field(0, f"{sign} {health.word}", style)]
    # Beside the state it stands whole or not at all; on a screen of one line a part of it, if there is room for any.
    rank = END + 1 if not reason else 1 if reason > 10 else END
    tone = "" if health.level == "ok" else style  # of one that is well, what it may do without is no alarm
    told = health.told if len(health.concerns) < 2 else "; ".join(each.told for each in health.concerns)
    return fields + [Field(rank, told, tone, least=reason)] * bool(told)


def _moment(where: str, kind: str) -> list[Field]:
    """The moment of the past that is shown: when matters more than of how much, and how fast it goes on."""
    at, _, of_what = where.partition(" ")
    style = "warn" if kind == "past" else "accent"
    return [Field(1, f"at {at}", style), Field(12, of_what, style)] if where else []


def _marks(snapshot: Snapshot, kind: str, readonly: bool, width: int) -> list[Field]:
    """What makes this other than a run that goes on in this process and can be steered."""
    word = kind + "ing" * (kind == "watch" and width >= ROOMY)
    fields = [Field(1, word, "dim")] * (kind in MARKS and (kind != "watch" or goes_on(snapshot)))
    fields += [Field(2, unreal.upper(), "accent")] if (unreal := words.unreal(snapshot)) else []
    return fields + [Field(60, "READ-ONLY", "accent")] * (readonly and kind == "live")


def _counts(fresh: Attention, health: Health, width: int, find: str, warned: str) -> list[Field]:
    """What went wrong, was not looked at and is not told by the reason of the state: what is lost first, in the colour
    of errors where results lack it. What is refused is among the warnings, which are counted, with the keys that show
    them; what they are follows where there is room."""
    said = "; ".join([health.detail, *(each.why for each in health.concerns)])
    told = (fresh.losses, Attention(refused=fresh.refused))
    losses, refused = ([word for word in each.words if word not in said] for each in told)
    lost, count = fresh.parked and health.level == "error", fresh.warnings + fresh.refused * bool(refused)
    fields = [Field(5, "  ".join(losses), "error" if lost else "warn")] * bool(losses)
    keys = f" ({'type ' * (width >= SPELT)}{find})" * bool(find)
    short = f"!{count}" if width < ROOMY else several(count, "warning") + keys
    names = ", ".join([*refused, *[f"latest: {warned}"] * bool(warned and fresh.warnings)])
    names = fit(names, min(width_of(names), ROOMY)) * (width >= ROOMY)
    more = [Field(5, short, "warn"), Field(NAMES, names, "warn", least=MIDDLE + len("latest: "))]
    return fields + more[: 1 + bool(names)] * bool(count)


def _nodes(snapshot: Snapshot) -> list[Field]:
    """How many nodes compute, of how many that did in this session; nothing on one machine."""
    joined = [node for node in snapshot.nodes if node.since is not None]
    here = sum(node.here for node in joined)
    if not joined or snapshot.over:
        return []
    if here < len(joined):  # which the state of the run says too, unless another thing is worse
        return [Field(24, f"{here} of {several(len(joined), 'node')}", "warn")]
    return [Field(12, several(here, "node"))]


def _where(snapshot: Snapshot, judged: Judgement, *, spelt: bool) -> list[Field]:
    """How far, in which pass, which batch and whose."""
    done = percent(snapshot.share_done if judged.share_done is None else judged.share_done)
    fields = [Field(3, done + " uploaded" * bool(judged.ran), "bold")] * bool(snapshot.passes)
    fields += [Field(11, "resumed", "dim")] * (snapshot.sessions > 1 and goes_on(snapshot))
    running = snapshot.running if snapshot.phase == "running" else ()
    if len(running) > 1:  # which batch came last says nothing of how far they are
        fields.append(Field(PASS, f"{len(running)} {'passes ' * spelt}at once"))
    for now in running if len(running) == 1 else ():
        number, passes = now.model_pass, len(snapshot.passes)
        own = f" at {percent(now.share_done).strip()}" if passes > 1 else ""
        fields.append(Field(PASS, pass_of(number, passes) + own))
        fields.append(Field(25, now.model, least=14))
        if batches := batches_of(now):
            fields.append(Field(30, batches, "dim"))
    if snapshot.collection:
        fields.append(Field(50, snapshot.collection, "dim", least=14))
    return fields


def _times(snapshot: Snapshot, left: Outlook | None) -> list[Field]:
    """How long, how long still, how fast; of a run that is over, why it ended so."""
    fields = [Field(ELAPSED, f"elapsed {duration(snapshot.elapsed)}")] if snapshot.elapsed else []
    if left:
        fields += [Field(END, f"eta {remaining(left.seconds)}"), Field(SPREAD, f"±{remaining(left.spread)}", "dim")]
    if snapshot.deadline and goes_on(snapshot):
        still = max(0.0, snapshot.deadline - snapshot.latest_at)
        late = snapshot.paused or (left is not None and left.seconds > still)  # the run does not end in this session
        fields.append(Field(18, f"deadline in {duration(still)}", "warn" if late else ""))
    if rate := words.rates(snapshot)[0]:
        fields.append(Field(20, f"{words.count(rate):>5} texts/s" + " mean" * at_rest(snapshot)))
    if not goes_on(snapshot) and snapshot.latest_at:
        ended = "ended" if snapshot.over else "last heard"
        fields.append(Field(ENDS, f"{ended} {words.clock(snapshot.latest_at, '%m-%d %H:%M:%S')}", "dim"))
    return fields


def _toggles(snapshot: Snapshot, pending: Mapping[str, str]) -> list[Field]:
    """Those that are not as usual; a star where something else was asked for than counts everywhere."""
    schedule = pending.get("schedule", snapshot.schedule)
    fallback = pending.get("cpu_fallback", words.yes_no(snapshot.cpu_fallback)) == "yes"
    fields = list[Field]()
    for control, usual, text in (
        ("schedule", schedule == "exclusive", IN_WORDS.get(schedule, schedule)),
        ("cpu_fallback", fallback, "no " * (not fallback) + "CPU fallback"),
    ):
        done, of = snapshot.reached(control)  # by the nodes of a cluster
        asked = control in pending or done < of
        if asked or not usual:
            fields.append(Field(5, text + "*" * asked, "warn" if asked else ""))
    return fields


def _warnings(snapshot: Snapshot, stale: float | None, dropped: int, frozen: bool) -> list[Field]:
    """What is wrong with the picture itself."""
    fields = []
    if stale is not None and stale > STALE_SECONDS and not snapshot.over:
        fields.append(Field(6, f"STALE {duration(stale)}", "warn"))
    if frozen:
        fields.append(Field(4, "FROZEN", "warn"))
    if dropped:
        fields.append(Field(7, f"dropped {words.count(dropped)}", "warn"))
    return fields


def _standing(fields: list[Field], width: int) -> list[int]:
    """The places of the fields that fit, with a cell at either end; how far an end may be off says nothing alone."""
    fits = kept([field.size for field in fields], [field.rank for field in fields], _room(width), GAP)
    return [place for place in fits if fields[place].rank != SPREAD or place - 1 in fits]


def _room(width: int) -> int:
    """The cells beside those at either end; on a narrow screen the last one is used too."""
    return width - 1 - (width >= ROOMY)


def _laid(left: list[Field], right: list[Field], width: int) -> Row:
    """The fields that fit, the right part at the right edge."""
    fields = left + right
    sizes = [field.size for field in fields]
    shown = _standing(fields, width)
    # All were counted at their least size, so that many fit; what is over goes to those that were cut, by rank.
    spare = _room(width) + GAP - sum(sizes[place] + GAP for place in shown)
    for place in sorted(shown, key=lambda place: fields[place].rank):
        more = min(spare, width_of(fields[place].text) - sizes[place])
        sizes[place] += more
        spare -= more
    spans = {place: Span(fit(fields[place].text, sizes[place]), fields[place].style) for place in shown}
    near = [span for place, span in spans.items() if place < len(left)]
    far = [span for place, span in spans.items() if place >= len(left)]
    # `spare` has no gap for the seam between the two parts, which has one only where both are there.
    between = Span(" " * (max(0, spare) + GAP * bool(near and far)))
    return fitted([Span(" "), *_joined(near), between, *_joined(far)], width)


def _joined(spans: list[Span]) -> list[Span]:
    return [piece for span in spans for piece in (Span(" " * GAP), span)][1:]
