"""A fault of the lowering that is planted: it pads grouped convolutions at the wrong side."""

from dataclasses import replace

from fpgapipe.host.runtime import program_check


def pad_at_the_wrong_side(monkeypatch):
    """Let the programs that are compared with PyTorch be those of another padding."""
    real = program_check.build_pipeline

    def off(layer):
        if getattr(layer.operator, "groups", 1) == 1:
            return layer
        return replace(layer, operator=replace(layer.operator, padding=((2, 0), (1, 1))))

    def wrong(graph, *given, **named):
        layers = {name: off(layer) for name, layer in graph.layers.items()}
        return real(replace(graph, layers=layers), *given, **named)

    monkeypatch.setattr(program_check, "build_pipeline", wrong)
