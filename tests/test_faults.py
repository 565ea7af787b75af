"""The fault menu: what a text means, and that each fault does on a simulated device what it says."""

import pytest
import torch

from interlock.engine.errors import UsageError
from interlock.engine.gpu.device_errors import Trouble, classify
from interlock.engine.gpu.faults import MENU, Fault, parse
from interlock.engine.gpu.sim import CONTEXT, Card, SimDevice
from tests.builders import corpus

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
CARD = Card("GPU for tests", GIB)


def device(faults: str = "", name: str = "cuda:0", **options: object) -> SimDevice:
    return SimDevice(name, CARD, parse(faults), narrow=False, **options)


def tensor(size: int) -> torch.Tensor:
    """A tensor of `size` bytes, made by one allocation."""
    return torch.empty(size, dtype=torch.uint8)


def tried(on: SimDevice, *sizes: int) -> list[bool]:
    """Whether each allocation succeeded; each is dropped before the next."""
    done = []
    for size in sizes:
        try:
            with on.computing():
                tensor(size)
            done.append(True)
        except torch.OutOfMemoryError:
            done.append(False)
    return done


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("oom:40", Fault("oom", first=40)),
        ("oom-over:1.5GiB", Fault("oom-over", size=1536 * MIB)),
        ("other:3GiB:7", Fault("other", size=3 * GIB, first=7)),
        ("other:3GiB:7:9", Fault("other", size=3 * GIB, first=7, last=9)),
        ("lose@cuda:1:400", Fault("lose", "cuda:1", first=400)),
        ("nan@cuda:12:5", Fault("nan", "cuda:12", first=5)),
        ("lag:0.5", Fault("lag", seconds=0.5)),
    ],
)
def test_each_text_of_the_menu_parses_to_its_fault(text, fault):
    assert parse(text) == [fault]


def test_faults_with_commas_keep_their_order_and_no_text_is_none():
    assert parse(" oom:1 , lose@1:2,") == [Fault("oom", first=1), Fault("lose", "cuda:1", first=2)]
    assert parse("") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("meteor:1", "unknown kind"),
        ("oom:x", "expected a number for K, got 'x'"),
        ("oom:\uff11", "expected a number for K, got '\uff11'"),
        ("oom:0", "expected K above 0"),
        ("oom@gpu:1:2", "unknown kind"),
        ("leak:much", "expected a size such as"),
        ("leak:0MiB", "expected SIZE above 0"),
        ("other:1GiB", r"expected SIZE:K\[:M\]"),
        ("other:1GiB:5:4", "expected M of K or more"),
        ("lag:soon", "expected a number for SECONDS, got 'soon'"),
    ],
)
def test_nonsense_is_named_together_with_the_menu(text, said):
    with pytest.raises(UsageError, match=said) as caught:
        parse(f"oom:1,{text}")
    assert repr(text) in str(caught.value)
    assert all(f"{kind}:{arguments}" in str(caught.value) for kind, arguments in MENU.items())


def test_oom_at_the_third_allocation_fails_only_that_one():
    on = device("oom:3")
    assert tried(on, *[MIB] * 5) == [True, True, False, True, True]
    assert (on.ooms, on.allocations) == (1, 5)


def test_oom_over_a_size_fails_every_larger_allocation():
    assert tried(device("oom-over:1MiB"), MIB, MIB + 1, MIB, 2 * MIB) == [True, False, True, False]


def test_a_fault_of_one_device_does_not_strike_another():
    assert tried(device("oom@cuda:1:1", "cuda:0"), MIB) == [True]
    assert tried(device("oom@cuda:1:1", "cuda:1"), MIB) == [False]


def test_fragments_take_room_as_long_as_a_tensor_stays():
    on = device("fragment:600MiB")
    assert tried(on, 120 * MIB, 126 * MIB) == [True, False]  # 124 MiB are left beside context and fragments
    assert tried(device(), 700 * MIB) == [True]
    with on.computing():
        kept = tensor(MIB)
        on.reclaim()
        assert (on.memory().reserved, on.peak().allocated) == (601 * MIB, 120 * MIB)
    del kept
    on.reclaim()
    assert on.memory().reserved == on.memory().allocated == 0


def test_a_leak_stays_for_good_once_something_was_computed():
    on = device("leak:30MiB")
    on.reclaim()
    assert on.memory().allocated == 0
    assert tried(on, MIB) == [True]
    for _ in range(3):
        on.reclaim()
        assert on.memory().allocated == 30 * MIB
    assert on.memory().occupied == CONTEXT + 30 * MIB


def test_another_process_shows_in_room_and_readings_as_it_comes_and_goes():
    on = device("other:500MiB:2:3")
    rooms, others = [], []
    for _ in range(4):
        assert tried(on, MIB) == [True]
        rooms.append(on.room(GIB))
        others.append(on.readings().others)
    assert others == [0, 500 * MIB, 500 * MIB, 0]
    assert [rooms[0] - room for room in rooms] == others
    assert tried(device("other:500MiB:1:1"), 600 * MIB, 600 * MIB) == [False, True]


def test_a_greedy_other_process_gets_what_is_free():
    on = device("other:5GiB:2")
    with on.computing():
        kept = tensor(400 * MIB)
        assert tried(on, MIB) == [False]
    assert on.readings().others == GIB - CONTEXT - 400 * MIB
    assert on.readings().used == on.readings().total
    del kept


def test_computing_on_a_lost_device_fails_as_in_cuda():
    on = device("lose:2")
    with on.computing():
        kept = torch.ones(4)
        with pytest.raises(RuntimeError, match=r"^CUDA error: unspecified launch failure") as caught:
            kept + 1
        assert type(caught.value) is getattr(torch, "AcceleratorError", RuntimeError)
        assert classify(caught.value) is Trouble.LOST
        with pytest.raises(RuntimeError, match="unspecified launch failure"):
            kept.view(2, 2)  # not even this, which allocates nothing
    with pytest.raises(RuntimeError, match="unspecified launch failure"), on.computing():
        pass
    assert torch.equal(kept + 1, torch.full((4,), 2.0))  # the host is well


def test_a_lost_device_tells_what_was_last_known():
    on = device("lose:3")
    with on.computing():
        kept = tensor(30 * MIB)
        tensor(50 * MIB)
        with pytest.raises(RuntimeError):
            tensor(MIB)
    del kept
    on.start_peak()
    on.reclaim()
    on.trim()
    on.wall(None)
    assert on.lost
    assert (on.memory().allocated, on.peak().allocated) == (30 * MIB, 80 * MIB)
    assert (on.room(GIB), on.retries(), on.readings()) == (0, 0, None)


def test_what_a_card_says_that_takes_no_weights_is_told_without_its_stop(tmp_path, tiny_a, call):
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": ["one text"]}})
    how = ("--devices", "sim:1xT4", "--faults", "attach:1", "--no-ui")
    code, _, err = call("run", chunks, "--roster", tiny_a, *how)
    (line,) = (line for line in err.splitlines() if "attaching to cuda:0 failed" in line)
    assert code == 0 and line.endswith("; attached on retry (1 text)") and ".;" not in line


def test_attaching_that_fails_twice_succeeds_the_third_time():
    on = device("attach:2")
    host = torch.ones(150_000)
    failures = 0
    while True:
        try:
            with on.computing():
                weights = torch.empty_like(host).copy_(host)
            break
        except torch.OutOfMemoryError:
            failures += 1
    assert failures == 2
    assert tried(on, MIB, MIB) == [True, True]
    assert torch.equal(weights, host)


def test_nan_at_the_second_result_spoils_only_that_one():
    on = device("nan:2")
    with on.computing(), torch.inference_mode():
        results = [torch.ones(4) * 2 for _ in range(2)]
    assert [bool(result.isnan().all()) for result in results] == [True, False]
    on = device("nan:1")
    with on.computing():
        assert torch.equal(torch.arange(3), torch.tensor([0, 1, 2]))


@pytest.mark.parametrize(("lag", "waited"), [("0.5", 0.5), ("60", 2.0)])
def test_reclaiming_waits_for_a_lagging_driver_and_two_seconds_at_most(lag, waited):
    pauses = []
    on = device(f"lag:{lag}", sleep=pauses.append)
    assert tried(on, 100 * MIB) == [True]
    on.reclaim()
    assert pauses == [waited]
    assert on.memory().occupied == CONTEXT
