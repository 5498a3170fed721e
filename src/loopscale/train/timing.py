"""How fast this machine trains: one block of the model, forward and backward, timed on real tensors."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from loopscale.core.devices import HOST_LINK as PCIE
from loopscale.core.devices import Device
from loopscale.model import LoopedMoEConfig
from loopscale.model.loading import quiet
from loopscale.train.job import row_padding
from loopscale.train.memory import lone_block
from loopscale.train.products import fast_products

REPEATS = 5
MATRIX = 4096
"""Rows and columns of the product that measures a GPU."""
NETWORK = 12.5e9
"""Bytes a second to other nodes that are assumed where nothing is known: 100 Gb/s."""
MOST_TOKENS = 4096
"""Tokens that are timed at once; more take proportionally longer."""


def block_rate(config: LoopedMoEConfig, sequences: int, context: int, *, compiled: bool = False) -> float:
    """Return the FLOP/s at which this process trains one block of a model, in fp32 on the CPU.

    Processor time is counted, shared by the threads, so that other processes of the machine matter little. The block
    is not compiled, but a ``compiled`` run's products are timed.
    """
    sequences = max(1, min(sequences, MOST_TOKENS // context))
    block, _, run = lone_block(config, sequences, context)
    with torch.no_grad():
        for weight in block.parameters():
            weight.normal_(0, 0.02) if weight.dim() > 1 else weight.fill_(1.0)
        for buffer in block.buffers():
            buffer.zero_()
    seconds = []
    with quiet(), fast_products(compiled):
        for _ in range(1 + REPEATS):  # the first one loads the kernels
            start = time.process_time()
            loss: torch.Tensor = run()[0].square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            seconds.append(time.process_time() - start)
    model, padding = config.to_architecture(), row_padding(config)
    two, one = (model.real_train_flops_per_token(R, context=context, padding=padding) for R in (2, 1))
    flops = float(two - one) / config.loop_layers * sequences * context
    return flops * torch.get_num_threads() / min(seconds[1:])


def measured_device(name: str = "cuda", size: int = MATRIX) -> Device:
    """Return a device that the table does not have, with its arithmetic and its memory as measured here.

    Its links are not measured: PCIe and a slow network are assumed.
    """
    target = torch.device(name)
    a, b = torch.randn(2, size, size, device=target).to(torch.bfloat16 if target.type == "cuda" else torch.float32)
    product = torch.empty_like(a)
    flops = 2 * size**3 / best_seconds(lambda: torch.mm(a, b, out=product), target)
    bandwidth = 2 * a.nbytes / best_seconds(lambda: product.copy_(a), target)
    return Device(flops, 24e9, 300, bandwidth, PCIE, NETWORK)


def best_seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return the shortest time of a few runs on a device."""
    seconds = []
    for _ in range(1 + REPEATS):  # the first one loads the kernels
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return max(min(seconds[1:]), 1e-9)
