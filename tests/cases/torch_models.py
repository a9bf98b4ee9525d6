"""The image networks written as PyTorch modules, from their papers and independently of the graphs.

They exist to count parameters and MACs with PyTorch's own shapes.
"""

import torch
from torch import nn


def alexnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(256 * 36, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, 1000),
    )


def vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for out in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if out:
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()]
            channels = out
        else:
            layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    layers += [nn.Linear(25088, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(4096, 1000))


class Residual(nn.Module):
    def __init__(self, channels: int, inner: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        out = inner * 4 if bottleneck else inner
        shapes = (
            [(channels, inner, 1, 1), (inner, inner, 3, stride), (inner, out, 1, 1)]
            if bottleneck
            else [(channels, inner, 3, stride), (inner, inner, 3, 1)]
        )
        main: list[nn.Module] = []
        for a, b, kernel, step in shapes:
            main += [nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False), nn.BatchNorm2d(b)]
            main.append(nn.ReLU())
        self.main = nn.Sequential(*main[:-1])
        self.side: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            side = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.side = nn.Sequential(side, nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.main(x) + self.side(x)).relu()


def resnet(depths: tuple[int, ...], bottleneck: bool) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
    layers += [nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for group, depth in enumerate(depths):
        inner = 64 << group
        for i in range(depth):
            stride = 2 if group and not i else 1
            layers.append(Residual(channels, inner, stride, bottleneck))
            channels = inner * 4 if bottleneck else inner
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers)


def _unit(a: int, b: int, kernel, stride: int = 1, padding=0) -> nn.Module:
    conv = nn.Conv2d(a, b, kernel, stride, padding, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(b, eps=1e-3), nn.ReLU())


class Branches(nn.Module):
    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def inception_v3() -> nn.Module:
    def pooled(a: int, b: int) -> nn.Module:
        return nn.Sequential(nn.AvgPool2d(3, 1, 1), _unit(a, b, 1))

    def grid35(a: int, pool: int) -> nn.Module:
        double = nn.Sequential(_unit(a, 64, 1), _unit(64, 96, 3, 1, 1), _unit(96, 96, 3, 1, 1))
        five = nn.Sequential(_unit(a, 48, 1), _unit(48, 64, 5, 1, 2))
        return Branches(_unit(a, 64, 1), five, double, pooled(a, pool))

    def grid17(c: int) -> nn.Module:
        row, column = (1, 7), (7, 1)
        single = nn.Sequential(
            _unit(768, c, 1), _unit(c, c, row, 1, (0, 3)), _unit(c, 192, column, 1, (3, 0))
        )
        double = nn.Sequential(
            _unit(768, c, 1),
            _unit(c, c, column, 1, (3, 0)),
            _unit(c, c, row, 1, (0, 3)),
            _unit(c, c, column, 1, (3, 0)),
            _unit(c, 192, row, 1, (0, 3)),
        )
        return Branches(_unit(768, 192, 1), single, double, pooled(768, 192))

    def fork(a: int) -> nn.Module:
        return Branches(_unit(a, 384, (1, 3), 1, (0, 1)), _unit(a, 384, (3, 1), 1, (1, 0)))

    def grid8(a: int) -> nn.Module:
        single = nn.Sequential(_unit(a, 384, 1), fork(384))
        double = nn.Sequential(_unit(a, 448, 1), _unit(448, 384, 3, 1, 1), fork(384))
        return Branches(_unit(a, 320, 1), single, double, pooled(a, 192))

    return nn.Sequential(
        _unit(3, 32, 3, 2),
        _unit(32, 32, 3),
        _unit(32, 64, 3, 1, 1),
        nn.MaxPool2d(3, 2),
        _unit(64, 80, 1),
        _unit(80, 192, 3),
        nn.MaxPool2d(3, 2),
        grid35(192, 32),
        grid35(256, 64),
        grid35(288, 64),
        Branches(
            _unit(288, 384, 3, 2),
            nn.Sequential(_unit(288, 64, 1), _unit(64, 96, 3, 1, 1), _unit(96, 96, 3, 2)),
            nn.MaxPool2d(3, 2),
        ),
        grid17(128),
        grid17(160),
        grid17(160),
        grid17(192),
        Branches(
            nn.Sequential(_unit(768, 192, 1), _unit(192, 320, 3, 2)),
            nn.Sequential(
                _unit(768, 192, 1),
                _unit(192, 192, (1, 7), 1, (0, 3)),
                _unit(192, 192, (7, 1), 1, (3, 0)),
                _unit(192, 192, 3, 2),
            ),
            nn.MaxPool2d(3, 2),
        ),
        grid8(1280),
        grid8(2048),
        nn.AdaptiveAvgPool2d(1),
        nn.Dropout(),
        nn.Flatten(),
        nn.Linear(2048, 1000),
    )


IMAGE_NETWORKS = {
    "alexnet": (alexnet, 224),
    "vgg16": (vgg16, 224),
    "resnet18": (lambda: resnet((2, 2, 2, 2), False), 224),
    "resnet50": (lambda: resnet((3, 4, 6, 3), True), 224),
    "resnet152": (lambda: resnet((3, 8, 36, 3), True), 224),
    "inception_v3": (inception_v3, 299),
}


def count(model: nn.Module, size: int, batch: int) -> list[tuple[str, int, int]]:
    """``(kind, MACs, parameters)`` of every layer with parameters, in the order of the calls.

    Shapes are PyTorch's own, seen by hooks; the model runs on the meta device, without arithmetic.
    """
    found: list[tuple[str, int, int]] = []

    def hook(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        parameters = sum(p.numel() for p in module.parameters())
        if isinstance(module, nn.Conv2d):
            macs = output.numel() * module.weight[0].numel()
            found.append(("conv", macs, parameters))
        elif isinstance(module, nn.Linear):
            found.append(("linear", output.numel() * module.in_features, parameters))
        elif isinstance(module, nn.BatchNorm2d):
            found.append(("batch_norm", 0, parameters))

    model = model.to("meta")
    for module in model.modules():
        module.register_forward_hook(hook)
    with torch.no_grad():
        model(torch.empty(batch, 3, size, size, device="meta"))
    return found
