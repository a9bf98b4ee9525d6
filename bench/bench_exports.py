"""Takes weights from PyTorch modules to builds, trains them, and takes them back, by all formats.

Prints one JSON object: for each of twelve kinds of modules and each format, whether the tensors
came through with all their bits, counters and other names of tied weights among them, and how far
the module with the exported file is from the build's inference with the same file, as a share of
the norm of the logits. A model of ONNX is made of the module by PyTorch, read, trained, and written
again. ``--kinds mlp gpt`` takes some of them; the exit code is 1 if a tensor differs or a result is
further off than the formats' error.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import exported_networks
import numpy as np
import onnxruntime
import torch
from torch import nn

import fpgapipe
from fpgapipe.files import write_output

FORMATS = (".safetensors", ".npz", ".pt", ".onnx")
BATCH, STEPS = 8, 3

LIMIT = 0.036
"""Most error of MXINT8, as a share of a tensor's norm (docs/running.md)."""


def built(
    network: str,
    folder: Path,
    *,
    train: bool,
    parameters: Path | None = None,
    freeze: Sequence[str] = (),
) -> Path:
    """A build on one device for the model backend."""
    torch.manual_seed(0)  # the module draws its weights when it is made
    fpgapipe.build(
        network,
        fpgapipe.chain_of(fpgapipe.load_board("u280"), 1),
        folder,
        batch=BATCH,
        micro_batches=1,
        array=(8, 8),
        options=fpgapipe.StepOptions(train=train),
        parameters=str(parameters) if parameters else None,
        freeze=freeze,
        verify=False,
        hardware=False,
    )
    return folder


def samples_of(folder: Path) -> dict[str, torch.Tensor]:
    """The samples that inference on random data takes, by the names of the inputs."""
    graph = fpgapipe.open_build(folder).graph
    samples = fpgapipe.load_data("random", graph).validation
    order = np.minimum(np.arange(BATCH), len(samples.labels) - 1)
    inputs = samples.some(order).inputs(graph)
    return {name: torch.from_numpy(np.asarray(value)) for name, value in inputs.items()}


def inferred(network: str, folder: Path, file: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """Logits of a build for inference with the weights of a file, and its samples."""
    built(network, folder, train=False, parameters=file)
    ran = fpgapipe.run(folder, "model", data="random", steps=1)
    with np.load(ran.summary.folder / "logits.npz") as found:
        return found["logits"], samples_of(folder)


def distance(one: Any, other: Any) -> float:
    """Norm of a difference, as a share of the norm."""
    size = np.linalg.norm(one)
    return float(np.linalg.norm(one - other[: len(one)]) / size)


def loaded(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file, read by the library of its format."""
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    if file.suffix == ".npz":
        with np.load(file) as found:
            return {name: torch.from_numpy(found[name]) for name in found}
    return torch.load(file, weights_only=True)


def untrained(kind: str, module: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """What the tensors have to be that are not in the state of a training.

    Other names of tied weights have the weights' values. Counters are those of PyTorch, which
    computes as many mini-batches here; all else is as the module was made.
    """
    torch.manual_seed(0)
    made, example = getattr(exported_networks, kind)(BATCH)
    for _ in range(STEPS):
        made.train()(*(example if isinstance(example, tuple) else (example,)))
    found = {name: value.numpy() for name, value in made.state_dict().items()}
    named = dict(module.named_parameters(remove_duplicate=False))
    first = {id(named[name]): name for name in state if name in named}
    found |= {name: state[first[id(each)]] for name, each in named.items() if id(each) in first}
    return {name: value for name, value in found.items() if name not in state}


def checked_tensors(kind: str, run: Path, folder: Path, suffix: str) -> dict[str, Any]:
    """One format of tensors, out and in again."""
    file = folder / f"weights{suffix}"
    exported = fpgapipe.export(run, file)
    state = fpgapipe.read_checkpoint(exported.checkpoint).state
    torch.manual_seed(1)
    module, _ = getattr(exported_networks, kind)(BATCH)
    module.load_state_dict(loaded(file), strict=True)  # every name, every shape, nothing else
    module.eval()
    own = module.state_dict()
    kept = [name for name in own if name in state]
    wanted = state | untrained(kind, module, state)
    equal = all(np.array_equal(own[name].numpy(), wanted[name]) for name in own)
    logits, samples = inferred(f"exported_networks:{kind}", folder / f"infer{suffix}", file)
    back = fpgapipe.open_build(folder / f"infer{suffix}").parameters
    equal = equal and all(np.array_equal(back[name], own[name].numpy()) for name in kept)
    with torch.no_grad():
        error = distance(logits, module(*samples.values()).numpy())
    return {"tensors": len(own), "trained": len(kept), "equal": equal, "error": error}


def checked_onnx(kind: str, run: Path, folder: Path) -> dict[str, Any]:
    """A model with trained weights, and that model read, trained and written again."""
    first, second = folder / f"{kind}.onnx", folder / f"{kind}_again.onnx"
    network = f"exported_networks:{kind}"
    fpgapipe.export(run, first, network=network)
    # ONNX does not say what is learned; these are what PyTorch has computed: masks, factors.
    computed = [name for name in fpgapipe.load_network(str(first)).values if "val_" in name]
    from_onnx = built(str(first), folder / "onnx", train=True, freeze=computed)
    fpgapipe.run(from_onnx, "model", data="random", steps=STEPS, validates=False)
    exported = fpgapipe.export(from_onnx, second, network=str(first))
    state = fpgapipe.read_checkpoint(exported.checkpoint).state
    graph = fpgapipe.load_network(str(second))
    values = {name: value for name, value in graph.values.items() if name in state}
    equal = all(np.array_equal(value, state[name]) for name, value in values.items())
    before = fpgapipe.load_network(str(first)).values
    moved = sum(not np.array_equal(before[name], value) for name, value in values.items())
    errors = []
    for model, weights in ((first, folder / "weights.npz"), (second, None)):
        source = network if weights else str(second)
        target = folder / f"infer_{model.stem}"
        if weights:
            logits, samples = inferred(source, target, weights)
        else:
            built(source, target, train=False)
            ran = fpgapipe.run(target, "model", data="random", steps=1)
            with np.load(ran.summary.folder / "logits.npz") as found:
                logits = found["logits"]
            samples = samples_of(target)
        session = onnxruntime.InferenceSession(model)
        names = [each.name for each in session.get_inputs()]
        feed = dict(zip(names, (each.numpy() for each in samples.values()), strict=True))
        errors.append(distance(logits, session.run(None, feed)[0]))
    return {
        "tensors": len(values), "trained": moved, "equal": equal and bool(moved),
        "error": max(errors),
    }  # fmt: skip


def checked(kind: str, folder: Path) -> dict[str, Any]:
    """All formats of one kind of module."""
    begin = time.process_time()
    run = built(f"exported_networks:{kind}", folder / "train", train=True)
    fpgapipe.run(run, "model", data="random", steps=STEPS, validates=False)
    found = {
        suffix: checked_onnx(kind, run, folder)
        if suffix == ".onnx"
        else checked_tensors(kind, run, folder, suffix)
        for suffix in FORMATS
    }
    return {"formats": found, "cpu_s": round(time.process_time() - begin, 1)}


def main() -> int:
    """Check the kinds that are asked for; returns the exit code."""
    names = [each.__name__ for each in exported_networks.KINDS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", choices=names, default=names)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    kinds = {}
    for kind in asked.kinds:
        with tempfile.TemporaryDirectory() as folder:
            try:
                kinds[kind] = checked(kind, Path(folder))
            except fpgapipe.UserError as error:
                kinds[kind] = {"refused": str(error)}
        print(kind, json.dumps(kinds[kind]), file=sys.stderr)
    ways = [way for kind in kinds.values() for way in kind.get("formats", {}).values()]
    good = [way for way in ways if way["equal"] and way["error"] <= LIMIT]
    found = {
        "kinds": kinds,
        "ways": len(FORMATS) * len(kinds),
        "good": len(good),
        "worst_error": max((way["error"] for way in ways), default=None),
        "limit": LIMIT,
    }
    text = json.dumps(found, indent=1)
    if asked.output:
        write_output(asked.output, text + "\n")
    print(text)
    return int(found["good"] != found["ways"])


if __name__ == "__main__":
    sys.exit(main())
