"""The losses of networks in PyTorch, by its own functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.network.logits import Logits
from fpgapipe.network.losses import IGNORED, Loss, total_of

if TYPE_CHECKING:
    import torch


def loss_of(
    loss: Loss, output: torch.Tensor, labels: torch.Tensor, counted: float | None = None
) -> torch.Tensor:
    """The loss of a micro-batch, so that their mean is that of the mini-batch.

    Parameters
    ----------
    loss : Loss
    output : tensor
        What the network gives.
    labels : tensor
        Class numbers, as whole numbers, or targets.
    counted : float, optional
        Where labels are counted, those of the mini-batch that count, or their weights, divided by
        its micro-batches; those of the micro-batch if left out.
    """
    import torch

    functions = torch.nn.functional
    if loss.kind == "mse":
        return functions.mse_loss(output.float(), labels)
    if loss.kind == "bce":
        return functions.binary_cross_entropy_with_logits(output.float(), labels)
    rows = Logits(tuple(output.shape)).classes_second(output.float())
    if not loss.is_counted:
        return functions.cross_entropy(rows, labels, label_smoothing=loss.smoothing)
    own = labels.masked_fill(labels < 0, IGNORED)
    weights = torch.tensor(loss.class_weights, device=rows.device) if loss.class_weights else None
    total = functions.cross_entropy(
        rows,
        own,
        weight=weights,
        ignore_index=IGNORED,
        label_smoothing=loss.smoothing,
        reduction="sum",
    )
    return total / (
        total_of(labels.cpu().numpy(), loss.class_weights) if counted is None else counted
    )


def num_correct(loss: Loss, output: torch.Tensor, labels: torch.Tensor) -> int:
    """Number of labels of which no class has a larger logit, as the devices count.

    It is 0 where targets are given instead of labels.
    """
    if not loss.has_classes:
        return 0
    rows = Logits(tuple(output.shape)).classes_second(output)
    own = rows.gather(1, labels.clamp(min=0).unsqueeze(1)).squeeze(1)
    return int(((own == rows.amax(1)) & (labels >= 0)).sum())
