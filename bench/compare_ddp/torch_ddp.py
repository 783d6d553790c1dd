"""One side of compare.py: PyTorch's DistributedDataParallel with gradients as views of buckets and a static graph.

Models, initial weights and data are those of torch_cases.py, steps those of main.cpp, to the bit. --bf16-hook sends
gradients as bf16, --zero keeps a part of the optimizer on each rank (ZeroRedundancyOptimizer). Started by ddp-launch (or torchrun); writes a line of JSON for each case into FOLDER/rankR.jsonl."""
import argparse
import contextlib
import gc
import json
import math
import os
import pathlib
import re
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from torch_cases import CLIP_NORM, MICRO_STEPS, DroppingGpt2, digest, make_case


def gradient_norm(net):
    return math.sqrt(sum(parameter.grad.float().norm().item() ** 2 for parameter in net.parameters() if parameter.grad is not None))


def loaded_libraries():
    wanted = re.compile(r"(/\S*/(?:libnccl|libcublas|libcudnn|libcudart)\.so\S*)$", re.MULTILINE)
    return sorted(set(wanted.findall(pathlib.Path("/proc/self/maps").read_text(encoding="utf-8"))))


class StepTimes:
    """As that of main.cpp."""

    def __init__(self, device):
        self.device, self.marks = device, []

    def mark(self):
        if self.device.type == "cpu":
            self.marks.append(time.perf_counter())
        else:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()

    def milliseconds(self):
        pairs = zip(self.marks, self.marks[1:])
        if self.device.type == "cpu":
            return [(b - a) * 1e3 for a, b in pairs]
        return [a.elapsed_time(b) for a, b in pairs]


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory(device):
    if device.type == "cpu":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {"kept_allocated_bytes": torch.cuda.memory_allocated(device),
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(device),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(device), "device_used_bytes": total - free}


def recorded(step):
    """What replays `step`, which was called as often as DDP wants before."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
        step()
    return graph.replay


def measure(options, device, name, case, mode):
    if options.graph and device.type == "cuda":  # all of it on one stream, as DDP wants it for graphs
        with torch.cuda.stream(torch.cuda.Stream()):
            return measure_here(options, device, name, case, mode)
    return measure_here(options, device, name, case, mode)


def measure_here(options, device, name, case, mode):
    if device.type == "cuda":
        torch.cuda.empty_cache()
    net, data, under_autocast, rate, attention = case
    first_digest = digest(net)
    adam = {"lr": rate, "weight_decay": 0.01, "fused": True, "capturable": options.graph and device.type == "cuda"}
    if mode == "ddp" and options.zero:
        from torch.distributed.optim import ZeroRedundancyOptimizer
        optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.AdamW, **adam)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), **adam)
    model = net
    hooks = []
    if mode == "hooks":
        hooks = [parameter.register_post_accumulate_grad_hook(lambda _: None) for parameter in net.parameters()]
    if mode == "ddp" and not options.without_exchange:
        model = nn.parallel.DistributedDataParallel(
            net, device_ids=None if device.type == "cpu" else [device.index], gradient_as_bucket_view=True,
            static_graph=not isinstance(net, DroppingGpt2) and name != "gpt2-accumulated", find_unused_parameters=isinstance(net, DroppingGpt2),
            broadcast_buffers=not options.keep_buffers)
        if options.bf16_hook:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
            model.register_comm_hook(None, bf16_compress_hook)
    word = torch.zeros(1, device=device)
    losses = []
    loss = None
    norm_before = None  # of gradients that were clipped

    def forward():
        with torch.autocast(device.type, torch.bfloat16) if under_autocast else contextlib.nullcontext():
            return model(*data)

    def enqueue():
        nonlocal loss, norm_before
        optimizer.zero_grad(set_to_none=True)
        for _ in range(MICRO_STEPS.get(name, 1) - 1):
            with model.no_sync() if model is not net else contextlib.nullcontext():
                forward().backward()
        loss = forward()
        loss.backward()
        if name in CLIP_NORM:
            norm_before = nn.utils.clip_grad_norm_(net.parameters(), CLIP_NORM[name])
        optimizer.step()
        if mode == "meet":
            dist.all_reduce(word)

    run = enqueue

    def step():
        run()
        losses.append(loss.detach().clone() if options.graph else loss.detach())  # a graph's are all in one place

    wait(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    step()
    first_norm = gradient_norm(net) if norm_before is None else norm_before.item()
    graph_after = options.warm_up - 2  # at least 11 steps, says PyTorch's documentation
    for number in range(1, options.warm_up):
        if options.graph and device.type == "cuda" and number == graph_after:
            run = recorded(enqueue)
        step()
    gc.collect()
    gc.freeze()  # nothing of the set-up is looked at again
    wait(device)
    dist.all_reduce(word)
    word.item()
    times = StepTimes(device)
    begin = time.perf_counter()
    times.mark()
    for _ in range(options.steps):
        step()
        times.mark()
    enqueued = time.perf_counter() - begin
    wait(device)
    milliseconds = times.milliseconds()
    line = {"case": name, "mode": mode, "rank": dist.get_rank(), "median_ms": statistics.median(milliseconds),
            "mean_ms": statistics.fmean(milliseconds), "host_ms": enqueued * 1e3 / options.steps,
            "parameters": len(list(net.parameters())), "losses": [loss.item() for loss in losses],
            "first_gradient_norm": first_norm, "first_digest": first_digest, "last_digest": digest(net), "attention": attention, **memory(device)}
    if options.profile:
        activities = torch.profiler.ProfilerActivity
        with torch.profiler.profile(activities=[activities.CPU if device.type == "cpu" else activities.CUDA]) as seen:
            for _ in range(4):
                step()
            wait(device)
        seen.export_chrome_trace(f"{options.out}/python-{name}-{mode}-rank{dist.get_rank()}.trace.json")
    for hook in hooks:
        hook.remove()
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--case", action="append", required=True)
    parser.add_argument("--mode", action="append", required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=12)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--keep-buffers", action="store_true")
    parser.add_argument("--without-exchange", action="store_true")
    parser.add_argument("--profile", action="store_true", help="four more steps of each mode become a trace in OUT")
    parser.add_argument("--graph", action="store_true", help="replay steps as one CUDA graph, on GPUs; 13 steps of --warm-up or more")
    parser.add_argument("--bf16-hook", action="store_true")
    parser.add_argument("--zero", action="store_true")
    options = parser.parse_args()
    if options.graph and options.warm_up < 13:
        parser.error("--graph needs --warm-up 13 or more: PyTorch's documentation asks for 11 steps before")

    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)  # TORCH_NCCL_HIGH_PRIORITY decides about the stream
    else:
        device = torch.device("cpu")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo")
    with open(pathlib.Path(options.out) / f"rank{dist.get_rank()}.jsonl", "w", encoding="utf-8") as out:
        about = {"side": "python", "rank": dist.get_rank(), "ranks": dist.get_world_size(), "torch": torch.__version__,
                 "libraries": loaded_libraries()}
        print(json.dumps(about), file=out, flush=True)
        for name in options.case:
            case = make_case(name, options.tiny, dist.get_rank(), device)
            net = case[0]
            initial = {key: value.to("cpu", copy=True) for key, value in net.state_dict().items()}
            for mode in options.mode:
                net.load_state_dict(initial)
                net.zero_grad(set_to_none=True)
                print(json.dumps(measure(options, device, name, case, mode)), file=out, flush=True)
            del case, net
    dist.barrier()
    dist.destroy_process_group()
    # All is written. A thread of PyTorch's that lives while Python ends was seen to end the process by std::terminate().
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
