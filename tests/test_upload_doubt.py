"""Uploads to servers that answer something else than was asked, forget, or are somebody else's too: none is believed.

The engine behind `edge_bridge` says what is there; what an upload says of itself is compared with that.
"""

import json

import pytest

from interlock.engine.errors import InterlockError, UnavailableError, UsageError
from tests.uploads import Uploads, answered, bridged, embedded

POINTS = "/collections/docs/points"


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_a):
    home = tmp_path_factory.mktemp("doubt")
    embedded(home, tiny_a, "one", rows=40, keep="both")
    return home


@pytest.fixture
def upload(home, tmp_path):
    with bridged(tmp_path / "bridge") as bridge:
        yield Uploads(bridge, home / "runs" / "one", tmp_path / "uploads")


def always(asked, result):
    """A server that answers this to one kind of request, whatever it did."""
    return lambda method, path, *_: answered(result) if (method, path) == asked else None


@pytest.mark.parametrize(
    ("method", "path", "result"),
    [
        ("PUT", POINTS, True),
        ("PUT", POINTS, {}),
        ("PUT", POINTS, {"status": None}),
        ("POST", f"{POINTS}/count", True),
        ("POST", f"{POINTS}/count", {"count": None}),
        ("POST", f"{POINTS}/count", {"count": "many"}),
        ("POST", POINTS, True),
        ("POST", POINTS, [{"id": None}]),
        ("GET", "/collections/docs", True),
        ("GET", "/collections/docs", {"config": {}}),
        ("GET", "/aliases", []),
        ("GET", "/aliases", {}),
    ],
)
def test_an_answer_of_another_form_is_asked_for_again_and_told(upload, method, path, result):
    upload.bridge.before = always((method, path), result)
    with pytest.raises(UnavailableError, match=r"did not do its work within 100 s of asking \(.+\): start it"):
        upload()
    assert upload.clock.slept


@pytest.mark.parametrize("version", [None, "", "x", "1.x", "1.\xb2", "1"])
def test_a_version_that_is_none_is_that_of_no_server(upload, version):
    body = json.dumps({"title": "qdrant", "version": version}).encode()
    upload.bridge.before = lambda method, path, *_: (200, {}, body) if path == "/" else None
    with pytest.raises(UsageError, match=r"is not a Qdrant server|which keeps no metadata"):
        upload()


@pytest.mark.parametrize("path", ["/", "/collections/docs", POINTS])
@pytest.mark.parametrize("form", [lambda key: [key], lambda key: key, lambda key: {"result": [key]}])
def test_no_part_of_a_key_is_said_though_the_answer_repeats_it(upload, path, form):
    key = "head" * 20 + "tail" * 20
    upload.bridge.before = lambda _, at, *__: (200, {}, json.dumps(form(key)).encode()) if at == path else None
    with pytest.raises(InterlockError) as failed:
        upload(key=key)
    said = [str(failed.value), *upload.told]
    assert not [text for text in said if "headhead" in text or "tailtail" in text]
