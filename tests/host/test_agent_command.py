"""`fpgapipe agent` as processes of their own, and `run` and `bringup` through them."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from agent_cases import TOKEN, free_place, made_keys
from litex_cases import Soc, csr_csv, served, together
from network_hosts import network_hosts
from run_cases import small_build

from fpgapipe.host.build.build import open_build
from fpgapipe.host.runtime.checkpoint import Checkpoint
from fpgapipe.host.transports.agent_protocol import Place
from fpgapipe.host.transports.agent_secrets import VARIABLE
from fpgapipe.host.transports.modelled import ModelledCluster, ModelledTransport

CLI = (sys.executable, "-m", "fpgapipe.host.cli.main")
DATA = ("--data", "random", "--no-validation")
BASE = 0x200000
KEYS = ("--certificate", "agent.pem", "--key", "agent.key")


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A build, keys and a token; gives the build and a function that writes the cluster file."""
    small_build(tmp_path / "b", monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    made_keys(tmp_path)
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(TOKEN)
    build = open_build(tmp_path / "b")

    def written(*addresses):
        entries = [
            f"  - {{name: card-{index}, board: {node.board}, address: {{{address}}}}}"
            for index, (node, address) in enumerate(zip(build.plan.nodes, addresses, strict=True))
        ]
        lines = ["format: 1", "name: lab", "devices:", *entries, "topology: chain", ""]
        (tmp_path / "lab.yaml").write_text("\n".join(lines))

    return build, written


def at(place, more="", *, token="token_file: token"):
    return ", ".join(each for each in (f"agent: '{place}', ca: agent.pem", token, more) if each)


@contextlib.contextmanager
def started(place, *options, on=()):
    """Run an agent in a process of its own until it serves; gives the process."""
    command = ["agent", str(place), "--cluster", "lab.yaml", *options, *KEYS]
    with subprocess.Popen(
        [*on, *CLI, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("serves card-"), line + process.stdout.read()
            yield process
        finally:
            process.kill()


def state(build, name):
    found = max((build.run_folder / name / "checkpoints").glob("*.ckpt"))
    return Checkpoint.read(found)


def assert_same(build, name, cli, steps):
    assert cli("run", "b", *DATA, "--backend", "model", "--steps", steps)[0] == 0
    one, other = state(build, name), state(build, "model")
    assert one.step == other.step == steps
    assert one.state.keys() == other.state.keys()
    for key, value in one.state.items():
        np.testing.assert_array_equal(value, other.state[key], err_msg=key)


def test_a_run_through_an_agent(lab, cli):
    build, written = lab
    place = free_place()
    written(at(place), at(place))
    boards = ("--backend", "agent", "--cluster", "lab.yaml")
    # The clocks of a package are those of boards, and the agent has models.
    (build.folder / "package" / "vivado").mkdir(parents=True)
    clocks = build.folder / "package" / "vivado" / "clocks.json"
    clocks.write_text(json.dumps({"phy_clock_hz": [[161.1328125e6]] * 2}))
    with started(place, "--backend", "model", "--build", "b") as process:
        code, out, err = cli("bringup", "b", *boards, "--watch", 0.01)
        assert code == 0, err
        assert [line.split()[0] for line in out.splitlines()] == ["ok"] * 9
        code, out, err = cli("run", "b", *DATA, *boards, "--steps", 3, "--check", "--json")
        assert code == 0, err
        found = json.loads(out)
        assert (found["backend"], found["check"], found["difference"]) == ("agent", "model", None)
        process.send_signal(signal.SIGTERM)
        log = process.stdout.read()
        assert process.wait() == 143
    assert len(re.findall(r"card-\d: taken by the client ", log)) == 4
    assert len(re.findall(r"card-\d: given back by the client ", log)) == 4
    assert_same(build, "agent", cli, 3)


def alone_or_together(cluster, alone_s=0.3):
    """As `together`, but a device that has been the only one for a while runs, too."""
    lock, all_run = together(cluster)
    alone = []

    def goes_on():
        if all_run() or not any(device.running for device in cluster.devices):
            alone.clear()
            return True
        alone.append(time.monotonic())
        return alone[-1] - alone[0] > alone_s

    return lock, goes_on


def test_two_hosts(lab, cli, tmp_path):
    """Two agents in two processes, each with its board of LiteX; the boards are joined by links."""
    pytest.importorskip("litex", reason="LiteX is not installed")
    build, written = lab
    sizes = [part.memory_bytes + (1 << 22) for part in build.pipeline.parts]
    cluster = ModelledCluster(build.cores, sizes, build.pipeline.wiring)
    others = alone_or_together(cluster)
    with contextlib.ExitStack() as stack:
        places, addresses = [], []
        for number, size in enumerate(sizes):
            inner = ModelledTransport(cluster, number, BASE)
            soc = stack.enter_context(contextlib.closing(Soc(inner, None, *others)))
            (tmp_path / f"{number}.csv").write_text(csr_csv(size))
            server = stack.enter_context(served(soc.port))
            places.append(free_place())
            more = f"device: '{server}', csr: {number}.csv, memory: {BASE:#x}"
            addresses.append(at(places[-1], more))
        written(*addresses)
        processes = [stack.enter_context(started(place, "--backend", "litex")) for place in places]
        boards = ("--backend", "litex", "--cluster", "lab.yaml")
        code, out, err = cli("bringup", "b", *boards, "--watch", 0.01)
        assert code == 0, out + err
        code, _, err = cli("run", "b", *DATA, *boards, "--steps", 3)
        assert code == 0, err
        assert_same(build, "litex", cli, 3)
        lines = (build.run_folder / "litex" / "log.jsonl").read_text().splitlines()
        assert {json.loads(line).get("backend", "litex") for line in lines} == {"litex"}
        code, _, err = cli("run", "b", *DATA, "--backend", "xdma", *boards[2:], "--steps", 1)
        assert code == 2
        assert "serves card-0 as a u280 by litex, and here it is a u280 by xdma" in err
        processes[1].kill()
        processes[1].wait()
        code, _, err = cli("run", "b", *DATA, *boards, "--steps", 3)
        assert code == 2
        assert f"the agent at {places[1]} does not run: nothing listens there" in err


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_an_agent_that_dies_loses_no_checkpoint(how, lab, cli):
    build, written = lab
    place = free_place()
    written(at(place), at(place))
    run = ("run", "b", "--backend", "agent", "--cluster", "lab.yaml", "--checkpoint-every", 1)
    model = ("--backend", "model", "--build", "b")
    steps = 30
    kept = build.run_folder / "agent" / "checkpoints"
    with started(place, *model) as process:

        def ends():
            while not (kept.is_dir() and any(f.name > "step-00000002" for f in kept.iterdir())):
                time.sleep(0.01)
            process.send_signal(how)

        thread = threading.Thread(target=ends, daemon=True)
        thread.start()
        code, _, err = cli(*run, *DATA, "--steps", steps)
        thread.join()
    assert code == 2, err
    assert re.search(rf"error: .*the agent at {place} (is gone|no longer has this client)", err)
    assert 0 < state(build, "agent").step < steps
    with started(place, *model):
        code, _, err = cli(*run, "--resume", "--no-validation")
        assert code == 0, err
    assert_same(build, "agent", cli, steps)


def test_a_network_that_is_gone_for_a_while(lab, cli, tmp_path):
    """Client and agent are on two hosts; the run says so in time, and goes on when it is back."""
    build, written = lab
    steps = 30
    kept = build.run_folder / "agent" / "checkpoints"
    run = ("run", "b", "--backend", "agent", "--cluster", "lab.yaml", "--checkpoint-every", "1")
    with network_hosts() as hosts:
        place = Place(hosts.address(2), 7000)
        made_keys(tmp_path, hosts=(place.host,))
        written(at(place), at(place))
        with started(place, "--backend", "model", "--build", "b", on=hosts.on(2)):
            client = [*hosts.on(1), *CLI, *run]
            with subprocess.Popen(
                [*client, *DATA, "--steps", str(steps)], stderr=subprocess.PIPE, text=True
            ) as process:
                while not (kept.is_dir() and any(f.name > "step-00000002" for f in kept.iterdir())):
                    assert process.poll() is None, process.stderr.read()
                    time.sleep(0.01)
                hosts.cut()
                said = process.stderr.read()
                assert process.wait() == 2
            assert f"the agent at {place} " in said
            assert 0 < state(build, "agent").step < steps
            hosts.join()
            command = [*client, "--resume", "--no-validation"]
            last_s = time.monotonic() + 60
            while (
                done := subprocess.run(command, capture_output=True, text=True, check=False)
            ).returncode:
                # The agent learns only by and by that the first client is gone.
                assert " is in use by the client " in done.stderr
                assert time.monotonic() < last_s
    assert_same(build, "agent", cli, steps)


def test_the_token_may_be_in_the_environment(lab, cli, monkeypatch):
    _, written = lab
    place = free_place()
    written(at(place, token=""), at(place, token=""))
    run = ("bringup", "b", "--backend", "agent", "--cluster", "lab.yaml", "--watch", 0.01)
    monkeypatch.setenv(VARIABLE, TOKEN)
    with started(place, "--backend", "model", "--build", "b"):
        assert cli(*run)[0] == 0
        monkeypatch.setenv(VARIABLE, TOKEN + "x")
        code, _, err = cli(*run)
        assert code == 2
        assert "refuses this client: the token is missing or wrong" in err
        monkeypatch.delenv(VARIABLE)
        code, _, err = cli(*run)
        assert code == 2
        assert "there is no token" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "an agent needs HOST:PORT, --cluster, --backend, --certificate and --key"),
        (("lab:0",), "must be named by host and port (1..65535), as lab-a:7000, not lab:0"),
        (("lab:7000",), "lab.yaml: no device has the address agent: lab:7000"),
        (("PLACE", "--cluster", "none.yaml"), "none.yaml"),
        (("PLACE", "--key", "none.key"), "none.key"),
        (("PLACE", "--certificate", "token"), "token and agent.key are no certificate and its key"),
        (("PLACE", "--token-file", "agent.pem"), "agent.pem: others can read this secret"),
        (("PLACE", "--backend", "model"), "--backend sim and model need --build, whose devices"),
        (("PLACE", "--build", "b"), "--backend sim and model need --build, whose devices"),
        (("PLACE", "--bind", "203.0.113.77"), "no agent can listen at 203.0.113.77:"),
        (("PLACE", "--token", TOKEN), "No such option"),
    ],
)
def test_options_that_do_not_fit(arguments, message, lab, cli):
    _, written = lab
    place = free_place()
    written(at(place), at(place))
    options = ("--cluster", "lab.yaml", "--backend", "xdma", *KEYS) if arguments else ()
    arguments = [str(place) if each == "PLACE" else each for each in arguments]
    code, _, err = cli("agent", *options, *arguments)
    assert code == 2
    assert message in err


def test_models_of_some_devices_alone(lab, cli):
    _, written = lab
    places = [free_place(), free_place()]
    written(*(at(place) for place in places))
    options = ("--cluster", "lab.yaml", "--backend", "model", "--build", "b")
    code, _, err = cli("agent", str(places[0]), *options, *KEYS)
    assert code == 2
    assert "an agent simulates all 2 devices of a build, since they are joined by links, and" in err


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("agent: 'lab', ca: agent.pem", "must be such as lab-a:7000 (host and port of an agent)"),
        ("agent: 'lab:0', ca: agent.pem", "must be such as lab-a:7000"),
        ("agent: 'lab:7000'", "address.ca: must name the certificates that are trusted"),
        ("ca: agent.pem", "address.ca: must be left out where there is no 'agent'"),
        ("token_file: token", "token_file: must be left out where there is no 'agent'"),
        ("agent: 'lab:70000', ca: agent.pem, token_file: token", "port (1..65535)"),
        ("agent: 'lab:7000', ca: none.pem, token_file: token", "none.pem"),
        ("agent: 'lab:7000', ca: token, token_file: token", "must be certificates in PEM"),
        ("agent: 'lab:7000', ca: agent.pem, token_file: none", "none"),
        ("device: 0", "--backend agent needs the key agent, at which the device is served"),
    ],
)
def test_addresses_that_do_not_fit(address, message, lab, cli):
    _, written = lab
    written(address, address)
    code, _, err = cli("bringup", "b", "--backend", "agent", "--cluster", "lab.yaml")
    assert code == 2
    assert message in err
