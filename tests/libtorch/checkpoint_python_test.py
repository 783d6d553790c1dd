"""Python goes on with a checkpoint of ddp::libtorch: model and optimizer, by PyTorch's names, to the same next step.

checkpoint_python_test.py DDP_LAUNCH CHECKPOINT_FOR_PYTHON FOLDER [PYTHON_WITH_TORCH]

Of DDP_TEST_PYTHON, PYTHON_WITH_TORCH and this interpreter the first that has torch and safetensors reads it. Without one the
test ends with 77: skipped."""
import os
import pathlib
import shutil
import subprocess
import sys


def go_on(folder):
    import torch
    from safetensors.torch import load_file, load_model

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(1, 4, 3, bias=False)
            self.norm = torch.nn.BatchNorm2d(4)
            self.once = torch.nn.Linear(4, 4)
            self.again = self.once

        def forward(self, x):
            x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
            return self.again(torch.tanh(self.once(x)))

    def expect_close(found, expected, what):
        if not torch.allclose(found, expected, rtol=1e-5, atol=1e-6):
            sys.exit(f"{what}: expected {expected}, found {found}")

    def read(checkpoint, file="model"):
        return load_file(folder / checkpoint / "latest" / f"{file}.safetensors")

    model, answers, after = read("trained"), read("answers"), read("next")

    # The file has a tied parameter once, state_dict() under each of its names.
    torch.manual_seed(99)
    strict = Net()
    missing = strict.load_state_dict(model, strict=False)
    if missing.unexpected_keys or missing.missing_keys != ["again.weight", "again.bias"]:
        sys.exit(f"expected all names but those of the tied layer's second place, found {missing}")
    strict = Net()
    strict.load_state_dict({**model, "again.weight": model["once.weight"], "again.bias": model["once.bias"]})
    net = Net()
    load_model(net, folder / "trained" / "latest" / "model.safetensors")  # strict, and knows of tied parameters
    for each in (strict, net):
        each.eval()
        expect_close(each(answers["input"]), answers["output"], "output in evaluation")
    if net.norm.num_batches_tracked.item() != 3:
        sys.exit(f"expected 3 batches, found {net.norm.num_batches_tracked}")

    flat = read("trained", "optimizer")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1.0, weight_decay=0.1)
    names = [name for name, _ in net.named_parameters()]
    state = {i: {key: flat[f"state.{name}.{key}"] for key in ("step", "exp_avg", "exp_avg_sq")} for i, name in enumerate(names)}
    if len(flat) != 3 * len(names) + 1:
        sys.exit(f"expected three entries for each of {names} and the learning rate, found {sorted(flat)}")
    groups = optimizer.state_dict()["param_groups"]
    groups[0]["lr"] = flat["param_groups.0.lr"].item()
    if groups[0]["lr"] != 0.02:
        sys.exit(f"expected the learning rate that was set last, found {groups[0]['lr']}")
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    net.train()
    net(answers["input"]).square().mean().backward()
    optimizer.step()
    moved = 0
    for name, value in net.state_dict().items():
        if name in after:
            expect_close(value.double(), after[name].double(), f"{name} after the next step")
            moved += not torch.equal(after[name], model[name])
    if moved != len(after):
        sys.exit(f"expected that the step changes all of {sorted(after)}: {moved} have changed")
    both, state = read("both"), read("both", "optimizer")
    for name in ("net", "other"):
        part = {key.removeprefix(f"{name}."): value for key, value in both.items() if key.startswith(f"{name}.")}
        strict.load_state_dict({**part, "again.weight": part["once.weight"], "again.bias": part["once.bias"]})
        if f"{name}.state.{name}.conv.weight.exp_avg" not in state or f"{name}.param_groups.0.lr" not in state:
            sys.exit(f"expected the state of the optimizer {name}, found {sorted(state)}")
    if not all(torch.equal(both[f"net.{key}"], value) for key, value in after.items()):
        sys.exit("expected the same net under its name among two")
    torch.set_rng_state(read("both", "rank-0")["generator.cpu"])
    if not torch.equal(torch.rand(5), read("drawn")["output"]):
        sys.exit("expected that Python's generator goes on with the numbers of rank 0")

    print(f"Python {sys.version.split()[0]} with torch {torch.__version__} made the same step")


def can_read(python):
    try:
        command = [python, "-c", "import numpy, torch, safetensors.torch"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def main(launch, program, folder, *python):
    tried = [*filter(None, [os.environ.get("DDP_TEST_PYTHON")]), *python, sys.executable]
    readers = list(filter(can_read, tried))
    if not readers:
        print(f"SKIPPED: none of {', '.join(tried)} has torch, numpy and safetensors")
        sys.exit(77)
    shutil.rmtree(folder, ignore_errors=True)
    command = [launch, "--cpus", "2", "--no-log-files", "--", program, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    sys.exit(subprocess.run([readers[0], __file__, "--go-on", folder], check=False).returncode)


if sys.argv[1] == "--go-on":
    go_on(pathlib.Path(sys.argv[2]))
else:
    main(*sys.argv[1:])
