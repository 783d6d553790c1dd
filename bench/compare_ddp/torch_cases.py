"""The models that torch_ddp.py times, with their data: those of cases.cpp and models.hpp, to the bit."""
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class Gpt2Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp_fc = nn.Linear(width, 4 * width)
        self.mlp_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        sequences, tokens, width = x.shape
        parts = self.c_attn(self.ln_1(x)).split(width, 2)
        q, k, v = (part.view(sequences, tokens, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(attended.transpose(1, 2).contiguous().view(sequences, tokens, width))
        return x + self.mlp_proj(F.gelu(self.mlp_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers=12, heads=12, width=768, context=1024, vocabulary=50257):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList(Gpt2Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def used_blocks(self):
        return self.h

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.used_blocks():
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[2]), targets.reshape(-1))


class DroppingGpt2(Gpt2):
    """Each rank leaves the last block out in every other step, as a model that drops layers."""

    calls = 0

    def used_blocks(self):
        self.calls += 1
        return self.h if (self.calls - 1 + dist.get_rank()) % 2 == 0 else self.h[:-1]


def convolution(inputs, outputs, size, stride):
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = convolution(inputs, width, 1, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, 4 * width, 1, 1)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = None
        if inputs != 4 * width or stride != 1:
            self.downsample = nn.Sequential(convolution(inputs, 4 * width, 1, stride), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu_()
        y = self.bn2(self.conv2(y)).relu_()
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return y.relu_()


class ResNet50(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        self.conv1 = convolution(3, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = 64
        for stage, count in enumerate((3, 4, 6, 3)):
            width = 64 << stage
            blocks = []
            for i in range(count):
                blocks.append(Bottleneck(inputs, width, 2 if i == 0 and stage > 0 else 1))
                inputs = 4 * width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images, labels):
        x = F.max_pool2d(self.bn1(self.conv1(images)).relu_(), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return F.cross_entropy(self.fc(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1)), labels)


class ResidualLayers(nn.Module):
    def __init__(self, count, width):
        super().__init__()
        self.layers = count
        for i in range(count):
            setattr(self, f"layer{i}", nn.Linear(width, width))

    def forward(self, x, targets):
        for layer in self.children():
            x = x + torch.relu(layer(x))
        return F.mse_loss(x, targets)


class Chain(nn.Module):
    def __init__(self, count, width, vocabulary):
        super().__init__()
        self.head = nn.Parameter(torch.empty(vocabulary, width))
        self.names = []
        for i in range(count):
            for name, rows, columns in ("attn", 3 * width, width), ("proj", width, width), ("fc", 4 * width, width), (
                    "out", width, 4 * width):
                self.names.append(f"block{i}_{name}")
                setattr(self, self.names[-1], nn.Parameter(torch.empty(rows, columns)))

    def forward(self, x):
        for name in self.names:
            x = F.linear(x, getattr(self, name))
            if name.endswith("attn"):
                x = x.unflatten(1, (3, -1)).sum(1)
        return F.linear(x, self.head).float().square().mean()


def hashed(count, stream, device):
    """As hashed() of cases.cpp: exact integer arithmetic."""
    mask = 0xffffffff
    x = torch.arange(count, dtype=torch.int64, device=device)
    x.add_(stream * 1000003).mul_(0x9e3779b1).bitwise_and_(mask)
    x.bitwise_xor_(x >> 16).mul_(0x21f0aaad).bitwise_and_(mask)
    x.bitwise_xor_(x >> 15).mul_(0x735a2d97).bitwise_and_(mask)
    return x.bitwise_xor_(x >> 15)


MICRO_STEPS = {"gpt2-accumulated": 4}  # of a step; otherwise one
CLIP_NORM = {"gpt2-clipped": 1.0}


def uniform(shape, stream, device):
    count = math.prod(shape)
    return hashed(count, stream, device).to(torch.float64).mul_(1 / 2147483648.0).sub_(1.0).view(shape)


@torch.no_grad()
def initialise(net, deviation):
    for index, (name, parameter) in enumerate(net.named_parameters()):
        if parameter.dim() < 2:
            parameter.fill_(0.0 if "bias" in name else 1.0)
            continue
        fan_in = parameter.numel() // parameter.shape[0]
        used = deviation if deviation > 0 else math.sqrt(2.0 / fan_in)
        parameter.copy_(uniform(parameter.shape, index + 1, parameter.device).mul_(used * math.sqrt(3.0)))


def make_case(name, tiny, rank, device):
    """The module, its inputs, whether under autocast, the learning rate, the attention kernel."""
    stream = 100000 + 10 * rank
    if name.startswith("gpt2-"):
        sizes = {"layers": 24, "heads": 16, "width": 1024} if name == "gpt2-medium-amp" else {}
        if tiny:
            sizes = {"layers": 2, "heads": 2, "width": 32, "context": 16, "vocabulary": 257}
        net = (DroppingGpt2 if name == "gpt2-dropping" else Gpt2)(**sizes).to(device, torch.bfloat16 if name == "gpt2-bf16" else torch.float32)
        initialise(net, 0.02)
        vocabulary, width = net.wte.weight.shape
        context, heads, sequences = net.wpe.weight.shape[0], net.h[0].heads, 2 if tiny else 8
        tokens = hashed(sequences * (context + 1), stream, device).remainder(vocabulary).view(sequences, context + 1)
        data = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        part = torch.empty(sequences, heads, context, width // heads, device=device, requires_grad=True,
                           dtype=torch.float32 if name == "gpt2-fp32" else torch.bfloat16)
        choice = torch._fused_sdp_choice(part, part, part, None, 0.0, True)  # pylint: disable=protected-access
        return net, data, name not in ("gpt2-fp32", "gpt2-bf16"), 3e-4, str(choice)
    if name in ("resnet50", "resnet50-channels-last"):
        images, side = (4, 32) if tiny else (64, 224)
        layout = torch.contiguous_format if name == "resnet50" else torch.channels_last
        net = ResNet50().to(device, memory_format=layout)
        initialise(net, 0)
        data = (uniform((images, 3, side, side), stream, device).float().contiguous(memory_format=layout),
                hashed(images, stream + 1, device).remainder(1000))
        return net, data, False, 1e-5, ""
    if name == "layers512":
        net = ResidualLayers(16 if tiny else 512, 128).to(device)
        initialise(net, 0.001)
        data = tuple(uniform((128, 128), stream + i, device).float() for i in range(2))
        return net, data, False, 1e-3 if tiny else 1e-5, ""
    if name == "chain":
        net = (Chain(2, 32, 257) if tiny else Chain(12, 768, 50257)).to(device)
        initialise(net, 0.15 if tiny else 0.03)
        data = (uniform((32, 32) if tiny else (8192, 768), stream, device).float(),)
        return net, data, True, 1e-5, ""
    raise SystemExit(f'there is no case "{name}"')


def digest(net):
    total = 0
    for place, parameter in enumerate(net.parameters(), 1):
        bits = parameter.detach().view(torch.int16 if parameter.element_size() == 2 else torch.int32)
        total += place * bits.to(torch.int64).sum().item()
    return str(total % 2**64)
