"""Programs for single layers: memory map, memory image, and location of the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.numerics.element_format import ElementFormat
from fpgapipe.lowering.memory.placed import page
from fpgapipe.lowering.products.conv_parts import Formats
from fpgapipe.lowering.products.tiled_product import TiledProduct, tile_product

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fpgapipe.hw.hls_models.isa.program import Program
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.products.conv import ConvSpec, Pass

OPERANDS: dict[str, tuple[str, ...]] = {
    "forward": ("x", "w"),
    "input": ("dy", "w"),
    "weight": ("x", "dy"),
}
RESULT: dict[str, str] = {"forward": "y", "input": "dx", "weight": "dw"}


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor and its place in memory.

    Attributes
    ----------
    shape : tuple of int
        Shape with the channels last: x (batch, h, w, cin), w and dw (cout, kh, kw, cin), dy and y
        (batch, oh, ow, cout).
    format : ElementFormat
    address : int
        Address of the first byte.
    """

    shape: tuple[int, ...]
    format: ElementFormat
    address: int

    @property
    def size_bytes(self) -> int:
        """Size of the tensor."""
        return self.format.size_bytes(self.shape)

    def encode(self, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Return the values as bytes, rounded to the format."""
        return self.format.encode(np.asarray(values, np.float32).reshape(self.shape))

    def decode(self, memory: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the values that the tensor has in a memory."""
        raw = memory[self.address : self.address + self.size_bytes]
        return self.format.decode(raw, self.shape)


@dataclass(frozen=True)
class LayerProgram:
    """One pass of a layer on a core.

    Attributes
    ----------
    conv : ConvSpec
    which : str
        ``forward``, ``input`` or ``weight``.
    tiled_product : TiledProduct
    instructions : Program
    tensors : dict
        The tensors that the pass reads and the one that it writes, by name.
    entry : int
        Byte address of the program.
    memory_bytes : int
        Size of the whole memory image, a multiple of 4096.
    """

    conv: ConvSpec
    which: Pass
    tiled_product: TiledProduct
    instructions: Program
    tensors: dict[str, PlacedTensor]
    entry: int
    memory_bytes: int

    @property
    def result(self) -> PlacedTensor:
        """The tensor that the pass writes."""
        return self.tensors[RESULT[self.which]]

    def image(self, operands: Mapping[str, NDArray[np.float32]]) -> NDArray[np.uint8]:
        """Memory before the run: program and operands; the rest is filled with a pattern.

        Raises
        ------
        ValueError
            If an operand is missing or has another shape.
        """
        image = np.full(self.memory_bytes, 0xA5, np.uint8)
        program = np.frombuffer(self.instructions.encode(), np.uint8)
        image[self.entry : self.entry + program.size] = program
        for name in OPERANDS[self.which]:
            tensor = self.tensors[name]
            if name not in operands or operands[name].shape != tensor.shape:
                came = operands[name].shape if name in operands else "nothing"
                raise ValueError(f"operand {name} must have shape {tensor.shape}, not {came}")
            image[tensor.address : tensor.address + tensor.size_bytes] = tensor.encode(
                operands[name]
            )
        return image


def lower_layer(
    conv: ConvSpec,
    which: Pass,
    core: CoreSpec,
    formats: Formats | None = None,
    memory: MemorySpec | None = None,
) -> LayerProgram:
    """Compile one pass of a layer.

    Raises
    ------
    NotImplementedError
        If no tiling of the layer fits the core.
    """
    formats = formats or Formats()
    return place(
        conv, which, formats, tile_product(conv, which, core, formats, memory or MemorySpec())
    )


def place(
    conv: ConvSpec, which: Pass, formats: Formats, tiled_product: TiledProduct
) -> LayerProgram:
    """Place the tensors and the program of a pass in memory."""
    x = (conv.batch, conv.h, conv.w, conv.cin)
    y = (conv.batch, conv.oh, conv.ow, conv.cout)
    w = (conv.cout, *conv.kernel, conv.cin)
    kinds = {
        "x": (x, formats.x),
        "dx": (x, formats.x),
        "y": (y, formats.y),
        "dy": (y, formats.y),
        "w": (w, formats.w),
        "dw": (w, formats.dw),
    }
    tensors = {}
    at = 0
    for name in (*OPERANDS[which], RESULT[which]):
        shape, element = kinds[name]
        tensors[name] = PlacedTensor(shape, element, at)
        at = page(at + tensors[name].size_bytes)
    instructions = tiled_product.program({name: tensor.address for name, tensor in tensors.items()})
    total = page(at + instructions.num_bytes)
    return LayerProgram(conv, which, tiled_product, instructions, tensors, at, total)


def random_operands(program: LayerProgram, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return normally distributed values for all operands."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(program.tensors[name].shape, np.float32)
        for name in OPERANDS[program.which]
    }
