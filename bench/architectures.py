"""Public networks at full size with random weights: of torchvision, timm and transformers."""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

KEPT: list[Any] = []
"""Libraries of operators, kept since the definitions vanish with them."""

BATCH = 2

TORCHVISION_SIZES = {
    "efficientnet_b1": 240, "efficientnet_b2": 260, "efficientnet_b3": 300, "efficientnet_b4": 380,
    "efficientnet_b5": 456, "efficientnet_b6": 528, "efficientnet_b7": 600,
    "efficientnet_v2_s": 384, "efficientnet_v2_m": 480, "efficientnet_v2_l": 480,
    "inception_v3": 299, "swin_v2": 256,
}  # fmt: skip
"""Height and width of the images by the beginning of a name, where they are not 224."""

TORCHVISION_SMALL_SIZES = {
    "alexnet": 224, "inception_v3": 75, "maxvit": 224, "vgg": 224, "vit_h_14": 42,
}  # fmt: skip
"""Smallest height and width by the beginning of a name, where they are not `SMALL`."""

SMALL = 32

SHORT = 12
"""Tokens of a short text."""

TIMM_SMALL_SIZES = {
    "inception": 96, "xception": 64, "hrnet": 64, "dla": 64, "swin": 56, "mobilevit": 64,
    "edgenext": 64, "resnest": 64, "seresnet": 64, "levit": 224, "vit": 32, "deit": 32, "cait": 32,
    "mixer": 32, "resmlp": 32, "gmlp": 32, "pvt": 64, "tf_efficientnetv2": 64,
}  # fmt: skip
"""The same for timm."""

TIMM_SIZED = ("vit_", "deit", "cait", "mixer", "resmlp", "gmlp", "swin")
"""Beginnings of the names of networks that are made for a size of images."""

TIMM = (
    "resnet50", "resnext50_32x4d", "seresnet50", "res2net50_26w_4s", "resnest50d", "cspresnet50",
    "efficientnet_b0", "tf_efficientnetv2_s", "mixnet_s", "mobilenetv2_100",
    "mobilenetv3_large_100", "mobilenetv4_conv_small", "mnasnet_100", "lcnet_050", "ghostnet_100",
    "rexnet_100", "regnetx_008", "regnety_008", "densenet121", "dpn68", "vgg16", "inception_v4",
    "inception_resnet_v2", "xception41", "hrnet_w18_small", "dla34", "selecsls42b", "repvgg_a0",
    "convnext_tiny", "convnextv2_tiny", "convmixer_768_32", "poolformer_s12", "mixer_s16_224",
    "resmlp_12_224", "gmlp_s16_224", "vit_small_patch16_224", "deit_small_patch16_224",
    "cait_xxs24_224", "swin_tiny_patch4_window7_224", "mobilevit_s", "edgenext_small",
    "pvt_v2_b0", "levit_128",
)  # fmt: skip
"""timm's names of the networks, of more than twenty families."""


Maker = Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]


@dataclass(frozen=True)
class Example:
    """A network that can be made.

    Attributes
    ----------
    family, name : str
    make : callable
        Returns the module, and the inputs with which it is traced.
    make_small : callable
        The same with all channels, and as small an image or as short a text as the network takes.
    """

    family: str
    name: str
    make: Maker
    make_small: Maker


MOST_ALIKE = 2
"""Layers in a row that are alike and are kept."""


def leave_out_repeats(module: torch.nn.Module, *, lists: bool) -> int:
    """Leave out all but the first two of equal layers in a row; return how many are left out.

    Such layers have equal settings and shapes, apart from rates of dropout.

    Parameters
    ----------
    module : Module
        It is changed.
    lists : bool
        Whether layers of a ``ModuleList`` are in a row, too; they may be side by side instead.
    """
    count = 0
    for row in list(module.modules()):
        if not isinstance(row, (torch.nn.Sequential, torch.nn.ModuleList)[: 1 + lists]):
            continue
        alike = 0
        before = ""
        for name, layer in list(row.named_children()):
            text = _settings(layer)
            alike = alike + 1 if text == before else 1
            before = text
            if alike > MOST_ALIKE:
                delattr(row, name)
                count += 1
        if isinstance(row, torch.nn.ModuleList):
            row._modules = {str(number): each for number, each in enumerate(row.children())}
    return count


def _settings(layer: torch.nn.Module) -> str:
    """Text of a layer that is the same for equal layers."""
    shapes = [(name, tuple(each.shape)) for name, each in layer.state_dict().items()]
    kept = re.sub(r"(StochasticDepth|DropPath)\([^)]*\)|Identity\(\)|p=[\d.e-]+", "", repr(layer))
    return f"{kept}\n{shapes}"


# ---------------------------------------------------------------------- torchvision


def torchvision_models() -> Any:
    """Import torchvision, even if its compiled operators do not fit the installed torch."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    KEPT.append(library)
    while True:
        try:
            return importlib.import_module("torchvision").models
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if missing is None:
                raise
            # Classification models use none of these operators; they only have to be defined.
            library.define(f"{missing[1]}(Tensor dets, Tensor scores, float threshold) -> Tensor")
            for name in [name for name in sys.modules if name.startswith("torchvision")]:
                del sys.modules[name]


def torchvision_options(builder: Any) -> dict[str, Any]:
    """Arguments of a model's builder: no weights, and no second head."""
    options: dict[str, Any] = {"weights": None}
    if builder.__name__ in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": False}
    assert "weights" in inspect.signature(builder).parameters
    return options


def torchvision_examples() -> Iterator[Example]:
    """All classification networks."""
    models = torchvision_models()

    def make(builder: Any, size: int) -> Any:
        options = torchvision_options(builder)
        if builder.__name__.startswith("vit"):
            options["image_size"] = size
        return builder(**options), (torch.randn(BATCH, 3, size, size),)

    for name in sorted(models.list_models(models)):
        builder = models.get_model_builder(name)
        size = size_of(name, TORCHVISION_SIZES, 224)
        small = torchvision_small_size(name)
        yield Example(
            "torchvision", name, partial(make, builder, size), partial(make, builder, small)
        )


def torchvision_small_size(name: str) -> int:
    """Height and width of the smallest images that a network of torchvision takes."""
    return size_of(name, TORCHVISION_SMALL_SIZES, SMALL)


def size_of(name: str, sizes: dict[str, int], otherwise: int) -> int:
    """The size for the beginning of a name."""
    return next((size for stem, size in sizes.items() if name.startswith(stem)), otherwise)


# ---------------------------------------------------------------------- timm


def timm_examples() -> Iterator[Example]:
    """The networks of `TIMM`."""
    torchvision_models()  # timm imports torchvision
    timm = importlib.import_module("timm")

    def make(name: str) -> Any:
        module = timm.create_model(name, pretrained=False)
        size = module.pretrained_cfg["input_size"]
        return module, (torch.randn(BATCH, *size),)

    def make_small(name: str) -> Any:
        size = size_of(name, TIMM_SMALL_SIZES, SMALL)
        sized = {"img_size": size} if name.startswith(TIMM_SIZED) else {}
        module = timm.create_model(name, pretrained=False, **sized)
        return module, (torch.randn(BATCH, 3, size, size),)

    for name in TIMM:
        yield Example("timm", name, partial(make, name), partial(make_small, name))


# ---------------------------------------------------------------------- transformers and others


class Logits(torch.nn.Module):
    """A network of transformers, of which one of the results is taken."""

    def __init__(self, inner: Any, result: str, place: str = "input_ids", **given: Any) -> None:
        super().__init__()
        self.inner, self.result, self.place, self.given = inner, result, place, given

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The result."""
        found: torch.Tensor = self.inner(**{self.place: x}, **self.given)[self.result]
        return found


class Pairs(torch.nn.Module):
    """An encoder and a decoder of transformers, which read the same tokens."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the decoder."""
        found: torch.Tensor = self.inner(input_ids=x, decoder_input_ids=x).logits
        return found


def transformers_examples() -> Iterator[Example]:
    """Networks of transformers by their configurations, without pretrained weights."""
    torchvision_models()
    hub = importlib.import_module("transformers")
    plain = {"attn_implementation": "eager"}

    def tokens(length: int, classes: int) -> tuple[torch.Tensor, ...]:
        return (torch.randint(0, classes, (BATCH, length)),)

    def of(kind: str, config: str, result: str = "logits", **options: Any) -> Any:
        made = getattr(hub, config)(**plain, **options)
        return getattr(hub, kind)(made), result

    def text(name: str, kind: str, config: str, length: int, **options: Any) -> Example:
        def make(length: int) -> Any:
            module, result = of(kind, config, **options)
            return Logits(module, result), tokens(length, module.config.vocab_size)

        return Example("transformers", name, partial(make, length), partial(make, SHORT))

    yield text("bert-base", "BertForSequenceClassification", "BertConfig", 128)
    yield text("distilbert", "DistilBertForSequenceClassification", "DistilBertConfig", 128)
    yield text("gpt2", "GPT2LMHeadModel", "GPT2Config", 1024, use_cache=False)
    sizes = {
        "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 4, "use_cache": False,
    }  # fmt: skip
    yield text("llama", "LlamaForCausalLM", "LlamaConfig", 256, **sizes)

    def vit(size: int) -> Any:
        module, result = of("ViTForImageClassification", "ViTConfig", image_size=size)
        return Logits(module, result, "pixel_values"), (torch.randn(BATCH, 3, size, size),)

    yield Example("transformers", "vit-base", partial(vit, 224), partial(vit, SMALL))
    yield text("t5-encoder", "T5EncoderModel", "T5Config", 128, result="last_hidden_state")

    def t5_of_pairs(length: int) -> Any:
        module, _ = of("T5ForConditionalGeneration", "T5Config", use_cache=False)
        return Pairs(module), tokens(length, module.config.vocab_size)

    yield Example("transformers", "t5", partial(t5_of_pairs, 64), partial(t5_of_pairs, SHORT))

    def whisper(length: int) -> Any:
        made = hub.WhisperConfig(**plain, max_source_positions=length // 2)
        module = importlib.import_module(
            "transformers.models.whisper.modeling_whisper"
        ).WhisperEncoder(made)
        return Logits(module, "last_hidden_state", "input_features"), (
            torch.randn(BATCH, made.num_mel_bins, length),
        )

    yield Example(
        "transformers", "whisper-encoder", partial(whisper, 3000), partial(whisper, 2 * SHORT)
    )


class LanguageModel(torch.nn.Module):
    """An LSTM language model of two layers."""

    def __init__(self, words: int = 10_000, width: int = 650) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(words, width)
        self.lstm = torch.nn.LSTM(width, width, 2, batch_first=True)
        self.out = torch.nn.Linear(width, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the next word at each place."""
        found: torch.Tensor = self.out(self.lstm(self.embedding(x))[0])
        return found


class UNet(torch.nn.Module):
    """A U-Net of four levels; it goes up by resizing, or by transposed convolutions."""

    def __init__(self, width: int = 64, *, transposed: bool) -> None:
        super().__init__()
        sizes = [width << level for level in range(5)]
        self.down = torch.nn.ModuleList(
            _twice(first, last) for first, last in zip([3, *sizes], sizes, strict=False)
        )
        self.up = torch.nn.ModuleList(
            torch.nn.ConvTranspose2d(2 * n, n, 2, stride=2)
            if transposed
            else torch.nn.Sequential(
                torch.nn.Upsample(scale_factor=2, mode="nearest"), torch.nn.Conv2d(2 * n, n, 1)
            )
            for n in sizes[-2::-1]
        )
        self.join = torch.nn.ModuleList(_twice(2 * n, n) for n in sizes[-2::-1])
        self.head = torch.nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classes of a whole image, by the mean over its pixels."""
        kept = []
        for number, block in enumerate(self.down):
            x = block(x if number == 0 else torch.nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for up, join, other in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([other, up(x)], 1))
        found: torch.Tensor = self.head(x.mean((2, 3)))
        return found


def _twice(first: int, last: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(first, last, 3, padding=1, bias=False), torch.nn.BatchNorm2d(last),
        torch.nn.ReLU(), torch.nn.Conv2d(last, last, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(last), torch.nn.ReLU(),
    )  # fmt: skip


def other_examples() -> Iterator[Example]:
    """A language model of LSTMs, and U-Nets."""

    def language(length: int) -> Any:
        return LanguageModel(), (torch.randint(0, 10_000, (BATCH, length)),)

    def unet(size: int, *, transposed: bool) -> Any:
        return UNet(transposed=transposed), (torch.randn(BATCH, 3, size, size),)

    yield Example("other", "lstm-language-model", partial(language, 35), partial(language, SHORT))
    for name, transposed in (("unet-nearest", False), ("unet-transposed", True)):
        large, small = (partial(unet, size, transposed=transposed) for size in (128, SMALL))
        yield Example("other", name, large, small)


FAMILIES: dict[str, Callable[[], Iterator[Example]]] = {
    "torchvision": torchvision_examples,
    "timm": timm_examples,
    "transformers": transformers_examples,
    "other": other_examples,
}
