"""Whatever a board or cluster file holds, the user gets a user's error, soon, and no code runs."""

import random
from pathlib import Path

import pytest
from broken_boards import BOARD, BROKEN_BOARDS, BROKEN_CLUSTERS, CLUSTER, WHOLE_FILES
from hang_guard import hang_guard

from fpgapipe.boards.cluster import load_cluster
from fpgapipe.boards.library import read_board
from fpgapipe.errors import FileError, UserError

EXAMPLES = Path(__file__).parents[2] / "examples" / "clusters"
BOARDS = Path(__file__).parents[2] / "boards"


def check_refused(path: Path) -> None:
    """Both readers refuse the file, as a user's error, in time, in words that can be printed."""
    for read in (read_board, load_cluster):
        with hang_guard(), pytest.raises(FileError) as raised:
            read(path)
        message = str(raised.value)
        assert message.startswith(f"{path}: ")
        assert all(line.isprintable() for line in message.splitlines())
        assert len(raised.value.faults) <= 51


def check_one_refused(path: Path, read) -> None:
    with hang_guard(), pytest.raises(FileError) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_the_files_that_are_broken_below_are_good(tmp_path):
    (tmp_path / "mine.yaml").write_text(BOARD)
    (tmp_path / "pair.yaml").write_text(CLUSTER)
    assert read_board(tmp_path / "mine.yaml").name == "mine"
    assert len(load_cluster(tmp_path / "pair.yaml").links) == 2
    assert len(BROKEN_BOARDS) + len(BROKEN_CLUSTERS) + len(WHOLE_FILES) >= 200


@pytest.mark.parametrize(("good", "bad"), BROKEN_BOARDS, ids=[bad[:40] for _, bad in BROKEN_BOARDS])
def test_broken_board(good, bad, tmp_path):
    assert good in BOARD
    path = tmp_path / "mine.yaml"
    path.write_text(BOARD.replace(good, bad, 1))
    check_one_refused(path, read_board)


@pytest.mark.parametrize(
    ("good", "bad"), BROKEN_CLUSTERS, ids=[bad[:40] for _, bad in BROKEN_CLUSTERS]
)
def test_broken_cluster(good, bad, tmp_path):
    assert good in CLUSTER
    path = tmp_path / "pair.yaml"
    path.write_text(CLUSTER.replace(good, bad, 1))
    check_one_refused(path, load_cluster)


@pytest.mark.parametrize(
    "content", [c for _, c in WHOLE_FILES], ids=[name for name, _ in WHOLE_FILES]
)
def test_no_board_and_no_cluster_at_all(content, tmp_path):
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    check_refused(path)


@pytest.mark.parametrize("length", range(0, len(BOARD), 97))
def test_truncated_board(length, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(BOARD[:length])
    check_one_refused(path, read_board)


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (
            "dsp: 25}\n    - {name: SLR1",
            "dsp: -3}\n    - {name: SLR1",
            "line 9: fabric.dies[0].dsp: must be 0..100000 (DSP slices), not -3",
        ),
        (
            "clk_target_hz",
            "clok_target_hz",
            "line 14: clock: the key 'clk_target_hz' is missing\n"
            "FILE: line 14: clock.clok_target_hz: unknown key 'clok_target_hz'; "
            "did you mean 'clk_target_hz'?",
        ),
        (
            "300 MHz",
            "300 Mhz",
            "line 14: clock.clk_target_hz: must be in Hz (Hz, kHz, MHz, GHz, THz), not 'Mhz'; "
            "did you mean 'MHz'?",
        ),
        (
            "300 MHz",
            "300",
            "line 14: clock.clk_target_hz: must be 1 MHz..2 GHz (clock target), not 300",
        ),
        (
            "4 GiB",
            "lots",
            "line 19: memory[0].size_bytes: must be a number of bytes, or a string such as "
            "'4 GiB', not 'lots'",
        ),
        (
            "aurora-64b66b",
            "aurora-64b66",
            "line 27: links[0].protocol: must be one of aurora-64b66b, aurora-8b10b, 1g-ethernet, "
            "10g-ethernet, 100g-ethernet, 200g-ethernet, gpio (protocol), not 'aurora-64b66'; "
            "did you mean 'aurora-64b66b'?",
        ),
        (
            "lut: 1000",
            "lut: 999",
            "line 8: fabric.dies: must together have at most the part's 999 LUT, not 1000",
        ),
        (
            "die: SLR1",
            "die: SRL1",
            "line 13: shell[0].die: must be one of SLR0, SLR1 (the dies), not 'SRL1'; "
            "did you mean 'SLR1'?",
        ),
        (
            "title: A board",
            "title: !!python/object/apply:os.system [ls]",
            "line 3: title: must have no tag, such as "
            "'tag:yaml.org,2002:python/object/apply:os.system'",
        ),
        (
            "title: A board",
            "title: &here A board",
            "line 3: title: must have no anchor, such as '&here'",
        ),
        (
            "title: A board",
            "title: A board\nname: twice",
            "line 4: name: must be given once, and was on line 2",
        ),
        ("lut: 0.7", "lut: .nan", "line 11: usable_share.lut: must be a finite number, not .nan"),
        (
            "host:",
            "host",
            "line 32: not readable as YAML: mapping values are not allowed here",
        ),
        (
            "  ds: {",
            "  spare: {title: Unused}\n  ds: {",
            "line 34: sources.spare: must be the source of some number, but is not",
        ),
        (
            "source: ds}\nfabric",
            "source: dz}\nfabric",
            "line 4: part.source: must be a key of 'sources', not 'dz'; "
            "an estimate is written 'estimate: reason'",
        ),
        (
            "bram36: 20, ",
            "",
            "line 4: part: must have one of the keys 'bram36' and 'bram18'",
        ),
    ],
)
def test_messages_of_boards(good, bad, message, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(BOARD.replace(good, bad, 1))
    with pytest.raises(FileError) as raised:
        read_board(path)
    assert str(raised.value).replace(str(path), "FILE") == f"FILE: {message}"


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (
            "board: u280}\n  - {name: b",
            "board: u28O}\n  - {name: b",
            "line 4: devices[0].board: there is no board named 'u28O'; did you mean 'u280'?",
        ),
        (
            "name: b,",
            "name: a,",
            "line 5: devices[1].name: must be unique, and 'a' was there before",
        ),
        (
            "{from: b, to: a}",
            "{from: b/qsfp/1, to: a}",
            "line 7: links: must use each port once, but use b/qsfp/1 more than once",
        ),
        (
            "{from: b, to: a}",
            "{from: b, to: a}\n  - {from: a, to: b}",
            "line 10: links[2]: a -> b must find a free link port, "
            "but all of a are in use (2 qsfp)",
        ),
        (
            "{from: b, to: a}",
            "{from: b, to: b}",
            "line 9: links[1]: must join two devices, not b with itself",
        ),
        (
            "{name: b, board: u280}",
            "{name: b, board: u280}\n  - {name: c, board: u280}",
            "line 8: links: must join all devices, but none leads from a to c",
        ),
        (
            "from: a/qsfp/0",
            "from: a/qsfb/0",
            "line 8: links[0].from: must be a link port of u280 (qsfp), not 'qsfb'; "
            "did you mean 'qsfp'?",
        ),
        (
            "from: a/qsfp/0",
            "from: a/qsfp/2",
            "line 8: links[0].from: must be qsfp/0..qsfp/1, not qsfp/2",
        ),
        (
            "{from: b, to: a}",
            "{from: b, to: a, line_rate_bits_per_s: 200 Gb/s}",
            "line 9: links[1]: b -> a must run at no more than the 103.125 Gb/s of its ports, "
            "not at 200 Gb/s",
        ),
        (
            "topology: links",
            "topology: ring",
            "line 7: links: must be left out, or the topology be 'links' and not 'ring'",
        ),
        (
            "name: a,",
            "name: a, count: 4097,",
            "line 4: devices[0].count: must be 1..4096 (devices), not 4097",
        ),
    ],
)
def test_messages_of_clusters(good, bad, message, tmp_path):
    path = tmp_path / "pair.yaml"
    path.write_text(CLUSTER.replace(good, bad, 1))
    with pytest.raises(FileError) as raised:
        load_cluster(path)
    assert str(raised.value).replace(str(path), "FILE") == f"FILE: {message}"


def test_boards_of_two_protocols_cannot_be_joined(tmp_path):
    path = tmp_path / "pair.yaml"
    path.write_text(
        "format: 1\nname: pair\ntopology: chain\n"
        "devices: [{name: a, board: u280}, {name: b, board: ulx3s}]\n"
    )
    with pytest.raises(FileError) as raised:
        load_cluster(path)
    assert str(raised.value) == (
        f"{path}: line 3: topology: a -> b must join ports of one protocol, "
        "but a has free aurora-64b66b, b has free gpio"
    )


def test_all_faults_of_a_file_come_at_once_in_order(tmp_path):
    path = tmp_path / "mine.yaml"
    text = BOARD.replace("name: mine", "name: M").replace("lut: 0.7", "lut: .inf")
    text = text.replace("count: 2", "cuont: 2", 1).replace(
        "source: ds}\nfabric", "source: x}\nfabric"
    )
    path.write_text(text)
    with pytest.raises(FileError) as raised:
        read_board(path)
    assert [fault.split(": ")[:2] for fault in raised.value.faults] == [
        ["line 2", "name"],
        ["line 4", "part.source"],
        ["line 11", "usable_share.lut"],
        ["line 16", "memory[0]"],
        ["line 18", "memory[0].cuont"],
    ]


def test_faults_of_a_board_are_told_with_the_cluster_that_uses_it(tmp_path):
    (tmp_path / "mine.yaml").write_text(BOARD.replace("count: 2", "count: -2"))
    path = tmp_path / "pair.yaml"
    path.write_text(CLUSTER.replace("board: u280", "board: ./mine.yaml", 1))
    with pytest.raises(FileError) as raised:
        load_cluster(path)
    assert str(raised.value).replace(str(tmp_path), "DIR").splitlines() == [
        "DIR/pair.yaml: line 4: devices[0].board: DIR/mine.yaml: line 18: memory[0].count: "
        "must be 1..1024 (channels), not -2",
        "DIR/pair.yaml: line 4: devices[0].board: DIR/mine.yaml: line 26: links[0].count: "
        "must be 1..256 (ports), not -2",
    ]


def test_files_that_cannot_be_read(tmp_path):
    for path, message in (
        (tmp_path / "none.yaml", "there is no such file"),
        (tmp_path, "is a folder, not a file"),
        (Path("/dev/zero"), "is no ordinary file but a device; name a file on a disk"),
        (tmp_path / ("x" * 300 + ".yaml"), "cannot be read: File name too long"),
        (Path("a\0b.yaml"), "cannot be read: embedded null byte"),
    ):
        for read in (read_board, load_cluster):
            with pytest.raises(FileError) as raised:
                read(path)
            assert str(raised.value) == f"{path}: {message}"


def test_a_link_to_itself_is_no_file(tmp_path):
    path = tmp_path / "loop.yaml"
    path.symlink_to(path)
    check_one_refused(path, read_board)


@pytest.mark.parametrize(
    "payload",
    [
        "!!python/object/apply:os.mkdir [MARK]",
        "!!python/object/apply:pathlib.Path.mkdir [!!python/object/apply:pathlib.Path [MARK]]",
        "!!python/object/new:os.mkdir [MARK]",
        "!!python/object/apply:subprocess.run [[mkdir, MARK]]",
        "!!python/object/apply:eval [\"__import__('os').mkdir('MARK')\"]",
        "!!python/module:antigravity",
    ],
)
@pytest.mark.parametrize(
    "place", ["title: A board", "name: mine", "host: {", "  ds: {", "lut: 0.7"]
)
def test_no_file_can_run_code(payload, place, tmp_path):
    mark = tmp_path / "mark"
    key = place.split(":")[0]
    path = tmp_path / "mine.yaml"
    path.write_text(BOARD.replace(place, f"{key}: {payload.replace('MARK', str(mark))}", 1))
    check_one_refused(path, read_board)
    assert not mark.exists()


def _truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def _flip_bytes(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _cut_out(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randint(1, 40) :]


def _repeat_lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    start = rng.randrange(len(lines))
    block = lines[start : start + rng.randint(1, 5)]
    at = rng.randrange(len(lines))
    return b"".join([*lines[:at], *block, *lines[at:]])


def _swap_lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    rng.shuffle(window := lines[(start := rng.randrange(len(lines))) : start + 6])
    lines[start : start + 6] = window
    return b"".join(lines)


def _value(rng: random.Random) -> bytes:
    values = [".nan", "-.inf", "1e400", "9" * rng.randint(1, 6000), "-1", "0", "", "~", "no", "[]"]
    values += ["{}", "[[[[]]]]", "*a", "&a x", "!!python/object/apply:os.getcwd []", "!!int 3"]
    values += ["'", '"', '"\\UFFFFFFFF"', '"\\ud800"', "1:30", "0o17", "1_0", "2001-01-01", "<<"]
    values += ["1 GB", "5 xHz", "µ", "\u202e", "{a: 1, a: 2}", "? ", "- ", "|", ">", "%", "@", "`"]
    return rng.choice(values).encode()


def _other_value(rng: random.Random, data: bytes) -> bytes:
    places = [at for at in range(len(data)) if data[at : at + 2] == b": "]
    if not places:
        return data
    at = rng.choice(places) + 2
    ends = [end for end in (data.find(stop, at) for stop in (b",", b"\n", b"}")) if end >= 0]
    return data[:at] + _value(rng) + data[min(ends, default=len(data)) :]


def _other_key(rng: random.Random, data: bytes) -> bytes:
    places = [at for at in range(len(data)) if data[at : at + 1] == b":"]
    if not places:
        return data
    at = rng.choice(places)
    return data[:at] + rng.choice([b"x", b"_s", b" ", b"\xc3\xa9", b":"]) + data[at:]


MUTATIONS = [
    _truncate,
    _flip_bytes,
    _cut_out,
    _repeat_lines,
    _swap_lines,
    _other_value,
    _other_value,
    _other_key,
]


@pytest.mark.parametrize("seed", range(8))
def test_mutated_files_are_read_or_refused(seed, tmp_path):
    """A file that is still good may be read; any other is a user's error, in time."""
    rng = random.Random(seed)
    good = [(BOARD.encode(), read_board), (CLUSTER.encode(), load_cluster)]
    good += [(path.read_bytes(), load_cluster) for path in EXAMPLES.glob("*.yaml")]
    good += [(rng.choice(sorted(BOARDS.glob("*.yaml"))).read_bytes(), read_board)]
    num_refused = 0
    for _ in range(250):
        data, read = rng.choice(good)
        for _ in range(rng.randint(1, 3)):
            data = rng.choice(MUTATIONS)(rng, data) or b"x: 1"
        path = tmp_path / "mutant.yaml"
        path.write_bytes(data)
        lines = []
        try:
            with hang_guard():
                read(path)
        except UserError as error:
            num_refused += 1
            lines = str(error).splitlines()
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error} for {data!r}")
        assert all(line.isprintable() for line in lines), data
    assert num_refused > 100
