// Checkpoints as Python reads them. DDP_TEST_PYTHON names the interpreter, python3 otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "ddp/core/half.hpp"
#include "ddp/core/text.hpp"
#include "support/launcher/shell.hpp"
#include "support/models/checkpoint_model.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

// Nothing but Python itself: the format as its documentation has it, and the manifest.
constexpr char const* kByTheFormat = R"(
import hashlib, json, struct
from pathlib import Path
folder = Path("checkpoints/latest")
manifest = json.loads((folder / "manifest.json").read_text())
assert manifest["format"] == "ddp checkpoint" and manifest["version"] == 1
assert (manifest["step"], manifest["epoch"], manifest["samples"], manifest["ranks"]) == (70, 3, 128, 2), manifest
assert manifest["metadata"] == {"note": "größer"}
for file in manifest["files"]:
    content = (folder / file["name"]).read_bytes()
    assert len(content) == file["bytes"] and hashlib.sha256(content).hexdigest() == file["sha256"]
names = {file["name"] for file in manifest["files"]}
assert names == {"model.safetensors", "optimizer.safetensors", "rank-0.safetensors", "rank-1.safetensors"}, names
content = (folder / "model.safetensors").read_bytes()
length, = struct.unpack("<Q", content[:8])
header = json.loads(content[8:8 + length])
assert header.pop("__metadata__") == {"step": "70"}
def values(name, code):
    begin, end = header[name]["data_offsets"]
    return [each[0] for each in struct.iter_unpack("<" + code, content[8 + length + begin:8 + length + end])]
assert header["weight"]["dtype"] == "F32" and header["weight"]["shape"] == [4, 5]
assert values("weight", "f") == [700.0 + i for i in range(20)]
assert values("bias", "d") == [49.0, 50.0, 51.0]
assert values("bytes", "B") == [7, 8, 9, 10, 11]
assert header["half"]["dtype"] == "F16" and values("half", "e") == [1.5, -2]
assert header["tiny"]["dtype"] == "I8" and values("tiny", "b") == [-128, 0, 127]
assert header["short"]["dtype"] == "I16" and values("short", "h") == [-32768, 258]
assert header["mask"]["dtype"] == "BOOL" and values("mask", "?") == [True, False, True]
assert header["nothing"]["shape"] == [0, 3] and values("nothing", "f") == []
assert max(end for begin, end in (entry["data_offsets"] for entry in header.values())) == len(content) - 8 - length
print("read")
)";

constexpr char const* kBySafetensors = R"(
import numpy
from safetensors import safe_open
from safetensors.numpy import load_file
model = load_file("checkpoints/latest/model.safetensors")
assert set(model) == {"weight", "bias", "bytes", "nothing", "half", "tiny", "short", "mask"}
assert model["weight"].dtype == numpy.float32
assert (model["weight"] == 700 + numpy.arange(20).reshape(4, 5)).all()
assert model["bias"].dtype == numpy.float64 and list(model["bias"]) == [49, 50, 51]
assert model["bytes"].dtype == numpy.uint8 and list(model["bytes"]) == [7, 8, 9, 10, 11]
assert model["half"].dtype == numpy.float16 and list(model["half"]) == [1.5, -2]
assert model["tiny"].dtype == numpy.int8 and list(model["tiny"]) == [-128, 0, 127]
assert model["short"].dtype == numpy.int16 and list(model["short"]) == [-32768, 258]
assert model["mask"].dtype == numpy.bool_ and list(model["mask"]) == [True, False, True]
assert model["nothing"].shape == (0, 3)
optimizer = load_file("checkpoints/latest/optimizer.safetensors")
assert (optimizer["weight.mean"] == 3.5 + numpy.arange(20)).all()
for rank in range(2):
    own = load_file(f"checkpoints/latest/rank-{rank}.safetensors")["random"]
    assert own.dtype == numpy.int64 and list(own) == [7000 + rank + i for i in range(4)], own
with safe_open("checkpoints/latest/model.safetensors", framework="numpy") as file:
    assert file.metadata() == {"step": "70"}
print("read")
)";

class CheckpointInPython : public ::testing::Test {
 protected:
  static std::string python() {
    char const* const chosen = std::getenv("DDP_TEST_PYTHON");
    return chosen != nullptr ? chosen : "python3";
  }
  [[nodiscard]] bool has(std::string const& module) const {
    return run_shell(folder_.path(), text(python(), " -c 'import ", module, "'")).exit_code == 0;
  }
  void write() const {
    on_ranks(2, [&](World const& world) {
      CheckpointModel model(7, world.rank().value());
      model.divide(world.rank().value(), world.size());
      std::vector<float16> half{float16(1.5F), float16(-2.0F)};
      std::vector<std::int8_t> tiny{-128, 0, 127};
      std::vector<std::int16_t> wide{-32768, 258};
      std::array<bool, 3> mask{true, false, true};
      CheckpointTensors tensors = model.tensors();
      tensors.model.insert(tensors.model.end(), {{"half", view_of(std::span(half))},
                                                 {"tiny", view_of(std::span(tiny))},
                                                 {"short", view_of(std::span(wide))},
                                                 {"mask", view_of(std::span<bool>(mask))}});
      Checkpoint checkpoint(world, folder_.path() / "checkpoints", tensors);
      checkpoint.save({70, 3, 128, {{"note", "größer"}}});
      checkpoint.wait();
    });
  }
  void read(char const* script) const {
    std::ofstream(folder_.path() / "read.py") << script;
    auto const outcome = run_shell(folder_.path(), "PYTHONUTF8=1 " + python() + " read.py");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "read\n");
  }
  TemporaryFolder folder_;
};

TEST_F(CheckpointInPython, IsReadByTheFormatAlone) {
  if (!has("json")) GTEST_SKIP() << "there is no " << python();
  write();
  read(kByTheFormat);
}

TEST_F(CheckpointInPython, IsReadBySafetensors) {
  if (!has("safetensors.numpy")) {
    GTEST_SKIP() << python()
                 << " has no modules safetensors and numpy: python3 -m venv v && v/bin/pip install "
                 << "safetensors numpy, then DDP_TEST_PYTHON=v/bin/python";
  }
  write();
  read(kBySafetensors);
}

}  // namespace
}  // namespace ddp::testing
