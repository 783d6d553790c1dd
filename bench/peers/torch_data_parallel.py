"""The work of `ddp-bench data-parallel` with torch.nn.DataParallel, to be run by hand: python3 torch_data_parallel.py

12 linear layers of 3072 x 3072 with ReLU, cross-entropy, SGD with momentum; f32, without TF32 unless --tf32 is given;
8192 rows a device, inputs on the first one, which each step splits. --loss replicas computes the loss in the replicas
(the wrapped module returns it), --loss gathered on the first device. Prints the median time of a step, and what it is
of. --cpu runs it without GPUs, on one device, to see that it works."""
import argparse
import statistics
import time

import torch
from torch import nn


class Network(nn.Module):
    """The layers, and the loss if there are labels."""

    def __init__(self, layers, width):
        super().__init__()
        self.layers = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))

    def forward(self, inputs, labels=None):
        logits = self.layers(inputs)
        # The sum: replicas with fewer rows count less in the mean over the batch.
        return logits if labels is None else nn.functional.cross_entropy(logits, labels, reduction="sum").reshape(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=3072)
    parser.add_argument("--rows", type=int, default=8192, help="of each device")
    parser.add_argument("--steps", type=int, default=5, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--loss", choices=("replicas", "gathered"), default="replicas")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()

    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    torch.manual_seed(1)
    device = torch.device("cpu" if options.cpu else "cuda:0")
    devices = 1 if options.cpu else torch.cuda.device_count()
    rows = options.rows * devices
    network = Network(options.layers, options.width).to(device)
    model = network if options.cpu else nn.DataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)
    inputs = torch.rand(rows, options.width, device=device) * 2 - 1
    labels = torch.arange(rows, device=device) * 31 % min(options.width, 256)

    def step():
        optimizer.zero_grad(set_to_none=True)
        if options.loss == "replicas":
            loss = model(inputs, labels).sum() / rows
        else:
            loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()

    def wait():
        for index in range(0 if options.cpu else devices):
            torch.cuda.synchronize(index)

    def measure(steps):
        wait()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        return (time.perf_counter() - begin) / steps * 1e3

    measure(3)
    step_ms = statistics.median(measure(options.steps) for _ in range(options.rounds))
    name = "CPU" if options.cpu else torch.cuda.get_device_name(0)
    print(f"torch {torch.__version__}, {name}, loss {options.loss}, {'TF32' if options.tf32 else 'f32'}")
    print(f"nn.DataParallel, {devices} devices, {options.layers} layers of {options.width} x {options.width}, "
          f"{options.rows} rows each: {step_ms:.2f} ms a step, {rows / step_ms * 1e3:.0f} samples/s")


if __name__ == "__main__":
    main()
